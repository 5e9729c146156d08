//! The jobs whose results are not read yet, and what waits until they are: requests, up to a timeout, and ends of jobs,
//! without one. Decides nothing; `kept_results.rs` says why they wait. Dropped when the results are read.

use std::collections::BTreeSet;

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::{Command, Replies, Subject};

/// The jobs whose results are not read yet, and what waits until they are.
#[derive(Debug)]
pub(super) struct UnreadResults<R: Replies> {
    jobs: BTreeSet<JobId>,
    /// Whether the results are being read.
    is_reading: bool,
    /// Whether a timeout of the waiting commands is running.
    is_timed: bool,
    waiting: Waiting<R>,
}

/// What waits until the results are read.
#[derive(Debug)]
pub(super) struct Waiting<R: Replies> {
    pub commands: Vec<Command<R>>,
    /// Jobs that have ended in this term.
    pub ended: Vec<(JobId, Box<pb::JobResult>)>,
    /// Jobs without a JobMaster that are cancelled.
    pub canceled: Vec<Canceled<R>>,
    /// Requests to read the results.
    pub readers: Vec<R::To<()>>,
}

/// The cancellation of a job without a JobMaster.
#[derive(Debug)]
pub(super) struct Canceled<R: Replies> {
    pub job: JobId,
    pub result: Box<pb::JobResult>,
    /// The request; `None`: it was acknowledged before.
    pub reply: Option<R::To<pb::Ack>>,
}

impl<R: Replies> UnreadResults<R> {
    pub(super) fn of(jobs: BTreeSet<JobId>) -> UnreadResults<R> {
        UnreadResults {
            jobs,
            is_reading: false,
            is_timed: false,
            waiting: Waiting {
                commands: Vec::new(),
                ended: Vec::new(),
                canceled: Vec::new(),
                readers: Vec::new(),
            },
        }
    }

    /// Whether this job has ended with a result that is not read yet.
    pub(super) fn has(&self, job: JobId) -> bool {
        self.jobs.contains(&job)
    }

    /// Whether the answer depends on an unread result.
    pub(super) fn delays(&self, command: &Command<R>) -> bool {
        match command.subject() {
            Subject::Submission(submission) => self.has(submission.job),
            Subject::Job(job) => self.has(job),
            Subject::AllJobs => true,
            Subject::Other => false,
        }
    }

    /// Keeps a command. Returns true if a timeout must be started.
    pub(super) fn keep(&mut self, command: Command<R>) -> bool {
        self.waiting.commands.push(command);
        !std::mem::replace(&mut self.is_timed, true)
    }

    /// Ends the timeout. Returns the commands that have waited.
    pub(super) fn time_out(&mut self) -> Vec<Command<R>> {
        self.is_timed = false;
        std::mem::take(&mut self.waiting.commands)
    }

    /// Keeps the end of a job.
    pub(super) fn keep_ended(&mut self, job: JobId, result: Box<pb::JobResult>) {
        self.waiting.ended.push((job, result));
    }

    /// Keeps the cancellation of a job without a JobMaster.
    pub(super) fn keep_canceled(
        &mut self,
        job: JobId,
        result: Box<pb::JobResult>,
        reply: Option<R::To<pb::Ack>>,
    ) {
        self.waiting.canceled.push(Canceled { job, result, reply });
    }

    /// Adds a request to read. Returns true if reading must be started.
    pub(super) fn read(&mut self, reply: R::To<()>) -> bool {
        self.waiting.readers.push(reply);
        !std::mem::replace(&mut self.is_reading, true)
    }

    /// Returns what waits.
    pub(super) fn into_waiting(self) -> Waiting<R> {
        self.waiting
    }
}
