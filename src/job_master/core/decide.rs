//! The order of all decisions and effects but those of checkpoints (`checkpoints/decide.rs`), after each event and each
//! deadline. It is a function of the state alone, so that no result depends on the order of events.
//!
//! Decisions go into the decided record and the ExecutionGraph, effects follow from the durable record. Each step that
//! is not the first says why it stands where it does.

use tanist_proto::v1::ExecutionState;

use super::execution_graph::Task;
use super::{Effect, JobMasterCore};

impl JobMasterCore {
    /// Decides and acts after an event.
    pub(super) fn decide(&mut self, now_ms: u64) {
        self.decided_at_ms = now_ms;
        if !self.end.has_ended() {
            self.decide_failures(now_ms);
            // After the failures: with the last adopted region the waits for slots begin again.
            self.decide_timeouts(now_ms);
            // Once more, for the failures that timeouts are: no other event may come.
            self.decide_failures(now_ms);
        }
        // Before the requests: a cancellation is refused while a first commit runs, until that counts as failed.
        self.end.check_commit_timeout(now_ms, &mut self.out);
        self.checkpoint_commit.check_timeout(now_ms, &mut self.out);
        // Before regions stop, so that they do so in the same step. A job that has ended answers late requests, too.
        self.decide_requests(now_ms);
        if self.end.has_ended() {
            return;
        }
        let has_written = self.dirty.has_written();
        // After all decisions to give regions up, and before the scheduler: regions that restart wait for slots from
        // this step on.
        let mut restart = self.region_restart(now_ms);
        restart.stop_regions();
        // After that: executions that were never deployed end there, and a region restarts when all of its own have.
        restart.restart_regions(has_written);
        // Before the write, which has the placements. `note_heads` follows them: it notes which regions still wait
        // first.
        let mut scheduler = self.scheduler(now_ms);
        scheduler.schedule(has_written);
        scheduler.note_heads();
        // Before the write: a job ends, and its sinks are committed, only while no write is in flight.
        self.finish(now_ms);
        if !self.end.has_ended() {
            // Before the write, which has the ends of executions and the answers of coordinators.
            self.terminal_states().record_ends();
            // After the ends: requests of an execution that has ended are refused. Before `act`, which answers them and
            // forgets what was not decided.
            let coordinators = &mut self.coordinators;
            coordinators.decide_requests(&mut self.record, &self.graph, &mut self.out);
            // After all decisions, so that one write has them all.
            self.write(now_ms);
            // What follows acts on the durable record; the write above has an effect only when it is durable.
            self.act(now_ms);
            // After all placements and ends: slots are needed for what is left.
            self.declare_slots(now_ms);
        }
        // After all decisions and all that acts on them: it reports the decisions to the checkpoints.
        self.notify_checkpoints();
        // Last: the status follows from all decisions.
        self.note_status(now_ms);
    }

    /// Decides which regions are given up, and adopts or moves others.
    fn decide_failures(&mut self, now_ms: u64) {
        let mut failover = self.region_failover(now_ms);
        failover.decide_failures();
        // After the failures: of a region that failed, nothing is missing any more.
        failover.restart_missing();
        // After that: a missing execution is not awaited any more, but its region must not be adopted.
        failover.adopt_regions();
        // After all restarts above: regions that restart need outputs again, and a loss is recorded as a consequence of
        // the failure at the same moment.
        failover.restart_lost();
        // After the adoption: no region is moved while any is awaited.
        self.eviction(now_ms).move_regions();
    }

    /// Gives up what has not happened within its timeout.
    fn decide_timeouts(&mut self, now_ms: u64) {
        let mut reports = self.reports(now_ms);
        reports.give_up_stuck();
        reports.give_up_awaited_overdue();
        // After that: no region fails for lack of slots while anything is awaited.
        if !self.is_reconciling() {
            self.scheduler(now_ms).give_up_waiting();
        }
    }

    /// Decides on requests to cancel or to stop the job.
    fn decide_requests(&mut self, now_ms: u64) {
        let mut ending = self.ending(now_ms);
        ending.decide_cancel();
        // After the cancellation, which wins.
        ending.decide_stop();
        // After both: once the savepoint is there, an end that is decided otherwise wins.
        ending.stop_with_savepoint();
    }

    /// Ends the job or commits its sinks, if the durable record says so.
    fn finish(&mut self, now_ms: u64) {
        if self.ending(now_ms).waits_for_commit() {
            return;
        }
        if let Some((status, cause)) = self.ending(now_ms).finish() {
            // Before the result, which has the times of all statuses.
            self.note_status(now_ms);
            let result = self.result_of(status, cause, now_ms);
            self.out.push(Effect::End(result.clone()));
            self.end.end(result);
            self.coordinators.close(&mut self.out);
            // Once more: the result answers the requests.
            self.decide_requests(now_ms);
        }
    }

    /// Writes the record if there are decisions to write.
    fn write(&mut self, now_ms: u64) {
        if !self.record.is_to_write() {
            return;
        }
        self.record.forget_stale_ends(&self.graph);
        let has_answers = self.coordinators.take_decided();
        let is_recorded = |task: &Task| task.execution.is_recorded;
        let finished = self.graph.count(ExecutionState::Finished);
        let have_all_finished =
            finished == self.graph.tasks().len() && self.graph.tasks().iter().all(is_recorded);
        // After all changes: the statuses that follow from the record are part of it.
        self.record_statuses(now_ms);
        self.record
            .write(has_answers, have_all_finished, now_ms, &mut self.out);
    }

    /// Acts on the durable record. No step depends on another one.
    fn act(&mut self, now_ms: u64) {
        let (has_written, coordinators) = (self.dirty.has_written(), &mut self.coordinators);
        coordinators.answer_requests(has_written, &self.record, &self.graph, &mut self.out);
        let mut effects = self.durable_effects(now_ms);
        effects.deploy();
        effects.cancel_tasks();
        effects.send_stop();
        effects.release_outputs();
        effects.acknowledge();
    }

    /// Gives back slots and declares the needed ones.
    fn declare_slots(&mut self, now_ms: u64) {
        let is_reconciling = self.is_reconciling();
        let mut scheduler = self.scheduler(now_ms);
        scheduler.update_needed();
        // Before the idle ones: slots on drained TaskManagers don't wait for a timeout.
        scheduler.free_left_slots(is_reconciling);
        scheduler.free_idle_slots(is_reconciling);
        // Last: the minimum depends on the slots that the job has.
        scheduler.declare(is_reconciling);
    }
}
