//! The result partitions that tasks of this TaskManager produce, by producer and edge.
//!
//! A *kept* partition, of a blocking edge, is added when it is complete, and stays until it is released. All
//! others are registered before their first record. There is one generation of such a partition at a time: a
//! newer one closes and replaces the older, an older one is refused. A partition stays after its task has
//! finished, until all consumers have read their channel to its end, or until it is released.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::v1::CheckpointBarrier;
use tokio::sync::watch;

use super::blocking_output::Kept;
use super::budget::NetworkBudget;
use super::channel::{Channel, Closed};
use crate::time::TimeSignal;

/// Identifies a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PartitionId {
    pub(crate) job: JobId,
    pub(crate) vertex: JobVertexId,
    pub(crate) subtask: u32,
    /// The index of the edge in the graph.
    pub(crate) edge: u32,
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PartitionId {
            job,
            vertex,
            subtask,
            edge,
        } = self;
        write!(
            f,
            "subtask {subtask} of vertex {vertex} of job {job} for edge {edge}"
        )
    }
}

/// The attempt that produced a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) job_incarnation: u64,
    pub(crate) generation: Generation,
}

/// Result of a consumer's lookup of its channel.
#[derive(Debug)]
pub(super) enum Lookup {
    Found(Arc<Channel>),
    /// The producer is not registered yet.
    NotYet,
    /// There will be no channel, for this reason.
    Refused(String),
}

#[derive(Debug)]
struct Partition {
    attempt: Attempt,
    /// By target subtask; removed once consumed.
    channels: HashMap<u32, Arc<Channel>>,
}

impl Partition {
    fn fail(&self, cause: &str) {
        self.channels
            .values()
            .for_each(|channel| channel.fail(cause));
    }
}

/// All partitions of a TaskManager.
#[derive(Debug)]
pub(crate) struct Partitions {
    partitions: Mutex<HashMap<PartitionId, Partition>>,
    complete: Mutex<HashMap<PartitionId, (Generation, Arc<Kept>)>>,
    /// Number of registrations; waiting consumers wake up when it changes.
    registered: watch::Sender<u64>,
    /// Number of registered partitions; kept ones don't count.
    registered_count: watch::Sender<usize>,
    /// Budget of all channels of the TaskManager.
    budget: NetworkBudget,
}

impl Default for Partitions {
    fn default() -> Partitions {
        Partitions {
            partitions: Mutex::default(),
            complete: Mutex::default(),
            registered: watch::Sender::new(0),
            registered_count: watch::Sender::new(0),
            budget: NetworkBudget::default(),
        }
    }
}

impl Partitions {
    /// Creates an empty set whose channels will use this budget.
    pub(super) fn within(budget: NetworkBudget) -> Partitions {
        Partitions {
            budget,
            ..Partitions::default()
        }
    }

    /// The budget of all channels.
    pub(super) fn budget(&self) -> &NetworkBudget {
        &self.budget
    }

    /// Registers the partition that a task is about to produce, for these target subtasks. An error if one of this or a
    /// newer generation is there.
    pub(crate) fn register(
        self: &Arc<Self>,
        id: PartitionId,
        attempt: Attempt,
        targets: impl IntoIterator<Item = u32>,
    ) -> Result<PartitionWriter, Closed> {
        let channels: Vec<_> = targets
            .into_iter()
            .map(|target| (target, Arc::new(Channel::within(&self.budget))))
            .collect();
        let mut partitions = self.partitions.lock();
        if let Some(present) = partitions.get(&id) {
            let (generation, existing) = (attempt.generation, present.attempt.generation);
            // A younger JobMaster replaces any generation of an older one.
            if existing >= generation && present.attempt.job_incarnation >= attempt.job_incarnation
            {
                let message = format!("generation {existing} is there and this is {generation}");
                return Err(Closed(message));
            }
            present.fail(&format!("it was superseded by generation {generation}"));
        }
        let by_target = channels
            .iter()
            .map(|(target, channel)| (*target, Arc::clone(channel)));
        partitions.insert(
            id,
            Partition {
                attempt,
                channels: by_target.collect(),
            },
        );
        self.publish_count(&partitions);
        drop(partitions);
        self.registered.send_modify(|count| *count += 1);
        let channels = channels.into_iter().map(|(_, channel)| channel).collect();
        Ok(PartitionWriter {
            partitions: Arc::clone(self),
            id,
            attempt,
            channels,
            ended: false,
        })
    }

    /// Looks a channel up. An older generation than asked for is ignored; a newer one means that the consumer
    /// itself is outdated.
    pub(super) fn lookup(&self, id: PartitionId, attempt: Attempt, target: u32) -> Lookup {
        let partitions = self.partitions.lock();
        let Some(partition) = partitions.get(&id) else {
            return Lookup::NotYet;
        };
        let (requested, present) = (attempt.generation, partition.attempt.generation);
        if present > requested {
            return Lookup::Refused(format!(
                "generation {requested} was superseded by {present}"
            ));
        }
        if present < requested {
            return Lookup::NotYet;
        }
        if partition.attempt.job_incarnation != attempt.job_incarnation {
            return Lookup::Refused(format!(
                "it was made under job incarnation {}, not {}",
                partition.attempt.job_incarnation, attempt.job_incarnation
            ));
        }
        match partition.channels.get(&target) {
            Some(channel) => Lookup::Found(Arc::clone(channel)),
            None => Lookup::Refused(format!("it has no channel for subtask {target}")),
        }
    }

    /// Looks a channel up and waits for its producer.
    pub(super) async fn wait_for(
        &self,
        id: PartitionId,
        attempt: Attempt,
        target: u32,
    ) -> Result<Arc<Channel>, String> {
        let mut registered = self.registered.subscribe();
        loop {
            registered.borrow_and_update();
            match self.lookup(id, attempt, target) {
                Lookup::Found(channel) => return Ok(channel),
                Lookup::Refused(reason) => return Err(reason),
                Lookup::NotYet => {}
            }
            if registered.changed().await.is_err() {
                return Err("this TaskManager's exchange has ended".to_owned());
            }
        }
    }

    /// Records that a channel was read to its end. The partition is removed with its last channel.
    pub(super) fn consumed(&self, id: PartitionId, target: u32, channel: &Arc<Channel>) {
        let mut partitions = self.partitions.lock();
        let Some(partition) = partitions.get_mut(&id) else {
            return;
        };
        // The partition of another attempt may have replaced it.
        let present = partition.channels.get(&target);
        if present.is_some_and(|present| Arc::ptr_eq(present, channel)) {
            partition.channels.remove(&target);
            if partition.channels.is_empty() {
                partitions.remove(&id);
                self.publish_count(&partitions);
            }
        }
    }

    /// Keeps a complete output, unless one of a newer generation is kept.
    pub(super) fn keep(&self, id: PartitionId, generation: Generation, kept: Kept) {
        let mut all = self.complete.lock();
        if all
            .get(&id)
            .is_none_or(|(present, _)| *present < generation)
        {
            all.insert(id, (generation, Arc::new(kept)));
        }
    }

    /// Returns the complete output of exactly this generation, if it has a channel for this target.
    pub(super) fn find_kept(
        &self,
        id: PartitionId,
        generation: Generation,
        target: u32,
    ) -> Result<Arc<Kept>, String> {
        match self.complete.lock().get(&id) {
            Some((present, kept)) if *present == generation && kept.is_for(target) => {
                Ok(Arc::clone(kept))
            }
            Some((present, _)) if *present != generation => Err(format!(
                "generation {present} of its output is kept, not {generation}"
            )),
            Some(_) => Err(format!("it has no channel for subtask {target}")),
            None => Err("its output is not kept here".to_owned()),
        }
    }

    fn remove(&self, id: PartitionId, attempt: Attempt) {
        let mut partitions = self.partitions.lock();
        if partitions
            .get(&id)
            .is_some_and(|partition| partition.attempt == attempt)
        {
            partitions.remove(&id);
            self.publish_count(&partitions);
        }
    }

    /// Closes and removes the partitions that `chosen` selects.
    pub(super) fn release(&self, chosen: impl Fn(&PartitionId, Generation) -> bool) {
        let mut partitions = self.partitions.lock();
        partitions.retain(|id, partition| {
            let released = chosen(id, partition.attempt.generation);
            if released {
                partition.fail("it was released");
            }
            !released
        });
        self.complete
            .lock()
            .retain(|id, (generation, _)| !chosen(id, *generation));
        self.publish_count(&partitions);
    }

    /// Follows the number of registered partitions; kept ones don't count.
    pub(super) fn registered_count(&self) -> watch::Receiver<usize> {
        self.registered_count.subscribe()
    }

    fn publish_count(&self, partitions: &HashMap<PartitionId, Partition>) {
        let count = partitions.len();
        self.registered_count
            .send_if_modified(|known| std::mem::replace(known, count) != count);
    }

    pub(super) fn count(&self) -> usize {
        self.partitions.lock().len() + self.complete.lock().len()
    }
}

/// The producing end of a partition. If it is dropped before its end, it closes the partition and removes it.
#[derive(Debug)]
pub(crate) struct PartitionWriter {
    partitions: Arc<Partitions>,
    id: PartitionId,
    attempt: Attempt,
    /// In the order of the targets at registration.
    channels: Vec<Arc<Channel>>,
    ended: bool,
}

impl PartitionWriter {
    /// Adds a batch to the channel of the target with this index.
    pub(crate) async fn push(
        &self,
        place: usize,
        batch: arrow_array::RecordBatch,
    ) -> Result<(), Closed> {
        self.channels[place].push(batch).await
    }

    /// Sends an event-time signal to all channels.
    pub(crate) fn signal(&self, signal: TimeSignal) {
        self.channels
            .iter()
            .for_each(|channel| channel.signal(signal));
    }

    /// Sends a barrier to all channels, behind what was pushed before.
    pub(crate) fn barrier(&self, barrier: CheckpointBarrier) {
        self.channels
            .iter()
            .for_each(|channel| channel.barrier(barrier));
    }

    /// Whether all consumers are attached.
    #[cfg(test)]
    pub(super) fn is_read(&self) -> bool {
        self.channels.iter().all(|channel| channel.is_attached())
    }

    /// Marks the end of all channels.
    pub(crate) fn finish(mut self) {
        self.channels.iter().for_each(|channel| channel.finish());
        self.ended = true;
    }

    /// Fails all channels for this reason. Consumers that attach later receive it too.
    pub(crate) fn fail(mut self, cause: &str) {
        self.channels.iter().for_each(|channel| channel.fail(cause));
        self.ended = true;
    }
}

impl Drop for PartitionWriter {
    fn drop(&mut self) {
        if !self.ended {
            self.channels
                .iter()
                .for_each(|channel| channel.fail("its producer was stopped"));
            self.partitions.remove(self.id, self.attempt);
        }
    }
}
