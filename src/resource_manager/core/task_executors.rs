//! The registered TaskExecutors: what each said of itself, and when it was last heard. Pure, a part of [`super`].
//!
//! Of the registrations of one TaskExecutor only the highest counts; answers to messages of an earlier one are dropped.

use std::collections::BTreeMap;
use std::time::Duration;

use tanist_gateway::refusals::{CheckOutcome, RefusalCheck, RefusedCalls};
use tanist_ha::clock::Uptime;
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::WorkerResourceSpec;
use tanist_proto::v1 as pb;

use super::report::TaskCounts;
use super::slot_manager::SlotsVersion;
use super::{Connection, Contact};

/// First delay of a heartbeat to a TaskExecutor that may be gone. It doubles up to the interval of heartbeats.
const PROBE_DELAY: Duration = Duration::from_millis(100);

/// Shortest time between two refused calls that count: a host that refuses for a moment is not gone.
const REFUSAL_DELAY: Duration = Duration::from_millis(500);

/// What made a TaskExecutor suspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Suspicion {
    /// A connection to it has ended, alone or with a call.
    Ended,
    /// It has refused a call.
    Refused,
}

/// What a TaskExecutor says of itself when it registers.
#[derive(Debug)]
pub(super) struct Registration {
    pub location: pb::TaskManagerLocation,
    /// Its number.
    pub number: u64,
    pub hardware: Option<pb::HardwareDescription>,
    pub spec: WorkerResourceSpec,
    pub memory_configuration: Option<pb::MemoryConfiguration>,
    /// Number of tasks in each of its slots, as last reported. For display only: no decision depends on it.
    pub tasks: TaskCounts,
}

/// Whether a TaskExecutor gets slot requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Availability {
    /// It gets no slot requests: it is drained or being released.
    pub is_draining: bool,
    /// Whether it is a driver's worker that is being released, or the cluster is ending.
    pub is_releasing: bool,
}

/// A registered TaskExecutor.
#[derive(Debug)]
pub(super) struct TaskExecutor {
    registration: Registration,
    /// The incarnation that this one replaced, if any: its process had ended.
    replaced: Option<String>,
    availability: Availability,
    /// When it last answered a heartbeat.
    last_heartbeat: Uptime,
    /// When a heartbeat was last sent to it.
    last_sent: Uptime,
    next_heartbeat: Uptime,
    /// Delay of the next probe.
    probe_delay: Duration,
    /// Whether it has become suspect since the last heartbeat.
    is_suspect: bool,
    refused: RefusedCalls,
    /// Number of its outputs that may still be read, and the version of its slots of that count; `None` until
    /// it has reported one. The count does not include outputs made in a slot that was freed since.
    kept_outputs: Option<(u32, SlotsVersion)>,
}

impl TaskExecutor {
    pub(super) fn location(&self) -> &pb::TaskManagerLocation {
        &self.registration.location
    }

    /// Whether it has taken the place of this incarnation, whose process had ended.
    pub(super) fn has_replaced(&self, incarnation: &str) -> bool {
        self.replaced.as_deref() == Some(incarnation)
    }

    pub(super) fn registration_number(&self) -> u64 {
        self.registration.number
    }

    pub(super) fn spec(&self) -> &WorkerResourceSpec {
        &self.registration.spec
    }

    pub(super) fn availability(&self) -> Availability {
        self.availability
    }

    /// Number of its outputs that may still be read, and the version of its slots of that count.
    pub(super) fn kept_outputs(&self) -> Option<(u32, SlotsVersion)> {
        self.kept_outputs
    }

    /// Number of tasks in a slot, as last reported.
    pub(super) fn tasks_in(&self, allocation: AllocationId) -> u32 {
        let tasks = self.registration.tasks.get(&allocation);
        tasks.copied().unwrap_or(0)
    }

    /// How reachable it is.
    pub(super) fn contact(&self, now: Uptime) -> Contact {
        Contact {
            address: self.location().rpc_address.clone(),
            silent_for: now.saturating_duration_since(self.last_heartbeat),
            refused: self.refused.calls(),
        }
    }

    /// What it said of itself, for display.
    pub(super) fn info(&self) -> pb::TaskManagerInfo {
        pb::TaskManagerInfo {
            location: Some(self.location().clone()),
            hardware: self.registration.hardware,
            total_profile: Some(self.spec().total().into()),
            memory_configuration: self.registration.memory_configuration,
            draining: self.availability.is_draining,
            ..pb::TaskManagerInfo::default()
        }
    }

    fn connection(&self, id: &ResourceId) -> Connection {
        Connection {
            worker: id.clone(),
            registration: self.registration.number,
            address: self.location().rpc_address.clone(),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct TaskExecutors {
    registered: BTreeMap<ResourceId, TaskExecutor>,
    /// Highest registration numbers, also of TaskExecutors that are gone, as long as they may register again.
    highest_registrations: BTreeMap<ResourceId, u64>,
}

impl TaskExecutors {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ResourceId, &TaskExecutor)> {
        self.registered.iter()
    }

    pub(super) fn get(&self, id: &ResourceId) -> Option<&TaskExecutor> {
        self.registered.get(id)
    }

    /// Whether it is registered.
    pub(super) fn contains(&self, id: &ResourceId) -> bool {
        self.registered.contains_key(id)
    }

    /// Its present connection.
    pub(super) fn connection(&self, id: &ResourceId) -> Option<Connection> {
        Some(self.registered.get(id)?.connection(id))
    }

    /// Whether the connection is the present one.
    pub(super) fn is_connected(&self, to: &Connection) -> bool {
        let known = self.registered.get(&to.worker);
        known.is_some_and(|known| known.registration.number == to.registration)
    }

    fn connected(&mut self, to: &Connection) -> Option<&mut TaskExecutor> {
        let known = self.registered.get_mut(&to.worker)?;
        (known.registration.number == to.registration).then_some(known)
    }

    /// Highest registration number of a TaskExecutor.
    pub(super) fn highest_registration(&self, id: &ResourceId) -> u64 {
        self.highest_registrations
            .get(id)
            .copied()
            .unwrap_or_default()
    }

    /// The incarnation that a registration of this one replaces, if it is another one.
    pub(super) fn replaced_by(&self, id: &ResourceId, incarnation: &str) -> Option<&str> {
        let old = &self.registered.get(id)?.location().incarnation;
        (old != incarnation).then_some(old)
    }

    /// Whether this incarnation is registered and being released.
    pub(super) fn is_releasing(&self, id: &ResourceId, incarnation: &str) -> bool {
        let old = self.registered.get(id);
        old.is_some_and(|old| {
            old.availability.is_releasing && old.location().incarnation == incarnation
        })
    }

    /// Registers a TaskExecutor, or replaces its registration.
    pub(super) fn register(
        &mut self,
        now: Uptime,
        id: ResourceId,
        registration: Registration,
        availability: Availability,
        next_heartbeat: Uptime,
    ) {
        self.highest_registrations
            .insert(id.clone(), registration.number);
        let replaced = match self.replaced_by(&id, &registration.location.incarnation) {
            Some(old) => Some(old.to_owned()),
            None => self.get(&id).and_then(|before| before.replaced.clone()),
        };
        let registered = TaskExecutor {
            registration,
            replaced,
            availability,
            last_heartbeat: now,
            last_sent: now,
            next_heartbeat,
            probe_delay: PROBE_DELAY,
            is_suspect: false,
            refused: RefusedCalls::default(),
            kept_outputs: None,
        };
        self.registered.insert(id, registered);
    }

    /// Removes a TaskExecutor that is gone. Returns its resources.
    pub(super) fn remove(&mut self, id: &ResourceId) -> Option<WorkerResourceSpec> {
        Some(self.registered.remove(id)?.registration.spec)
    }

    /// Forgets the registrations of a TaskExecutor that never registers again. Returns false if it is registered.
    pub(super) fn forget(&mut self, id: &ResourceId) -> bool {
        let is_gone = !self.contains(id);
        if is_gone {
            self.highest_registrations.remove(id);
        }
        is_gone
    }

    #[cfg(test)]
    pub(super) fn knows_any_registration(&self) -> bool {
        !self.highest_registrations.is_empty()
    }

    /// Handles the answer to a heartbeat.
    pub(super) fn answered(
        &mut self,
        now: Uptime,
        to: &Connection,
        (kept, version): (u32, SlotsVersion),
        tasks: TaskCounts,
    ) {
        let Some(known) = self.connected(to) else {
            return;
        };
        let is_late = |(_, known): (u32, SlotsVersion)| version.is_before(known);
        if !known.kept_outputs.is_some_and(is_late) {
            known.kept_outputs = Some((kept, version));
        }
        known.last_heartbeat = now;
        known.refused.reached();
        known.registration.tasks = tasks;
    }

    /// Handles a call that was refused. Returns the check to make, if one is needed.
    pub(super) fn refused(&mut self, to: &Connection, threshold: u32) -> Option<RefusalCheck> {
        self.connected(to)?.refused.refused(threshold)
    }

    /// Handles the result of a check. Returns what follows, and the number of calls that were refused in a row.
    pub(super) fn finish_check(
        &mut self,
        to: &Connection,
        is_lost: bool,
        threshold: u32,
    ) -> Option<(CheckOutcome, u32)> {
        let refused = &mut self.connected(to)?.refused;
        let calls = refused.calls();
        Some((refused.finish_check(is_lost, threshold), calls))
    }

    /// Sends a heartbeat to a TaskExecutor that may be gone, some time after the last one.
    pub(super) fn probe(&mut self, to: &Connection, suspicion: Suspicion) {
        let Some(known) = self.connected(to) else {
            return;
        };
        let delay = match suspicion {
            Suspicion::Ended => known.probe_delay,
            Suspicion::Refused => known.probe_delay.max(REFUSAL_DELAY),
        };
        let at = known.last_sent + delay;
        known.next_heartbeat = known.next_heartbeat.min(at);
        known.is_suspect = true;
    }

    /// All present connections.
    pub(super) fn connections(&self) -> Vec<Connection> {
        self.iter().map(|(id, it)| it.connection(id)).collect()
    }

    /// The present connections to an address.
    pub(super) fn at_address(&self, address: &str) -> Vec<Connection> {
        let at = self
            .iter()
            .filter(|(_, it)| it.location().rpc_address == address);
        at.map(|(id, it)| it.connection(id)).collect()
    }

    /// When a heartbeat is due, or a TaskExecutor is lost.
    pub(super) fn next_deadline(&self, timeout: Duration) -> Option<Uptime> {
        let each = self.registered.values();
        let next = each.map(|it| it.next_heartbeat.min(it.last_heartbeat + timeout));
        next.min()
    }

    /// Returns the TaskExecutors that are lost: they have answered no heartbeat within the timeout.
    pub(super) fn lost(&self, now: Uptime, timeout: Duration) -> Vec<Connection> {
        let lost = self.iter();
        let lost = lost.filter(|(_, it)| it.last_heartbeat + timeout <= now);
        lost.map(|(id, it)| it.connection(id)).collect()
    }

    /// Returns the TaskExecutors that a heartbeat is due to, and sets their next one. Not those that are lost.
    pub(super) fn take_due(
        &mut self,
        now: Uptime,
        interval: Duration,
        timeout: Duration,
    ) -> Vec<ResourceId> {
        let all = self.registered.iter_mut();
        let due =
            all.filter(|(_, it)| it.next_heartbeat <= now && it.last_heartbeat + timeout > now);
        due.map(|(id, it)| {
            // A connection that ends after each call must not be called all the time.
            it.probe_delay = match std::mem::take(&mut it.is_suspect) {
                true => (2 * it.probe_delay).min(interval),
                false => PROBE_DELAY,
            };
            it.last_sent = now;
            it.next_heartbeat = now + interval;
            id.clone()
        })
        .collect()
    }

    /// Extends all deadlines by the time for which this process stood still: sends each a heartbeat now.
    pub(super) fn put_off(&mut self, now: Uptime, late: Duration) {
        for known in self.registered.values_mut() {
            known.last_heartbeat = (known.last_heartbeat + late).min(now);
            known.next_heartbeat = now;
        }
    }

    /// Sets which TaskExecutors are drained; one that is being released stays so. Returns those for which that
    /// changed.
    pub(super) fn set_drained(
        &mut self,
        is_drained: impl Fn(&ResourceId, &pb::TaskManagerLocation) -> bool,
    ) -> Vec<(ResourceId, bool)> {
        let mut changed = Vec::new();
        for (id, known) in &mut self.registered {
            let availability = &mut known.availability;
            let is_draining =
                availability.is_releasing || is_drained(id, &known.registration.location);
            if std::mem::replace(&mut availability.is_draining, is_draining) != is_draining {
                changed.push((id.clone(), is_draining));
            }
        }
        changed
    }

    /// Records that a TaskExecutor is being released.
    pub(super) fn release(&mut self, id: &ResourceId) {
        if let Some(known) = self.registered.get_mut(id) {
            known.availability = Availability {
                is_draining: true,
                is_releasing: true,
            };
        }
    }
}
