//! Draining of TaskExecutors: they get no more slot requests, and jobs are asked to leave them. Pure, a part of
//! [`super`].
//!
//! Drains are in the store ([`crate::drains`]), by TaskManager or host: a drain holds for every TaskExecutor
//! that registers with that id or host, in this term and later ones. A decision takes effect once it is
//! durable, so no process acts on a decision that the next leader does not know. TaskExecutors learn of it by
//! heartbeats, JobMasters by the verdicts on their jobs. `docs/adr/0051`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::{GatewayError, GatewayResult, Leave, Leaving};
use tanist_ha::clock::Uptime;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::v1 as pb;

use super::task_executors::TaskExecutor;
use super::{Effect, LogLine, ResourceManagerCore};
use crate::drains::{DrainChange, DrainRecord, DrainTarget, KEPT};

/// The drain of a TaskManager or host.
#[derive(Debug, Clone)]
struct Drain {
    record: DrainRecord,
    deadline: Option<Uptime>,
}

impl Drain {
    fn leave(&self, now: Uptime) -> Leave {
        let is_over = self.deadline.is_some_and(|at| at <= now);
        match (is_over, self.record.force, self.record.evict) {
            (true, true, _) => Leave::AtOnce,
            (true, false, _) | (false, _, true) => Leave::Moved,
            (false, _, false) => Leave::ByItself,
        }
    }
}

/// All drains, and what was sent to jobs about them.
#[derive(Debug, Default)]
pub(super) struct Drains {
    all: BTreeMap<DrainTarget, Drain>,
    /// Deadlines up to this time were handled.
    handled_until: Option<Uptime>,
    /// Host of the worker that registered last of those that the driver started in its present place.
    host_of_workers: Option<String>,
    /// The TaskManagers that each job was last told to leave.
    told: BTreeMap<JobId, Arc<Leaving>>,
}

impl Drains {
    fn put(&mut self, now: Uptime, wall_ms: u64, target: DrainTarget, record: DrainRecord) {
        let left_ms = record.deadline_ms.saturating_sub(wall_ms);
        let deadline = (record.deadline_ms > 0).then(|| now + Duration::from_millis(left_ms));
        self.all.insert(target, Drain { record, deadline });
    }

    /// The drains that apply to a TaskExecutor: its own, and that of its host.
    fn of(&self, id: &ResourceId, location: &pb::TaskManagerLocation) -> Vec<&Drain> {
        let by_id = self.all.get(&DrainTarget::TaskManager(id.clone()));
        let host = host_of(&location.rpc_address).to_owned();
        let by_host = self.all.get(&DrainTarget::Host(host));
        by_id.into_iter().chain(by_host).collect()
    }

    pub(super) fn is_drained(&self, id: &ResourceId, location: &pb::TaskManagerLocation) -> bool {
        !self.of(id, location).is_empty()
    }

    /// Records the host of a worker that registered from the place where the driver starts workers.
    pub(super) fn note_host_of_workers(&mut self, location: &pb::TaskManagerLocation) {
        self.host_of_workers = Some(host_of(&location.rpc_address).to_owned());
    }

    /// The host on which the driver starts workers, if it is known and drained. It is known once such a worker
    /// has registered in this term.
    pub(super) fn drained_host_of_workers(&self) -> Option<&str> {
        let host = self.host_of_workers.as_ref()?;
        let target = DrainTarget::Host(host.clone());
        self.all.contains_key(&target).then_some(host)
    }

    pub(super) fn next_deadline(&self) -> Option<Uptime> {
        let open = |at: &Uptime| self.handled_until.is_none_or(|until| *at > until);
        self.all
            .values()
            .filter_map(|it| it.deadline)
            .filter(open)
            .min()
    }
}

/// The host part of an address.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

impl ResourceManagerCore {
    /// The same core with the drains that the store had when the term began.
    #[must_use]
    pub(crate) fn with_drains(
        mut self,
        now: Uptime,
        wall_ms: u64,
        recorded: Vec<(DrainTarget, DrainRecord)>,
    ) -> ResourceManagerCore {
        for (target, record) in recorded {
            self.drains.put(now, wall_ms, target, record);
        }
        self
    }

    /// The change to write for a drain request. `None`: the request is already in effect.
    pub(crate) fn decide_drain(
        &self,
        wall_ms: u64,
        request: &pb::DrainTaskManagerRequest,
    ) -> GatewayResult<Option<DrainChange>> {
        let target = DrainTarget::of(request)?;
        let known = self.drains.all.get(&target);
        if !self.is_there(&target) && known.is_none() {
            let missing = match &target {
                DrainTarget::TaskManager(id) => format!("no TaskManager {id} is registered"),
                DrainTarget::Host(host) => format!("no TaskManager of host {host} is registered"),
            };
            return Err(GatewayError::NotFound(missing));
        }
        if request.undrain {
            if let DrainTarget::TaskManager(id) = &target
                && let Some(host) = self.drained_host_of(id)
            {
                let text = format!("{target} is drained with its host {host}: undrain the host");
                return Err(GatewayError::Conflict(text));
            }
            return Ok(known.map(|_| DrainChange {
                target,
                record: None,
                forgotten: Vec::new(),
            }));
        }
        if request.force && request.deadline_in_ms == 0 {
            let text = "force needs a deadline: work without free slots elsewhere is stopped then";
            return Err(GatewayError::Invalid(text.to_owned()));
        }
        let (task_manager, host) = (request.resource_id.clone(), request.host.clone());
        let deadline_ms = match request.deadline_in_ms {
            0 => 0,
            left_ms => wall_ms.saturating_add(left_ms),
        };
        let record = DrainRecord {
            task_manager,
            host,
            since_ms: known.map_or(wall_ms, |known| known.record.since_ms),
            by: request.by.clone(),
            reason: request.reason.clone(),
            evict: request.evict,
            deadline_ms,
            force: request.force,
        };
        let is_same = known.is_some_and(|known| known.record == record);
        let forgotten = self.forgettable();
        Ok((!is_same).then_some(DrainChange {
            target,
            record: Some(record),
            forgotten,
        }))
    }

    /// Whether a TaskExecutor is registered that the target names.
    fn is_there(&self, target: &DrainTarget) -> bool {
        match target {
            DrainTarget::TaskManager(id) => self.task_executors.contains(id),
            DrainTarget::Host(host) => {
                let mut all = self.task_executors.iter();
                all.any(|(_, it)| host_of(&it.location().rpc_address) == host)
            }
        }
    }

    /// The host of a TaskExecutor, if that host is drained.
    pub(super) fn drained_host_of(&self, id: &ResourceId) -> Option<&str> {
        let known = self.task_executors.get(id)?;
        let host = host_of(&known.location().rpc_address);
        let by_host = DrainTarget::Host(host.to_owned());
        self.drains.all.contains_key(&by_host).then_some(host)
    }

    /// The oldest records of TaskManagers that are gone, beyond [`KEPT`]. Most TaskManager ids never come back,
    /// so the records must not grow without limit.
    fn forgettable(&self) -> Vec<DrainTarget> {
        let gone = self.drains.all.iter().filter(|(target, _)| match target {
            DrainTarget::TaskManager(id) => !self.task_executors.contains(id),
            DrainTarget::Host(_) => false,
        });
        let mut gone: Vec<(u64, &DrainTarget)> = gone
            .map(|(target, it)| (it.record.since_ms, target))
            .collect();
        gone.sort_unstable();
        let surplus = (gone.len() + 1).saturating_sub(KEPT);
        let oldest = gone.into_iter().take(surplus);
        oldest.map(|(_, target)| target.clone()).collect()
    }

    /// Applies a decision that is durable.
    pub(super) fn drain_decided(&mut self, now: Uptime, wall_ms: u64, change: DrainChange) {
        for target in &change.forgotten {
            self.drains.all.remove(target);
        }
        let target = change.target;
        match change.record {
            Some(record) => {
                self.log.push(LogLine::Draining {
                    target: target.clone(),
                    evict: record.evict,
                    by: record.by.clone(),
                    reason: record.reason.clone(),
                });
                self.drains.put(now, wall_ms, target, record);
            }
            None => {
                self.drains.all.remove(&target);
                self.log.push(LogLine::Undrained { target });
            }
        }
        self.drains.handled_until = None;
        self.review_drains();
        self.changed(now);
    }

    /// Sends a heartbeat at once to TaskExecutors whose drain status has changed.
    fn review_drains(&mut self) {
        let drains = &self.drains;
        let is_drained =
            |id: &ResourceId, location: &pb::TaskManagerLocation| drains.is_drained(id, location);
        for (id, is_draining) in self.task_executors.set_drained(is_drained) {
            self.slots.set_draining(&id, is_draining);
            self.send_heartbeat(&id);
        }
    }

    /// Whether deadlines have passed since the last call.
    pub(super) fn is_drain_due(&mut self, now: Uptime) -> bool {
        let is_due = self.drains.next_deadline().is_some_and(|at| at <= now);
        self.drains.handled_until = Some(now);
        is_due
    }

    /// The TaskManagers that a job must leave, as last sent to it.
    pub(crate) fn leaving(&self, job: JobId) -> Arc<Leaving> {
        self.drains.told.get(&job).cloned().unwrap_or_default()
    }

    /// Notifies each job with slots at drained TaskManagers that it must leave them, if that has changed.
    pub(super) fn judge_leaving(&mut self, now: Uptime) {
        if self.drains.all.is_empty() && self.drains.told.is_empty() {
            return;
        }
        let mut leaving: BTreeMap<JobId, Leaving> = BTreeMap::new();
        for (id, known) in self.task_executors.iter() {
            let of = self.drains.of(id, known.location());
            if let Some(leave) = of.into_iter().map(|it| it.leave(now)).max() {
                for job in self.slots.holders_at(id) {
                    leaving.entry(job).or_default().insert(id.clone(), leave);
                }
            }
        }
        let before = std::mem::take(&mut self.drains.told);
        for &job in before.keys().filter(|job| !leaving.contains_key(job)) {
            let leaving = Arc::default();
            self.effects.push(Effect::Leaving { job, leaving });
        }
        for (job, leaving) in leaving {
            let known = before.get(&job).filter(|known| ***known == leaving);
            let is_known = known.is_some();
            let leaving = known.cloned().unwrap_or_else(|| Arc::new(leaving));
            self.drains.told.insert(job, leaving.clone());
            if !is_known {
                self.effects.push(Effect::Leaving { job, leaving });
            }
        }
    }

    /// Drains that apply to no registered TaskExecutor, oldest first, for display.
    pub(crate) fn unmatched_drains(&self, now: Uptime) -> Vec<pb::DrainInfo> {
        let all = self.drains.all.iter();
        let unmatched = all.filter(|(target, _)| !self.is_there(target));
        let mut unmatched: Vec<pb::DrainInfo> = unmatched
            .map(|(_, drain)| pb::DrainInfo {
                since_ms: drain.record.since_ms,
                by: drain.record.by.clone(),
                reason: drain.record.reason.clone(),
                evicting: drain.leave(now) > Leave::ByItself,
                deadline_ms: drain.record.deadline_ms,
                force: drain.record.force,
                host: drain.record.host.clone(),
                resource_id: drain.record.task_manager.clone(),
                ..pb::DrainInfo::default()
            })
            .collect();
        unmatched.sort_by_key(|drain| drain.since_ms);
        unmatched
    }

    /// The drain of a TaskExecutor, for display.
    pub(super) fn drain_info(
        &self,
        now: Uptime,
        id: &ResourceId,
        known: &TaskExecutor,
    ) -> Option<pb::DrainInfo> {
        let all = self.drains.of(id, known.location());
        let first = all.iter().min_by_key(|it| it.record.since_ms)?;
        let leave = all.iter().map(|it| it.leave(now)).max()?;
        let jobs = self.slots.holders_at(id);
        let kept = known.kept_outputs().map(|(kept, _)| kept);
        let deadlines = all.iter().map(|it| it.record.deadline_ms);
        Some(pb::DrainInfo {
            since_ms: first.record.since_ms,
            by: first.record.by.clone(),
            reason: first.record.reason.clone(),
            evicting: leave > Leave::ByItself,
            deadline_ms: deadlines
                .filter(|at_ms| *at_ms > 0)
                .min()
                .unwrap_or_default(),
            force: all.iter().any(|it| it.record.force),
            host: all
                .iter()
                .map(|it| it.record.host.clone())
                .find(|it| !it.is_empty())
                .unwrap_or_default(),
            resource_id: String::new(),
            drained: jobs.is_empty() && kept == Some(0),
            jobs: jobs.iter().map(ToString::to_string).collect(),
            kept_outputs: kept.unwrap_or_default(),
        })
    }
}
