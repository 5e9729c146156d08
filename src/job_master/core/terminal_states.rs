//! The part of the core that tracks terminal states of executions: which go into the record, and which are
//! durable.
//!
//! Invariant: a slot is in use until the terminal state of its execution is durable, or the execution is
//! given up.

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::JobMasterCore;

impl JobMasterCore {
    /// Adds missing terminal states to the record. Those that only lead to a restart are never added.
    pub(super) fn record_ends(&mut self) {
        let mut ended = std::mem::take(&mut self.execution.news.ended);
        for task in &ended {
            self.doubt_asked(*task);
            self.doubt_adopted_slot(*task);
        }
        let is_stopping = self.is_stopping();
        // When the job has to end, executions that ended before are recorded, too.
        if is_stopping && !std::mem::replace(&mut self.looked_at.all_ends, true) {
            ended = (0..self.execution.tasks.len()).collect();
        }
        ended.sort_unstable();
        for task in ended {
            let at = &self.execution.tasks[task];
            let execution = &at.execution;
            let is_of_record =
                self.record.regions[at.region].generation == execution.generation.get();
            let counts = is_stopping || execution.state == ExecutionState::Finished;
            if !execution.is_ended() || execution.is_recorded || !is_of_record || !counts {
                continue;
            }
            let end = pb::TerminalExecution {
                vertex_id: self.execution.vertex_of(task).id.to_string(),
                subtask: at.subtask,
                generation: execution.generation.get(),
                state: execution.state.into(),
                cause: execution.cause.clone(),
                committables: execution.committables.clone(),
                ended_at_ms: execution.ended_at_ms,
                initializing_at_ms: execution.entered_at_ms(ExecutionState::Initializing),
                running_at_ms: execution.entered_at_ms(ExecutionState::Running),
                canceling_at_ms: execution.entered_at_ms(ExecutionState::Canceling),
            };
            Arc::make_mut(&mut self.record).terminal.push(end);
            self.execution.tasks[task].execution.is_recorded = true;
            self.revision += 1;
        }
        // A job that has nothing more to run keeps its coordinators to the end.
        if self.dirty.has_written && !self.all_have_durably_finished() {
            self.forget_finished_coordinators();
        }
    }

    /// Updates the terminal states of the present generations from `written`.
    pub(super) fn note_durable_ends(&mut self) {
        let mut ends = BTreeMap::new();
        for end in &self.written.terminal {
            let Some(task) = self.execution.find(&end.vertex_id, end.subtask) else {
                continue;
            };
            let region = self.execution.tasks[task].region;
            if self.written.regions[region].generation == end.generation {
                ends.insert(task, end.state());
            }
        }
        // A slot is in use until the terminal state of its execution is durable.
        let before = std::mem::replace(&mut self.durable_ends, ends);
        for task in before.keys().chain(self.durable_ends.keys()) {
            let (had, has) = (
                before.contains_key(task),
                self.durable_ends.contains_key(task),
            );
            if let Some(place) = &self.execution.tasks[*task].execution.place {
                match has {
                    true if !had => self.pool.end_use(place.allocation),
                    false => self.pool.begin_use(place.allocation),
                    true => {}
                }
            }
        }
        let finished = |end: &&ExecutionState| **end == ExecutionState::Finished;
        self.durably_finished = self.durable_ends.values().filter(finished).count();
    }

    /// Whether it is durable that all tasks have finished.
    pub(super) fn all_have_durably_finished(&self) -> bool {
        self.durably_finished == self.execution.tasks.len()
    }
}
