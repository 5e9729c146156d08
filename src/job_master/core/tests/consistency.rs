//! Compares the core's indexes with what a full examination finds, after each event. For tests.

use std::collections::BTreeMap;

use tanist_compact::{SmallMap, SmallSet};
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1::ExecutionState as S;

use crate::core::JobMasterCore;
use crate::core::adopted_slots::Held;
use crate::core::execution_graph::execution::Execution;
use crate::core::execution_graph::indexes::Indexes;
use crate::core::execution_graph::{Region, RegionPhase};
use crate::core::failover::FailoverStrategy;

impl JobMasterCore {
    /// Asserts that all indexes equal what a full examination of all tasks and regions finds.
    pub(super) fn assert_consistent(&mut self) {
        assert_eq!(
            *self.graph.indexes(),
            Indexes::of(&self.graph),
            "the indexes are wrong"
        );
        self.assert_slots_in_use();
        self.assert_slot_wait();
        let (counted, finished) = self.record.durably_finished();
        assert_eq!(counted, finished);
        if !self.end.has_ended() {
            self.assert_nothing_forgotten();
            let held = self.adopted_slots_plainly();
            let adopted = self.slots.adopted(&self.graph, &self.record);
            assert_eq!(*adopted, held, "the adopted slots are wrong");
        }
    }

    fn executions(&self) -> impl Iterator<Item = (usize, &Execution)> {
        let tasks = self.graph.tasks().iter().enumerate();
        tasks.map(|(task, at)| (task, &at.execution))
    }

    fn assert_slots_in_use(&self) {
        let mut uses: SmallMap<AllocationId, u32> = SmallMap::new();
        for (task, execution) in self.executions() {
            if let Some(place) = &execution.place
                && !self.record.has_durable_end(task)
            {
                *uses.get_or_insert_with(place.allocation, || 0) += 1;
            }
        }
        assert_eq!(
            *self.slots.pool().idle_slots().uses(),
            uses,
            "other slots are used"
        );
        let held = self
            .slots
            .pool()
            .places()
            .map(|(.., allocation)| allocation);
        let unused: SmallSet<AllocationId> = held.filter(|it| !uses.contains_key(it)).collect();
        assert_eq!(self.slots.pool().idle_slots().unused(), unused);
    }

    /// Checks the count of running regions that end by themselves, and the starved regions.
    fn assert_slot_wait(&self) {
        let is_live = |task: &usize| !self.graph.execution(*task).is_ended();
        let ends = |region: &Region| {
            let is_placed = matches!(region.phase, RegionPhase::Placed | RegionPhase::Deployed);
            let will_end = region.is_bounded || self.record.is_stop_durable();
            is_placed && will_end && region.tasks.iter().any(is_live)
        };
        let regions = self.graph.regions();
        let will_free_slots = regions.len() > 1 && regions.iter().any(ends);
        assert_eq!(self.slot_needs().will_free_slots(), will_free_slots);
        let mut starved = self.slots.wait().starved().iter();
        assert!(
            starved.all(|region| !regions[*region].phase.is_placed()),
            "it has its slots"
        );
    }

    /// Asserts that a full examination of all regions finds nothing that is still to be decided or done.
    fn assert_nothing_forgotten(&self) {
        let mut may_restart = 0;
        for (region, at) in self.graph.regions().iter().enumerate() {
            let executions = at.tasks.iter().map(|task| self.graph.execution(*task));
            let is_any = |state: S| executions.clone().any(|execution| execution.state == state);
            let (written, record) = (
                &self.record.durable().regions,
                &self.record.decided().regions,
            );
            match at.phase {
                RegionPhase::Reconciling => {
                    let is_left = self.record.is_stopping() || is_any(S::Reconciling);
                    assert!(is_left, "region {region} could have been adopted");
                }
                RegionPhase::Stopping { restart_at_ms } => {
                    let is_unsent = is_any(S::Created) || is_any(S::Scheduled);
                    assert!(!is_unsent, "region {region} was not stopped");
                    let is_held = self
                        .failover
                        .held_until_ms(region, &self.graph, &self.record);
                    let is_held = is_held.is_some_and(|until_ms| self.decided_at_ms < until_ms);
                    let is_due = restart_at_ms.is_some_and(|at_ms| at_ms <= self.decided_at_ms);
                    let is_over = executions.clone().all(Execution::is_ended);
                    let is_durable = written[region].generation == record[region].generation;
                    may_restart += usize::from(is_due && is_over && is_durable && !is_held);
                }
                RegionPhase::Placed => {
                    let is_durable = self.record.is_durable() && written[region] == record[region];
                    let is_own = record[region].epoch == self.record.epoch();
                    assert!(!(is_durable && is_own), "region {region} was not deployed");
                }
                RegionPhase::AwaitingInput
                | RegionPhase::Waiting { .. }
                | RegionPhase::Deployed => {}
            }
        }
        let waits_for_others = match self.options.failover_strategy {
            FailoverStrategy::Full => may_restart < self.graph.restarting().len(),
            FailoverStrategy::Region => false,
        };
        assert!(
            may_restart == 0 || waits_for_others,
            "{may_restart} regions could restart"
        );
        self.assert_ends_recorded();
        self.assert_ends_acknowledged();
        self.assert_cancelled();
    }

    fn assert_ends_recorded(&self) {
        for (task, execution) in self.executions() {
            let region = &self.record.decided().regions[self.graph.task(task).region];
            let is_of_record = region.generation == execution.generation.get();
            let counts = self.record.is_stopping() || execution.state == S::Finished;
            let is_open = execution.is_ended() && !execution.is_recorded;
            assert!(!(is_open && is_of_record && counts), "an end is missing");
        }
    }

    fn assert_ends_acknowledged(&self) {
        let ends = self.task_managers.unacknowledged();
        for (task, generation) in ends.filter(|_| self.record.is_durable()) {
            let region = self.graph.task(*task).region;
            let durable = self.record.durable_generation(region);
            let is_recorded = durable == *generation && self.record.has_durable_end(*task);
            assert!(
                !is_recorded && durable <= *generation,
                "an end was not acknowledged"
            );
        }
    }

    fn assert_cancelled(&self) {
        use crate::core::execution_graph::execution::Cancellation;
        let is_over = self.record.durable().wanted() == tanist_proto::v1::WantedStatus::Canceled
            || !self.record.durable().fatal_cause.is_empty();
        for (task, execution) in self.executions().filter(|_| self.record.is_durable()) {
            let region = self.graph.task(task).region;
            let durable = self.record.durable().regions[region].generation;
            let is_unwanted = is_over || durable > execution.generation.get();
            let place = execution.place.as_ref();
            let can_be_told =
                place.is_some_and(|it| self.task_managers.is_registered(&it.task_manager));
            let is_open = execution.cancellation == Cancellation::NotSent;
            assert!(
                !(is_unwanted && can_be_told && is_open && execution.is_deployed()),
                "it was not cancelled"
            );
        }
    }

    fn adopted_slots_plainly(&self) -> Held {
        let mut slots: BTreeMap<&ResourceId, BTreeMap<AllocationId, ResourceProfile>> =
            BTreeMap::new();
        for (task, execution) in self.executions().filter(|(_, it)| !it.is_ended()) {
            let region = self.graph.task(task).region;
            let is_adopted = self.record.decided().regions[region].epoch < self.record.epoch();
            if let Some(place) = execution.place.as_ref().filter(|_| is_adopted) {
                let profile = self.graph.profile_of(self.graph.slot_key(task));
                let there = slots.entry(&place.task_manager).or_default();
                there.insert(place.allocation, profile.clone());
            }
        }
        let held = slots.into_iter();
        held.map(|(id, it)| (id.clone(), it.into_values().collect()))
            .collect()
    }
}
