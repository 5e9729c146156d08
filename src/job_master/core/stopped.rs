//! Stops a job: its sources end, the records that they have read are processed, and the job finishes. The part of the
//! handler in `ending.rs` that decides on stops.
//!
//! *Decide in the store, then act*, like a cancellation: the record says that STOPPED is wanted, then the
//! request is acknowledged, then every TaskManager receives the stop with each heartbeat and each deployment,
//! as long as the job runs. So the stop needs no answer, and the next leader goes on with it. A cancellation
//! wins, before and after.
//!
//! Without checkpoints a restarted source would begin at the beginning and end there at once, as the job is
//! being stopped: the records that it had read would be missing from a job that has FINISHED. So a region
//! whose sources have read is not restarted any more: the job fails with that cause. A region whose sources
//! were never deployed is placed and deployed as usual; its sources end without records. For the same reason
//! a stop is refused while sources wait to restart. A job that was never placed has read nothing and has
//! nothing to finish: it is cancelled, and requests no slots.

use std::fmt::Write as _;

use tanist_gateway::persistence::was_never_placed;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::durable_record::DurableRecord;
use super::ending::{Ending, status_name};
use super::execution_graph::{ExecutionGraph, RegionPhase};
use super::{CancelAnswer, Effect, JobMasterCore};

impl Ending<'_> {
    /// Decides a stop unless the job ends in another way. That is not known while a write is in flight. The first case
    /// that applies decides; the order matters: ends that are durable come before obstacles.
    pub(super) fn decide_stop(&mut self) {
        if !self.end.is_stop_requested() {
            return;
        }
        let answer = if let Some(result) = self.end.result() {
            match result.status() {
                pb::JobStatus::Finished if result.drained => CancelAnswer::Decided,
                status => CancelAnswer::TooLate(format!("the job is {}", status_name(status))),
            }
        } else if self.record.is_writing() {
            return;
        } else if self.record.durable().wanted() == pb::WantedStatus::Stopped {
            CancelAnswer::Decided
        } else if self.record.durable().wanted() == pb::WantedStatus::Canceled {
            let durable = self.record.durable();
            match durable.stopped_with.as_str() {
                "" if was_never_placed(durable) => CancelAnswer::Decided,
                "" => CancelAnswer::TooLate("the job is being cancelled".to_owned()),
                path => CancelAnswer::TooLate(format!("the job stops with the savepoint {path}")),
            }
        } else if !self.record.durable().fatal_cause.is_empty() {
            CancelAnswer::TooLate(format!(
                "the job fails: {}",
                self.record.durable().fatal_cause
            ))
        } else if let Some(reason) = self.record.refusal() {
            CancelAnswer::Refused(reason.to_owned())
        } else if self.record.is_durable() && self.record.all_have_durably_finished() {
            CancelAnswer::TooLate(match self.end.commit_failure() {
                None => "all tasks of the job have finished".to_owned(),
                Some(failure) => format!(
                    "all tasks have finished, and what they wrote can't be made visible: {}",
                    failure.cause
                ),
            })
        } else if !self.record.is_stopping()
            && let Some(request) = self.checkpointing.stop_request()
        {
            CancelAnswer::TooLate(format!(
                "the job is being stopped with a savepoint, by the request {request}: wait for its outcome, or cancel the job"
            ))
        } else if !self.record.is_stopping() && self.sources_start_again() {
            CancelAnswer::TooLate(
                "the job is being restarted, and what its sources had read before would be missing: stop it when its tasks run \
                 again, or cancel it"
                    .to_owned(),
            )
        } else {
            // If the next write decides on another end, that wins.
            if !self.record.is_stopping()
                && self.record.decided().wanted() != pb::WantedStatus::Stopped
            {
                self.want_stopped();
            }
            return;
        };
        self.end.stop_answered();
        self.out.push(Effect::AnswerStops(answer));
    }

    /// Ends the job as FINISHED, without further output, once the savepoint with which it stops is durably complete.
    /// Its sources are paused, so all that it has read is in the savepoint. Another end that is decided before wins.
    pub(super) fn stop_with_savepoint(&mut self) {
        let Some(path) = self.checkpointing.stops_with() else {
            return;
        };
        // Whether all tasks have finished is not known while a write is in flight.
        let is_known = self.record.is_durable() && !self.record.is_writing();
        let ends = self.end.has_ended()
            || self.record.is_stopping()
            || self.record.refusal().is_some()
            || self.record.all_have_durably_finished();
        if !is_known || ends {
            return;
        }
        self.record.stop_with(path.to_owned());
        let text = format!("with the savepoint {path}");
        self.events.add(pb::JobEventKind::Stop, text, self.now_ms);
    }

    fn want_stopped(&mut self) {
        let (wanted, text) = match was_never_placed(self.record.decided()) {
            true => (pb::WantedStatus::Canceled, "none of its tasks had begun"),
            false => (pb::WantedStatus::Stopped, ""),
        };
        self.record.want(wanted);
        let kind = pb::JobEventKind::Stop;
        self.events.add(kind, text.to_owned(), self.now_ms);
    }

    /// Whether sources that may have read have to read from their beginning again and have not begun to. A region
    /// that is restored from a snapshot continues at the positions in it.
    fn sources_start_again(&self) -> bool {
        let regions = self
            .record
            .decided()
            .regions
            .iter()
            .zip(self.graph.regions())
            .enumerate();
        let mut given_up = regions.filter(|(number, (state, _))| {
            state.placed_before && !self.checkpointing.goes_on(*number)
        });
        given_up.any(|(_, (_, region))| {
            let mut sources = region
                .tasks
                .iter()
                .filter(|task| self.graph.is_source(**task));
            match region.phase {
                RegionPhase::Stopping { .. }
                | RegionPhase::Waiting { .. }
                | RegionPhase::AwaitingInput => sources.next().is_some(),
                RegionPhase::Placed | RegionPhase::Deployed => sources.any(|task| {
                    let execution = self.graph.execution(*task);
                    execution.started_at_ms == 0 && execution.state != ExecutionState::Finished
                }),
                RegionPhase::Reconciling => false,
            }
        })
    }
}

impl JobMasterCore {
    /// Whether it is durable that sources have to end.
    pub fn tells_to_stop(&self) -> bool {
        self.record.is_stop_durable()
    }

    /// The blocked reason of a job that is being stopped, with the number of unfinished tasks.
    pub(super) fn winding_up(&self) -> Option<pb::BlockedReason> {
        if !self.record.is_stop_durable() {
            return None;
        }
        let left = self.graph.tasks().iter().map(|task| &task.execution);
        let left = left.filter(|execution| execution.state != ExecutionState::Finished);
        let (begun, to_begin): (Vec<_>, Vec<_>) =
            left.partition(|execution| execution.place.is_some());
        let mut text = format!(
            "it is being stopped: its sources have been told to end, and {} tasks have not finished yet",
            begun.len()
        );
        if !to_begin.is_empty() {
            write!(text, "; {} have not begun", to_begin.len())
                .expect("writing to a string succeeds");
        }
        Some(pb::BlockedReason {
            kind: pb::BlockedReasonKind::Stopping.into(),
            text,
            ..pb::BlockedReason::default()
        })
    }
}

/// Whether a restart of the region would lose records that its sources have read.
pub(super) fn would_lose_input(
    record: &DurableRecord,
    graph: &ExecutionGraph,
    region: usize,
) -> bool {
    if record.decided().wanted() != pb::WantedStatus::Stopped {
        return false;
    }
    // While executions of a former term are awaited, their progress is unknown.
    let is_awaited = graph.region(region).phase == RegionPhase::Reconciling;
    let has_read = |task: &usize| {
        let execution = graph.execution(*task);
        // A deployment that was sent may have started, regardless of its answer and of its TaskManager's
        // state since.
        let may_have = is_awaited
            || execution.started_at_ms > 0
            || execution.state == ExecutionState::Finished;
        graph.is_source(*task) && may_have
    };
    graph.region(region).tasks.iter().any(has_read)
}

/// Fails a job that is being stopped, with the failure that was noted last as its cause.
pub(super) fn fail_stopped(record: &mut DurableRecord) {
    if record.is_stopping() {
        return;
    }
    let last = record.decided().failures.last();
    let cause = last.map_or_else(String::new, |last| {
        if last.task.is_empty() {
            format!("{}: ", last.cause)
        } else {
            format!("{}: {}: ", last.task, last.cause)
        }
    });
    record.fail(format!(
        "{cause}not restarted, as the job was being stopped, and without a checkpoint what its sources had read would be missing"
    ));
}
