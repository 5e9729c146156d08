//! The decisions that follow from requests for savepoints: which numbers they force, when they fail, when their copy
//! begins, and whether paused sources are resumed. `savepoints.rs` owns what is not durable of requests, `requests.rs`
//! reads the durable ones.

use tanist_gateway::savepoints::{failed_copies, is_open};
use tanist_proto::v1 as pb;

use super::attempts::Counts;
use super::options::{RETRY_MS, TIMEOUT_KEY};
use super::regions::Phase;
use super::requests::{is_any_open, is_last_complete, lacks_snapshot, regions_without, stop_of};
use super::{CheckpointCore, Effect};
use crate::core::faults::{Fault, is_planted};

impl CheckpointCore {
    /// A client asks for a savepoint.
    pub(super) fn ask_savepoint(&mut self, request: pb::TriggerSavepointRequest, at_ms: u64) {
        let trigger_id = request.trigger_id.clone();
        let obstacle = self.obstacle();
        let durable = &self.record.durable().requests;
        if let Some(answer) = self.savepoints.ask(durable, request, at_ms, obstacle) {
            self.out
                .push(Effect::AnswerSavepoint { trigger_id, answer });
        }
    }

    /// Why the job can have no savepoint at all.
    fn obstacle(&self) -> Option<String> {
        if self.is_end_decided {
            return Some("the job ends".to_owned());
        }
        if self.regions.have_all_finished() {
            return Some("all tasks of the job have finished".to_owned());
        }
        let topology = self.regions.topology();
        let (region, reason) = topology.first_not_checkpointed()?;
        let vertices = topology.vertices_of(region).join(", ");
        Some(format!("no checkpoints are taken of {vertices}: {reason}"))
    }

    /// Decides that open requests fail: because the job ends, or after their timeout.
    pub(super) fn fail_savepoints(&mut self, now_ms: u64) {
        let has_ended = self.is_end_decided || self.regions.have_all_finished();
        if has_ended {
            let reason = match self.is_end_decided {
                true => "the job ends",
                false => "all tasks of the job have finished",
            };
            let writing = self.record.writing();
            let writing = writing.map_or(&[][..], |write| &write.record.requests);
            self.savepoints.refuse_asked(writing, reason, &mut self.out);
        }
        let requests = &self.record.durable().requests;
        let failed = requests.iter().filter(|it| is_open(it));
        let failed = failed.filter_map(|request| {
            Some((request.trigger_id.clone(), self.failure(request, now_ms)?))
        });
        for (trigger_id, reason) in failed.collect::<Vec<_>>() {
            self.savepoints.fail(&trigger_id, reason);
        }
    }

    fn failure(&self, request: &pb::SavepointRequest, now_ms: u64) -> Option<String> {
        if self.is_end_decided {
            return Some("the job ends".to_owned());
        }
        let is_copying = request.number > 0;
        // If it is being copied, its checkpoint is complete: an obstacle is too late.
        if !is_copying && let Some(obstacle) = self.obstacle() {
            return Some(obstacle);
        }
        let timeout_ms = self.options.timeout_ms;
        let until_ms = self.savepoints.until_ms(&request.trigger_id, timeout_ms);
        until_ms.filter(|until_ms| *until_ms <= now_ms)?;
        let number = request.number;
        Some(match is_copying {
            true => {
                format!(
                    "the output of checkpoint {number} was not committed within {timeout_ms} ms ({TIMEOUT_KEY})"
                )
            }
            false => {
                let missing = self.missing(request);
                let missing = missing.map_or_else(String::new, |it| format!(": {it}"));
                format!(
                    "its checkpoint was not complete within {timeout_ms} ms ({TIMEOUT_KEY}){missing}"
                )
            }
        })
    }

    /// For display: what a request waits for while its checkpoint is not complete.
    pub fn waits_for(&self, request: &pb::SavepointRequest) -> Option<String> {
        let is_waiting = request.progress() == pb::SavepointProgress::Requested;
        is_waiting.then(|| self.missing(request)).flatten()
    }

    /// What a request waits for, in words.
    fn missing(&self, request: &pb::SavepointRequest) -> Option<String> {
        let lacking = match self.record.newest_manifest() {
            Some(newest) => regions_without(newest, request.from),
            None => (0..self.regions.topology().region_count()).collect(),
        };
        let first = lacking.first()?;
        let at = self.regions.get(*first);
        let mut places = at.by_task_manager().into_keys();
        let without = places.find(|place| self.links.takes_none(place));
        let why = match (at.phase(), without, at.aborted()) {
            (Phase::Down, _, _) => "does not run".to_owned(),
            (Phase::Awaited, _, _) => "is not known to run".to_owned(),
            (Phase::Starting, _, _) => "does not run completely".to_owned(),
            (Phase::Running | Phase::Finished, Some(place), _) => {
                format!("has tasks on TaskManager {place}, which takes no checkpoints")
            }
            (Phase::Running | Phase::Finished, None, Some((_, reason))) => {
                format!("has given its last checkpoint up: {reason}")
            }
            (Phase::Running | Phase::Finished, None, None) => {
                let missing = self.regions.missing(*first);
                let missing = missing.map_or_else(String::new, |it| format!(": {it}"));
                format!("has not completed it{missing}")
            }
        };
        let vertices = self.regions.topology().vertices_of(*first).join(", ");
        let others = match lacking.len() {
            1 => String::new(),
            count => format!(", and {} other regions lack it too", count - 1),
        };
        Some(format!("the region of {vertices} {why}{others}"))
    }

    /// The regions that take part in the next round, if it may begin. While the job stops, only those whose sources do
    /// not pause yet.
    pub(super) fn next_round(&self, now_ms: u64) -> Vec<usize> {
        let requests = &self.record.durable().requests;
        let stop = stop_of(requests);
        let is_stopped = stop.is_some_and(|it| !is_open(it));
        let is_due = self.rounds.due_ms() <= now_ms;
        if self.is_end_decided || is_stopped || !(is_due || is_any_open(requests)) {
            return Vec::new();
        }
        let mut ready = self.ready(now_ms);
        ready.retain(|region| {
            let is_regular = is_due && stop.is_none();
            is_regular || self.is_forced(*region) && self.retry_at_ms(*region) <= now_ms
        });
        ready
    }

    /// Whether a request needs a number of a region before the next round is due.
    fn is_forced(&self, region: usize) -> bool {
        let requests = &self.record.durable().requests;
        let at = self.regions.get(region);
        let pauses = stop_of(requests).is_some() && at.paused_behind().is_none();
        pauses || lacks_snapshot(requests, self.record.newest_number(region))
    }

    /// When a number may be forced at a region again. Without this pause, a number that is aborted at once would be
    /// forced again at once.
    fn retry_at_ms(&self, region: usize) -> u64 {
        let aborted = self.regions.get(region).aborted();
        aborted.map_or(0, |(at_ms, _)| at_ms.saturating_add(RETRY_MS))
    }

    /// When something is due because of requests.
    pub(super) fn savepoints_due_ms(&self, now_ms: u64) -> Option<u64> {
        let requests = &self.record.durable().requests;
        if !is_any_open(requests) || self.is_end_decided {
            return None;
        }
        let aborted = self.regions.aborted();
        let forced = aborted.filter(|(region, _)| self.is_forced(*region));
        let retries = forced.map(|(_, at_ms)| at_ms.saturating_add(RETRY_MS));
        let timeout = self.savepoints.due_ms(self.options.timeout_ms);
        retries
            .chain(timeout)
            .filter(|due_ms| *due_ms > now_ms)
            .min()
    }

    /// Whether a write would change the requests of the record.
    pub(super) fn have_requests_changed(&self) -> bool {
        let newest = self.record.newest_manifest().map(|newest| &**newest);
        let durable = &self.record.durable().requests;
        self.savepoints.has_changes(durable, newest)
    }

    /// Whether the checkpoint that the job stops with is complete, so that no other one is written.
    pub(super) fn is_last_complete(&self) -> bool {
        is_last_complete(&self.record.durable().requests)
    }

    /// Resumes paused sources, unless the job stops.
    pub(super) fn resume_sources(&mut self, now_ms: u64) {
        let stop = stop_of(&self.record.durable().requests);
        let is_planted = is_planted(Fault::ResumedWhileStopping);
        let stops = stop.is_some_and(|stop| stop.number == 0 || !is_planted);
        if stops || self.is_end_decided {
            return;
        }
        let paused = self.regions.paused().filter_map(|region| {
            let at = self.regions.get(region);
            let number = at.paused_behind()?;
            let is_there = matches!(at.phase(), Phase::Starting | Phase::Running);
            is_there.then_some((region, number))
        });
        for (region, number) in paused.collect::<Vec<_>>() {
            let attempt = self.regions.get(region).attempt();
            let is_its_own = attempt.is_some_and(|it| it.number() <= number || it.flags().pauses);
            let mut attempts = self.attempts(now_ms);
            if is_its_own {
                attempts.abort(region, "the job does not stop", Counts::NoFailure);
            } else {
                attempts.tell_abort(region, number);
            }
        }
    }

    /// Discards the copies of requests that have durably failed.
    pub(super) fn discard_copies(&mut self) {
        for request in failed_copies(self.record.durable()) {
            if self.savepoints.begin_discard(&request.trigger_id) {
                self.out.push(Effect::DiscardCopy {
                    trigger_id: request.trigger_id.clone(),
                    directory: request.directory.clone(),
                });
            }
        }
    }

    /// Begins the copies of checkpoints whose output is committed.
    pub(super) fn copy_savepoints(&mut self) {
        if self.is_end_decided {
            return;
        }
        for request in &self.record.durable().requests {
            let is_pinned = request.progress() == pb::SavepointProgress::Copying;
            let is_committed = self.commits.done() >= request.number;
            let may_begin = is_committed || is_planted(Fault::CopyBeforeCommit);
            if is_pinned && may_begin && self.savepoints.begin_copy(&request.trigger_id) {
                self.out.push(Effect::CopySavepoint {
                    trigger_id: request.trigger_id.clone(),
                    number: request.number,
                    directory: request.directory.clone(),
                });
            }
        }
    }
}
