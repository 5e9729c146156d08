//! The actor's part of the job's checkpoints: it owns their core, and carries what the two cores tell each other.
//!
//! ```text
//!   JobMasterCore -- news: placed, failed, ended ... --> CheckpointCore -- effects --> TaskExecutors, store, objects
//!        ^                                                     |                              |
//!        +------ CheckpointsChanged, CheckpointsFailed --------+ <-------- answers -----------+
//! ```
//!
//! Invariants: news arrive in the order in which they were decided; all of them, and what follows from them, are passed
//! on before the actor handles another event; after the job's result nothing is written any more.
//!
//! `start.rs` reads record and manifests, `effects.rs` runs effects, `reports.rs` translates what TaskExecutors report,
//! `history.rs` is for people.

mod effects;
mod history;
mod reports;
mod start;

use std::collections::VecDeque;
use std::sync::Arc;

use tanist_ha::blob::CheckpointStorage;
use tanist_proto::v1 as pb;
use tokio::time::Instant;

pub(super) use self::reports::task_report;
pub(super) use self::start::{Found, Unread, begin, find};

use self::history::History;
use super::actor::JobMasterActor;
use super::core::checkpoints::{CheckpointCore, Effect, Event};
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
    points: Arc<RestorePoints>,
}

impl Checkpoints {
    fn handle(&mut self, now_ms: u64, event: Event) -> Vec<Effect> {
        self.history.note_event(&event, now_ms);
        let effects = self.core.handle(now_ms, event);
        for effect in &effects {
            self.history.note_effect(effect, &self.core, now_ms);
        }
        effects
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
    pub(super) fn details(&self, core: &JobMasterCore) -> pb::CheckpointDetails {
        let skipped = self.core.skipped().into_iter();
        let skipped = skipped.map(|(region, reason)| pb::SkippedRegion {
            vertices: core.vertices_of(region),
            reason,
        });
        pb::CheckpointDetails {
            interval_ms: self.settings.interval_ms(),
            min_pause_ms: self.settings.min_pause_ms(),
            timeout_ms: self.settings.timeout_ms(),
            tolerable_failures: self.settings.tolerable_failures(),
            retained: self.settings.retained(),
            retention: self.settings.retention().into(),
            skipped: skipped.collect(),
            ..self.history.details(&self.core)
        }
    }

    /// Fills in what the tasks of a deployment are restored from. The error: the snapshot is not there.
    fn restore(&mut self, tasks: &mut [pb::TaskDeployment], now_ms: u64) -> Result<(), usize> {
        for task in tasks {
            let Some(restore) = &mut task.restore else {
                continue;
            };
            let region = usize::try_from(task.region).unwrap_or(usize::MAX);
            let snapshot = self.core.snapshot(region).ok_or(region)?;
            let is_of_task = |it: &&pb::SubtaskSnapshot| {
                it.vertex_id == task.vertex_id && it.subtask == task.subtask
            };
            let of_task = snapshot.subtasks.iter().find(is_of_task);
            if snapshot.number != restore.number || of_task.is_none() {
                return Err(region);
            }
            restore.snapshot = of_task.cloned();
            self.history.restored(restore.number, now_ms);
        }
        Ok(())
    }
}

/// What the cores have to tell each other.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    /// For the checkpoints.
    news: VecDeque<Event>,
    /// For the JobMaster's core.
    answers: VecDeque<core::Event>,
    /// The registration that is being handled.
    registering: Option<Box<Event>>,
    is_settling: bool,
}

impl JobMasterActor {
    /// Has the checkpoints hear of a registration, if the JobMaster's core takes it.
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

    /// Handles an event of the checkpoints, with all that follows from it.
    pub(super) fn note_checkpoints(&mut self, event: Event) {
        self.tell_checkpoints(event);
        self.settle_checkpoints();
    }

    /// Passes on all that the cores have to tell each other.
    pub(super) fn settle_checkpoints(&mut self) {
        if std::mem::replace(&mut self.exchange.is_settling, true) {
            return;
        }
        loop {
            if let Some(event) = self.exchange.news.pop_front() {
                self.drive_checkpoints(event);
            } else if let Some(event) = self.exchange.answers.pop_front() {
                self.note(event);
            } else {
                break;
            }
        }
        self.exchange.is_settling = false;
    }

    fn drive_checkpoints(&mut self, event: Event) {
        let now_ms = self.now_ms();
        let Some(checkpoints) = &mut self.checkpoints else {
            return;
        };
        let effects = checkpoints.handle(now_ms, event);
        let changed = checkpoints.take_changed();
        for effect in effects {
            self.run_checkpoint_effect(effect);
        }
        let changed = changed.map(core::Event::CheckpointsChanged);
        self.exchange.answers.extend(changed);
    }

    /// Fills in what the tasks of a deployment are restored from. Returns whether they may be deployed.
    pub(super) fn restore_tasks(&mut self, tasks: &mut [pb::TaskDeployment]) -> bool {
        if tasks.iter().all(|task| task.restore.is_none()) {
            return true;
        }
        let now_ms = self.now_ms();
        let restored = match &mut self.checkpoints {
            Some(checkpoints) => checkpoints.restore(tasks, now_ms),
            None => Err(0),
        };
        if let Err(region) = restored {
            let job = &self.calls.job.job_id;
            tracing::error!(
                job,
                region,
                "the snapshot of a region is missing, which is a bug"
            );
            let cause = "the snapshot that it is restored from is missing".to_owned();
            let failed = core::Event::CheckpointsFailed { region, cause };
            self.exchange.answers.push_back(failed);
        }
        restored.is_ok()
    }

    /// When the checkpoints have something to do.
    pub(super) fn checkpoints_due(&mut self) -> Option<Instant> {
        let now_ms = self.now_ms();
        let due_ms = self.checkpoints.as_mut()?.core.deadline_ms(now_ms);
        let due_ms = due_ms.min(now_ms.saturating_add(LONGEST_SLEEP_MS));
        Some(self.instant(due_ms))
    }
}
