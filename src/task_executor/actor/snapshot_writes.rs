//! Writes the snapshots that tasks have saved, as objects of checkpoints. Decides nothing; each result comes back to
//! the loop in [`super`].
//!
//! The actor owns the writes ([`SnapshotWrites`]); they run in its tasks and end with it.
//!
//! - A snapshot that can't be written is declined with the reason, and the checkpoint fails. Nothing is tried again
//!   here.
//! - At most one write runs for a task: a newer one ends it. Small snapshots are written for many tasks together, in
//!   the order in which they come: while [`MAX_TOGETHER`] such objects are being written, the others wait, and become
//!   the next object.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tanist_ha::blob::{ObjectDirectory, object_name};
use tanist_ha::error::{Error, Result};
use tanist_ha::failpoint::failpoint;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::faults::{Fault, is_planted};
use super::snapshot_storage::SnapshotStorage;
use super::{Actor, Called};
use crate::core::{Event, Pieces, SnapshotPlace, TaskKey, WrittenSnapshot};

/// Most bytes of a snapshot that is written together with others. Later checkpoints refer to the pieces of a larger one
/// for a long time, and an object stays while any piece of it is referred to: those of other tasks would stay as well.
const SMALL: u64 = 64 * 1024;
/// Most bytes of an object for many tasks.
const MOST_TOGETHER: u64 = 4 * 1024 * 1024;
/// Objects for many tasks of a job that are written at the same time.
const MAX_TOGETHER: usize = 2;
/// Timeout for writing an object for many tasks. No newer number ends such a write, so it needs a limit.
const TOGETHER_TIMEOUT: Duration = Duration::from_secs(30);

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

/// Writes that run.
#[derive(Debug, Default)]
pub(super) struct SnapshotWrites {
    writing: BTreeMap<TaskKey, AbortHandle>,
    small: BTreeMap<JobId, SmallOnes>,
    last_write: u64,
}

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
            let of_job = self.writes.small.entry(task.job).or_default();
            of_job.waiting.push_back(unwritten);
            return self.write_small(task.job);
        }
        let storage = self.storage.clone();
        let host = self.host();
        let writing = self.calls.spawn(async move {
            let written = write(&storage, &host, vec![unwritten], false).await;
            Called::Written(task.job, None, written)
        });
        self.writes.writing.insert(task, writing);
    }

    /// Writes small snapshots of a job together.
    fn write_small(&mut self, job: JobId) {
        let host = self.host();
        let Some(small) = self.writes.small.get_mut(&job) else {
            return;
        };
        while small.running.len() < MAX_TOGETHER {
            let taken = small.take();
            if taken.is_empty() {
                break;
            }
            self.writes.last_write += 1;
            let number = self.writes.last_write;
            let (storage, host) = (self.storage.clone(), host.clone());
            let writing = self.calls.spawn(async move {
                let written = write(&storage, &host, taken, true).await;
                Called::Written(job, Some(number), written)
            });
            small.running.insert(number, writing);
        }
        if small.running.is_empty() {
            self.writes.small.remove(&job);
        }
    }

    /// A write for tasks of a job has ended.
    pub(super) fn write_ended(&mut self, job: JobId, write: Option<u64>) {
        let Some(write) = write else {
            self.writes
                .writing
                .retain(|_, writing| !writing.is_finished());
            return;
        };
        if let Some(small) = self.writes.small.get_mut(&job) {
            small.running.remove(&write);
        }
        self.write_small(job);
    }

    /// Ends what is being written for a task. A write that it shares with other tasks continues; the core ignores its
    /// result for this task.
    pub(super) fn drop_snapshot(&mut self, task: &TaskKey) {
        if let Some(writing) = self.writes.writing.remove(task) {
            writing.abort();
        }
        if let Some(small) = self.writes.small.get_mut(&task.job) {
            small.waiting.retain(|it| it.task != *task);
        }
    }

    /// Ends what is being written for a job.
    pub(super) fn drop_snapshots_of(&mut self, job: JobId) {
        let of_job = self
            .writes
            .writing
            .extract_if(.., |task, _| task.job == job);
        of_job.for_each(|(_, writing)| writing.abort());
        let small = self.writes.small.remove(&job).into_iter();
        let running = small.flat_map(|it| it.running.into_values());
        running.for_each(|writing| writing.abort());
    }
}

/// Writes snapshots of one job, number and generation as one object. Returns an event for each.
async fn write(
    storage: &SnapshotStorage,
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
    let writing = write_object(storage, unwritten);
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
    storage: &SnapshotStorage,
    unwritten: Vec<Unwritten>,
) -> Result<Vec<WrittenSnapshot>> {
    let Some(first) = unwritten.first() else {
        return Ok(Vec::new());
    };
    let task = first.task;
    let objects = storage.of(&first.place, task.job).await?;
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
    let putting = objects.put_parts(&object, parts);
    let put = match is_planted(Fault::AcknowledgedBeforeDurable) {
        // The process ends before it is written.
        true => Ok(()),
        false => putting.await,
    };
    put.map_err(|error| in_directory(&objects, error))?;
    failpoint("checkpoint.object-written").await;
    let name = objects.storage().unwrap_or_default();
    let written = written.into_iter().map(|snapshot| WrittenSnapshot {
        snapshot,
        storage: name.clone(),
    });
    Ok(written.collect())
}

/// Adds the directory to an error that does not name it.
fn in_directory(objects: &ObjectDirectory, error: Error) -> Error {
    match error {
        Error::Unavailable { store, reason } => Error::Unavailable {
            store,
            reason: format!("{}: {reason}", objects.location()),
        },
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use tanist_ha::election::ClusterIncarnation;
    use tanist_proto::id::{Generation, JobVertexId};

    use super::*;
    use crate::core::ExecutionKey;

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
}
