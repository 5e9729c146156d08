//! Stops in the simulation: sources that end only after a stop, what becomes of a record that says so, and
//! how such a job may end.

use std::collections::BTreeSet;

use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobStatus, WantedStatus};

use super::invariants::all_finished;
use super::model::States;
use super::task_manager::TaskKey;
use super::world::World;
use crate::core::{CancelAnswer, Event};

#[derive(Debug, Default)]
pub(super) struct Stopping {
    /// Whether sources end only after a stop.
    pub(super) is_endless: bool,
    /// Whether a stop was acknowledged.
    pub(super) is_acknowledged: bool,
    /// Sources that any term has known to run, with their generations.
    begun: BTreeSet<(TaskKey, u64)>,
}

impl World {
    /// From now on sources end only after a stop.
    pub(super) fn without_end(mut self) -> World {
        self.stopping.is_endless = true;
        self
    }

    pub(super) fn stop(&mut self) {
        self.hear(Event::StopRequested);
    }

    /// A client requests a stop until that is acknowledged.
    pub(super) fn stop_unless_acknowledged(&mut self) {
        if !self.stopping.is_acknowledged {
            self.stop();
        }
    }

    pub(super) fn is_source(&self, vertex: &str) -> bool {
        !self.graph.edges.iter().any(|edge| edge.target == vertex)
    }

    /// The vertices whose tasks do not end by themselves on a TaskManager.
    pub(super) fn without_end_on(&self, index: usize) -> BTreeSet<String> {
        let goes_on = self.stopping.is_endless && !self.task_managers[index].is_told_to_stop;
        let vertices = self.graph.vertices.iter().map(|vertex| &vertex.id);
        let sources = vertices.filter(|id| goes_on && self.is_source(id));
        sources.cloned().collect()
    }

    /// Notes which sources the present term knows to have begun.
    pub(super) fn note_begun(&mut self, states: &States) {
        for (key, (state, attempt)) in states {
            let has_begun = matches!(state, S::Initializing | S::Running | S::Finished);
            if has_begun && self.is_source(&key.0) {
                self.stopping.begun.insert((key.clone(), *attempt));
            }
        }
    }

    pub(super) fn hear_stop_answer(&mut self, answer: &CancelAnswer) {
        let stored = self.stored.wanted();
        if *answer == CancelAnswer::Decided {
            let has_finished = match &self.result {
                Some(result) => result.status() == JobStatus::Finished,
                None => stored == WantedStatus::Running && all_finished(&self.built, &self.stored),
            };
            assert!(
                stored == WantedStatus::Stopped
                    || has_finished
                    || stored == WantedStatus::Canceled && !was_ever_placed(&self.stored),
                "acknowledged and not stored: {stored:?}"
            );
            self.stopping.is_acknowledged = true;
        } else {
            // It has finished, and its output can't be made visible at present.
            let is_committing = all_finished(&self.built, &self.stored) && !self.sinks_committed;
            // A region was given up, or is about to be.
            let regions = self
                .core
                .iter()
                .flat_map(|core| &core.record.decided().regions);
            let is_restarting = regions.into_iter().any(|region| region.placed_before);
            let stops_otherwise = self.checkpoints.as_ref().is_some_and(|at| at.is_to_stop());
            let is_right = stored == WantedStatus::Canceled
                || stops_otherwise
                || is_restarting
                || !self.stored.fatal_cause.is_empty()
                || is_committing
                || self.result.is_some();
            assert!(is_right, "{answer:?}, and the record says {stored:?}");
        }
    }

    /// Asserts that a stop is never taken back, and that no region restarts that would not read again what it
    /// has read.
    pub(super) fn assert_stop_stays(&self, after: &pb::JobState) {
        let before = &self.stored;
        let (was, is) = (before.wanted(), after.wanted());
        let may_follow = match was {
            WantedStatus::Running => true,
            WantedStatus::Stopped => is != WantedStatus::Running,
            WantedStatus::Canceled => is == WantedStatus::Canceled,
        };
        assert!(may_follow, "{is:?} was written after {was:?}");
        let is_stopped = was == WantedStatus::Stopped && is == WantedStatus::Stopped;
        if !is_stopped || !after.fatal_cause.is_empty() {
            return;
        }
        let built = &self.built;
        for (number, (before, after)) in before.regions.iter().zip(&after.regions).enumerate() {
            if before.generation == after.generation {
                continue;
            }
            for task in &built.region(number).tasks {
                let vertex = built.vertex_of(*task).id.to_string();
                let key = (vertex, built.task(*task).subtask);
                let has_read = self.stopping.begun.contains(&(key, before.generation));
                let was_placed = !before.placements.is_empty();
                assert!(
                    !has_read || !was_placed || self.has_snapshot(number),
                    "what it has read is lost: region {number} of generation {}",
                    before.generation
                );
            }
        }
    }

    /// Asserts that a job with a stored stop finishes, or fails with a stored cause.
    pub(super) fn assert_stopped_as_stored(&mut self, result: &pb::JobResult) {
        if self.stored.wanted() != WantedStatus::Stopped {
            return;
        }
        match result.status() {
            JobStatus::Finished => self.reached.stopped_finished += 1,
            JobStatus::Failed => {
                assert!(!self.stored.fatal_cause.is_empty(), "{}", result.cause);
                self.reached.stopped_failed += 1;
            }
            other => panic!("it was to be stopped, and is {other:?}"),
        }
    }
}

fn was_ever_placed(state: &pb::JobState) -> bool {
    let mut regions = state.regions.iter();
    regions.any(|region| !region.placements.is_empty() || region.placed_before)
}
