//! The demo's input, and the count of its words by a single thread.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::DemoError;

/// The text whose words are counted, repeated.
const TEXT: &str = include_str!("../../../examples/data/the-heir.txt");

/// The number of occurrences of each word.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct WordCounts(BTreeMap<String, u64>);

impl WordCounts {
    /// The number of words.
    pub(super) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// The number of different words.
    pub(super) fn different(&self) -> usize {
        self.0.len()
    }

    /// Cuts at anything but ASCII letters and digits, as the job does.
    fn add(&mut self, text: &str) {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        for word in words.filter(|word| !word.is_empty()) {
            match self.0.get_mut(word) {
                Some(count) => *count += 1,
                None => {
                    self.0.insert(word.to_owned(), 1);
                }
            }
        }
    }

    /// Compares with the part files that the job made visible in `output`.
    pub(super) async fn check(&self, output: PathBuf) -> Result<(), DemoError> {
        let expected = self.clone();
        off_runtime(move || expected.compare(&read_parts(&output)?)).await
    }

    fn compare(&self, found: &WordCounts) -> Result<(), DemoError> {
        if self == found {
            return Ok(());
        }
        let words = self.0.keys().chain(found.0.keys());
        let wrong = words.filter(|word| self.0.get(*word) != found.0.get(*word));
        let some: Vec<String> = wrong
            .take(3)
            .map(|word| {
                let of = |counts: &WordCounts| counts.0.get(word).copied().unwrap_or_default();
                format!("{word:?} is counted {} times, not {}", of(found), of(self))
            })
            .collect();
        Err(DemoError::WrongResult(some.join("; ")))
    }
}

/// Writes about `bytes` bytes of text in `files` files, reads them again, and counts.
pub(super) async fn write_and_count(
    directory: PathBuf,
    files: usize,
    bytes: usize,
) -> Result<WordCounts, DemoError> {
    let work = move || {
        let named = |path: &Path| DemoError::io(path.display().to_string());
        std::fs::create_dir_all(&directory).map_err(named(&directory))?;
        let text = TEXT.repeat((bytes / files / TEXT.len()).max(1));
        let mut counts = WordCounts::default();
        for index in 0..files {
            let path = directory.join(format!("text-{index}.txt"));
            std::fs::write(&path, &text).map_err(named(&path))?;
            counts.add(&std::fs::read_to_string(&path).map_err(named(&path))?);
        }
        Ok(counts)
    };
    off_runtime(work).await
}

fn read_parts(output: &Path) -> Result<WordCounts, DemoError> {
    let named = || DemoError::io(output.display().to_string());
    let wrong = |text: String| DemoError::WrongResult(text);
    let mut counts = WordCounts::default();
    for entry in std::fs::read_dir(output).map_err(named())? {
        let path = entry.map_err(named())?.path();
        if !path.is_file() {
            continue;
        }
        for line in std::fs::read_to_string(&path).map_err(named())?.lines() {
            let parsed = line
                .rsplit_once(' ')
                .and_then(|(word, n)| Some((word, n.parse().ok()?)));
            let (word, count) = parsed.ok_or_else(|| wrong(format!("{line:?} has no count")))?;
            if counts.0.insert(word.to_owned(), count).is_some() {
                return Err(wrong(format!("{word:?} is counted in two places")));
            }
        }
    }
    Ok(counts)
}

async fn off_runtime<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, DemoError> + Send + 'static,
) -> Result<T, DemoError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|failure| Err(DemoError::Unexpected(failure.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_right_result_is_told_from_a_wrong_a_missing_and_a_doubled_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let output = directory.path().join("output");
        let counts = write_and_count(directory.path().join("input"), 2, 1)
            .await
            .expect("counted");
        assert!(
            counts.total() > 1000 && counts.0["tanist"] >= 2,
            "{counts:?}"
        );

        let error = counts
            .check(output.clone())
            .await
            .expect_err("nothing is there");
        assert!(matches!(error, DemoError::Io { .. }), "{error}");
        std::fs::create_dir(&output).expect("created");
        let lines: Vec<String> = counts
            .0
            .iter()
            .map(|(word, n)| format!("{word} {n}"))
            .collect();
        let (some, others) = lines.split_at(100);
        std::fs::write(output.join("part-0"), some.join("\n")).expect("written");
        counts
            .check(output.clone())
            .await
            .expect_err("a part is missing");
        std::fs::write(output.join("part-1"), others.join("\n")).expect("written");
        counts.check(output.clone()).await.expect("right");
        std::fs::write(output.join("part-2"), &lines[7]).expect("written");
        counts
            .check(output.clone())
            .await
            .expect_err("a word is doubled");
        std::fs::write(output.join("part-1"), others[1..].join("\n")).expect("written");
        std::fs::write(output.join("part-2"), "surplus 1").expect("written");
        let error = counts
            .check(output)
            .await
            .expect_err("one is missing, one is too many");
        assert!(
            error
                .to_string()
                .contains("\"surplus\" is counted 1 times, not 0"),
            "{error}"
        );
    }
}
