//! Reads the streaming job's records from the output of the TaskManagers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::ChildStdout;
use tokio::sync::watch;
use tokio::time::Instant;

use super::ticks::Ticks;

/// Result at the end of the stream.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) records: u64,
    /// Between two records of one key.
    pub(super) longest_gap: Duration,
}

/// Follows the output.
#[derive(Debug)]
pub(super) struct StreamWatch {
    seen: Arc<Mutex<Ticks>>,
    records: watch::Receiver<u64>,
}

impl StreamWatch {
    /// Reads the output of the TaskManagers until they end.
    pub(super) fn of(outputs: Vec<ChildStdout>) -> StreamWatch {
        let seen = Arc::<Mutex<Ticks>>::default();
        let (count, records) = watch::channel(0);
        let count = Arc::new(count);
        for output in outputs {
            let (seen, count) = (seen.clone(), count.clone());
            tokio::spawn(async move {
                let mut lines = BufReader::new(output).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    let mut seen = seen.lock();
                    if seen.take(&line, Instant::now()) {
                        count.send_modify(|count| *count += 1);
                    }
                }
            });
        }
        StreamWatch { seen, records }
    }

    /// Number of records until now.
    pub(super) fn records(&self) -> u64 {
        *self.records.borrow()
    }

    /// Waits for more than `number` records.
    pub(super) async fn records_above(&self, number: u64) -> anyhow::Result<u64> {
        let mut records = self.records.clone();
        let more = records.wait_for(|count| *count > number).await;
        let count = more.context("the TaskManagers print nothing any more")?;
        Ok(*count)
    }

    /// The result until now; an error if a record is missing or came twice.
    pub(super) fn summary(&self) -> anyhow::Result<Summary> {
        let mut seen = self.seen.lock();
        if let Some(wrong) = seen.wrong() {
            bail!("THE RESULT IS WRONG: {wrong}");
        }
        Ok(Summary {
            records: seen.records(),
            longest_gap: seen.take_longest_gap(),
        })
    }
}
