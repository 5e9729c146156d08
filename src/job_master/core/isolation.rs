//! The part of the core that keeps the attempts of an isolated job apart (`isolation: stop-first`,
//! `docs/adr/0020`).
//!
//! A given-up generation counts as ended when the ends of all its executions were reported, or when enough
//! time has passed since the give-up was durable for every TaskManager to have stopped them by itself.
//! Invariant: before that, no execution of the next generation is placed. Reports to an earlier JobMaster are
//! lost: after a change of the leader the whole time passes.

use tanist_proto::v1 as pb;

use super::{JobMasterCore, LogLine};

/// Whether no two attempts of a subtask may run at the same time.
pub(super) fn is_stop_first(graph: &pb::JobGraph) -> bool {
    let options = graph.options.as_ref();
    options.is_some_and(|options| options.isolation() == pb::Isolation::StopFirst)
}

impl JobMasterCore {
    pub(super) fn is_stop_first(&self) -> bool {
        self.graph.is_stop_first()
    }

    /// Notes that an execution is assumed to be gone without a report of its end.
    pub(super) fn doubt_end(&mut self, task: usize) {
        let at = &self.execution.tasks[task];
        if at.execution.is_deployed() {
            self.execution.regions[at.region].is_end_unknown = true;
        }
    }

    /// Until when a given-up region is not placed again because its executions may still run. None: none
    /// does, or the give-up is not durable yet.
    pub(super) fn held_until_ms(&self, region: usize) -> Option<u64> {
        let at = &self.execution.regions[region];
        let since_ms = at.given_up_at_ms?;
        let is_held = at.is_end_unknown && self.is_stop_first();
        is_held.then(|| since_ms.saturating_add(self.record.decided().stop_first_wait_ms))
    }

    /// Notes that the give-up of a region is durable. Returns whether it can't be placed again yet.
    pub(super) fn is_held(&mut self, region: usize, now_ms: u64) -> bool {
        let is_first = self.execution.regions[region].given_up_at_ms.is_none();
        self.execution.regions[region]
            .given_up_at_ms
            .get_or_insert(now_ms);
        let Some(until_ms) = self.held_until_ms(region) else {
            return false;
        };
        if is_first {
            let wait_ms = until_ms.saturating_sub(now_ms);
            self.out.log(LogLine::RegionHeld { wait_ms });
        }
        let is_held = now_ms < until_ms;
        if is_held {
            self.held_until.insert((until_ms, region));
        }
        is_held
    }

    /// Resets a region that has executions of the next generation.
    pub(super) fn forget_given_up(&mut self, region: usize) {
        let at = &mut self.execution.regions[region];
        at.given_up_at_ms = None;
        at.is_end_unknown = false;
    }
}
