//! Results of jobs that ended before the term. They are read after the term is confirmed, as leading does not
//! need them (`docs/adr/0049`).
//!
//! The names of the records tell which jobs have a result. Such a job is never run again; a job without a
//! result is submitted, run and denied as usual. Requests about a job with an unread result, or about all jobs,
//! wait until all results are read, but only up to a timeout. Jobs that end in this term wait too: their
//! results contain the leaders' common count, which is in the kept results ([`Retention`]). Nothing is
//! forgotten, dropped or swept before. Reading writes nothing, so a crash changes nothing.

use std::collections::BTreeSet;

use tanist_gateway::GatewayError;
use tanist_ha::failpoint::failpoint;
use tanist_ha::keys::Kind;
use tanist_ha::store::cache::Records;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::actor::{DispatcherActor, Event};
use super::core::Retention;
use super::handle::{Command, Reply, Subject};
use super::recovery::RecoveredJobs;

/// Unread results, and what waits for them.
#[derive(Debug)]
pub(super) struct Unread {
    jobs: BTreeSet<JobId>,
    /// Records to read; taken when reading begins.
    records: Option<Records>,
    commands: Vec<Command>,
    /// A timeout of the waiting commands is running.
    is_timed: bool,
    ended: Vec<(JobId, Box<pb::JobResult>)>,
    cancelled: Vec<(JobId, pb::JobResult, Reply<pb::Ack>)>,
    readers: Vec<Reply<()>>,
}

impl Unread {
    /// Creates it from the records of results; `None` if there are none.
    pub(super) fn of(records: Records) -> Option<Box<Unread>> {
        if records.is_empty() {
            return None;
        }
        let names = records.of(Kind::Results).map(|(name, _)| name);
        let jobs = names.filter_map(|name| name.as_str().parse().ok());
        Some(Box::new(Unread {
            jobs: jobs.collect(),
            records: Some(records),
            commands: Vec::new(),
            is_timed: false,
            ended: Vec::new(),
            cancelled: Vec::new(),
            readers: Vec::new(),
        }))
    }

    /// Whether this job has ended with a result that is not read yet.
    pub(super) fn has(&self, job: JobId) -> bool {
        self.jobs.contains(&job)
    }

    fn holds_up(&self, command: &Command) -> bool {
        match command.subject() {
            Subject::Submission(submission) => self.has(submission.job),
            Subject::Job(job) => self.has(job),
            Subject::AllJobs => true,
            Subject::Other => false,
        }
    }
}

impl DispatcherActor {
    /// Returns the command if it needs no unread result; else keeps it until they are read.
    pub(super) fn or_wait_for_results(&mut self, command: Command) -> Option<Command> {
        let Some(unread) = self.unread.as_mut().filter(|it| it.holds_up(&command)) else {
            return Some(command);
        };
        unread.commands.push(command);
        if !std::mem::replace(&mut unread.is_timed, true) {
            // Shorter than the callers' timeout.
            let timeout = self.options.store_timeout / 2;
            self.tasks.spawn(async move {
                tokio::time::sleep(timeout).await;
                Event::WaitedForResults
            });
        }
        None
    }

    /// Refuses the commands that have waited until the timeout.
    pub(super) fn on_waited_for_results(&mut self) {
        let Some(unread) = &mut self.unread else {
            return;
        };
        unread.is_timed = false;
        for command in std::mem::take(&mut unread.commands) {
            let text = "the results of jobs that had ended before this term are still being read";
            command.refuse(GatewayError::NotYet(text.to_owned()));
        }
    }

    /// Starts reading, as the term is confirmed. Replies when all results are read.
    pub(super) fn read_results(&mut self, reply: Reply<()>) {
        let Some(unread) = &mut self.unread else {
            let _ = reply.send(Ok(()));
            return;
        };
        unread.readers.push(reply);
        let Some(records) = unread.records.take() else {
            return;
        };
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            failpoint("results.reading").await;
            let read = store.read_results_until_answered(&records).await;
            Event::ResultsRead(Box::new(read))
        });
    }

    pub(super) fn on_results_read(&mut self, mut read: RecoveredJobs) {
        let Some(unread) = self.unread.take() else {
            return;
        };
        self.retention = Retention::resume(self.started.uptime(), &mut read);
        self.take_up_results(read);
        for (job, result) in unread.ended {
            self.on_job_ended(job, result);
        }
        for (job, result, reply) in unread.cancelled {
            self.cancel_quarantined(job, result, reply);
        }
        for command in unread.commands {
            self.take_command(command);
        }
        self.expire_results();
        self.bound_descriptions();
        self.note_retention();
        for reader in unread.readers {
            let _ = reader.send(Ok(()));
        }
    }

    /// Continues with the jobs that have ended.
    pub(super) fn take_up_results(&mut self, read: RecoveredJobs) {
        for (job, result) in read.results {
            self.take_up_ended(job, result);
        }
        for (job, reason) in read.unavailable_results {
            self.await_result(job, &reason);
        }
        for (job, kind, reason) in read.unreadable_results {
            self.quarantine_ended(job, kind, &reason);
        }
    }

    /// Returns the end of a job if it need not wait for the results; else keeps it until they are read.
    pub(super) fn end_later(
        &mut self,
        job: JobId,
        result: Box<pb::JobResult>,
    ) -> Option<Box<pb::JobResult>> {
        match &mut self.unread {
            Some(unread) => {
                unread.ended.push((job, result));
                None
            }
            None => Some(result),
        }
    }

    /// The same for a quarantined job that is cancelled.
    pub(super) fn cancel_later(
        &mut self,
        job: JobId,
        result: pb::JobResult,
        reply: Reply<pb::Ack>,
    ) -> Option<(pb::JobResult, Reply<pb::Ack>)> {
        match &mut self.unread {
            Some(unread) => {
                unread.cancelled.push((job, result, reply));
                None
            }
            None => Some((result, reply)),
        }
    }
}
