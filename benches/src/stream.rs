//! Observes a streaming job from outside its cluster: follows the output of a TaskManager, so that a gap
//! in the records is measured on the data path and without requests.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;
use tanist_chaos::demo::ticks::Ticks;
use tokio::io::AsyncReadExt as _;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::watch::until;

/// Interval of reads: gaps are measured with this precision.
const INTERVAL: Duration = Duration::from_millis(1);

/// Reads until it is dropped.
#[derive(Debug)]
pub struct TickFollower {
    ticks: Arc<Mutex<Ticks>>,
    _stop: DropGuard,
}

impl TickFollower {
    /// Follows the file with a TaskManager's output.
    pub fn start(path: PathBuf) -> TickFollower {
        let ticks = Arc::<Mutex<Ticks>>::default();
        let stop = CancellationToken::new();
        let reading = follow(path, ticks.clone());
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            if let Err(error) = reading.await {
                eprintln!("the records are not read any more: {error}");
            }
        }));
        TickFollower {
            ticks,
            _stop: stop.drop_guard(),
        }
    }

    /// Number of records so far.
    pub fn records(&self) -> u64 {
        self.ticks.lock().records()
    }

    /// Waits for this number of further records.
    pub async fn more(&self, count: u64) -> anyhow::Result<()> {
        let wanted = self.records() + count;
        until("more records", async || {
            let records = self.records();
            ensure!(records >= wanted, "{records} of {wanted}");
            Ok(())
        })
        .await
    }

    /// The longest time between two records of one key since the last call.
    pub fn take_longest_gap(&self) -> Duration {
        self.ticks.lock().take_longest_gap()
    }

    /// Returns an error if a record is missing or duplicated.
    pub fn check(&self) -> anyhow::Result<()> {
        match self.ticks.lock().wrong() {
            Some(wrong) => anyhow::bail!("records are missing or doubled: {wrong}"),
            None => Ok(()),
        }
    }
}

async fn follow(path: PathBuf, ticks: Arc<Mutex<Ticks>>) -> anyhow::Result<()> {
    let file = tokio::fs::File::open(&path).await;
    let mut file = file.with_context(|| path.display().to_string())?;
    let mut unread = Vec::new();
    loop {
        if file.read_buf(&mut unread).await? == 0 {
            tokio::time::sleep(INTERVAL).await;
            continue;
        }
        let Some(end) = unread.iter().rposition(|byte| *byte == b'\n') else {
            continue;
        };
        let now = Instant::now();
        let mut ticks = ticks.lock();
        for line in String::from_utf8_lossy(&unread[..end]).lines() {
            ticks.take(line, now);
        }
        unread.drain(..=end);
    }
}
