//! Text for word counts: many different words, few of them frequent, as in real texts.

use std::io::{BufWriter, Write as _};
use std::path::Path;

use tanist_chaos::wordcount::Counts;

/// Number of different words.
const VOCABULARY: u32 = 50_000;
const WORDS_A_LINE: usize = 12;

/// Writes `files` files of about `bytes` bytes each into `directory`, always the same; returns the count of each word.
pub fn write(directory: &Path, files: usize, bytes: u64) -> anyhow::Result<Counts> {
    std::fs::create_dir_all(directory)?;
    let words: Vec<String> = (0..VOCABULARY).map(spelled).collect();
    let mut counts = vec![0_u64; words.len()];
    for file in 0..files {
        let mut random = Random(file as u64 + 1);
        let path = directory.join(format!("text-{file}.txt"));
        let mut out = BufWriter::new(std::fs::File::create(path)?);
        let mut written = 0;
        while written < bytes {
            for index in 0..WORDS_A_LINE {
                let word = random.word();
                counts[word] += 1;
                let separator = if index == 0 { "" } else { " " };
                out.write_all(separator.as_bytes())?;
                out.write_all(words[word].as_bytes())?;
                written += words[word].len() as u64 + 1;
            }
            out.write_all(b"\n")?;
        }
        out.flush()?;
    }
    let counted = words.into_iter().zip(counts);
    Ok(counted.filter(|(_, count)| *count > 0).collect())
}

/// Short words for low numbers, because frequent words are short.
fn spelled(number: u32) -> String {
    let mut word = String::new();
    let mut left = number + 26;
    while left > 0 {
        word.push(char::from(b'a' + (left % 26) as u8));
        left /= 26;
    }
    word
}

/// Knuth's MMIX generator.
struct Random(u64);

impl Random {
    /// The n-th word occurs about 1/n as often as the first one (Zipf's law): its logarithm is distributed uniformly.
    fn word(&mut self) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let even = (self.0 >> 11) as f64 / (1_u64 << 53) as f64;
        let rank = f64::from(VOCABULARY).powf(even) as usize;
        (rank - 1).min(VOCABULARY as usize - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tanist_chaos::wordcount::{check_counts, count_into};

    #[test]
    fn the_counts_are_those_of_the_text_and_few_words_are_frequent() -> anyhow::Result<()> {
        let directory = tempfile::tempdir()?;
        let counts = write(directory.path(), 2, 20_000)?;
        let mut counted = Counts::new();
        for entry in std::fs::read_dir(directory.path())? {
            count_into(&mut counted, &std::fs::read_to_string(entry?.path())?);
        }
        check_counts(&counts, &counted)?;
        let most = counts.values().max().expect("there are words");
        let sum: u64 = counts.values().sum();
        assert!(*most > sum / 100, "{most} of {sum}");
        assert!(counts.len() > 1000, "{}", counts.len());
        Ok(())
    }

    #[test]
    fn all_words_differ() {
        let words: std::collections::BTreeSet<String> = (0..VOCABULARY).map(spelled).collect();
        assert_eq!(words.len(), VOCABULARY as usize);
    }
}
