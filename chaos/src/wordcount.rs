//! A workload whose result is easy to check: text, its words counted by one thread, and the output of a job.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::nemesis::Random;

/// The number of occurrences of each word.
pub type Counts = BTreeMap<String, u64>;

const SUBJECTS: [&str; 12] = [
    "the leader",
    "a standby",
    "an old worker",
    "the store",
    "one of the heirs",
    "the clerk",
    "nobody",
    "the 3rd witness",
    "a patient queue",
    "the ledger",
    "every voter",
    "the gatekeeper",
];
const VERBS: [&str; 10] = [
    "remembers",
    "hands over",
    "counts",
    "waits for",
    "refuses",
    "writes down",
    "outlives",
    "believes",
    "repeats",
    "lets go of",
];
const OBJECTS: [&str; 12] = [
    "the oldest epoch",
    "a word that was kept",
    "its own death",
    "what was promised",
    "the seal of 1641",
    "nothing twice",
    "a late letter",
    "the quiet network",
    "every name",
    "the empty chair",
    "a broken lease",
    "the whole estate",
];

/// Text of about `bytes` bytes in sentences; the same for the same seed.
pub fn text(seed: u64, bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 128);
    let mut random = Random::new(seed);
    let mut draw = |among: &[&'static str]| {
        let index = random.below(among.len() as u64);
        among[usize::try_from(index).expect("less than the length")]
    };
    while text.len() < bytes {
        for part in [draw(&SUBJECTS), " ", draw(&VERBS), " ", draw(&OBJECTS)] {
            text.push_str(part);
        }
        text.push_str(draw(&[".\n", "; ", ", and then ", " -- ", ".\n"]));
    }
    text.push('\n');
    text
}

/// Writes `files` files of about `bytes` bytes each into `directory`, and counts their words.
pub fn write_input(directory: &Path, files: usize, bytes: usize) -> anyhow::Result<Counts> {
    std::fs::create_dir_all(directory)?;
    let mut counts = Counts::new();
    for index in 0..files {
        let text = text(index as u64 + 1, bytes);
        count_into(&mut counts, &text);
        std::fs::write(directory.join(format!("text-{index:03}.txt")), text)?;
    }
    Ok(counts)
}

/// Counts the words of a text, split at all characters except ASCII letters and digits.
pub fn count_into(counts: &mut Counts, text: &str) {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    for word in words.filter(|word| !word.is_empty()) {
        match counts.get_mut(word) {
            Some(count) => *count += 1,
            None => {
                counts.insert(word.to_owned(), 1);
            }
        }
    }
}

/// Reads the visible output in a directory: lines of a key and a count, no key twice.
pub fn read_output(directory: &Path) -> anyhow::Result<Counts> {
    let mut counts = Counts::new();
    for part in visible_files(directory)? {
        let text = std::fs::read_to_string(&part)?;
        for line in text.lines() {
            let (word, count) = line
                .rsplit_once(' ')
                .with_context(|| format!("{}: {line:?} has no count", part.display()))?;
            let before = counts.insert(word.to_owned(), count.parse()?);
            ensure!(
                before.is_none(),
                "{word:?} is counted twice in {}",
                directory.display()
            );
        }
    }
    Ok(counts)
}

/// The visible files in an output directory; none if it does not exist.
pub fn visible_files(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| directory.display().to_string()),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        if !entry.file_name().to_string_lossy().starts_with('.') {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Returns an error if there are hidden files in an output directory: after the cleanup of a job there must be none.
pub fn check_nothing_pending(directory: &Path) -> anyhow::Result<()> {
    let hidden = directory.join(".tanist");
    ensure!(
        !hidden.exists(),
        "pending files are left in {}",
        hidden.display()
    );
    Ok(())
}

/// Returns an error that names the differences between two counts.
pub fn check_counts(expected: &Counts, found: &Counts) -> anyhow::Result<()> {
    let words: std::collections::BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    let different: Vec<String> = words
        .into_iter()
        .filter(|word| expected.get(*word) != found.get(*word))
        .map(|word| {
            format!(
                "{word}: {:?}, not {:?}",
                found.get(word),
                expected.get(word)
            )
        })
        .collect();
    ensure!(
        different.is_empty(),
        "{} of {} counts are wrong: {}",
        different.len(),
        expected.len(),
        different[..different.len().min(5)].join("; ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_at_anything_but_letters_and_digits() {
        let mut counts = Counts::new();
        count_into(&mut counts, "It's 1641; it is\n-- the Year 1641.");
        let expected = [
            ("1641", 2),
            ("It", 1),
            ("Year", 1),
            ("is", 1),
            ("it", 1),
            ("s", 1),
            ("the", 1),
        ];
        assert_eq!(
            counts,
            expected
                .map(|(word, count)| (word.to_owned(), count))
                .into()
        );
    }

    #[test]
    fn output_is_read_without_what_is_hidden_and_no_key_may_come_twice() -> anyhow::Result<()> {
        let directory = tempfile::tempdir()?;
        std::fs::write(directory.path().join("part-0"), "a 1\nb 2\n")?;
        std::fs::create_dir(directory.path().join(".tanist"))?;
        let found = read_output(directory.path())?;
        assert_eq!(
            found,
            Counts::from([("a".to_owned(), 1), ("b".to_owned(), 2)])
        );
        assert!(check_nothing_pending(directory.path()).is_err());
        std::fs::write(directory.path().join("part-1"), "a 5\n")?;
        assert!(read_output(directory.path()).is_err());
        Ok(())
    }

    #[test]
    fn a_wrong_a_missing_and_a_surplus_count_are_named() {
        let counts = |pairs: &[(&str, u64)]| {
            pairs
                .iter()
                .map(|(word, count)| ((*word).to_owned(), *count))
                .collect::<Counts>()
        };
        let expected = counts(&[("a", 1), ("b", 2)]);
        check_counts(&expected, &expected).expect("the same");
        let error =
            check_counts(&expected, &counts(&[("a", 2), ("c", 1)])).expect_err("not the same");
        let text = error.to_string();
        assert!(
            ["3 of 2", "a:", "b:", "c:"]
                .iter()
                .all(|part| text.contains(part)),
            "{text}"
        );
    }

    #[test]
    fn the_same_seed_makes_the_same_text() {
        assert_eq!(text(7, 1000), text(7, 1000));
        assert_ne!(text(7, 1000), text(8, 1000));
    }
}
