//! What tasks do for checkpoints and what JobMasters learn of it, with a plain model beside the core:
//!
//! - An acknowledgement is with each registration, and is reported until it is answered, unless a later number, an
//!   abort of it, or a younger generation has replaced it.
//! - No report goes to a JobMaster but the one of the present registration, and none names a lower number than one
//!   before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tanist_dataflow::{CheckpointProgress, CheckpointStatus};
use tanist_ha::blob::BlobOptions;
use tanist_ha::clock::Uptime;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::calls::Outcome;
use super::core_world::{World, scope};
use crate::core::messages::execution_key;
use crate::core::{Effect, Event, TaskKey, WrittenSnapshot};
use crate::tests::testing::VERTEX;
use crate::{CheckpointPlace, Options};

/// Calls to one JobMaster in flight, at most.
const MAX_CALLS: usize = 4;

/// What a task does for a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    Block,
    SaveLittle,
    SaveMuch,
    Decline,
    Abort,
}

impl Deed {
    fn progress(self) -> CheckpointProgress {
        let snapshot = |size| {
            let segment = pb::StateSegment {
                content: vec![7; size],
                ..pb::StateSegment::default()
            };
            CheckpointProgress::Saved(Arc::new(pb::SubtaskSnapshot {
                segments: vec![segment],
                ..pb::SubtaskSnapshot::default()
            }))
        };
        match self {
            Deed::Block => CheckpointProgress::Blocked,
            Deed::SaveLittle => snapshot(10),
            Deed::SaveMuch => snapshot(5_000),
            Deed::Decline => CheckpointProgress::Declined("a test says so".to_owned()),
            Deed::Abort => CheckpointProgress::Aborted,
        }
    }
}

/// A call with reports.
#[derive(Debug)]
struct Call {
    job: JobId,
    run: u64,
    call: u64,
    acknowledged: Vec<(TaskKey, u64)>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct CheckpointCalls {
    /// The highest number of each task, and whether its deed there is final.
    highest: BTreeMap<TaskKey, (u64, bool)>,
    writing: BTreeMap<TaskKey, u64>,
    acknowledged: BTreeMap<TaskKey, u64>,
    /// Writes that have not ended, also those that are not needed any more.
    writes: Vec<(TaskKey, u64)>,
    calls: Vec<Call>,
    /// What each JobMaster has received, or is being sent, in this run of the connection.
    told: BTreeMap<JobId, (u64, BTreeSet<(TaskKey, u64)>)>,
    failed_at: BTreeMap<JobId, Uptime>,
    /// The highest number that any report named.
    reported: BTreeMap<TaskKey, u64>,
}

/// Options with a place for objects.
pub(super) fn with_place() -> Options {
    let (url, shared) = ("/nowhere".to_owned(), true);
    let blobs = BlobOptions { url, shared };
    let is_marked = false;
    Options {
        checkpoints: Some(CheckpointPlace {
            blobs,
            option: tanist_ha::blob::options::BLOBS,
            is_marked,
        }),
        ..Options::default()
    }
}

fn task_of(job: JobId, report: &pb::CheckpointReport) -> TaskKey {
    let id = report.execution.clone().unwrap_or_default();
    let execution = execution_key(&id.vertex_id, id.subtask, id.generation);
    let execution = execution.expect("an execution");
    TaskKey { job, execution }
}

fn is_older(of: &TaskKey, than: &TaskKey) -> bool {
    let subtask = |task: &TaskKey| (task.job, task.execution.vertex, task.execution.subtask);
    subtask(of) == subtask(than) && of.execution.generation < than.execution.generation
}

impl CheckpointCalls {
    /// Records reports, and returns the acknowledgements among them.
    fn read(
        &mut self,
        job: JobId,
        reports: &[pb::CheckpointReport],
    ) -> Result<Vec<(TaskKey, u64)>, TestCaseError> {
        let mut acknowledged = Vec::new();
        for report in reports {
            let task = task_of(job, report);
            let before = self.reported.insert(task, report.highest);
            let before = before.unwrap_or_default();
            prop_assert!(report.highest >= before, "{task:?} went back from {before}");
            if report.progress() == pb::CheckpointProgress::Acknowledged {
                prop_assert!(report.snapshot.is_some());
                acknowledged.push((task, report.highest));
            }
        }
        Ok(acknowledged)
    }

    /// Records a registration, which reports everything.
    pub(super) fn registered(
        &mut self,
        job: JobId,
        run: u64,
        request: &pb::RegisterTaskManagerRequest,
    ) -> Result<(), TestCaseError> {
        prop_assert!(request.takes_checkpoints);
        let told: BTreeSet<_> = self.read(job, &request.checkpoints)?.into_iter().collect();
        let expected = self.acknowledged.iter().filter(|(task, _)| task.job == job);
        let expected: BTreeSet<_> = expected.map(|(&task, &number)| (task, number)).collect();
        prop_assert_eq!(&told, &expected, "the registration tells all");
        self.told.insert(job, (run, told));
        self.failed_at.remove(&job);
        Ok(())
    }

    /// Forgets what the start of a task or the end of a job makes obsolete.
    fn forget(&mut self, is_obsolete: impl Fn(&TaskKey) -> bool) {
        self.acknowledged.retain(|task, _| !is_obsolete(task));
        self.writing.retain(|task, _| !is_obsolete(task));
        self.highest.retain(|task, _| !is_obsolete(task));
        self.reported.retain(|task, _| !is_obsolete(task));
    }
}

impl World {
    /// Records an effect.
    pub(super) fn record_checkpoints(&mut self, effect: &Effect) -> Result<(), TestCaseError> {
        let is_running = |task: &TaskKey| self.running.iter().any(|(it, _)| it == task);
        let model = &mut self.checkpoints;
        match effect {
            Effect::ReportCheckpoints { to, call, request } => {
                let acknowledged = model.read(to.job, &request.reports)?;
                let known = self.core.jobs.get(to.job).map(|job| job.connection());
                let is_present = known.is_some_and(|it| it.is_registered() && it.run() == to.run);
                prop_assert!(is_present, "a superseded JobMaster is told");
                let sender = request.sender.as_ref().map(|it| it.registration);
                let has_registration = known.zip(sender).map(|(it, no)| it.has_registration(no));
                prop_assert_eq!(has_registration, Some(true));
                let told = model.told.entry(to.job).or_default();
                prop_assert_eq!(told.0, to.run, "it was not told all before");
                told.1.extend(acknowledged.iter().copied());
                let (job, run, call) = (to.job, to.run, *call);
                model.calls.push(Call {
                    job,
                    run,
                    call,
                    acknowledged,
                });
            }
            Effect::WriteSnapshot { task, number, .. } => {
                let expected = model.writing.get(task);
                prop_assert_eq!(expected, Some(number), "nobody needs it");
                model.writes.push((*task, *number));
            }
            Effect::AbortCheckpoint(task, _) | Effect::DeclineBlocked(task) => {
                prop_assert!(is_running(task), "{task:?} has ended");
            }
            Effect::Start(started, _) => {
                let started = *started;
                model.forget(|task| is_older(task, &started) && !is_running(task));
            }
            Effect::Release(job) => {
                let job = *job;
                model.forget(|task| task.job == job);
                model.writes.retain(|(task, _)| task.job != job);
            }
            _ => {}
        }
        Ok(())
    }

    /// A running task does something for the number that is `further` above its highest.
    pub(super) fn take_part(&mut self, which: usize, further: u64, deed: Deed) {
        let Some(&(task, _)) = self.running.get(which) else {
            return;
        };
        let model = &mut self.checkpoints;
        let known = model.highest.entry(task).or_default();
        let number = known.0 + further;
        if number == 0 {
            return;
        }
        if further > 0 || !known.1 {
            *known = (number, deed != Deed::Block);
            model.acknowledged.remove(&task);
            model.writing.remove(&task);
            match deed {
                Deed::SaveLittle => model.acknowledged.insert(task, number),
                Deed::SaveMuch => model.writing.insert(task, number),
                Deed::Block | Deed::Decline | Deed::Abort => None,
            };
        }
        let status = CheckpointStatus {
            highest: number,
            progress: deed.progress(),
            input_ended: false,
            paused: false,
            times: pb::CheckpointTimes::default(),
        };
        let changed = Event::CheckpointChanged { task, status };
        self.core.handle(self.now, changed);
    }

    /// The write of an object ends.
    pub(super) fn end_write(&mut self, which: usize, succeeds: bool) {
        let model = &mut self.checkpoints;
        if which >= model.writes.len() {
            return;
        }
        let (task, number) = model.writes.remove(which);
        if model.writing.get(&task) == Some(&number) {
            model.writing.remove(&task);
            if succeeds {
                model.acknowledged.insert(task, number);
            }
        }
        let written = match succeeds {
            true => Ok(WrittenSnapshot {
                snapshot: pb::SubtaskSnapshot::default(),
                storage: String::new(),
            }),
            false => Err("a test says so".to_owned()),
        };
        let written = Event::SnapshotWritten {
            task,
            number,
            written,
            took: Duration::from_millis(3),
        };
        self.core.handle(self.now, written);
    }

    /// A JobMaster aborts a number.
    pub(super) fn abort_number(
        &mut self,
        sender: Option<pb::Sender>,
        job: u128,
        (subtask, generation): (u32, u64),
        number: u64,
    ) -> Result<(), TestCaseError> {
        let execution = execution_key(VERTEX, subtask, generation).expect("an execution");
        let request = pb::AbortCheckpointRequest {
            sender: sender.clone(),
            job: scope(job),
            number,
            executions: vec![execution.message()],
        };
        let answer = self.core.abort_checkpoint(self.now, &request);
        self.check_heard(sender.as_ref(), &answer)?;
        let job = JobId::from_bits(job);
        let task = TaskKey { job, execution };
        let is_running = self.running.iter().any(|(it, _)| *it == task);
        if answer.is_ok() {
            let model = &mut self.checkpoints;
            let known = model.highest.get(&task).copied().unwrap_or_default().0;
            if (number == known) || (number > known && is_running) {
                model.highest.insert(task, (number, true));
                model.acknowledged.remove(&task);
                model.writing.remove(&task);
            }
        }
        Ok(())
    }

    /// Generations of a subtask up to this one are cancelled.
    pub(super) fn cancelled_generations(&mut self, job: u128, subtask: u32, up_to: u64) {
        let execution = execution_key(VERTEX, subtask, up_to + 1).expect("an execution");
        let job = JobId::from_bits(job);
        let next = TaskKey { job, execution };
        let running: BTreeSet<TaskKey> = self.running.iter().map(|(task, _)| *task).collect();
        self.checkpoints
            .forget(|task| is_older(task, &next) && !running.contains(task));
    }

    /// A call with reports ends.
    pub(super) fn end_checkpoint_report(&mut self, which: usize, outcome: Outcome) {
        let model = &mut self.checkpoints;
        if which >= model.calls.len() {
            return;
        }
        let ended = model.calls.remove(which);
        let (job, run, call) = (ended.job, ended.run, ended.call);
        if outcome != Outcome::Answered
            && let Some((of, told)) = model.told.get_mut(&job)
            && *of == run
        {
            ended.acknowledged.iter().for_each(|it| {
                told.remove(it);
            });
            model.failed_at.insert(job, self.now);
        }
        let answer = outcome.answer(pb::ReportCheckpointsResponse {});
        let reported = Event::CheckpointsReported {
            job,
            run,
            call,
            answer,
        };
        self.core.handle(self.now, reported);
    }

    /// Checks that every acknowledgement is reported, or will be.
    pub(super) fn check_checkpoints(&self) -> Result<(), TestCaseError> {
        let model = &self.checkpoints;
        for (task, number) in &model.acknowledged {
            let job = self.core.jobs.get(task.job);
            let connection = job.map(|job| job.connection());
            let Some(connection) = connection.filter(|it| it.is_registered()) else {
                continue;
            };
            let run = connection.run();
            let told = model.told.get(&task.job).filter(|(of, _)| *of == run);
            let is_told = told.is_some_and(|(_, told)| told.contains(&(*task, *number)));
            let in_flight = model.calls.iter();
            let in_flight = in_flight.filter(|it| (it.job, it.run) == (task.job, run));
            let is_busy = in_flight.count() >= MAX_CALLS;
            let failed_at = model.failed_at.get(&task.job);
            let waits = failed_at.is_some_and(|&at| self.now < at + Options::default().retry_delay);
            let is_kept = job.is_some_and(|job| job.checkpoints().is_due(&task.execution));
            let will_be = is_kept && (is_busy || waits || self.core.lifecycle.is_stopping());
            prop_assert!(is_told || will_be, "{task:?} has acknowledged {number}");
        }
        Ok(())
    }
}
