//! The preparation of coordinators: each group is prepared before the first of its regions is placed, and the result
//! becomes part of the record with the placement. It is removed when no region is placed with it any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use tanist_proto::v1 as pb;

use super::{Coordination, Coordinators, Preparation, Unprepared};
use crate::core::checkpointing::Checkpointing;
use crate::core::durable_record::DurableRecord;
use crate::core::execution_graph::blocking::OfVertices;
use crate::core::execution_graph::{ExecutionGraph, RegionPhase, as_index};
use crate::core::faults::{Fault, is_planted};
use crate::core::output::Output;
use crate::core::{Effect, Failure};

impl Coordinators {
    /// Whether the coordinators of the group with this number are prepared, so that its regions can be placed. If not,
    /// requests their preparation. `known` caches the answer by group.
    pub(in crate::core) fn is_prepared(
        &mut self,
        number: Option<usize>,
        known: &mut OfVertices,
        record: &DurableRecord,
        out: &mut Output,
    ) -> bool {
        let coordination = self.of_job.as_mut().zip(number);
        coordination.is_none_or(|(coordination, number)| {
            known.get(number, || coordination.is_prepared(number, record, out))
        })
    }

    /// Whether the coordinators of a group are being prepared.
    pub(in crate::core) fn is_preparing(&self, number: Option<usize>) -> bool {
        let found = number.and_then(|number| self.of_job.as_ref()?.preparations.get(&number));
        matches!(found, Some(Preparation::Requested { .. }))
    }

    /// Whether any coordinators are being prepared.
    pub(in crate::core) fn is_any_preparing(&self) -> bool {
        let coordination = self.of_job.as_ref();
        let mut preparations = coordination.iter().flat_map(|it| it.preparations.values());
        preparations.any(|it| matches!(it, Preparation::Requested { .. }))
    }

    /// Applies the result of a preparation. Returns the failures of regions that wait for it.
    pub(in crate::core) fn apply_prepared(
        &mut self,
        region: usize,
        generation: u64,
        outcome: Result<Vec<pb::CoordinatorState>, Unprepared>,
        graph: &ExecutionGraph,
    ) -> Vec<Failure> {
        let Some((coordination, number)) = self.group_of(region, graph) else {
            return Vec::new();
        };
        let operators = match coordination.preparations.get(&number) {
            Some(Preparation::Requested {
                generation: of,
                operators,
            }) if *of == generation => operators,
            Some(Preparation::Requested { .. } | Preparation::Ready { .. }) | None => {
                return Vec::new();
            }
        };
        let group = &coordination.groups[number];
        match outcome {
            Ok(states) => {
                let wanted = operators.iter().map(|it| (&it.vertex_id, &it.operator));
                // A result that was requested under another region rule, for another group, does not count.
                if wanted.eq(states.iter().map(|it| (&it.vertex_id, &it.operator))) {
                    let ready = Preparation::Ready { generation, states };
                    coordination.preparations.insert(number, ready);
                }
                Vec::new()
            }
            Err(Unprepared {
                cause,
                is_unrecoverable,
            }) => {
                coordination.preparations.remove(&number);
                let waits = |region: &&usize| {
                    let phase = graph.region(**region).phase;
                    matches!(phase, RegionPhase::Waiting { .. })
                };
                let waiting = group.regions.iter().filter(waits);
                let failures = waiting.map(|region| Failure {
                    is_unrecoverable,
                    ..Failure::of_region(*region, cause.clone())
                });
                failures.collect()
            }
        }
    }

    /// Takes the prepared states of a region that is being placed. Empty if the record has them from another
    /// region of the group.
    pub(in crate::core) fn take_prepared(
        &mut self,
        region: usize,
        record: &DurableRecord,
        graph: &ExecutionGraph,
    ) -> Vec<pb::CoordinatorState> {
        let Some((coordination, number)) = self.group_of(region, graph) else {
            return Vec::new();
        };
        if coordination.missing(record.decided(), number).is_empty() {
            return Vec::new();
        }
        let generation = coordination.generation(record.decided(), number);
        match coordination.preparations.remove(&number) {
            Some(Preparation::Ready {
                generation: of,
                states,
            }) if of == generation => states,
            Some(Preparation::Ready { .. } | Preparation::Requested { .. }) | None => Vec::new(),
        }
    }

    /// Removes the coordinators of a region that lost its placement from the record, unless another region is
    /// still placed with them. If one of their regions is restored from a snapshot, they stay: its sources
    /// continue with the request at which the snapshot was taken.
    pub(in crate::core) fn forget(
        &mut self,
        region: usize,
        checkpointing: &Checkpointing,
        record: &mut DurableRecord,
        graph: &ExecutionGraph,
    ) {
        let Some((coordination, number)) = self.group_of(region, graph) else {
            return;
        };
        let regions = &record.decided().regions;
        let is_placed = |region: &usize| !regions[*region].placements.is_empty();
        let group = &mut coordination.groups[number];
        if group.regions.iter().any(is_placed) {
            return;
        }
        group.failed.clear();
        group.is_doubted = false;
        let is_of_group =
            |it: &pb::CoordinatorState| Coordination::group_of_state(graph, it) == Some(number);
        let mut regions = coordination.groups[number].regions.iter();
        let goes_on = regions.any(|region| checkpointing.may_go_on(*region));
        if goes_on && !is_planted(Fault::FilesListedAgain) {
            let generation = coordination.generation(record.decided(), number);
            return record.renew_coordinators(is_of_group, generation);
        }
        record.retain_coordinators(|it| !is_of_group(it));
    }

    /// Notes that a task of a region failed by itself.
    pub(in crate::core) fn note_failed_by_itself(&mut self, region: usize, graph: &ExecutionGraph) {
        if let Some((coordination, number)) = self.group_of(region, graph) {
            let group = &mut coordination.groups[number];
            group.is_doubted |= !group.failed.insert(region);
        }
    }

    /// Adds the regions that restart with this one because the preparation of their group is doubted.
    pub(in crate::core) fn add_doubted(
        &mut self,
        region: usize,
        graph: &ExecutionGraph,
        to: &mut Vec<usize>,
    ) {
        if let Some((coordination, number)) = self.group_of(region, graph) {
            let group = &coordination.groups[number];
            if group.is_doubted {
                to.extend(&group.regions);
            }
        }
    }

    /// Removes finished coordinators from the record: it is durable that all of their regions have finished,
    /// and none of them runs again without all others. A single region that runs again needs the same answers
    /// as before: where that can happen, the record keeps the coordinators until the job ends.
    pub(in crate::core) fn forget_finished(
        &self,
        record: &mut DurableRecord,
        graph: &ExecutionGraph,
    ) {
        let Some(coordination) = &self.of_job else {
            return;
        };
        let all_finished = |vertex: &usize| {
            let parallelism = graph.vertices()[*vertex].parallelism;
            graph.indexes().finished[*vertex] == as_index(parallelism)
        };
        let has_finished = |region: &usize| {
            // The region must not have been given up since; that is not durable yet.
            let is_of_record = record.is_generation_durable(*region);
            let mut tasks = graph.region(*region).tasks.iter();
            is_of_record && tasks.all(|task| record.has_durably_finished(*task))
        };
        let is_over = |group: &super::Group| {
            !group.may_run_again_in_part
                && group.vertices.iter().all(all_finished)
                && group.regions.iter().all(has_finished)
        };
        let groups = coordination.groups.iter().enumerate();
        let over = groups.filter(|(_, group)| is_over(group));
        let over: BTreeSet<usize> = over.map(|(number, _)| number).collect();
        let number_of = |it: &pb::CoordinatorState| Coordination::group_of_state(graph, it);
        record.retain_coordinators(|it| number_of(it).is_none_or(|number| !over.contains(&number)));
    }

    /// All coordinators, and the group of a region, if it is in one.
    fn group_of(
        &mut self,
        region: usize,
        graph: &ExecutionGraph,
    ) -> Option<(&mut Coordination, usize)> {
        let coordination = self.of_job.as_deref_mut();
        coordination.zip(graph.region(region).coordinator_group)
    }
}

impl Coordination {
    fn is_prepared(&mut self, number: usize, record: &DurableRecord, out: &mut Output) -> bool {
        let missing = self.missing(record.decided(), number);
        if missing.is_empty() {
            // Another region of the group was placed with these states, or the job was started with them.
            return true;
        }
        let generation = self.generation(record.decided(), number);
        match self.preparations.get(&number) {
            Some(Preparation::Ready { generation: of, .. }) if *of == generation => return true,
            Some(Preparation::Requested { generation: of, .. }) if *of == generation => {
                return false;
            }
            Some(Preparation::Ready { .. } | Preparation::Requested { .. }) | None => {}
        }
        let group = &self.groups[number];
        let operators = match missing.len() == group.operators.len() {
            true => group.operators.clone(),
            false => missing.into_iter().cloned().collect(),
        };
        let requested = Preparation::Requested {
            generation,
            operators: Arc::clone(&operators),
        };
        out.push(Effect::Prepare {
            region: group.regions[0],
            generation,
            look: group.look_of(generation),
            operators,
        });
        self.preparations.insert(number, requested);
        false
    }
}
