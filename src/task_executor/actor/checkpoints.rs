//! Objects of checkpoints: writes the snapshots that tasks have saved, and reads the snapshots from which tasks are
//! restored, before they start. Decides nothing; results come back to the loop in [`super`].
//!
//! The actor owns the writes and reads ([`CheckpointWork`]); they run in its tasks and end with it.
//!
//! - A snapshot that can't be written is declined with the reason, and the checkpoint fails. Nothing is tried again
//!   here.
//! - An object that can't be read at present is waited for: without limit if it is one of a checkpoint of the job, up
//!   to [`SAVEPOINT_TIMEOUT`] if it is one of a savepoint. A damaged one fails the task at once.
//! - At most one write runs for a task: a newer one ends it. Small snapshots are written for many tasks together, in
//!   the order in which they come: while [`MAX_TOGETHER`] such objects are being written, the others wait, and become
//!   the next object.
//! - A task that is being restored is not started yet. It can be cancelled; other messages for it are kept until it
//!   has started.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use tanist_gateway::savepoints::{SavepointError, SavepointStorage};
use tanist_ha::blob::{BlobStore, ObjectDirectory, ObjectRange, object_name};
use tanist_ha::error::{Error, Result};
use tanist_ha::failpoint::failpoint;
use tanist_ha::keys::Name;
use tanist_ha::retry::Backoff;
use tanist_proto::id::JobId;
use tanist_proto::pieces::{Piece, pieces, pieces_mut};
use tanist_proto::v1 as pb;
use tokio::sync::{OnceCell, mpsc};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::faults::{Fault, is_planted};
use super::{Actor, Called, Message};
use crate::CheckpointPlace;
use crate::core::{Event, NO_PLACE, Pieces, SnapshotPlace, TaskKey, WrittenSnapshot};
use crate::launcher::{TaskStart, TaskStatus};

/// Most bytes of a snapshot that is written together with others. Later checkpoints refer to the pieces of a larger one
/// for a long time, and an object stays while any piece of it is referred to: those of other tasks would stay as well.
const SMALL: u64 = 64 * 1024;
/// Most bytes of an object for many tasks.
const MOST_TOGETHER: u64 = 4 * 1024 * 1024;
/// Objects for many tasks of a job that are written at the same time.
const MAX_TOGETHER: usize = 2;
/// Timeout for writing an object for many tasks. No newer number ends such a write, so it needs a limit.
const TOGETHER_TIMEOUT: Duration = Duration::from_secs(30);
/// Ranges of one snapshot that are read at the same time.
const MAX_CONCURRENT_READS: usize = 8;
/// Pause before an object that could not be read is read again: from the shortest, doubled up to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Time for which a savepoint that can't be read is waited for. Its user may have removed it, which can't be
/// distinguished from a file system that is not mounted. Objects of checkpoints are the cluster's own, and are waited
/// for without limit.
const SAVEPOINT_TIMEOUT: Duration = Duration::from_secs(600);

/// The place for objects. Opened when it is needed first: a TaskManager starts without it.
#[derive(Debug)]
pub(super) struct Storages {
    place: Option<CheckpointPlace>,
    opened: OnceCell<BlobStore>,
}

impl Storages {
    pub(super) fn new(place: Option<CheckpointPlace>) -> Storages {
        Storages {
            place,
            opened: OnceCell::new(),
        }
    }

    /// The directory of checkpoints, for messages.
    fn directory(&self) -> &str {
        self.place.as_ref().map_or("", |place| &place.blobs.url)
    }

    /// The objects of a job.
    async fn of(&self, of: &SnapshotPlace, job: JobId) -> Result<ObjectDirectory> {
        let Some(place) = &self.place else {
            let reason = format!("this TaskManager has no place for checkpoints: {NO_PLACE}");
            return Err(Error::Misconfigured(reason.into()));
        };
        let opening = self.opened.get_or_try_init(async || {
            let blobs = BlobStore::open_named(&place.blobs, place.option).await?;
            Ok(match place.is_marked {
                true => blobs.guarded_by_presence(),
                false => blobs,
            })
        });
        let name = Name::new(job.to_string());
        let name = name.map_err(|error| Error::Misconfigured(error.to_string().into()))?;
        let blobs = opening
            .await?
            .of_cluster(&of.cluster)
            .expecting(&of.storage);
        Ok(blobs.checkpoints(&name))
    }
}

/// A task that is not started until its state is read.
#[derive(Debug)]
pub(super) struct Restoring {
    reading: AbortHandle,
    is_stopped: bool,
    aborted: Vec<u64>,
}

/// A snapshot to be written.
#[derive(Debug)]
pub(super) struct Unwritten {
    task: TaskKey,
    number: u64,
    place: SnapshotPlace,
    snapshot: Arc<pb::SubtaskSnapshot>,
    began: Instant,
}

/// The small snapshots of a job.
#[derive(Debug, Default)]
struct SmallOnes {
    waiting: VecDeque<Unwritten>,
    /// By number of the write.
    running: BTreeMap<u64, AbortHandle>,
}

impl SmallOnes {
    /// Takes the first that waits, and those behind it that go into the same object: those of the same number,
    /// generation and place, up to [`MOST_TOGETHER`] bytes.
    fn take(&mut self) -> Vec<Unwritten> {
        let mut taken: Vec<Unwritten> = Vec::new();
        let mut bytes = 0;
        while let Some(next) = self.waiting.front() {
            let is_alike = taken.first().is_none_or(|first| {
                let generation = |it: &Unwritten| it.task.execution.generation;
                first.number == next.number
                    && generation(first) == generation(next)
                    && first.place == next.place
            });
            bytes += Pieces::of(&next.snapshot).total();
            if !is_alike || (bytes > MOST_TOGETHER && !taken.is_empty()) {
                break;
            }
            taken.extend(self.waiting.pop_front());
        }
        taken
    }
}

/// Writes and reads that run.
#[derive(Debug, Default)]
pub(super) struct CheckpointWork {
    writing: BTreeMap<TaskKey, AbortHandle>,
    small: BTreeMap<JobId, SmallOnes>,
    last_write: u64,
    restoring: BTreeMap<TaskKey, Restoring>,
}

/// A task that can start, with its state filled in, or the status with which it ends instead.
pub(super) type Restored = std::result::Result<TaskStart, TaskStatus>;

impl Actor {
    /// Writes the large pieces of a snapshot, in place of what is being written for its task.
    pub(super) fn write_snapshot(
        &mut self,
        task: TaskKey,
        number: u64,
        place: SnapshotPlace,
        snapshot: Arc<pb::SubtaskSnapshot>,
    ) {
        self.drop_snapshot(&task);
        let is_small = Pieces::of(&snapshot).total() <= SMALL;
        let unwritten = Unwritten {
            task,
            number,
            place,
            snapshot,
            began: Instant::now(),
        };
        if is_small {
            let of_job = self.work.small.entry(task.job).or_default();
            of_job.waiting.push_back(unwritten);
            return self.write_small(task.job);
        }
        let storages = self.storages.clone();
        let host = self.host();
        let writing = self.calls.spawn(async move {
            let written = write(&storages, &host, vec![unwritten], false).await;
            Called::Written(task.job, None, written)
        });
        self.work.writing.insert(task, writing);
    }

    /// Writes small snapshots of a job together.
    fn write_small(&mut self, job: JobId) {
        let host = self.host();
        let Some(small) = self.work.small.get_mut(&job) else {
            return;
        };
        while small.running.len() < MAX_TOGETHER {
            let taken = small.take();
            if taken.is_empty() {
                break;
            }
            self.work.last_write += 1;
            let number = self.work.last_write;
            let (storages, host) = (self.storages.clone(), host.clone());
            let writing = self.calls.spawn(async move {
                let written = write(&storages, &host, taken, true).await;
                Called::Written(job, Some(number), written)
            });
            small.running.insert(number, writing);
        }
        if small.running.is_empty() {
            self.work.small.remove(&job);
        }
    }

    /// A write for tasks of a job has ended.
    pub(super) fn write_ended(&mut self, job: JobId, write: Option<u64>) {
        let Some(write) = write else {
            self.work
                .writing
                .retain(|_, writing| !writing.is_finished());
            return;
        };
        if let Some(small) = self.work.small.get_mut(&job) {
            small.running.remove(&write);
        }
        self.write_small(job);
    }

    /// Ends what is being written for a task. A write that it shares with other tasks continues; the core ignores its
    /// result for this task.
    pub(super) fn drop_snapshot(&mut self, task: &TaskKey) {
        if let Some(writing) = self.work.writing.remove(task) {
            writing.abort();
        }
        if let Some(small) = self.work.small.get_mut(&task.job) {
            small.waiting.retain(|it| it.task != *task);
        }
    }

    /// Ends what is being written for a job.
    pub(super) fn drop_snapshots_of(&mut self, job: JobId) {
        let of_job = self.work.writing.extract_if(.., |task, _| task.job == job);
        of_job.for_each(|(_, writing)| writing.abort());
        let small = self.work.small.remove(&job).into_iter();
        let running = small.flat_map(|it| it.running.into_values());
        running.for_each(|writing| writing.abort());
    }

    /// Starts a task. If it is restored from objects, they are read first.
    pub(super) fn start_or_restore(&mut self, task: TaskKey, start: TaskStart) {
        let restore = start.deployment.restore.as_ref();
        let snapshot = restore.and_then(|restore| restore.snapshot.as_ref());
        if snapshot.is_none_or(|snapshot| ranges(snapshot).is_empty()) {
            return self.start(task, start);
        }
        let storages = self.storages.clone();
        let delays = Delays {
            task,
            host: self.host(),
            mailbox: self.channels.mailbox.clone(),
        };
        let reading = self.calls.spawn(async move {
            let restored = read(&storages, &delays, start).await;
            failpoint("restore.fetched").await;
            Called::Restored(task, Box::new(restored))
        });
        let restoring = Restoring {
            reading,
            is_stopped: false,
            aborted: Vec::new(),
        };
        self.work.restoring.insert(task, restoring);
    }

    /// Starts a task whose state is read, unless it was cancelled. It receives the messages that came meanwhile.
    pub(super) fn restored(&mut self, task: TaskKey, restored: Restored) {
        // The result may have been waiting for the loop when the task was cancelled: its end is reported already.
        let Some(restoring) = self.work.restoring.remove(&task) else {
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
        } else if let Some(restoring) = self.work.restoring.remove(&task) {
            restoring.reading.abort();
            self.end_unstarted(task, TaskStatus::Canceled);
        }
    }

    /// Ends the source of a task.
    pub(super) fn stop_source(&mut self, task: &TaskKey) {
        if let Some(running) = self.running.get(task) {
            running.stop();
        } else if let Some(restoring) = self.work.restoring.get_mut(task) {
            restoring.is_stopped = true;
        }
    }

    /// Tells a task that a checkpoint is aborted.
    pub(super) fn abort_checkpoint(&mut self, task: &TaskKey, number: u64) {
        if let Some(running) = self.running.get(task) {
            running.abort_checkpoint(number);
            running.release_snapshot(number, None);
        } else if let Some(restoring) = self.work.restoring.get_mut(task) {
            restoring.aborted.push(number);
        }
    }

    /// This TaskManager, for messages.
    fn host(&self) -> String {
        let location = &self.services.description.location;
        format!("{} at {}", location.resource_id, location.rpc_address)
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

/// Writes snapshots of one job, number and generation as one object. Returns an event for each.
async fn write(
    storages: &Storages,
    host: &str,
    unwritten: Vec<Unwritten>,
    is_of_many: bool,
) -> Vec<Event> {
    let Some(first) = unwritten.first() else {
        return Vec::new();
    };
    let (job, number) = (first.task.job, first.number);
    let tasks = unwritten.iter().map(|it| (it.task, it.began));
    let tasks: Vec<(TaskKey, Instant)> = tasks.collect();
    let writing = write_object(storages, unwritten);
    let writing = match is_of_many {
        true => tokio::time::timeout(TOGETHER_TIMEOUT, writing).await,
        false => Ok(writing.await),
    };
    let written = match writing.unwrap_or_else(|_| Err(no_answer())) {
        Ok(written) => written.into_iter().map(Ok).collect(),
        Err(error) => {
            tracing::warn!(%job, number, %error, "the state of tasks can't be written");
            let reason = format!("its state can't be written by {host}: {error}");
            vec![Err(reason); tasks.len()]
        }
    };
    let each = tasks.into_iter().zip(written);
    let event = |((task, began), written): ((TaskKey, Instant), _)| Event::SnapshotWritten {
        task,
        number,
        written,
        took: began.elapsed(),
    };
    each.map(event).collect()
}

fn no_answer() -> Error {
    Error::Unavailable {
        store: "the place for checkpoints",
        reason: format!("it has not answered for {TOGETHER_TIMEOUT:?}"),
    }
}

/// Writes the pieces of snapshots into one object, one after the other. Returns the snapshots with the places of their
/// pieces.
async fn write_object(
    storages: &Storages,
    unwritten: Vec<Unwritten>,
) -> Result<Vec<WrittenSnapshot>> {
    let Some(first) = unwritten.first() else {
        return Ok(Vec::new());
    };
    let task = first.task;
    let storage = storages.of(&first.place, task.job).await?;
    let object = object_name(first.number, task.execution.generation.get());
    let name = object.clone();
    let cutting = tokio::task::spawn_blocking(move || {
        let (mut parts, mut written) = (Vec::new(), Vec::new());
        let mut offset = 0;
        for it in &unwritten {
            let (own, snapshot) = Pieces::of(&it.snapshot).into_object(&name, &mut offset);
            parts.extend(own);
            written.push(snapshot);
        }
        (parts, written)
    });
    let (parts, written) = cutting.await.map_err(|error| Error::Unavailable {
        store: "the encoder of snapshots",
        reason: error.to_string(),
    })?;
    let putting = storage.put_parts(&object, parts);
    let put = match is_planted(Fault::AcknowledgedBeforeDurable) {
        // The process ends before it is written.
        true => Ok(()),
        false => putting.await,
    };
    put.map_err(|error| in_directory(&storage, error))?;
    failpoint("checkpoint.object-written").await;
    let name = storage.storage().unwrap_or_default();
    let written = written.into_iter().map(|snapshot| WrittenSnapshot {
        snapshot,
        storage: name.clone(),
    });
    Ok(written.collect())
}

/// Adds the directory to an error that does not name it.
fn in_directory(storage: &ObjectDirectory, error: Error) -> Error {
    match error {
        Error::Unavailable { store, reason } => Error::Unavailable {
            store,
            reason: format!("{}: {reason}", storage.location()),
        },
        error => error,
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
async fn read(storages: &Storages, delays: &Delays, mut start: TaskStart) -> Restored {
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
        let Err((object, error)) = fill_in(storages, of, snapshot).await else {
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
                    false => storages.directory(),
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
    async fn open(self, storages: &Storages) -> Result<ObjectDirectory> {
        if self.directory.is_empty() {
            return storages.of(self.place, self.job).await;
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
    storages: &Storages,
    of: Objects<'_>,
    snapshot: &mut pb::SubtaskSnapshot,
) -> std::result::Result<(), (String, Error)> {
    let ranges = ranges(snapshot);
    let Some(first) = ranges.first().map(|it| it.object.clone()) else {
        return Ok(());
    };
    let storage = of.open(storages).await;
    let storage = storage.map_err(|error| (first, error))?;
    let reads = ranges.into_iter().map(|range| read_range(&storage, range));
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
    use std::path::Path;

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

    /// A snapshot of a subtask with state of this size.
    fn unwritten(subtask: u32, number: u64, generation: u64, size: usize) -> Unwritten {
        let state = pb::OperatorState {
            content: vec![7; size],
            ..pb::OperatorState::default()
        };
        Unwritten {
            task: TaskKey {
                job: JobId::from_bits(1),
                execution: ExecutionKey {
                    vertex: JobVertexId::from_bits(1),
                    subtask,
                    generation: Generation::new(generation),
                },
            },
            number,
            place: SnapshotPlace {
                cluster: ClusterIncarnation::new("c1"),
                storage: String::new(),
            },
            snapshot: Arc::new(pb::SubtaskSnapshot {
                operators: vec![state],
                ..pb::SubtaskSnapshot::default()
            }),
            began: Instant::now(),
        }
    }

    #[tokio::test]
    async fn what_waits_becomes_one_object_by_number_and_generation_up_to_a_limit() {
        let mut small = SmallOnes::default();
        let alike = (0..100).map(|subtask| unwritten(subtask, 3, 1, 50_000));
        small.waiting.extend(alike);
        small.waiting.push_back(unwritten(100, 3, 2, 10));
        small.waiting.push_back(unwritten(101, 4, 2, 10));
        small.waiting.push_back(unwritten(102, 4, 2, 10));
        let mut taken = Vec::new();
        while !small.waiting.is_empty() {
            taken.push(small.take().len());
        }
        // 83 times 50,000 bytes are the most below 4 MiB.
        assert_eq!(taken, [83, 17, 1, 2]);
        assert_eq!(small.take().len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_savepoint_that_may_be_removed_is_waited_for_within_a_limit() {
        let directory = tempfile::tempdir().expect("a directory");
        let savepoint = directory.path().join("savepoints/one");
        std::fs::create_dir(directory.path().join("savepoints")).expect("made");
        let storages = Storages::new(None);
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
        let reading = read(&storages, &delays, start(&savepoint));
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
