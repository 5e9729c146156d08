//! The registered TaskManagers: under which registration each is connected, which of the job's executions it
//! reports as ended, as orphans or as kept result partitions, and what was sent to it about them.
//!
//! Invariants: only the youngest registration of a TaskManager counts; a registration that was seen is never taken
//! again; only registered TaskManagers have orphans. What a TaskManager received under an earlier registration is
//! forgotten with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tanist_compact::{SmallMap, SmallSet};
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;

use super::execution_graph::execution::Cancellation;
use super::orphan_executions::{OrphanExecutions, OrphanKey};
use super::{Connection, Refusal, Registration};

/// (index of the task, generation).
type ExecutionKey = (usize, u64);

/// A registered TaskManager.
#[derive(Debug, Clone)]
struct TaskManager {
    registration: Registration,
    location: Arc<pb::TaskManagerLocation>,
    /// Ended executions that it reports until they are acknowledged.
    unacknowledged: BTreeSet<ExecutionKey>,
    /// Result partitions that it keeps, and the progress of their release.
    partitions: BTreeMap<ExecutionKey, Cancellation>,
    /// Whether it received, in this registration, the request that sources end.
    has_stop: bool,
}

/// All registered TaskManagers; see the module.
#[derive(Debug, Default)]
pub(super) struct TaskManagers {
    registered: SmallMap<ResourceId, Box<TaskManager>>,
    /// The youngest registration of each TaskManager, also of those that are gone.
    seen: SmallMap<ResourceId, Registration>,
    orphans: OrphanExecutions,
    /// Number of changes of `registered`: a TaskManager registers, registers again or leaves.
    version: u64,
    /// The version at which all TaskManagers have received the stop.
    stop_version: Option<u64>,
}

impl TaskManagers {
    /// Refuses a message of another registration than the present one.
    pub(super) fn check(&self, connection: &Connection) -> Result<(), Refusal> {
        let task_manager = connection.task_manager.clone();
        let Some(known) = self.registered.get(&task_manager) else {
            return Err(Refusal::NotRegistered(task_manager));
        };
        if known.registration != connection.registration {
            let (offered, seen) = (connection.registration, known.registration);
            return Err(Refusal::Outdated {
                task_manager,
                offered,
                seen,
            });
        }
        Ok(())
    }

    /// Takes the number of a registration, or refuses it if the same or a younger one was seen.
    pub(super) fn admit(&mut self, connection: &Connection) -> Result<(), Refusal> {
        let (task_manager, offered) = (connection.task_manager.clone(), connection.registration);
        let seen = self.seen.get(&task_manager).copied();
        if let Some(seen) = seen.filter(|seen| offered <= *seen) {
            return Err(Refusal::Outdated {
                task_manager,
                offered,
                seen,
            });
        }
        self.seen.insert(task_manager, offered);
        self.version += 1;
        Ok(())
    }

    /// Registers a TaskManager whose registration was admitted.
    pub(super) fn register(
        &mut self,
        connection: &Connection,
        location: Arc<pb::TaskManagerLocation>,
    ) {
        let registered = Box::new(TaskManager {
            registration: connection.registration,
            location,
            unacknowledged: BTreeSet::new(),
            partitions: BTreeMap::new(),
            has_stop: false,
        });
        self.registered
            .insert(connection.task_manager.clone(), registered);
    }

    /// Removes a TaskManager, with its orphans. Returns its location if it was registered.
    pub(super) fn remove(&mut self, id: &ResourceId) -> Option<Arc<pb::TaskManagerLocation>> {
        let removed = self.registered.remove(id)?;
        self.version += 1;
        self.orphans.remove_all_of(id);
        Some(removed.location)
    }

    /// Whether a TaskManager is registered.
    pub(super) fn is_registered(&self, id: &ResourceId) -> bool {
        self.registered.contains_key(id)
    }

    /// The location of a TaskManager, if it is registered.
    pub(super) fn location(&self, id: &ResourceId) -> Option<&Arc<pb::TaskManagerLocation>> {
        self.registered.get(id).map(|known| &known.location)
    }

    /// The connection to a TaskManager, if it is registered.
    pub(super) fn connection(&self, id: &ResourceId) -> Option<Connection> {
        let known = self.registered.get(id)?;
        Some(Connection {
            task_manager: id.clone(),
            registration: known.registration,
        })
    }

    /// All registered TaskManagers.
    pub(super) fn registrations(&self) -> impl Iterator<Item = (&ResourceId, Registration)> {
        let known = self.registered.iter();
        known.map(|(id, known)| (id, known.registration))
    }

    /// Version of [`TaskManagers::registrations`]; changes whenever they do.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Notes that a TaskManager reports the end of an execution. It does so until that is acknowledged. Returns
    /// whether it is registered.
    pub(super) fn report_end(&mut self, id: &ResourceId, end: ExecutionKey) -> bool {
        let known = self.registered.get_mut(id);
        let known = known.map(|known| known.unacknowledged.insert(end));
        known.is_some()
    }

    /// Removes reported ends for which `is_known` is true, and returns them by TaskManager: `among` these, or all.
    pub(super) fn acknowledge(
        &mut self,
        among: Option<SmallSet<(ResourceId, usize, u64)>>,
        is_known: impl Fn(ExecutionKey) -> bool,
    ) -> BTreeMap<Connection, Vec<ExecutionKey>> {
        let mut ends: Vec<(ResourceId, ExecutionKey)> = Vec::new();
        match among {
            Some(among) => {
                for (id, task, generation) in among {
                    ends.push((id, (task, generation)));
                }
            }
            None => {
                for (id, known) in &self.registered {
                    let there = known.unacknowledged.iter();
                    ends.extend(there.map(|end| (id.clone(), *end)));
                }
            }
        }
        let mut acknowledged: BTreeMap<Connection, Vec<ExecutionKey>> = BTreeMap::new();
        for (id, end) in ends {
            let Some(known) = self.registered.get_mut(&id) else {
                continue;
            };
            if known.unacknowledged.contains(&end) && is_known(end) {
                known.unacknowledged.remove(&end);
                let connection = Connection {
                    task_manager: id,
                    registration: known.registration,
                };
                acknowledged.entry(connection).or_default().push(end);
            }
        }
        acknowledged
    }

    /// The TaskManagers that have not received the stop in their present registration. They count as having received it
    /// from this call on.
    pub(super) fn begin_stop(&mut self) -> Vec<Connection> {
        if self.stop_version.replace(self.version) == Some(self.version) {
            return Vec::new();
        }
        let mut begun = Vec::new();
        for (id, known) in &mut self.registered {
            if !std::mem::replace(&mut known.has_stop, true) {
                begun.push(Connection {
                    task_manager: id.clone(),
                    registration: known.registration,
                });
            }
        }
        begun
    }

    /// Notes that a TaskManager keeps the result partition of an execution that has just finished.
    pub(super) fn add_partition(&mut self, id: &ResourceId, partition: ExecutionKey) -> bool {
        let known = self.registered.get_mut(id);
        let known = known.map(|it| it.partitions.insert(partition, Cancellation::NotSent));
        known.is_some()
    }

    /// Notes all result partitions that a TaskManager keeps. Where the report is of a registration, or a release had
    /// an answer and the partition is still there, the release is sent again. Returns the TaskManager's incarnation.
    pub(super) fn report_partitions(
        &mut self,
        id: &ResourceId,
        reported: &BTreeSet<ExecutionKey>,
        is_registration: bool,
    ) -> Option<&str> {
        let known = self.registered.get_mut(id)?;
        let release = |key: &ExecutionKey| match known.partitions.get(key) {
            Some(Cancellation::Sent) if !is_registration => Cancellation::Sent,
            Some(_) | None => Cancellation::NotSent,
        };
        known.partitions = reported.iter().map(|key| (*key, release(key))).collect();
        Some(&known.location.incarnation)
    }

    /// Marks the release of result partitions as sent, where it was not and `is_needed` is false: on these
    /// TaskManagers, or on all. Returns those partitions.
    pub(super) fn release_partitions(
        &mut self,
        on: Option<&SmallSet<ResourceId>>,
        mut is_needed: impl FnMut(ExecutionKey) -> bool,
    ) -> Vec<(Connection, Vec<ExecutionKey>)> {
        let mut released = Vec::new();
        for (id, known) in &mut self.registered {
            if on.is_some_and(|on| !on.contains(id)) {
                continue;
            }
            let mut here = Vec::new();
            for (partition, release) in &mut known.partitions {
                if *release == Cancellation::NotSent && !is_needed(*partition) {
                    *release = Cancellation::Sent;
                    here.push(*partition);
                }
            }
            if !here.is_empty() {
                let connection = Connection {
                    task_manager: id.clone(),
                    registration: known.registration,
                };
                released.push((connection, here));
            }
        }
        released
    }

    /// Notes the answer to the cancellation of a task up to a generation, which also releases result partitions and
    /// ends orphans.
    pub(super) fn note_cancelled(
        &mut self,
        id: &ResourceId,
        task: usize,
        up_to_generation: u64,
        answer: Cancellation,
    ) {
        self.orphans.answer(id, task, up_to_generation, answer);
        let known = self.registered.get_mut(id);
        for ((of, generation), release) in known.into_iter().flat_map(|it| &mut it.partitions) {
            let is_meant = *of == task && *generation <= up_to_generation;
            if is_meant && *release == Cancellation::Sent {
                *release = answer;
            }
        }
    }

    /// The orphan executions on all TaskManagers.
    pub(super) fn orphans(&self) -> &OrphanExecutions {
        &self.orphans
    }

    /// Notes that a TaskManager runs an orphan execution. See [`OrphanExecutions::report`].
    pub(super) fn report_orphan(
        &mut self,
        id: &ResourceId,
        key: OrphanKey,
        report: &pb::ExecutionReport,
        turn: u64,
        now_ms: u64,
    ) {
        if self.is_registered(id) {
            let allocation = super::parse(&report.allocation_id);
            self.orphans.report(id, key, allocation, turn, now_ms);
        }
    }

    /// Notes that an orphan execution has ended.
    pub(super) fn end_orphan(&mut self, id: &ResourceId, key: OrphanKey) {
        self.orphans.remove(id, key);
    }

    /// Removes orphans that are not in a full report, which was requested in step `requested_in`.
    pub(super) fn retain_orphans(
        &mut self,
        id: &ResourceId,
        reported: &BTreeSet<OrphanKey>,
        requested_in: u64,
    ) {
        self.orphans.retain(id, |key, reported_in| {
            reported_in > requested_in || reported.contains(key)
        });
    }

    /// Applies the full report of a registration to orphans: those that are not in it are gone, and cancellations of
    /// the others are sent again.
    pub(super) fn register_orphans(&mut self, id: &ResourceId, reported: &BTreeSet<OrphanKey>) {
        self.orphans.retain(id, |key, _| reported.contains(key));
        self.orphans.send_again(id);
    }

    /// Marks the cancellation of orphans as sent, where it was not and `is_unwanted` is true. Returns those orphans.
    pub(super) fn cancel_orphans(
        &mut self,
        is_unwanted: impl Fn(&pb::TaskManagerLocation, OrphanKey) -> bool,
        now_ms: u64,
    ) -> Vec<(ResourceId, OrphanKey)> {
        let registered = &self.registered;
        let is_unwanted = |id: &ResourceId, key| {
            let known = registered.get(id);
            known.is_some_and(|known| is_unwanted(&known.location, key))
        };
        self.orphans.cancel(is_unwanted, now_ms)
    }

    /// Moves the start of all waits by the duration for which this process stood still.
    pub(super) fn put_off(&mut self, by_ms: u64) {
        self.orphans.put_off(by_ms);
    }

    /// The ends that are not acknowledged.
    #[cfg(test)]
    pub(super) fn unacknowledged(&self) -> impl Iterator<Item = &ExecutionKey> {
        let known = self.registered.values();
        known.flat_map(|known| &known.unacknowledged)
    }
}
