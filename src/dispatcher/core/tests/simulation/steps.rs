//! The steps of a case: requests, ends of JobMasters, outcomes of effects, damage, time, and takeovers.

use tanist_ha::election::NotLeading;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::store::Health;
use super::world::{Asked, Pending, RETENTION, World, job_of};
use crate::core::job_master_failures::TOLERATED;
use crate::core::{Command, Deadline, Effect, Event, Resolution};

const RETRY: Resolution = Resolution::Retry {
    from_checkpoint: None,
};

/// Number of kinds of steps.
pub(super) const KINDS: u8 = 60;

impl World {
    pub(super) fn step(&mut self, kind: u8, pick: u16) {
        let pick_of = usize::from(pick);
        let job = job_of(pick_of);
        match kind {
            0..=7 => {
                let token = u8::from(pick & 8 == 8);
                let deadline = self.deadline(pick);
                let flaw = (pick >> 8 & 7 == 7).then(|| "it has a flaw".to_owned());
                self.submit_with(job, token, deadline, flaw);
            }
            8 | 9 => self.ask_cancel(job),
            10 => {
                let command = |reply| Command::StopJob { job, reply };
                self.ask(Asked::Stop(job), command, false);
            }
            11 | 12 => self.ask_resolve(job, RETRY),
            13 => self.ask_resolve(job, Resolution::Delete),
            14 => {
                let (brief, is_consistent) = (pick & 8 == 8, pick & 16 == 16);
                let command = |reply| Command::Describe { job, brief, reply };
                self.ask(Asked::Describe(job), command, is_consistent);
            }
            15 => self.ask(Asked::Other, |reply| Command::List { reply }, pick & 8 == 8),
            16 => self.read_results(),
            17 | 18 => self.start_suspects(),
            19 | 20 => self.place(job),
            21 => self.finish_tasks(job),
            22 => self.end(job),
            23 | 24 => self.break_job_master(job, None),
            25 => {
                let unfit = "it names nothing".to_owned();
                self.break_job_master(job, Some(unfit));
            }
            26..=40 => self.finish_one(pick_of, false),
            41..=44 => {
                self.refusal = pick >> 8;
                self.finish_one(pick_of, true);
            }
            45 | 46 => {
                if !self.pending.is_empty() && !self.is_fenced {
                    self.apply(pick_of % self.pending.len());
                    self.check();
                }
            }
            47..=49 => {
                self.pass(RETENTION / 5);
                self.give(Event::ExpirationDue);
            }
            50 => self.damage(job, pick),
            51 => self.heal(job),
            52 => self.stand(Err(NotLeading::Suspended)),
            53 | 54 => self.stand(Ok(())),
            55 => {
                self.is_fenced |= pick & 3 == 3;
                if pick & 7 == 5 {
                    self.stand(Err(NotLeading::Over));
                }
            }
            56 => self.break_job_master(job, None),
            57 => self.break_too_often(job),
            _ => {
                if pick & 0x300 == 0x300 {
                    self.settle();
                }
                self.take_over(pick);
            }
        }
    }

    /// The term is suspended, or not, or over for good.
    fn stand(&mut self, standing: Result<(), NotLeading>) {
        if self.standing != Err(NotLeading::Over) {
            self.standing = standing;
        }
    }

    fn deadline(&self, pick: u16) -> Deadline {
        let until = |until_ms| Deadline::OfTerm {
            epoch: self.epoch,
            until_ms,
        };
        match pick >> 4 & 7 {
            0..=3 => Deadline::Never,
            4 | 5 => until(self.term_ms() + 1000),
            6 => until(self.term_ms().saturating_sub(1)),
            _ => Deadline::OfTerm {
                epoch: self.epoch + 1,
                until_ms: self.term_ms() + 1000,
            },
        }
    }

    fn ask_cancel(&mut self, job: JobId) {
        let command = |reply| Command::Cancel { job, reply };
        self.ask(Asked::Cancel(job), command, false);
    }

    pub(super) fn ask_resolve(&mut self, job: JobId, resolution: Resolution) {
        let asked = match resolution {
            Resolution::Delete => Asked::Delete(job),
            Resolution::Retry { .. } => Asked::Retry(job),
        };
        let command = |reply| Command::ResolveQuarantine {
            job,
            resolution,
            reply,
        };
        self.ask(asked, command, false);
    }

    pub(super) fn read_results(&mut self) {
        let command = |reply| Command::ReadResults { reply };
        self.ask(Asked::Other, command, false);
    }

    /// The turn of all suspects has come.
    pub(super) fn start_suspects(&mut self) {
        let jobs = std::mem::take(&mut self.suspects);
        if !jobs.is_empty() {
            let command = |reply| Command::StartCrashSuspects { jobs, reply };
            self.ask(Asked::Other, command, false);
        }
    }

    pub(in crate::core::tests) fn finish_one(&mut self, pick: usize, is_refused: bool) {
        if !self.pending.is_empty() {
            self.finish(pick % self.pending.len(), is_refused);
        }
    }

    /// Whether the job has a JobMaster whose writes the store takes.
    pub(super) fn writes_as_job_master(&self, job: JobId) -> bool {
        let job_master = self.job_masters.get(&job);
        !self.is_fenced && job_master.is_some_and(|it| !it.has_ended)
    }

    /// The JobMaster places the job's task.
    pub(in crate::core::tests) fn place(&mut self, job: JobId) {
        if self.writes_as_job_master(job) {
            let record = self.store.states.get_mut(&job).expect("it runs");
            record.value.regions = vec![pb::RegionState {
                generation: 1,
                placements: vec![pb::Placement {
                    vertex_id: "v".to_owned(),
                    ..pb::Placement::default()
                }],
                ..pb::RegionState::default()
            }];
        }
    }

    /// The JobMaster records that all tasks have finished.
    pub(super) fn finish_tasks(&mut self, job: JobId) {
        if self.writes_as_job_master(job) {
            let state = &mut self.store.states.get_mut(&job).expect("it runs").value;
            let is_canceled = state.wanted() == pb::WantedStatus::Canceled;
            if !is_canceled && !state.regions.is_empty() && state.fatal_cause.is_empty() {
                state.terminal = vec![pb::TerminalExecution {
                    vertex_id: "v".to_owned(),
                    generation: 1,
                    state: pb::ExecutionState::Finished.into(),
                    ..pb::TerminalExecution::default()
                }];
            }
        }
    }

    /// The JobMaster ends its job, as its record says.
    pub(super) fn end(&mut self, job: JobId) {
        if !self.writes_as_job_master(job) {
            return;
        }
        let state = &mut self.store.states.get_mut(&job).expect("it runs").value;
        let status = if state.wanted() == pb::WantedStatus::Canceled {
            pb::JobStatus::Canceled
        } else if !state.terminal.is_empty() {
            pb::JobStatus::Finished
        } else {
            state.fatal_cause = "it fails for good".to_owned();
            pb::JobStatus::Failed
        };
        let sinks = state.sinks.clone().unwrap_or_default();
        let result = Box::new(pb::JobResult {
            job_id: state.job_id.clone(),
            name: state.name.clone(),
            status: status.into(),
            dirty: true,
            ended_at_ms: 1,
            submission_token: state.submission_token.clone(),
            graph_digest: state.graph_digest.clone(),
            description: Some(pb::KeptDescription::default()),
            remove: Some(pb::Cleanup {
                run: sinks.run,
                ..pb::Cleanup::default()
            }),
            ..pb::JobResult::default()
        });
        let job_master = self.job_masters.get_mut(&job).expect("it runs");
        job_master.has_ended = true;
        self.give(Event::JobEnded { job, result });
    }

    pub(in crate::core::tests) fn break_job_master(&mut self, job: JobId, unfit: Option<String>) {
        let job_master = self.job_masters.get_mut(&job);
        if let Some(job_master) = job_master.filter(|it| !it.has_ended) {
            job_master.has_ended = true;
            self.give(Event::JobMasterBroke { job, unfit });
        }
    }

    /// Its JobMasters break one after the other, until none is started.
    fn break_too_often(&mut self, job: JobId) {
        for _ in 0..=TOLERATED {
            self.break_job_master(job, None);
            let is_removal = |it: &Pending| matches!(&it.effect, Effect::RemoveJobMaster { job: removed, .. } if *removed == job);
            if let Some(index) = self.pending.iter().position(is_removal) {
                self.finish(index, false);
            }
        }
    }

    /// The graph of the job can't be read for now.
    pub(in crate::core::tests) fn make_unavailable(&mut self, job: JobId) {
        self.damage(job, 0);
    }

    /// A record of the job can't be read any more, or not for now.
    fn damage(&mut self, job: JobId, pick: u16) {
        let health = match pick >> 4 & 3 {
            0 | 1 => Health::Unavailable,
            2 => Health::Damaged(pb::QuarantineKind::Unreadable),
            _ => Health::Damaged(pb::QuarantineKind::TooNew),
        };
        let store = &mut self.store;
        let graph = store.graphs.get_mut(&job).map(|it| &mut it.health);
        let state = store.states.get_mut(&job).map(|it| &mut it.health);
        let result = store.results.get_mut(&job).map(|it| &mut it.health);
        let of_job = match pick >> 6 & 1 {
            0 => graph,
            _ => state,
        };
        if let Some(it) = of_job.or(result).filter(|it| **it == Health::Good) {
            *it = health;
            self.runs.get_mut(&job).expect("it is stored").was_damaged = true;
        }
    }

    /// What was unreadable for now is readable again.
    pub(super) fn heal(&mut self, job: JobId) {
        let store = &mut self.store;
        let graph = store.graphs.get_mut(&job).map(|it| &mut it.health);
        let state = store.states.get_mut(&job).map(|it| &mut it.health);
        let result = store.results.get_mut(&job).map(|it| &mut it.health);
        for it in [graph, state, result].into_iter().flatten() {
            if *it == Health::Unavailable {
                *it = Health::Good;
            }
        }
    }
}
