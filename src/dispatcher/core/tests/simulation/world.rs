//! The simulated world: the store, the JobMasters of the present term, its core, and the clients. Each effect and each
//! answer is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use tanist_gateway::GatewayError;
use tanist_ha::clock::Uptime;
use tanist_ha::election::{Epoch, NotLeading};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::invariants::check_suspended;
use super::reads::Read;
use super::store::Store;
use crate::core::{
    Command, Deadline, DispatcherCore, Effect, Event, Now, Refuse, Replies, Submission,
    SubmissionKey, Term, Times,
};
use crate::{DispatcherOptions, GraphChecks};

/// Time for which results are kept.
pub(super) const RETENTION: Duration = Duration::from_secs(600);

/// Requests are answered by their number.
#[derive(Debug)]
pub(in crate::core::tests) struct Tickets;

/// The number of a request. It can't be copied, so it is answered once at most.
#[derive(Debug)]
pub(in crate::core::tests) struct Ticket(u64);

impl Replies for Tickets {
    type To<T: Debug> = Ticket;
}

/// A request of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core::tests) enum Asked {
    Submit { job: JobId, token: u8 },
    Cancel(JobId),
    Stop(JobId),
    Retry(JobId),
    Delete(JobId),
    Describe(JobId),
    Other,
}

/// A situation that some case must reach, or the test would prove little.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reached {
    /// A repeated submission is acknowledged.
    Repeated,
    /// The same by a later term than the first one.
    RepeatedAfterTakeover,
    /// Another submission under the id is refused.
    Conflict,
    /// A job is not known.
    Denied,
    /// A JobMaster broke.
    Broken,
    /// JobMasters of a job broke until it was quarantined.
    BrokenTooOften,
    /// A quarantined job is led again.
    Retried,
    /// A stop is acknowledged.
    Stopped,
    /// A quarantined job is deleted.
    Deleted,
    /// An unreadable result is deleted.
    DeletedUnreadable,
    /// A term ends between a write and its answer.
    AppliedWithoutAnswer,
    /// A job is read until its records can be read.
    RecordsAwaited,
    /// The same for a result.
    ResultAwaited,
    /// A job ends by a cancellation, and no JobMaster.
    CanceledWithoutJobMaster,
    /// A term finds a dirty result.
    CleanupResumed,
    /// Results are read after the recovery.
    ResultsReadLate,
    /// Descriptions are dropped.
    DescriptionsDropped,
    /// The retention count is written.
    RetentionNoted,
    /// A result is removed.
    Expired,
    /// A job is submitted under the id of a forgotten one.
    SubmittedAgain,
    /// A read is done before its answer arrives.
    ReadBefore,
    /// Some descriptions are dropped, others not.
    PartlyDropped,
    /// Some results are removed, others not.
    PartlyDeleted,
    /// The reason for a quarantine can't be written, in a term that continues.
    QuarantineNotWritten,
    /// All faults of a term end before the term.
    SettledInTerm,
}

/// Number of situations.
pub(super) const SITUATIONS: usize = Reached::SettledInTerm as usize + 1;

/// One run of a job: from its submission to the removal of its result.
#[derive(Debug, Clone, Default)]
pub(super) struct Run {
    pub(super) token: u8,
    /// Its name in the graph, for the cleanup.
    pub(super) name: String,
    /// Its submission was acknowledged, in this term or before.
    pub(super) acknowledged_in: Option<u64>,
    pub(super) is_cancel_acknowledged: bool,
    /// When its result was decided, by the time that all terms have led.
    pub(super) ended_at: Option<Duration>,
    pub(super) is_cleaned_up: bool,
    /// One of its records could not be read at some time, so that its submission may be unknown.
    pub(super) was_damaged: bool,
}

/// The JobMaster of a job.
#[derive(Debug, Default)]
pub(in crate::core::tests) struct JobMaster {
    /// It has ended or is broken, and writes nothing any more.
    pub(in crate::core::tests) has_ended: bool,
}

/// An effect that is not done.
#[derive(Debug)]
pub(in crate::core::tests) struct Pending {
    pub(in crate::core::tests) effect: Effect<Tickets>,
    /// The store has applied it, and the answer is on its way.
    pub(super) is_applied: bool,
    /// What was read, and its answer is on its way.
    pub(super) read: Option<Read>,
}

/// The world.
#[derive(Debug)]
pub(in crate::core::tests) struct World {
    pub(super) store: Store,
    pub(super) epoch: u64,
    pub(super) core: DispatcherCore<Tickets>,
    pub(in crate::core::tests) pending: Vec<Pending>,
    pub(in crate::core::tests) job_masters: BTreeMap<JobId, JobMaster>,
    pub(super) runs: BTreeMap<JobId, Run>,
    /// Ids under which more than one job has run.
    pub(super) forgotten: BTreeSet<JobId>,
    /// Runs whose results are removed, though the removal seemed to fail to the term.
    pub(super) removed: BTreeMap<JobId, Run>,
    /// Why the next write is refused, if it is.
    pub(super) refusal: u16,
    pub(in crate::core::tests) open: BTreeMap<u64, Asked>,
    last_ticket: u64,
    last_run: u64,
    /// Suspects of this term whose turn has not come.
    pub(super) suspects: Vec<JobId>,
    /// Time since the present term began, and that all terms have led.
    uptime: Duration,
    pub(super) led: Duration,
    pub(super) standing: Result<(), NotLeading>,
    /// A younger term exists: the store refuses each write of this one.
    pub(super) is_fenced: bool,
    /// How often each situation occurred.
    pub(super) reached: [u32; SITUATIONS],
    /// The jobs in the last list.
    pub(super) listed: BTreeSet<JobId>,
}

fn known_operators() -> GraphChecks {
    GraphChecks {
        invalid: |_| None,
        unknown_operators: |_| None,
    }
}

/// Checks of a process that lacks an operator of the second job.
fn without_an_operator() -> GraphChecks {
    GraphChecks {
        invalid: |_| None,
        unknown_operators: |graph| (graph.name == "2").then(|| "no operator `two`".to_owned()),
    }
}

pub(in crate::core::tests) fn job_of(number: usize) -> JobId {
    JobId::from_bits(u128::try_from(number % 3 + 1).expect("small"))
}

impl Refuse<Tickets> for World {
    fn refuse<T: Debug>(&mut self, ticket: Ticket, error: GatewayError) {
        assert!(matches!(error, GatewayError::NotYet(_)), "{error:?}");
        self.answered(ticket);
    }
}

impl World {
    pub(in crate::core::tests) fn new() -> World {
        let now = Now {
            uptime: Uptime::START,
            wall_ms: 0,
            times: Times {
                epoch: 1,
                term_ms: 0,
                longest_ms: 0,
            },
            standing: Ok(()),
        };
        let (core, _) = DispatcherCore::recover(
            options(1),
            known_operators(),
            term(1),
            now,
            None,
            crate::RecoveredJobs::default(),
        );
        World {
            store: Store::default(),
            epoch: 1,
            core,
            pending: Vec::new(),
            job_masters: BTreeMap::new(),
            runs: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            removed: BTreeMap::new(),
            refusal: 0,
            open: BTreeMap::new(),
            last_ticket: 0,
            last_run: 0,
            suspects: Vec::new(),
            uptime: Duration::ZERO,
            led: Duration::ZERO,
            standing: Ok(()),
            is_fenced: false,
            reached: [0; SITUATIONS],
            listed: BTreeSet::new(),
        }
    }

    fn now(&self) -> Now {
        let led_ms = u64::try_from(self.led.as_millis()).expect("small");
        Now {
            uptime: Uptime::START + self.uptime,
            wall_ms: 1_000_000 + led_ms,
            times: Times {
                epoch: self.epoch,
                term_ms: 1_000_000 + led_ms,
                longest_ms: u64::try_from(RETENTION.as_millis() / 2).expect("small"),
            },
            standing: self.standing,
        }
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.uptime += time;
        self.led += time;
    }

    pub(super) fn give(&mut self, event: Event<Tickets>) {
        let is_asked = matches!(event, Event::Asked(_));
        let effects = self.core.handle(self.now(), event);
        self.core.take_log();
        if self.standing == Err(NotLeading::Suspended) {
            check_suspended(&effects, is_asked);
        }
        effects.into_iter().for_each(|effect| self.take(effect));
        self.check();
    }

    fn ticket(&mut self, asked: Asked) -> Ticket {
        self.last_ticket += 1;
        self.open.insert(self.last_ticket, asked);
        Ticket(self.last_ticket)
    }

    /// The request of a reply that is kept.
    pub(super) fn asked(&self, ticket: &Ticket) -> Asked {
        self.open[&ticket.0]
    }

    pub(super) fn answered(&mut self, ticket: Ticket) -> Asked {
        let asked = self.open.remove(&ticket.0);
        asked.expect("each request is answered once")
    }

    /// Sends a request to the core.
    pub(in crate::core::tests) fn ask(
        &mut self,
        asked: Asked,
        command: impl FnOnce(Ticket) -> Command<Tickets>,
        is_consistent: bool,
    ) {
        let ticket = self.ticket(asked);
        let command = command(ticket);
        let command = match is_consistent {
            true => Command::Consistent(Box::new(command)),
            false => command,
        };
        self.give(Event::Asked(command));
    }

    pub(in crate::core::tests) fn submit(&mut self, job: JobId, token: u8, deadline: Deadline) {
        self.submit_with(job, token, deadline, None);
    }

    pub(super) fn submit_with(
        &mut self,
        job: JobId,
        token: u8,
        deadline: Deadline,
        flaw: Option<String>,
    ) {
        self.last_run += 1;
        let submission = Box::new(Submission {
            job,
            graph: pb::JobGraph {
                job_id: job.to_string(),
                name: job.to_bits().to_string(),
                run: self.last_run.to_string(),
                ..pb::JobGraph::default()
            },
            key: SubmissionKey {
                token: format!("t{token}"),
                digest: vec![token],
            },
            deadline,
            restore: None,
            flaw,
        });
        let command = |reply| Command::Submit { submission, reply };
        self.ask(Asked::Submit { job, token }, command, false);
    }

    /// The time on the term's clock.
    pub(super) fn term_ms(&self) -> u64 {
        self.now().times.term_ms
    }

    /// Takes an effect of the core. Answers are checked at once; what waits is kept.
    fn take(&mut self, effect: Effect<Tickets>) {
        self.check_effect(&effect);
        match effect {
            Effect::AnswerSubmission { reply, answer } => {
                let Asked::Submit { job, token } = self.answered(reply) else {
                    panic!("the answer to another request");
                };
                self.check_submission(job, token, answer);
            }
            Effect::Acknowledge { reply, answer } => self.acknowledge(reply, answer),
            Effect::AnswerDone { reply } => drop(self.answered(reply)),
            Effect::Refuse { command, error } => command.refuse(error, self),
            Effect::Describe { reply, described } => self.described(reply, &described),
            Effect::AnswerList { reply, .. }
            | Effect::AnswerOverview { reply, .. }
            | Effect::ListTaskManagers { reply }
            | Effect::AnswerJobMaster { reply, .. }
            | Effect::AnswerJobMasters { reply, .. }
            | Effect::TriggerSavepoint { reply, .. }
            | Effect::DisposeSavepoint { reply, .. }
            | Effect::DrainTaskManager { reply, .. } => drop(self.answered(reply)),
            Effect::StartJobMaster { job, .. } => {
                self.job_masters.insert(job, JobMaster::default());
            }
            Effect::ReleaseJobMaster { job } => {
                let released = self.job_masters.remove(&job);
                assert!(released.is_some_and(|it| it.has_ended), "{job} still runs");
            }
            Effect::RemoveJobMaster { job, .. } => {
                let removed = self.job_masters.get(&job);
                assert!(removed.is_some_and(|it| it.has_ended), "{job} still runs");
                self.reach(Reached::Broken);
                self.keep(effect);
            }
            Effect::WriteResult { job, .. } => {
                let run = self.runs.get_mut(&job).expect("it has begun");
                run.ended_at = Some(self.led);
                self.keep(effect);
            }
            effect => {
                match &effect {
                    Effect::AwaitRecords { .. } => self.reach(Reached::RecordsAwaited),
                    Effect::AwaitResult { .. } => self.reach(Reached::ResultAwaited),
                    Effect::WriteQuarantine { .. } => self.reach(Reached::BrokenTooOften),
                    Effect::List { jobs, .. } => {
                        self.listed = jobs.iter().map(|(job, _)| *job).collect();
                    }
                    _ => {}
                }
                self.keep(effect);
            }
        }
    }

    pub(super) fn reach(&mut self, situation: Reached) {
        self.reached[situation as usize] += 1;
    }

    fn keep(&mut self, effect: Effect<Tickets>) {
        let is_applied = false;
        self.pending.push(Pending {
            effect,
            is_applied,
            read: None,
        });
    }

    /// Ends the term, and recovers the next one from the store. Writes that are under way are applied or not, as the
    /// bits of `pick` say.
    pub(super) fn take_over(&mut self, pick: u16) {
        let bits = |number: u16| pick >> number & 1 == 1;
        for index in 0..self.pending.len() {
            let bit = u16::try_from(index % 16).expect("small");
            if bits(bit) && !self.is_fenced && self.apply(index) {
                self.reach(Reached::AppliedWithoutAnswer);
            }
        }
        // The term ends: its requests get no answer, its JobMasters stop.
        self.pending.clear();
        self.open.clear();
        self.job_masters.clear();
        self.suspects.clear();
        self.removed.clear();
        self.epoch += 1;
        self.uptime = Duration::ZERO;
        self.standing = Ok(());
        self.is_fenced = false;
        let is_suspect = |job: JobId| pick >> (job.to_bits() % 3) & 1 == 1 && bits(3);
        let mut recovered = match bits(4) {
            true => crate::RecoveredJobs::default(),
            false => self.store.read_results(),
        };
        recovered.jobs = self.store.read_jobs(is_suspect);
        for (job, found) in &recovered.jobs {
            if matches!(found, crate::RecoveredJob::Suspect { .. }) {
                self.suspects.push(*job);
            }
        }
        if recovered.results.iter().any(|(_, result)| result.dirty) {
            self.reach(Reached::CleanupResumed);
        }
        let unread = bits(4).then(|| self.store.results.keys().copied().collect());
        let checks = match bits(5) && bits(6) {
            true => without_an_operator(),
            false => known_operators(),
        };
        let (core, effects) = DispatcherCore::recover(
            options(self.epoch),
            checks,
            term(self.epoch),
            self.now(),
            unread,
            recovered,
        );
        self.core = core;
        self.core.take_log();
        effects.into_iter().for_each(|effect| self.take(effect));
        self.check();
    }
}

fn term(epoch: u64) -> Term {
    Term {
        epoch: Epoch::new(epoch),
        process: "simulated".to_owned(),
    }
}

/// Options of the process that leads the term.
fn options(epoch: u64) -> DispatcherOptions {
    DispatcherOptions {
        result_retention: RETENTION,
        max_described: usize::try_from(epoch % 2).expect("small"),
        ..DispatcherOptions::default()
    }
}
