//! Results of jobs that ended before the term. They are read after the term is confirmed, as leading does not
//! need them (`docs/adr/0049`).
//!
//! The names of the records show which jobs have a result. Such a job is never run again; a job without a
//! result is submitted, run and denied as usual. Requests about a job with an unread result, or about all jobs,
//! wait until all results are read, but only up to a timeout. Jobs that end in this term wait too: their
//! results contain the leaders' common count, which is in the kept results ([`Retention`]). Nothing is
//! forgotten, dropped or swept before. Reading writes nothing, so a crash changes nothing.

use tanist_gateway::GatewayError;

use super::{Command, DispatcherCore, Effect, Replies, Retention, Timer};
use crate::RecoveredJobs;

impl<R: Replies> DispatcherCore<R> {
    /// Returns the command if it needs no unread result; else keeps it until they are read.
    pub(super) fn or_wait_for_results(&mut self, command: Command<R>) -> Option<Command<R>> {
        let unread = self.unread.as_mut();
        let Some(unread) = unread.filter(|unread| unread.delays(&command)) else {
            return Some(command);
        };
        if unread.keep(command) {
            self.out.effect(Effect::StartTimer {
                timer: Timer::UnreadResults,
                // Shorter than the callers' timeout.
                after: self.options.store_timeout / 2,
            });
        }
        None
    }

    /// Refuses the commands that have waited until the timeout.
    pub(super) fn on_waited_for_results(&mut self) {
        let Some(unread) = &mut self.unread else {
            return;
        };
        for command in unread.time_out() {
            let text = "the results of jobs that had ended before this term are still being read";
            let error = GatewayError::NotYet(text.to_owned());
            self.out.effect(Effect::Refuse { command, error });
        }
    }

    /// Starts reading, as the term is confirmed. Replies when all results are read.
    pub(super) fn read_results(&mut self, reply: R::To<()>) {
        match &mut self.unread {
            None => self.out.effect(Effect::AnswerDone { reply }),
            Some(unread) => {
                if unread.read(reply) {
                    self.out.effect(Effect::ReadResults);
                }
            }
        }
    }

    pub(super) fn on_results_read(&mut self, mut read: RecoveredJobs) {
        let Some(unread) = self.unread.take() else {
            return;
        };
        let waiting = unread.into_waiting();
        // The count first: the results of jobs that have ended meanwhile contain it.
        self.retention = Retention::resume(self.now.uptime, &mut read);
        self.take_up_results(read);
        for (job, result) in waiting.ended {
            self.on_job_ended(job, result);
        }
        for it in waiting.canceled {
            self.end_canceled(it.job, it.result, it.reply);
        }
        for command in waiting.commands {
            self.take_command(command);
        }
        self.tend_results();
        for reply in waiting.readers {
            self.out.effect(Effect::AnswerDone { reply });
        }
    }

    /// Continues with the jobs that have ended.
    pub(super) fn take_up_results(&mut self, read: RecoveredJobs) {
        for (job, result) in read.results {
            self.take_up_ended(job, result);
        }
        for (job, reason) in read.unavailable_results {
            self.await_result(job, reason);
        }
        for (job, kind, reason) in read.unreadable_results {
            self.quarantine_ended(job, kind, &reason);
        }
    }
}
