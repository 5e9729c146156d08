//! Checks, from outside the cluster, the output of a job that counts records by key and prints each new count.
//!
//! Each line is a key and the number of its records until now, so each key's numbers go up by one: a gap is a
//! lost record, a repetition is a record that was counted twice or a task that started again. Reading the lines
//! is the caller's part.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// The job, as a YAML file: 4000 records a second over 8 keys. Its lines begin with [`PREFIX`].
pub const JOB_FILE: &str = include_str!("stream.yaml");
/// The prefix of each line of the job.
pub const PREFIX: &str = "tick ";

#[derive(Debug)]
struct Key {
    count: u64,
    seen_at: Instant,
}

/// All lines until now.
#[derive(Debug, Default)]
pub struct Ticks {
    keys: HashMap<String, Key>,
    longest_gap: Duration,
    wrong: Option<String>,
}

impl Ticks {
    /// Takes a line that came at `now`. Returns whether it was a record of the job.
    pub fn take(&mut self, line: &str, now: Instant) -> bool {
        let Some(record) = line.strip_prefix(PREFIX) else {
            return false;
        };
        let parsed = record
            .split_once(' ')
            .and_then(|(key, count)| Some((key, count.parse::<u64>().ok()?)));
        let Some((name, count)) = parsed else {
            self.note_wrong(format!("{line:?} is no record of the streaming job"));
            return false;
        };
        let before = self.keys.get(name).map_or(0, |key| key.count);
        if count != before + 1 {
            self.note_wrong(format!("key {name} went from {before} to {count}"));
        }
        if let Some(key) = self.keys.get(name) {
            self.longest_gap = self.longest_gap.max(now - key.seen_at);
        }
        let key = Key {
            count,
            seen_at: now,
        };
        self.keys.insert(name.to_owned(), key);
        true
    }

    /// The number of records that were counted.
    pub fn records(&self) -> u64 {
        self.keys.values().map(|key| key.count).sum()
    }

    /// The longest time between two records of one key since the last call.
    pub fn take_longest_gap(&mut self) -> Duration {
        std::mem::take(&mut self.longest_gap)
    }

    /// The first record that was missing or came twice.
    pub fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    /// Keeps the first problem: later ones may be its consequences.
    fn note_wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(lines: &[&str]) -> Option<String> {
        let mut seen = Ticks::default();
        for line in lines {
            seen.take(line, Instant::now());
        }
        seen.wrong
    }

    #[test]
    fn counts_that_go_up_by_one_are_right_and_other_lines_are_not_looked_at() {
        assert_eq!(seen(&["tick 1 1", "hello", "tick 2 1", "tick 1 2"]), None);
    }

    #[test]
    fn holes_repetitions_and_new_beginnings_are_noticed() {
        for last in ["tick 1 4", "tick 1 2", "tick 1 1", "tick 1 x", "tick 1"] {
            let wrong = seen(&["tick 1 1", "tick 1 2", last]);
            assert!(wrong.is_some(), "{last:?} passes");
        }
    }

    #[test]
    fn the_longest_gap_is_between_two_records_of_one_key() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut seen = Ticks::default();
        for (line, ms) in [
            ("tick 1 1", 0),
            ("tick 2 1", 5),
            ("tick 1 2", 9),
            ("tick 2 2", 11),
        ] {
            seen.take(line, at(ms));
        }
        assert_eq!(seen.take_longest_gap(), Duration::from_millis(9));
        assert_eq!(seen.take_longest_gap(), Duration::ZERO);
    }
}
