//! The actor's part of the job's checkpoints: it owns their core, and carries the messages between the two cores.
//!
//! ```text
//!   JobMasterCore -- news: placed, failed, ended ... --> CheckpointCore -- effects --> TaskExecutors, store, objects
//!        ^                                                     |                              |
//!        +------ CheckpointsChanged, CheckpointsFailed --------+ <-------- answers -----------+
//! ```
//!
//! *News* are events of the job's core for the checkpoints, *answers* events of the checkpoints for the job's core.
//! Invariants: news are handled in the order in which they were decided, all pending ones in one batch, which ends with
//! the decided end of the job; all news and answers, and those that follow from them, are passed on before the actor
//! handles another event; after the job's result nothing is written.
//!
//! `start.rs` reads record and manifests, `effects.rs` runs effects, `commits.rs` and `savepoints.rs` those of their
//! kind, `reports.rs` translates what TaskExecutors report, `restoring.rs` says what tasks begin from, `history.rs`,
//! `acknowledgements.rs`, `failing_regions.rs` and `storage_problem.rs` are for people.

mod acknowledgements;
mod commits;
mod effects;
mod failing_regions;
mod history;
mod reports;
mod restoring;
mod savepoints;
mod start;
mod storage_problem;
mod storage_timeout;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tanist_gateway::Detail;
use tanist_gateway::manifests;
use tanist_gateway::savepoints::failed_paths;
use tanist_ha::blob::CheckpointStorage;
use tanist_proto::v1 as pb;
use tokio::time::Instant;

pub(super) use self::savepoints::end_open;
pub(super) use self::start::{Found, Unread, begin, find, warning_of_no_interval};

use self::commits::SinkFiles;
use self::effects::FirstTrigger;
use self::history::History;
use self::restoring::Redistributed;
use self::savepoints::Savepoints;
use self::start::NO_INTERVAL;
use self::storage_problem::StorageProblem;
use super::actor::JobMasterActor;
use super::core::checkpoints::{CheckpointCore, Effect, Event, take_batch};
use super::core::{self, JobMasterCore, RestorePoints};

/// Longest sleep, so that no clock overflows.
const LONGEST_SLEEP_MS: u64 = 3_600_000;

/// The checkpoints of a job that takes some, or has some.
#[derive(Debug)]
pub(super) struct Checkpoints {
    core: CheckpointCore,
    settings: pb::CheckpointSettings,
    storage: Option<CheckpointStorage>,
    history: History,
    storage_problem: StorageProblem,
    points: Arc<RestorePoints>,
    files: SinkFiles,
    savepoints: Savepoints,
    /// Why the store has refused the last write of the record.
    refusal: Option<String>,
    /// The job has ended: the effects of the core are dropped.
    is_over: bool,
    /// The snapshots that tasks get from the origin, once a deployment needed them.
    redistributed: Option<Redistributed>,
    /// The savepoint or checkpoint that the job was started from. It stays after the origin is dropped.
    started_from: String,
    /// Makes the second trigger of a number wait for the first one; only if a test has set it.
    first_trigger: Option<FirstTrigger>,
}

impl Checkpoints {
    fn handle(&mut self, now_ms: u64, events: Vec<Event>, job: &JobMasterCore) -> Vec<Effect> {
        for event in &events {
            self.history.note_event(event, now_ms);
        }
        // What the end of the job aborts is no news.
        let is_end = matches!(events.as_slice(), [.., Event::EndDecided]);
        let effects = self.core.handle(now_ms, events);
        self.history
            .note_effects(&effects, (&self.core, job), now_ms);
        if is_end {
            self.history.take_news();
        }
        effects
    }

    /// The write in flight has ended, after the job. The effects that follow from it are dropped.
    fn end_write(&mut self, now_ms: u64, event: Event) {
        drop(self.core.handle(now_ms, [event]));
        self.is_over = true;
    }

    /// Whether a write of the record is under way.
    pub(super) fn is_writing(&self) -> bool {
        self.core.is_writing() && !self.is_over
    }

    /// What regions are restored from, if that has changed since the last call.
    fn take_changed(&mut self) -> Option<Arc<RestorePoints>> {
        let points = self.core.points();
        (points != *self.points).then(|| {
            self.points = Arc::new(points);
            self.points.clone()
        })
    }

    /// The description for people.
    pub(super) fn details(&self, core: &JobMasterCore, detail: Detail) -> pb::CheckpointDetails {
        // One entry for all regions of the same vertices and reason: there may be very many. The text is that of the
        // first region whose tasks say more.
        let mut by_reason = BTreeMap::new();
        for (region, reason) in self.core.skipped() {
            let more = by_reason.entry((core.vertices_of(region), reason));
            let more: &mut Option<String> = more.or_default();
            *more = more.take().or_else(|| core.unread_state_of(region));
        }
        let skipped = by_reason.into_iter().map(|((vertices, reason), more)| {
            let reason = match more {
                Some(more) => format!("{reason}: {more}"),
                None => reason,
            };
            pb::SkippedRegion { vertices, reason }
        });
        let without_interval = (self.settings.interval_ms() == 0).then(|| pb::SkippedRegion {
            vertices: core.vertex_names(),
            reason: format!("none is taken at intervals: {NO_INTERVAL}"),
        });
        let skipped = skipped.chain(without_interval);
        let savepoints = match detail {
            Detail::Full => {
                savepoints::summaries(self.core.durable(), |it| self.core.waits_for(it))
            }
            Detail::Brief => Vec::new(),
        };
        pb::CheckpointDetails {
            interval_ms: self.settings.interval_ms(),
            min_pause_ms: self.settings.min_pause_ms(),
            timeout_ms: self.settings.timeout_ms(),
            tolerable_failures: self.settings.tolerable_failures(),
            retained: self.settings.retained(),
            retention: self.settings.retention().into(),
            skipped: skipped.collect(),
            savepoints,
            started_from: self.started_from.clone(),
            storage_problem: self.storage_problem.described(),
            ..self.history.details(&self.core, core, detail)
        }
    }

    /// The paths of savepoints that failed, or fail with the job.
    pub(super) fn failed_savepoints(&self) -> Vec<String> {
        failed_paths(&self.core.record_with_result(false))
    }

    /// The number of the checkpoint that stays if the job ends with this status; 0: none does.
    pub(super) fn kept_after(&self, status: pb::JobStatus) -> u64 {
        let is_kept = manifests::is_retained(status, self.settings.retention());
        let record = self.core.record_with_result(is_kept);
        record.retained.last().map_or(0, |kept| kept.number)
    }

    /// The job has ended with this status. Returns the record of what stays of its checkpoints. None: nothing does.
    pub(super) fn end(mut self, status: pb::JobStatus) -> Option<Arc<pb::JobCheckpoints>> {
        self.refuse_savepoints();
        let is_kept = manifests::is_retained(status, self.settings.retention());
        let record = self.core.record_with_result(is_kept);
        (!record.retained.is_empty()).then(|| Arc::new(record))
    }
}

/// The messages between the two cores that are not passed on yet.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    /// For the checkpoints.
    news: VecDeque<Event>,
    /// For the JobMaster's core.
    answers: VecDeque<core::Event>,
    /// The registration that the job's core is about to take or to refuse.
    registering: Option<Box<Event>>,
    /// Whether [`JobMasterActor::settle_checkpoints`] runs: each answer that it passes on calls it again.
    is_settling: bool,
}

impl Exchange {
    /// Begins with an event of the job.
    pub(super) fn noting(text: Option<String>) -> Exchange {
        let note = |text| core::Event::CheckpointNoted(pb::JobEventKind::Checkpoint, text);
        Exchange {
            answers: text.map(note).into_iter().collect(),
            ..Exchange::default()
        }
    }
}

impl JobMasterActor {
    /// Keeps a registration for the checkpoints until the JobMaster's core has taken it.
    pub(super) fn hear_registration(&mut self, registered: Event) {
        let is_on = self.checkpoints.is_some();
        self.exchange.registering = is_on.then(|| Box::new(registered));
    }

    /// Takes the news of a step. `is_registration`: the step was a registration, which was taken.
    pub(super) fn take_news(&mut self, is_registration: bool) {
        if is_registration {
            let registered = self.exchange.registering.take();
            self.exchange.news.extend(registered.map(|it| *it));
        }
        self.exchange.news.extend(self.core.take_news());
    }

    /// Adds an event for the checkpoints.
    pub(super) fn tell_checkpoints(&mut self, event: Event) {
        if self.checkpoints.is_some() {
            self.exchange.news.push_back(event);
        }
    }

    /// Handles events of the checkpoints, with all that follows from them.
    pub(super) fn note_checkpoints(&mut self, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|it| self.tell_checkpoints(it));
        self.settle_checkpoints();
    }

    /// Passes on all news and answers. News come first, so that the checkpoints know all that was decided before the
    /// job's core decides again.
    pub(super) fn settle_checkpoints(&mut self) {
        if std::mem::replace(&mut self.exchange.is_settling, true) {
            return;
        }
        loop {
            let news = take_batch(&mut self.exchange.news);
            if !news.is_empty() {
                self.drive_checkpoints(news);
            } else if let Some(event) = self.exchange.answers.pop_front() {
                self.note(event);
            } else {
                break;
            }
        }
        self.exchange.is_settling = false;
    }

    /// The job has ended. If the last write of the checkpoints has ended too, the result can be published.
    pub(super) fn note_last_write(&mut self, event: Event) {
        if !matches!(event, Event::Written { .. } | Event::WriteRefused { .. }) {
            return;
        }
        let now_ms = self.now_ms();
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.end_write(now_ms, event);
        }
        self.publish_end();
    }

    fn drive_checkpoints(&mut self, events: Vec<Event>) {
        let now_ms = self.now_ms();
        if self.ending.is_some() {
            return;
        }
        let Some(checkpoints) = &mut self.checkpoints else {
            return;
        };
        // The JobMaster's core waits for an answer to the end of a region, even if nothing has changed.
        let is_end = |event: &Event| matches!(event, Event::RegionFinished { .. });
        let is_awaited = events.iter().any(is_end);
        let effects = checkpoints.handle(now_ms, events, &self.core);
        let changed = checkpoints.take_changed();
        let changed = changed.or_else(|| is_awaited.then(|| checkpoints.points.clone()));
        let news = checkpoints.history.take_news().into_iter();
        let kind = pb::JobEventKind::Checkpoint;
        let news = news.map(|text| core::Event::CheckpointNoted(kind, text));
        self.exchange.answers.extend(news);
        if checkpoints.core.origin().is_none() {
            checkpoints.redistributed = None;
        }
        self.run_checkpoint_effects(effects);
        self.note_savepoints();
        let changed = changed.map(core::Event::CheckpointsChanged);
        self.exchange.answers.extend(changed);
    }

    /// When the checkpoints have something to do.
    pub(super) fn checkpoints_due(&self) -> Option<Instant> {
        let now_ms = self.now_ms();
        let due_ms = self.checkpoints.as_ref()?.core.deadline_ms(now_ms);
        let due_ms = due_ms.min(now_ms.saturating_add(LONGEST_SLEEP_MS));
        Some(self.instant(due_ms))
    }
}
