//! What [`TaskExecutorCore::after_event`] has done when it returns:
//!
//! - A slot that is being released is held only while a task runs in it, and an ended job is known only while it has
//!   such a slot or task.
//! - A slot has a timeout exactly while a JobMaster can accept it.
//! - Requests of operators end with their task.
//! - Changes of executions are reported, or their report is in flight or will be repeated.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use tanist_proto::id::AllocationId;

use super::core_world::World;
use crate::core::job::Job;
use crate::core::slot_table::SlotHolder;
use crate::core::*;

impl World {
    pub(super) fn check_follow_ups(&self) -> Result<(), TestCaseError> {
        let core = &self.core;
        for of in self.holders().values() {
            let job: JobId = of.job_id.parse().expect("a job");
            let allocation: AllocationId = of.allocation_id.parse().expect("an allocation");
            let mut running = self.running.iter();
            let is_in_use = running.any(|(task, at)| task.job == job && *at == of.allocation_id);
            let holder = SlotHolder { job, allocation };
            prop_assert_eq!(core.jobs.is_in_use(holder), is_in_use, "{:?}", holder);
            let is_held = core.slots.is_held(holder);
            prop_assert!(is_held || is_in_use, "{holder:?} is released and not freed");
        }
        for task in self.calls.requesters() {
            let is_running = self.running.iter().any(|(of, _)| of == task);
            prop_assert!(is_running, "{task:?} has ended, and its request has not");
        }
        core.jobs.iter().try_for_each(|job| self.check_job(job))
    }

    fn check_job(&self, job: &Job) -> Result<(), TestCaseError> {
        let (core, id) = (&self.core, job.id());
        let is_needed = !job.is_ending() || job.executions().is_running();
        let is_known_for = is_needed || core.slots.is_used_by(id);
        prop_assert!(is_known_for, "{id} has ended and is not forgotten");
        let (is_registered, run) = (job.connection().is_registered(), job.connection().run());
        let key = |of: &pb::ExecutionReport| (of.subtask, of.generation);
        let present = job.executions().report(&|_| None);
        let mut failed = self.calls.failed_report(id, run).iter();
        let is_lost = failed.any(|of| present.iter().any(|it| key(it) == key(of)));
        let is_kept = !is_lost || job.executions().has_changed();
        prop_assert!(is_kept, "the failed report of {id} is not repeated");
        let far = self.now + Duration::from_secs(1_000_000_000);
        let expiring = core.slots.expired(far).into_iter();
        let expiring = expiring.filter(|holder| holder.job == id);
        let expiring: BTreeSet<AllocationId> = expiring.map(|of| of.allocation).collect();
        let acceptable: BTreeSet<AllocationId> = match core.leader.is_named() && is_registered {
            true => core.slots.not_accepted(id).collect(),
            false => BTreeSet::new(),
        };
        prop_assert_eq!(
            expiring,
            acceptable,
            "the slots of {} that have a timeout",
            id
        );
        if is_registered && job.executions().has_changed() && !core.lifecycle.is_stopping() {
            let is_reported = self.calls.is_report_pending(self.now, id, run);
            prop_assert!(is_reported, "changes of {id} are not reported");
        }
        Ok(())
    }
}
