//! The steps of a case: requests, ends of JobMasters, outcomes of effects, damage, time, and takeovers.

use std::collections::BTreeSet;
use std::time::Duration;

use tanist_ha::election::NotLeading;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::store::Health;
use super::world::{Asked, RETENTION, World, job_of};
use crate::core::{Command, Deadline, Event};

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
                self.submit(job, token, deadline);
            }
            8 | 9 => self.ask_cancel(job),
            10 => {
                let command = |reply| Command::StopJob { job, reply };
                self.ask(Asked::Stop(job), command, false);
            }
            11 | 12 => self.ask_resolve(job, pb::QuarantineAction::Retry),
            13 => self.ask_resolve(job, pb::QuarantineAction::Delete),
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
            41..=44 => self.finish_one(pick_of, true),
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
            52 => self.standing = Err(NotLeading::Suspended),
            53 | 54 => self.standing = Ok(()),
            55 => self.is_fenced |= pick & 3 == 3,
            56 | 57 => self.break_job_master(job, None),
            _ => self.take_over(pick),
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

    pub(super) fn ask_resolve(&mut self, job: JobId, action: pb::QuarantineAction) {
        let asked = match action {
            pb::QuarantineAction::Delete => Asked::Delete(job),
            _ => Asked::Retry(job),
        };
        let command = |reply| Command::ResolveQuarantine { job, action, reply };
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
    pub(super) fn place(&mut self, job: JobId) {
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

    /// Without further faults: all effects end, and each request gets its answer.
    pub(in crate::core::tests) fn come_to_rest(&mut self) {
        (0..3).for_each(|number| self.heal(job_of(number)));
        self.read_results();
        self.start_suspects();
        for _ in 0..1000 {
            if self.pending.is_empty() {
                assert!(self.open.is_empty(), "no answer to {:?}", self.open);
                return self.check_list();
            }
            self.finish_one(0, false);
        }
        panic!("it does not come to rest: {:?}", self.pending);
    }

    /// A list has all jobs of the store, and no other.
    fn check_list(&mut self) {
        self.ask(Asked::Other, |reply| Command::List { reply }, false);
        self.finish_one(0, false);
        let stored: BTreeSet<JobId> = self.runs.keys().copied().collect();
        assert_eq!(self.listed, stored, "a list has other jobs than the store");
    }

    /// All jobs end and are forgotten, whatever has happened to them.
    pub(super) fn come_to_an_end(&mut self, pick: u16) {
        // Each request of a term that goes on gets its answer.
        self.standing = Ok(());
        if !self.is_fenced {
            self.come_to_rest();
        }
        self.take_over(pick & !0x60);
        self.come_to_rest();
        for job in (0..3).map(job_of) {
            let is_led = self.job_masters.contains_key(&job);
            let state = self.store.states.get(&job);
            let is_sound = state.is_some_and(|it| it.value.quarantine.is_none());
            let is_sound = is_sound && self.store.is_readable(job);
            assert_eq!(is_led, is_sound, "{job} is led if it can be");
            self.end(job);
        }
        self.come_to_rest();
        for job in (0..3).map(job_of) {
            let is_damaged = |health| matches!(health, Health::Damaged(_));
            let result = self.store.results.get(&job);
            if self.store.has_begun(job) || result.is_some_and(|it| is_damaged(it.health)) {
                self.ask_resolve(job, pb::QuarantineAction::Delete);
                self.come_to_rest();
            }
        }
        for _ in 0..8 {
            self.pass(RETENTION + Duration::from_secs(1));
            self.give(Event::ExpirationDue);
            self.come_to_rest();
        }
        for job in (0..3).map(job_of) {
            assert!(!self.store.has(job), "{job} remains");
        }
    }
}
