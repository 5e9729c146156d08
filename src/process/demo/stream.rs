//! What comes out of the streaming job, seen from outside the cluster: the lines that its TaskManagers print.
//!
//! Each line is a key and how many records of it were counted so far, so each key's numbers go up by one at a time: a hole
//! is a lost record, a repetition one that was counted twice or a task that started anew.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::ChildStdout;
use tokio::sync::watch;
use tokio::time::Instant;

use super::DemoError;

/// What each line of the job begins with.
const PREFIX: &str = "tick ";

#[derive(Debug)]
struct Key {
    count: u64,
    seen_at: Instant,
}

#[derive(Debug, Default)]
struct Seen {
    keys: HashMap<String, Key>,
    longest_gap: Duration,
    wrong: Option<String>,
}

impl Seen {
    fn take(&mut self, line: &str, now: Instant) -> bool {
        let Some(record) = line.strip_prefix(PREFIX) else {
            return false;
        };
        let parsed = record
            .split_once(' ')
            .and_then(|(key, count)| Some((key, count.parse::<u64>().ok()?)));
        let Some((name, count)) = parsed else {
            self.complain(format!("{line:?} is no record of the streaming job"));
            return false;
        };
        let before = self.keys.get(name).map_or(0, |key| key.count);
        if count != before + 1 {
            self.complain(format!("key {name} went from {before} to {count}"));
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

    fn complain(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }
}

/// What was seen until the end.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) records: u64,
    /// Between two records of one key.
    pub(super) longest_gap: Duration,
}

/// Reads along.
#[derive(Debug)]
pub(super) struct StreamWatch {
    seen: Arc<Mutex<Seen>>,
    records: watch::Receiver<u64>,
}

impl StreamWatch {
    /// Reads what the TaskManagers print, until they end.
    pub(super) fn of(outputs: Vec<ChildStdout>) -> StreamWatch {
        let seen = Arc::<Mutex<Seen>>::default();
        let (count, records) = watch::channel(0);
        let count = Arc::new(count);
        for output in outputs {
            let (seen, count) = (seen.clone(), count.clone());
            tokio::spawn(async move {
                let mut lines = BufReader::new(output).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let mut seen = seen.lock().expect("nothing panics holding it");
                    if seen.take(&line, Instant::now()) {
                        count.send_modify(|count| *count += 1);
                    }
                }
            });
        }
        StreamWatch { seen, records }
    }

    /// How many records came so far.
    pub(super) fn records(&self) -> u64 {
        *self.records.borrow()
    }

    /// Waits for more than `number` records.
    pub(super) async fn records_above(&self, number: u64) -> Result<u64, DemoError> {
        let mut records = self.records.clone();
        let more = records.wait_for(|count| *count > number).await;
        let ended = |_| DemoError::Unexpected("the TaskManagers print nothing any more".to_owned());
        more.map(|count| *count).map_err(ended)
    }

    /// What came so far; an error if a record is missing or came twice.
    pub(super) fn summary(&self) -> Result<Summary, DemoError> {
        let seen = self.seen.lock().expect("nothing panics holding it");
        match &seen.wrong {
            Some(wrong) => Err(DemoError::WrongResult(wrong.clone())),
            None => Ok(Summary {
                records: seen.keys.values().map(|key| key.count).sum(),
                longest_gap: seen.longest_gap,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(lines: &[&str]) -> Option<String> {
        let mut seen = Seen::default();
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
        let mut seen = Seen::default();
        for (line, ms) in [
            ("tick 1 1", 0),
            ("tick 2 1", 5),
            ("tick 1 2", 9),
            ("tick 2 2", 11),
        ] {
            seen.take(line, at(ms));
        }
        assert_eq!(seen.longest_gap, Duration::from_millis(9));
    }
}
