//! Regions that have lost nothing. No change of the leader may touch them.

use std::collections::BTreeSet;

use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState as S;

use super::world::{RECONCILE_TIMEOUT_MS, World};
use crate::core::failover::FailoverStrategy;

impl World {
    /// Notes, at the start of a term, which regions run completely.
    pub(super) fn note_healthy(&mut self) {
        // A region is also affected by the loss of an output that it reads over blocking edges, and with the
        // full strategy by a failure of any other region.
        let is_apart = self.blocking.is_empty() && self.failover == FailoverStrategy::Region;
        let regions = self.stored.regions.iter().enumerate();
        // Regions that read the same files are affected by repeated failures of one of them.
        let readers: BTreeSet<usize> = self.built.regions_of(0).collect();
        let is_apart =
            |number: &usize| is_apart && (readers.len() == 1 || !readers.contains(number));
        let regions = regions.filter(|(number, _)| is_apart(number));
        let healthy = regions.filter(|(_, region)| self.is_whole(region));
        self.healthy = healthy
            .map(|(number, region)| (number, region.generation))
            .collect();
        self.reached.healthy += u32::try_from(self.healthy.len()).expect("few regions");
    }

    /// Forgets regions of which something was lost meanwhile, or which were not reported in time.
    pub(super) fn forget_unhealthy(&mut self) {
        let mut healthy = std::mem::take(&mut self.healthy);
        let is_late = self.now_ms >= self.term_began_ms + RECONCILE_TIMEOUT_MS;
        healthy.retain(|number, _| {
            let region = &self.stored.regions[*number];
            let is_in_time = !is_late || region.placements.iter().all(|it| self.is_registered(it));
            is_in_time && self.is_whole(region)
        });
        self.healthy = healthy;
    }

    /// A TaskManager is lost for the JobMaster, and so is everything on it.
    pub(super) fn lose(&mut self, index: usize) {
        let id = self.task_managers[index].id.to_string();
        let stored = &self.stored;
        self.healthy.retain(|number, _| {
            let placements = &stored.regions[*number].placements;
            let is_there = |it: &pb::Placement| {
                let location = it.location.as_ref();
                location.is_some_and(|location| location.resource_id == id)
            };
            !placements.iter().any(is_there)
        });
    }

    fn is_registered(&self, placement: &pb::Placement) -> bool {
        let location = placement.location.clone().unwrap_or_default();
        let connections = self.core.iter().flat_map(|core| core.connections());
        let mut ids = connections.map(|(connection, ..)| connection.task_manager.to_string());
        ids.any(|id| id == location.resource_id)
    }

    /// Whether all executions of a region are where the record places them, or have finished.
    pub(super) fn is_whole(&self, region: &pb::RegionState) -> bool {
        let is_there = |it: &pb::Placement| self.is_there(region.generation, it);
        !region.placements.is_empty() && region.placements.iter().all(is_there)
    }

    fn is_there(&self, generation: u64, placement: &pb::Placement) -> bool {
        let is_recorded = self.stored.terminal.iter().any(|end| {
            end.vertex_id == placement.vertex_id
                && end.subtask == placement.subtask
                && end.generation == generation
                && end.state() == S::Finished
        });
        let location = placement.location.clone().unwrap_or_default();
        let key = (placement.vertex_id.clone(), placement.subtask);
        let is_on = self.task_managers.iter().any(|it| {
            let has_slot = it
                .slots
                .iter()
                .flatten()
                .any(|slot| slot.to_string() == placement.allocation_id);
            let running = it.running.get(&key);
            let runs = running.into_iter().flatten().any(|it| {
                let is_well = matches!(it.state, S::Deploying | S::Running | S::Finished);
                it.generation == generation && is_well
            });
            it.id.as_str() == location.resource_id
                && it.incarnation.to_string() == location.incarnation
                && has_slot
                && runs
        });
        is_recorded || is_on
    }
}
