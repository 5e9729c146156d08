//! Results of jobs that had ended before the term: read once the term is confirmed, as nobody needs them to lead (`docs/adr/0049`).
//!
//! Which jobs have one the names of the records tell: such a job is never run again, and a job that has none is submitted, run and denied as
//! always. What is asked about one that has, or about all jobs, waits until all are read, but not for long. So do ends of jobs in
//! this term: a result says what leaders have counted together, and that is in the kept ones (`retention.rs`). Nothing is forgotten,
//! dropped or swept before. Reading writes nothing: a crash leaves what was.

use std::collections::BTreeSet;

use tanist_ha::Error;
use tanist_ha::failpoint::failpoint;
use tanist_ha::jobs::store::Stored;
use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::retry::Backoff;
use tanist_ha::store::cache::Records;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::warn;

use super::actor::{DispatcherActor, Event};
use super::handle::{Command, Reply, Subject};
use super::job_store::{FIRST_RETRY, JobStore, ResultRecord, SLOWEST_RETRY, may_pass};
use super::recovery::{RecoveredJobs, unreadable_kind};
use super::retention::Retention;
use crate::gateway::GatewayError;

/// What waits until the results are read.
#[derive(Debug)]
pub(super) struct Unread {
    jobs: BTreeSet<JobId>,
    /// Taken when reading begins.
    records: Option<Records>,
    commands: Vec<Command>,
    /// Somebody is told when the patience of those that wait is over.
    is_timed: bool,
    ended: Vec<(JobId, Box<pb::JobResult>)>,
    cancelled: Vec<(JobId, pb::JobResult, Reply<pb::Ack>)>,
    readers: Vec<Reply<()>>,
}

impl Unread {
    /// Of these records; `None`: there are none.
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

    /// Whether this job has ended, with a result that is not read yet.
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
    /// Gives the command back where it needs no result that is not read.
    pub(super) fn or_wait_for_results(&mut self, command: Command) -> Option<Command> {
        let Some(unread) = self.unread.as_mut().filter(|it| it.holds_up(&command)) else {
            return Some(command);
        };
        unread.commands.push(command);
        if !std::mem::replace(&mut unread.is_timed, true) {
            // Below what callers wait for an answer.
            let patience = self.options.store_patience / 2;
            self.tasks.spawn(async move {
                tokio::time::sleep(patience).await;
                Event::WaitedForResults
            });
        }
        None
    }

    /// Answers those that have waited long enough.
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

    /// The term is confirmed. Answered when all is read.
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
            let read = store.read_results_surely(&records).await;
            Event::ResultsRead(Box::new(read))
        });
    }

    pub(super) fn on_results_read(&mut self, mut read: RecoveredJobs) {
        let Some(unread) = self.unread.take() else {
            return;
        };
        self.retention = Retention::resume(&mut read);
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

    /// Goes on with the jobs that have ended.
    pub(super) fn take_up_results(&mut self, read: RecoveredJobs) {
        for (job, result) in read.results {
            self.take_up_ended(job, result);
        }
        for (job, reason) in read.results_out_of_reach {
            self.await_result(job, &reason);
        }
        for (job, kind, reason) in read.unreadable_results {
            self.quarantine_ended(job, kind, &reason);
        }
    }

    /// Whether the end of a job waits for them; if not, it is given back.
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

    /// The same of a quarantined job that is cancelled.
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

/// The records of results among all records.
pub(super) fn kept_results(records: &Records) -> Records {
    let kept = records.of(Kind::Results);
    kept.map(|(name, value)| (Key::new(Kind::Results, name.clone()), value.clone()))
        .collect()
}

impl JobStore {
    /// Tries until the coordination store has given all of them.
    async fn read_results_surely(&self, records: &Records) -> RecoveredJobs {
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        loop {
            match self.read_results(records).await {
                Ok(read) => return read,
                Err(error) => warn!(%error, "the results can't be read, this is tried again"),
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    /// What the records of results say, as they were proven to be at the beginning of the term.
    pub async fn read_results(&self, records: &Records) -> Result<RecoveredJobs, Error> {
        let results = self.records.decode::<ResultRecord>(records).await?;
        let mut read = RecoveredJobs::default();
        for (name, result) in results {
            match name.as_str().parse() {
                Ok(job) => self.sort_result(job, result, &mut read),
                Err(error) => ignore(&name, &error),
            }
        }
        Ok(read)
    }

    fn sort_result(
        &self,
        job: JobId,
        result: Result<Stored<ResultRecord>, Error>,
        read: &mut RecoveredJobs,
    ) {
        let error = match result {
            Ok(stored) => {
                let result = self.recovered_result(job, stored);
                read.results.push((job, result));
                return;
            }
            Err(error) => error,
        };
        self.lock_parts().note_unreadable(job);
        self.lock_holdings().note_unreadable_result(job);
        if may_pass(&error) {
            read.results_out_of_reach.push((job, error.to_string()));
            return;
        }
        self.note_unreadable(&error);
        let unreadable = (job, unreadable_kind(&error), error.to_string());
        read.unreadable_results.push(unreadable);
    }
}

fn ignore(name: &Name, error: &dyn std::fmt::Display) {
    warn!(%name, %error, "a result that is no job's is ignored");
}
