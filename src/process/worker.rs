//! Watches, for a TaskManager that a driver has started, whether it is still wanted.
//!
//! The TaskManager ends
//!
//! - when the store of the cluster that it was started for has no record of it: it was to be stopped and could not be,
//!   or a deposed leader started it too late;
//! - when the store is that of another cluster;
//! - when it has been without a leader for `job-manager-failover-timeout` and either nothing of it is in use, or the
//!   store has not answered for as long: its cluster is gone, and nothing else would end it.
//!
//! Time during which this process itself was suspended does not count.

use std::time::Duration;

use tanist_config::HaOptions;
use tanist_ha::Result;
use tanist_ha::records::store::RecordStore;
use tanist_leadership::ha;
use tanist_proto::id::ResourceId;
use tanist_resource_manager::worker_record_key;
use tanist_task_executor::Presence;
use tokio::sync::watch;
use tracing::{debug, info};

/// Interval between two checks for a leader.
const TICK: Duration = Duration::from_secs(1);
/// Number of ticks between two queries of the store.
const TICKS_PER_QUERY: u32 = 5;

/// What to watch for, and where.
#[derive(Debug)]
pub(super) struct Wanted {
    /// This TaskManager.
    pub worker: ResourceId,
    /// The cluster that it was started for.
    pub cluster: String,
    /// The store of that cluster.
    pub ha: HaOptions,
    /// `job-manager-failover-timeout`.
    pub failover_timeout: Duration,
}

/// The store's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerStatus {
    Recorded,
    /// No cluster wants it.
    Absent,
    /// Another cluster has replaced its own.
    OtherCluster,
    /// The store can't be asked.
    NoAnswer,
}

/// Completes when the worker is not wanted any more; returns the reason.
pub(super) async fn until_unwanted(
    wanted: Wanted,
    mut presence: watch::Receiver<Presence>,
) -> String {
    let mut reader = RecordReader::default();
    let mut disconnected = Disconnected::default();
    let mut ticks = 0;
    loop {
        if ticks % TICKS_PER_QUERY == 0 {
            match reader.status(&wanted).await {
                WorkerStatus::Recorded => disconnected.answered(),
                WorkerStatus::NoAnswer => {}
                WorkerStatus::Absent => {
                    return "the record of this worker was removed from the store".to_owned();
                }
                WorkerStatus::OtherCluster => {
                    return "another cluster has replaced the one that it was started for"
                        .to_owned();
                }
            }
        }
        ticks += 1;
        tokio::time::sleep(TICK).await;
        if let Some(cause) =
            disconnected.tick(*presence.borrow_and_update(), wanted.failover_timeout)
        {
            return cause;
        }
    }
}

/// Time without a leader and without the store, counted in ticks of this process.
#[derive(Debug, Default)]
struct Disconnected {
    without_leader: Duration,
    without_store: Duration,
}

impl Disconnected {
    fn answered(&mut self) {
        self.without_store = Duration::ZERO;
    }

    fn tick(&mut self, presence: Presence, timeout: Duration) -> Option<String> {
        self.without_store += TICK;
        self.without_leader = match presence.is_registered {
            true => Duration::ZERO,
            false => self.without_leader + TICK,
        };
        if self.without_leader < timeout {
            return None;
        }
        if presence.is_unused {
            return Some(format!(
                "none of its slots is in use, and it has had no leader for {timeout:?}"
            ));
        }
        (self.without_store >= timeout)
            .then(|| format!("neither a leader nor the store was reached for {timeout:?}"))
    }
}

/// The store, once it could be opened.
#[derive(Debug, Default)]
struct RecordReader {
    opened: Option<RecordStore>,
}

impl RecordReader {
    async fn status(&mut self, wanted: &Wanted) -> WorkerStatus {
        if wanted.ha.backend.is_removed() {
            return WorkerStatus::NoAnswer;
        }
        match self.read_status(wanted).await {
            Ok(status) => status,
            Err(error) => {
                debug!(%error, "the record of this worker can't be read: retrying");
                WorkerStatus::NoAnswer
            }
        }
    }

    async fn read_status(&mut self, wanted: &Wanted) -> Result<WorkerStatus> {
        let records = match &mut self.opened {
            Some(records) => records,
            none => none.insert(ha::open_records(&wanted.ha).await?),
        };
        let store = records.coordination_store();
        let record = store.get(&[worker_record_key(&wanted.worker)]).await?;
        // After the record: a missing record counts only if the store still belongs to the same cluster.
        let Some((epoch, _, incarnation)) = store.guard().await?.epoch else {
            return Ok(WorkerStatus::NoAnswer);
        };
        if incarnation.as_str() != wanted.cluster {
            info!(%incarnation, "the store is another cluster's");
            return Ok(WorkerStatus::OtherCluster);
        }
        if record.into_iter().flatten().next().is_some() {
            return Ok(WorkerStatus::Recorded);
        }
        info!(worker = %wanted.worker, %epoch, "the store has no record of this worker");
        Ok(WorkerStatus::Absent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(3);

    fn ticks(disconnected: &mut Disconnected, presence: Presence, count: usize) -> Vec<bool> {
        let tick = |_| disconnected.tick(presence, TIMEOUT).is_some();
        (0..count).map(tick).collect()
    }

    #[test]
    fn without_a_leader_it_ends_when_it_is_unused_or_the_store_is_away_as_well() {
        let presence = |is_registered, is_unused| Presence {
            is_registered,
            is_unused,
        };
        let mut disconnected = Disconnected::default();
        assert_eq!(
            ticks(&mut disconnected, presence(true, true), 9),
            [false; 9]
        );
        let unused = ticks(&mut disconnected, presence(false, true), 3);
        assert_eq!(unused, [false, false, true]);

        let mut disconnected = Disconnected::default();
        assert_eq!(
            ticks(&mut disconnected, presence(false, false), 2),
            [false; 2]
        );
        disconnected.answered();
        // Its tasks run, and the store says that no other process runs them.
        assert_eq!(
            ticks(&mut disconnected, presence(false, false), 2),
            [false; 2]
        );
        assert_eq!(ticks(&mut disconnected, presence(false, false), 1), [true]);
        assert_eq!(
            ticks(&mut disconnected, presence(true, false), 9),
            [false; 9]
        );
    }
}
