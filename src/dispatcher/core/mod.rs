//! The decisions of a Dispatcher, pure: (state, now, event) -> effects.
//!
//! The core owns the entries of all jobs, and what the term knows of their results. It does no I/O: a write or a read
//! is an effect, and its outcome is an event. So an entry says what the store has, or what is being written: a job is
//! acknowledged and gets a JobMaster after its submission is written, and it has ended once its result is written.
//!
//! Invariants: a job has at most one JobMaster; none before its submission is written, and none after its result is; a
//! job with a result is never started; a result is removed only when it is clean and its retention time is over; each
//! request is answered once, unless the term ends before.
//!
//! The state is in objects with a file each ([`jobs`], [`retention`], [`read_barrier`], [`unread_results`] ...). The
//! handlers are the other files, one a subject.

mod admission;
mod broken_job_masters;
mod cancellation;
mod cleanup;
mod crash_suspects;
mod deletion;
mod effect;
mod ended;
mod ending;
mod entry;
mod event;
mod faults;
mod job_master_failures;
mod jobs;
mod kept_results;
mod lists;
mod log_line;
mod outputs;
mod persisting;
mod quarantine;
mod quarantine_requests;
mod quarantined;
mod read_barrier;
mod rebuilding;
mod requests;
mod retention;
mod submissions;
#[cfg(test)]
mod tests;
mod unavailable_records;
mod unread_results;

use std::collections::BTreeSet;

use tanist_gateway::GatewayError;
use tanist_ha::election::{Epoch, NotLeading};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

pub(crate) use self::admission::{
    Admission, Deadline, Known, Submission, SubmissionKey, Times, admit, first_state, is_expired,
    sink_directories,
};
pub(crate) use self::effect::Effect;
pub(crate) use self::ended::Ended;
pub(crate) use self::entry::{
    Described, Entry, accepted, describe, describe_without_job_master, ended_details, no_such_job,
    result_key, state_key, status_name,
};
pub(crate) use self::event::{Event, Now, Reread, Timer};
pub(crate) use self::job_master_failures::JobMasterFailures;
use self::jobs::Jobs;
pub(crate) use self::lists::{Listing, listed};
pub(crate) use self::log_line::LogLine;
use self::outputs::Outputs;
pub(crate) use self::persisting::Persisting;
pub(crate) use self::quarantine::JobToRetry;
pub(crate) use self::quarantine_requests::Resolution;
pub(crate) use self::quarantined::Quarantined;
pub(crate) use self::read_barrier::ReadBarrier;
pub(crate) use self::rebuilding::{ReadNumber, Rebuilding};
pub(crate) use self::requests::{Command, GatewayRequest, Refuse, Replies, Subject, job_of};
pub(crate) use self::retention::Retention;
use self::unread_results::UnreadResults;
use crate::{DispatcherOptions, GraphChecks, RecoveredJobs};

/// The term that a core decides for.
#[derive(Debug, Clone)]
pub(crate) struct Term {
    /// Its epoch.
    pub epoch: Epoch,
    /// The leading process, for the evidence of quarantines.
    pub process: String,
}

/// The state of one term's Dispatcher.
#[derive(Debug)]
pub(crate) struct DispatcherCore<R: Replies> {
    options: DispatcherOptions,
    checks: GraphChecks,
    term: Term,
    /// When the present event arrived.
    now: Now,
    jobs: Jobs<R>,
    read_barrier: ReadBarrier<Command<R>>,
    /// `None`: all results are read.
    unread: Option<Box<UnreadResults<R>>>,
    retention: Retention,
    /// A clean result is being written or removed. One such write at a time: a second removal could hit a later job
    /// with the same id.
    is_expiring: bool,
    job_master_failures: JobMasterFailures,
    /// Number of submissions that this term has accepted.
    submissions: u64,
    /// The last read of waiting jobs.
    last_read: ReadNumber,
    out: Outputs<R>,
}

impl<R: Replies> DispatcherCore<R> {
    /// Continues with the jobs from the store. `unread` are the jobs whose results are read later; `None`: all results
    /// are read. Returns the first effects.
    pub(crate) fn recover(
        options: DispatcherOptions,
        checks: GraphChecks,
        term: Term,
        now: Now,
        unread: Option<BTreeSet<JobId>>,
        mut recovered: RecoveredJobs,
    ) -> (DispatcherCore<R>, Vec<Effect<R>>) {
        let mut core = DispatcherCore {
            options,
            checks,
            term,
            now,
            jobs: Jobs::default(),
            read_barrier: ReadBarrier::default(),
            unread: unread.map(|jobs| Box::new(UnreadResults::of(jobs))),
            retention: Retention::resume(now.uptime, &mut recovered),
            is_expiring: false,
            job_master_failures: JobMasterFailures::default(),
            submissions: 0,
            last_read: ReadNumber::default(),
            out: Outputs::default(),
        };
        let jobs = std::mem::take(&mut recovered.jobs);
        core.take_up_results(recovered);
        for (job, recovered) in jobs {
            let is_unread = core.unread.as_ref().is_some_and(|unread| unread.has(job));
            // A job with a result is never run again.
            if !is_unread && !core.jobs.has(job) {
                core.take_up(job, recovered);
            }
        }
        let effects = core.out.take_effects();
        (core, effects)
    }

    /// Takes an event at `now`. Returns the effects, to be run in order.
    pub(crate) fn handle(&mut self, now: Now, event: Event<R>) -> Vec<Effect<R>> {
        self.now = now;
        match event {
            Event::Asked(command) => self.take_command(command),
            Event::TermConfirmed(confirmed) => self.on_term_confirmed(&confirmed),
            Event::SubmissionWritten {
                submission,
                state,
                written,
            } => self.on_submission_written(*submission, state, written),
            Event::JobEnded { job, result } => self.on_job_ended(job, result),
            Event::JobMasterBroke { job, unfit } => self.on_job_master_broke(job, unfit),
            Event::JobMasterRemoved {
                job,
                broken,
                unfit,
                found,
            } => self.on_job_master_removed(job, broken, unfit, found),
            Event::ResultWritten {
                job,
                written,
                reply,
            } => self.on_result_written(job, written, reply),
            Event::CleanedUp { job } => self.on_cleaned_up(job),
            Event::CleanupGivenUp { job, reason } => self.on_cleanup_given_up(job, reason),
            Event::MarkedClean { job, marked } => self.on_marked_clean(job, marked),
            Event::ResultsDeleted { jobs, deleted } => self.on_results_deleted(&jobs, deleted),
            Event::DescriptionsDropped { results, failure } => {
                self.on_descriptions_dropped(results, failure);
            }
            Event::RetentionNoted {
                job,
                counted_ms,
                noted,
            } => self.on_retention_noted(job, counted_ms, noted),
            Event::QuarantineWritten { job, written } => self.on_quarantine_written(job, written),
            Event::WaitingJobsRead {
                found,
                number,
                reply,
            } => self.on_waiting_jobs_read(found, number, reply),
            Event::ResultRead { job, found } => self.on_result_read(job, found),
            Event::ResultsRead(read) => self.on_results_read(*read),
            Event::QuarantinedRead {
                job,
                found,
                from_checkpoint,
                reply,
            } => self.on_quarantined_read(job, found, from_checkpoint, reply),
            Event::QuarantineRemoved {
                job,
                to_retry,
                goes_back,
                written,
                reply,
            } => self.on_quarantine_removed(job, (to_retry, goes_back), written, reply),
            Event::UnreadableResultDeleted {
                job,
                deleted,
                reply,
            } => self.on_unreadable_result_deleted(job, deleted, reply),
            Event::Listed { listing, reply } => self.on_listed(listing, reply),
            Event::TimedOut(Timer::UnreadResults) => self.on_waited_for_results(),
            Event::TimedOut(Timer::Cleanup(job)) => self.answer_waiting(job),
            Event::ExpirationDue => self.tend_results(),
        }
        self.out.take_effects()
    }

    /// Returns what the log gets since the last call.
    pub(crate) fn take_log(&mut self) -> Vec<LogLine> {
        self.out.take_log()
    }

    /// Whether the term must not decide anything now.
    fn is_suspended(&self) -> bool {
        self.now.standing == Err(NotLeading::Suspended)
    }

    /// Returns the number of a read of waiting jobs that starts now.
    fn number_read(&mut self) -> ReadNumber {
        self.last_read = self.last_read.next();
        self.last_read
    }

    /// Starts the JobMaster of a job that has none.
    fn start_job_master(
        &mut self,
        job: JobId,
        graph: Box<pb::JobGraph>,
        state: Box<pb::JobState>,
        is_recovered: bool,
    ) {
        let running = Entry::Running {
            key: state_key(&state),
            name: state.name.clone(),
        };
        self.jobs.set(job, running);
        self.out.effect(Effect::StartJobMaster {
            job,
            graph,
            state,
            is_recovered,
        });
    }
}

/// Error for a request that needs a decision while the term is suspended.
fn suspended() -> GatewayError {
    GatewayError::NotYet(format!("{}: try again", NotLeading::Suspended))
}

/// Error for a request that needs the job's JobMaster.
fn no_job_master(job: JobId) -> GatewayError {
    GatewayError::NotYet(format!("job {job} has no JobMaster at present"))
}

/// Error for a request about a job of which a record is being written.
fn is_written_about(job: JobId) -> GatewayError {
    GatewayError::NotYet(format!("something is being written about job {job}"))
}
