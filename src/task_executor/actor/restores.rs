//! Reads the snapshots from which tasks are restored, before they start. Decides nothing; each result comes back to
//! the loop in [`super`].
//!
//! The actor owns the reads ([`Restoring`], by task); they run in its tasks and end with it.
//!
//! - An object that can't be read at present is waited for: without limit if it is one of a checkpoint of the job, up
//!   to [`SAVEPOINT_TIMEOUT`] if it is one of a savepoint. A damaged one fails the task at once.
//! - A task that is being restored is not started yet. It can be cancelled; other messages for it are kept until it
//!   has started.

use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use tanist_gateway::savepoints::{SavepointError, SavepointStorage};
use tanist_ha::blob::{ObjectDirectory, ObjectRange};
use tanist_ha::error::{Error, Result};
use tanist_ha::failpoint::failpoint;
use tanist_ha::retry::Backoff;
use tanist_proto::id::JobId;
use tanist_proto::pieces::{Piece, pieces, pieces_mut};
use tanist_proto::v1 as pb;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::snapshot_storage::SnapshotStorage;
use super::{Actor, Called, Message};
use crate::core::{Event, SnapshotPlace, TaskKey};
use crate::launcher::{TaskStart, TaskStatus};

/// Ranges of one snapshot that are read at the same time.
const MAX_CONCURRENT_READS: usize = 8;
/// Pause before an object that could not be read is read again: from the shortest, doubled up to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Time for which a savepoint that can't be read is waited for. Its user may have removed it, which can't be
/// distinguished from a file system that is not mounted. Objects of checkpoints are the cluster's own, and are waited
/// for without limit.
const SAVEPOINT_TIMEOUT: Duration = Duration::from_secs(600);

/// A task that is not started until its state is read.
#[derive(Debug)]
pub(super) struct Restoring {
    reading: AbortHandle,
    is_stopped: bool,
    aborted: Vec<u64>,
}

/// A task that can start, with its state filled in, or the status with which it ends instead.
pub(super) type Restored = std::result::Result<TaskStart, TaskStatus>;

impl Actor {
    /// Starts a task. If it is restored from objects, they are read first.
    pub(super) fn start_or_restore(&mut self, task: TaskKey, start: TaskStart) {
        let restore = start.deployment.restore.as_ref();
        let snapshot = restore.and_then(|restore| restore.snapshot.as_ref());
        if snapshot.is_none_or(|snapshot| ranges(snapshot).is_empty()) {
            return self.start(task, start);
        }
        let storage = self.storage.clone();
        let delays = Delays {
            task,
            host: self.host(),
            mailbox: self.channels.mailbox.clone(),
        };
        let reading = self.calls.spawn(async move {
            let restored = read(&storage, &delays, start).await;
            failpoint("restore.fetched").await;
            Called::Restored(task, Box::new(restored))
        });
        let restoring = Restoring {
            reading,
            is_stopped: false,
            aborted: Vec::new(),
        };
        self.restoring.insert(task, restoring);
    }

    /// Starts a task whose state is read, unless it was cancelled. It receives the messages that came meanwhile.
    pub(super) fn restored(&mut self, task: TaskKey, restored: Restored) {
        // The result may have been waiting for the loop when the task was cancelled: its end is reported already.
        let Some(restoring) = self.restoring.remove(&task) else {
            return;
        };
        match restored {
            Err(ended) => self.end_unstarted(task, ended),
            Ok(start) => {
                self.start(task, start);
                if let Some(running) = self.running.get(&task) {
                    restoring
                        .aborted
                        .iter()
                        .for_each(|&it| running.abort_checkpoint(it));
                    if restoring.is_stopped {
                        running.stop();
                    }
                }
            }
        }
    }

    /// Cancels a task, which may be in the middle of being restored.
    pub(super) fn cancel(&mut self, task: TaskKey) {
        if let Some(running) = self.running.get(&task) {
            running.cancel();
        } else if let Some(restoring) = self.restoring.remove(&task) {
            restoring.reading.abort();
            self.end_unstarted(task, TaskStatus::Canceled);
        }
    }

    /// Ends the source of a task.
    pub(super) fn stop_source(&mut self, task: &TaskKey) {
        if let Some(running) = self.running.get(task) {
            running.stop();
        } else if let Some(restoring) = self.restoring.get_mut(task) {
            restoring.is_stopped = true;
        }
    }

    /// Tells a task that a checkpoint is aborted.
    pub(super) fn abort_checkpoint(&mut self, task: &TaskKey, number: u64) {
        if let Some(running) = self.running.get(task) {
            running.abort_checkpoint(number);
            running.release_snapshot(number, None);
        } else if let Some(restoring) = self.restoring.get_mut(task) {
            restoring.aborted.push(number);
        }
    }

    fn end_unstarted(&mut self, task: TaskKey, status: TaskStatus) {
        let metrics = None;
        let ended = Event::TaskChanged {
            task,
            status,
            metrics,
        };
        self.calls.spawn(async move { Called::Event(ended) });
    }
}

fn ranges(snapshot: &pb::SubtaskSnapshot) -> Vec<ObjectRange> {
    let places = pieces(snapshot).filter_map(Piece::place);
    let range = |place: pb::ObjectPlace| ObjectRange {
        object: place.object,
        offset: place.offset,
        length: place.length,
        checksum: place.checksum,
    };
    places.map(range).collect()
}

/// Reports to the loop that a task can't be restored at present.
#[derive(Debug)]
struct Delays {
    task: TaskKey,
    /// This TaskManager, for messages.
    host: String,
    mailbox: mpsc::Sender<Message>,
}

impl Delays {
    async fn tell(&self, (what, object): (&str, &str), directory: &str, error: &Error) {
        let (job, host) = (self.task.job, &self.host);
        tracing::warn!(%job, what, object, directory, %error, "state can't be read at present; trying again");
        let error = error.to_string();
        let place = match error.contains(directory) {
            true => String::new(),
            false => format!(" in {directory}"),
        };
        let reason = format!("{what} can't be read by {host}: its object {object}{place}: {error}");
        let told = self.mailbox.send(Message::Unread(self.task, reason)).await;
        // Without the actor, this task ends too.
        let _actor_is_gone = told;
    }
}

/// Fills in the contents of all pieces of the snapshot from which a task is restored. Objects that can't be read at
/// present are read again, those of a savepoint up to [`SAVEPOINT_TIMEOUT`]. The caller aborts this when the task is
/// cancelled.
async fn read(storage: &SnapshotStorage, delays: &Delays, mut start: TaskStart) -> Restored {
    let mut backoff = Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE);
    let began = Instant::now();
    let place = SnapshotPlace {
        cluster: start.cluster_incarnation.clone(),
        storage: start.deployment.storage.clone(),
    };
    while let Some(restore) = &mut start.deployment.restore {
        let of = Objects {
            place: &place,
            job: delays.task.job,
            directory: &restore.directory,
        };
        let what = match restore.directory.as_str() {
            "" => format!("checkpoint {}", restore.number),
            path => format!("savepoint {path}"),
        };
        let snapshot = restore.snapshot.get_or_insert_default();
        let Err((object, error)) = fill_in(storage, of, snapshot).await else {
            break;
        };
        let is_of_savepoint = !restore.directory.is_empty();
        // In this order: errors that no later read cures end the task, the others only after the timeout.
        match error {
            error @ Error::Corrupt { .. } => {
                let help = match is_of_savepoint {
                    false => {
                        " (`tanist job quarantine retry` tries again, or goes back to an older one)"
                    }
                    true => {
                        " (`tanist savepoint inspect --verify` says where): begin from another one"
                    }
                };
                return Err(TaskStatus::damaged_state(format!(
                    "{what} is damaged{help}: {error}"
                )));
            }
            error @ Error::Misconfigured(_) if is_of_savepoint => {
                let cause = format!("{what} can't be read here: {error}");
                return Err(TaskStatus::failed(cause));
            }
            error if is_of_savepoint && began.elapsed() >= SAVEPOINT_TIMEOUT => {
                return Err(TaskStatus::failed(format!(
                    "{what} could not be read for {SAVEPOINT_TIMEOUT:?}: was it removed? {error}"
                )));
            }
            error => {
                let directory = match is_of_savepoint {
                    true => restore.directory.as_str(),
                    false => storage.directory(),
                };
                delays.tell((&what, &object), directory, &error).await;
            }
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
    Ok(start)
}

/// The place of the objects of a snapshot: those of a savepoint, or those of the job's checkpoints.
#[derive(Debug, Clone, Copy)]
struct Objects<'a> {
    place: &'a SnapshotPlace,
    job: JobId,
    /// The directory of the savepoint; empty: the objects are those of the job's checkpoints.
    directory: &'a str,
}

impl Objects<'_> {
    async fn open(self, storage: &SnapshotStorage) -> Result<ObjectDirectory> {
        if self.directory.is_empty() {
            return storage.of(self.place, self.job).await;
        }
        match SavepointStorage::open(self.directory).await {
            Ok(savepoint) => Ok(savepoint.objects().clone()),
            Err(SavepointError::Storage(error)) => Err(error),
            Err(error) => Err(Error::Misconfigured(error.to_string().into())),
        }
    }
}

/// Reads the contents of pieces that name objects. The error names the object.
async fn fill_in(
    storage: &SnapshotStorage,
    of: Objects<'_>,
    snapshot: &mut pb::SubtaskSnapshot,
) -> std::result::Result<(), (String, Error)> {
    let ranges = ranges(snapshot);
    let Some(first) = ranges.first().map(|it| it.object.clone()) else {
        return Ok(());
    };
    let objects = of.open(storage).await;
    let objects = objects.map_err(|error| (first, error))?;
    let reads = ranges.into_iter().map(|range| read_range(&objects, range));
    let reads: Vec<_> = reads.collect();
    let mut reads = stream::iter(reads).buffered(MAX_CONCURRENT_READS);
    let mut contents = Vec::new();
    while let Some((object, content)) = reads.next().await {
        contents.push(content.map_err(|error| (object, error))?);
    }
    let in_objects = pieces_mut(snapshot).filter(|piece| piece.as_ref().object().is_some());
    for (mut piece, content) in in_objects.zip(contents) {
        piece.set_content(content.into());
    }
    Ok(())
}

async fn read_range(storage: &ObjectDirectory, range: ObjectRange) -> (String, Result<Bytes>) {
    let content = storage.get_range(&range).await;
    (range.object, content)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::Arc;

    use tanist_ha::election::{ClusterIncarnation, Epoch};
    use tanist_proto::id::{Generation, JobVertexId};

    use super::*;
    use crate::core::ExecutionKey;

    /// A task that is restored from an object of this savepoint, which is not there.
    fn start(savepoint: &Path) -> TaskStart {
        let segment = pb::StateSegment {
            object: "0".repeat(64),
            length: 7,
            ..pb::StateSegment::default()
        };
        TaskStart {
            job: JobId::from_bits(1),
            job_incarnation: 1,
            cluster_incarnation: ClusterIncarnation::new("c1"),
            epoch: Epoch::new(1),
            graph: Arc::default(),
            deployment: pb::TaskDeployment {
                restore: Some(pb::TaskRestore {
                    number: 7,
                    snapshot: Some(pb::SubtaskSnapshot {
                        segments: vec![segment],
                        ..pb::SubtaskSnapshot::default()
                    }),
                    directory: savepoint.to_string_lossy().into_owned(),
                }),
                ..pb::TaskDeployment::default()
            },
            external_resources: BTreeMap::new(),
            managed_memory: 0,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_savepoint_that_may_be_removed_is_waited_for_within_a_limit() {
        let directory = tempfile::tempdir().expect("a directory");
        let savepoint = directory.path().join("savepoints/one");
        std::fs::create_dir(directory.path().join("savepoints")).expect("made");
        let storage = SnapshotStorage::new(None);
        let (mailbox, mut told) = mpsc::channel(1_000);
        let task = TaskKey {
            job: JobId::from_bits(1),
            execution: ExecutionKey {
                vertex: JobVertexId::from_bits(1),
                subtask: 0,
                generation: Generation::new(1),
            },
        };
        let delays = Delays {
            task,
            host: "tm-1 at host:1".to_owned(),
            mailbox,
        };
        let began = Instant::now();
        let reading = read(&storage, &delays, start(&savepoint));
        let read = tokio::time::timeout(3 * SAVEPOINT_TIMEOUT, reading).await;
        let status = read.expect("it ends").expect_err("it is not there");
        assert!(began.elapsed() >= SAVEPOINT_TIMEOUT, "it may be mounted");
        let status = format!("{status:?}");
        let place = savepoint.display().to_string();
        let Ok(Message::Unread(of, reason)) = told.try_recv() else {
            panic!("nothing was told meanwhile");
        };
        assert_eq!(of, task);
        let object = "0".repeat(64);
        for part in [
            &*place,
            &object,
            "can't be read by tm-1 at host:1",
            "is it mounted?",
        ] {
            assert!(reason.contains(part), "{reason}");
        }
        for part in [&*place, "was it removed?", "is it mounted?"] {
            assert!(status.contains(part), "{status}");
        }
    }
}
