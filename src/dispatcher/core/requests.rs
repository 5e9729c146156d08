//! Requests: which of them wait for unread results or for the store's confirmation of the term, and who decides them.

use tanist_gateway::GatewayError;

use super::{Command, DispatcherCore, Effect, Known, Replies, Subject, admit, suspended};

/// Whether the store has confirmed the term since the request arrived. Only then may "no such job" be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Confirmation {
    Believed,
    Confirmed,
}

impl<R: Replies> DispatcherCore<R> {
    /// Decides a command, or keeps it until what it depends on is known.
    pub(super) fn take_command(&mut self, command: Command<R>) {
        if let Some(command) = self.or_wait_for_results(command) {
            self.on_command(command, Confirmation::Believed);
        }
    }

    fn on_command(&mut self, command: Command<R>, term: Confirmation) {
        if term == Confirmation::Believed && self.needs_confirmation(&command) {
            if self.read_barrier.take(command) {
                self.out.effect(Effect::ConfirmTerm);
            }
            return;
        }
        match command {
            Command::Consistent(command) => self.on_command(*command, term),
            Command::Submit { submission, reply } => self.submit(*submission, reply),
            Command::Cancel { job, reply } => self.cancel(job, reply),
            Command::StopJob { job, reply } => self.stop_job(job, reply),
            Command::TriggerSavepoint {
                job,
                request,
                reply,
            } => self.trigger_savepoint(job, request, reply),
            // A suspended term decides nothing new.
            Command::DisposeSavepoint { reply, .. } if self.is_suspended() => {
                self.out.acknowledge(reply, Err(suspended()));
            }
            Command::DisposeSavepoint { path, reply } => {
                self.out.effect(Effect::DisposeSavepoint { path, reply });
            }
            Command::List { reply } => self.list(reply),
            Command::Describe { job, brief, reply } => self.describe(job, brief, reply),
            Command::JobMaster { job, reply } => {
                let answer = self.job_master(job);
                self.out.effect(Effect::AnswerJobMaster { reply, answer });
            }
            Command::JobMasters { jobs, reply } => {
                let jobs = jobs.into_iter().map(|job| self.job_master(job).ok());
                let jobs = jobs.collect();
                self.out.effect(Effect::AnswerJobMasters { reply, jobs });
            }
            Command::Overview { reply } => self.overview(reply),
            Command::TaskManagers { reply } => {
                self.out.effect(Effect::ListTaskManagers { reply });
            }
            Command::DrainTaskManager { request, reply } => {
                self.out.effect(Effect::DrainTaskManager { request, reply });
            }
            Command::ResolveQuarantine {
                job,
                resolution,
                reply,
            } => {
                self.resolve_quarantine(job, resolution, reply);
            }
            Command::StartCrashSuspects { jobs, reply } => {
                self.read_waiting_jobs(jobs, Some(reply));
            }
            Command::ReadResults { reply } => self.read_results(reply),
            Command::Turn { reply } => self.out.effect(Effect::AnswerDone { reply }),
        }
    }

    /// Whether the answer says, or depends on, that a job does not exist; or the request asked for consistency.
    fn needs_confirmation(&self, command: &Command<R>) -> bool {
        if matches!(command, Command::Consistent(_)) {
            return true;
        }
        match command.subject() {
            Subject::Job(job) => !self.jobs.has(job),
            Subject::Submission(submission) => {
                !self.jobs.has(submission.job)
                    && admit(submission, Known::Nothing, &self.now.times).is_err()
            }
            Subject::AllJobs | Subject::Other => false,
        }
    }

    pub(super) fn on_term_confirmed(&mut self, confirmed: &Result<(), String>) {
        for command in self.read_barrier.end() {
            match confirmed {
                Ok(()) => self.on_command(command, Confirmation::Confirmed),
                Err(reason) => self.out.effect(Effect::Refuse {
                    command,
                    error: not_confirmed(reason),
                }),
            }
        }
        // Requests that arrived after this read began need one of their own.
        if self.read_barrier.begin() {
            self.out.effect(Effect::ConfirmTerm);
        }
    }
}

/// Error for a request whose term could not be confirmed.
fn not_confirmed(reason: &str) -> GatewayError {
    GatewayError::NotYet(format!(
        "this JobManager can't confirm that it leads: {reason}"
    ))
}
