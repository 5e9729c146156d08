//! Savepoints: requests that are not durable yet, outcomes that are not, and the copies that this JobMaster has begun.
//!
//! ```text
//!              a write        a write with the checkpoint that has all       a write
//!   (asked) ----------> REQUESTED ---------------------------------> COPYING ---------> COMPLETED
//!      |                    |                                           |
//!      | refused            | timeout, the job ends                     | the copy fails, its output is not committed
//!      v                    v                                           v           in time, the job ends
//!  (answered)            FAILED                                      FAILED
//! ```
//!
//! After a takeover the next JobMaster continues from the record (`requests.rs`); timeouts begin again. Invariants: a
//! request is answered when it is durable or refused; the checkpoint of one that is COPYING is retained; its copy
//! begins when the output of this checkpoint and of earlier ones is committed, once at each JobMaster; only the record
//! says what the outcome is.

use std::collections::{BTreeMap, BTreeSet};

use tanist_gateway::savepoints::is_open;
use tanist_proto::v1 as pb;

use super::Effect;
use super::output::Output;
use super::requests::{KEPT, is_any_open, regions_without, stop_of, trim};

/// A request that is not durable.
#[derive(Debug)]
struct Asked {
    request: pb::TriggerSavepointRequest,
    at_ms: u64,
}

impl Asked {
    fn entry(&self, from: u64) -> pb::SavepointRequest {
        pb::SavepointRequest {
            trigger_id: self.request.trigger_id.clone(),
            directory: self.request.directory.clone(),
            progress: pb::SavepointProgress::Requested.into(),
            stops: self.request.stop,
            requested_at_ms: self.at_ms,
            from,
            ..pb::SavepointRequest::default()
        }
    }
}

/// The savepoints of one JobMaster; see the module.
#[derive(Debug, Default)]
pub(super) struct Savepoints {
    asked: Vec<Asked>,
    /// The outcomes that are decided and not durable, by trigger id: the path, or why there is none.
    outcomes: BTreeMap<String, Result<String, String>>,
    /// Open requests whose copy this JobMaster has begun.
    copying: BTreeSet<String>,
    /// Failed requests whose copies this JobMaster has discarded.
    discarded: BTreeSet<String>,
    /// Since when each open request has been in its present state.
    since: BTreeMap<String, (pb::SavepointProgress, u64)>,
    /// The store has refused a write by which requests fail with the job. Then the result does not wait for them.
    is_end_refused: bool,
}

impl Savepoints {
    /// Continues the open requests of a record.
    pub(super) fn new(requests: &[pb::SavepointRequest], now_ms: u64) -> Savepoints {
        let mut savepoints = Savepoints::default();
        savepoints.note_durable(requests, now_ms);
        savepoints
    }

    /// Takes a request, unless there is an obstacle. Returns the answer, if there is one already; otherwise it comes
    /// when the request is durable.
    pub(super) fn ask(
        &mut self,
        durable: &[pb::SavepointRequest],
        request: pb::TriggerSavepointRequest,
        at_ms: u64,
        obstacle: Option<String>,
    ) -> Option<Result<(), String>> {
        let id = &request.trigger_id;
        if let Some(known) = durable.iter().find(|it| it.trigger_id == *id) {
            let is_same = (known.stops, &known.directory) == (request.stop, &request.directory);
            return Some(match is_same {
                true => Ok(()),
                false => Err(format!(
                    "trigger id {id} is that of another request, {}for a savepoint below {}",
                    if known.stops { "to stop the job, " } else { "" },
                    known.directory
                )),
            });
        }
        if self.asked.iter().any(|it| it.request.trigger_id == *id) {
            return None;
        }
        let stop = stop_of(durable).map(|it| &it.trigger_id);
        let mut asked = self.asked.iter().map(|it| &it.request);
        let stop = stop.or_else(|| asked.find(|it| it.stop).map(|it| &it.trigger_id));
        let open = durable.iter().filter(|it| is_open(it)).count() + self.asked.len();
        let reason = match stop {
            Some(stop) => Some(format!(
                "the job stops with a savepoint, that of trigger id {stop}"
            )),
            None if open >= KEPT => Some(format!("{open} savepoints of the job are being taken")),
            None => obstacle,
        };
        if reason.is_none() {
            self.asked.push(Asked { request, at_ms });
        }
        reason.map(Err)
    }

    /// Refuses requests that no write has yet.
    pub(super) fn refuse_asked(
        &mut self,
        writing: &[pb::SavepointRequest],
        reason: &str,
        out: &mut Output,
    ) {
        let written = self.take_asked(writing);
        let refused = std::mem::replace(&mut self.asked, written);
        answer(refused, &Err(reason.to_owned()), out);
    }

    /// Removes and returns the requests that a write has.
    fn take_asked(&mut self, written: &[pb::SavepointRequest]) -> Vec<Asked> {
        let is_written = |id: &str| written.iter().any(|it| it.trigger_id == id);
        let asked = std::mem::take(&mut self.asked).into_iter();
        let (taken, left) = asked.partition(|it| is_written(&it.request.trigger_id));
        self.asked = left;
        taken
    }

    /// An open request fails, unless it has an outcome already, which is not durable yet.
    pub(super) fn fail(&mut self, trigger_id: &str, reason: String) {
        let outcomes = &mut self.outcomes;
        outcomes.entry(trigger_id.to_owned()).or_insert(Err(reason));
    }

    /// A copy has ended.
    pub(super) fn finish_copy(
        &mut self,
        durable: &[pb::SavepointRequest],
        trigger_id: String,
        outcome: Result<String, String>,
    ) {
        let is_copying = |it: &pb::SavepointRequest| {
            it.trigger_id == trigger_id && it.progress() == pb::SavepointProgress::Copying
        };
        if durable.iter().any(is_copying) && self.copying.contains(&trigger_id) {
            self.outcomes.entry(trigger_id).or_insert(outcome);
        }
    }

    /// Begins the copy of a checkpoint, unless this JobMaster has begun it. Returns whether it does.
    pub(super) fn begin_copy(&mut self, trigger_id: &str) -> bool {
        !self.outcomes.contains_key(trigger_id) && self.copying.insert(trigger_id.to_owned())
    }

    /// Begins to discard the copy of a failed request, unless this JobMaster has begun it. Returns whether it does.
    pub(super) fn begin_discard(&mut self, trigger_id: &str) -> bool {
        self.discarded.insert(trigger_id.to_owned())
    }

    /// The requests of a write: those of the durable record with what has changed since. `from` is the next number
    /// that is given out, `newest` the newest manifest of the write. A request whose regions all have a snapshot there
    /// gets the number of that manifest, which pins it.
    pub(super) fn requests(
        &self,
        durable: &[pb::SavepointRequest],
        from: u64,
        newest: Option<&pb::CheckpointManifest>,
    ) -> Vec<pb::SavepointRequest> {
        let mut requests = durable.to_vec();
        for request in requests.iter_mut().filter(|it| is_open(it)) {
            match self.outcomes.get(&request.trigger_id) {
                Some(Ok(path)) => {
                    request.set_progress(pb::SavepointProgress::Completed);
                    request.outcome.clone_from(path);
                }
                Some(Err(reason)) => {
                    request.set_progress(pb::SavepointProgress::Failed);
                    request.outcome.clone_from(reason);
                }
                None => {
                    let is_requested = request.progress() == pb::SavepointProgress::Requested;
                    if let Some(newest) = newest.filter(|_| is_requested)
                        && regions_without(newest, request.from).is_empty()
                    {
                        request.number = newest.number;
                        request.set_progress(pb::SavepointProgress::Copying);
                    }
                }
            }
        }
        requests.extend(self.asked.iter().map(|asked| asked.entry(from)));
        trim(&mut requests);
        requests
    }

    /// Whether a write would change the requests of the record.
    pub(super) fn has_changes(
        &self,
        durable: &[pb::SavepointRequest],
        newest: Option<&pb::CheckpointManifest>,
    ) -> bool {
        let has_any = !self.asked.is_empty() || is_any_open(durable);
        has_any && self.requests(durable, 0, newest) != durable
    }

    /// A write is durable.
    pub(super) fn confirm(
        &mut self,
        durable: &[pb::SavepointRequest],
        now_ms: u64,
        out: &mut Output,
    ) {
        let durably = self.take_asked(durable);
        answer(durably, &Ok(()), out);
        self.note_durable(durable, now_ms);
    }

    /// The store has refused a write with these requests.
    pub(super) fn refuse(
        &mut self,
        written: &[pb::SavepointRequest],
        reason: &str,
        is_end_decided: bool,
        out: &mut Output,
    ) {
        self.is_end_refused |= is_end_decided;
        let refused = self.take_asked(written);
        answer(refused, &Err(reason.to_owned()), out);
    }

    fn note_durable(&mut self, durable: &[pb::SavepointRequest], now_ms: u64) {
        let open = durable.iter().filter(|it| is_open(it));
        let before = std::mem::take(&mut self.since);
        self.since = open
            .map(|it| {
                let progress = it.progress();
                let known = before.get(&it.trigger_id).filter(|it| it.0 == progress);
                let since = known.copied().unwrap_or((progress, now_ms));
                (it.trigger_id.clone(), since)
            })
            .collect();
        self.outcomes.retain(|id, _| self.since.contains_key(id));
        self.copying.retain(|id| self.since.contains_key(id));
        let is_known = |id: &String| durable.iter().any(|it| it.trigger_id == *id);
        self.discarded.retain(is_known);
    }

    /// Until when an open request may remain in its present state. None: its copy may take any time, or it has an
    /// outcome.
    pub(super) fn until_ms(&self, trigger_id: &str, timeout_ms: u64) -> Option<u64> {
        let ends = self.outcomes.contains_key(trigger_id) || self.copying.contains(trigger_id);
        let (_, since_ms) = self.since.get(trigger_id).filter(|_| !ends)?;
        Some(since_ms.saturating_add(timeout_ms))
    }

    /// When the next request has exceeded its timeout.
    pub(super) fn due_ms(&self, timeout_ms: u64) -> Option<u64> {
        let open = self.since.keys();
        open.filter_map(|id| self.until_ms(id, timeout_ms)).min()
    }

    /// Whether the result of the job waits for the outcome of a request.
    pub(super) fn delay_result(&self, durable: &[pb::SavepointRequest]) -> bool {
        is_any_open(durable) && !self.is_end_refused
    }
}

fn answer(asked: Vec<Asked>, answer: &Result<(), String>, out: &mut Output) {
    for asked in asked {
        out.push(Effect::AnswerSavepoint {
            trigger_id: asked.request.trigger_id,
            answer: answer.clone(),
        });
    }
}
