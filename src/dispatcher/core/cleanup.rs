//! Cleanup after ended jobs, then the result is marked clean. Repeated submissions of the same job wait for that, up to
//! a timeout: then they are acknowledged without it. If the cleanup fails in this term, the result stays dirty for the
//! next one.

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::faults::{Fault, is_planted};
use super::{DispatcherCore, Effect, Entry, LogLine, Replies, Timer, accepted};
use crate::JobStoreError;

impl<R: Replies> DispatcherCore<R> {
    pub(super) fn start_cleanup(&mut self, job: JobId) {
        if is_planted(Fault::CleanBeforeCleanup) {
            return self.on_cleaned_up(job);
        }
        if let Some(Entry::Ended(ended)) = self.jobs.get(job) {
            let remove = ended.result().remove.clone().unwrap_or_default();
            self.out.effect(Effect::CleanUp { job, remove });
        }
    }

    /// The next leader resumes it. Waiting submissions wait until their timeout.
    pub(super) fn on_cleanup_given_up(&mut self, job: JobId, reason: String) {
        if let Some(ended) = self.jobs.ended_mut(job) {
            ended.give_up(reason);
        }
    }

    pub(super) fn on_cleaned_up(&mut self, job: JobId) {
        if let Some(Entry::Ended(ended)) = self.jobs.get(job) {
            let result = Box::new(ended.cleaned());
            self.out.effect(Effect::WriteCleanResult { job, result });
        }
    }

    pub(super) fn on_marked_clean(&mut self, job: JobId, marked: Result<(), JobStoreError>) {
        match marked {
            Ok(()) => {
                let Some(ended) = self.jobs.ended_mut(job) else {
                    return;
                };
                ended.mark_clean();
                self.answer_waiting(job);
                // Not on each end, as this scans all ended jobs: only once a tenth more than the limit are known.
                let most = self.options.max_described;
                if self.jobs.len() >= most.saturating_add((most / 10).max(1)) {
                    self.bound_descriptions();
                }
            }
            Err(failure) => {
                let reason = failure.to_string();
                self.out.log(LogLine::NotMarkedClean { job, failure });
                self.on_cleanup_given_up(job, reason);
            }
        }
    }

    /// A repeated submission of an ended job is acknowledged once the job's leftovers are removed, or after a timeout.
    pub(super) fn wait_for_cleanup(&mut self, job: JobId, reply: R::To<pb::SubmitJobResponse>) {
        if let Some(ended) = self.jobs.ended_mut(job) {
            ended.wait(reply);
            self.out.effect(Effect::StartTimer {
                timer: Timer::Cleanup(job),
                // Shorter than the caller's timeout.
                after: self.options.store_timeout / 2,
            });
        }
    }

    pub(super) fn answer_waiting(&mut self, job: JobId) {
        let waiting = self.jobs.ended_mut(job).map(|ended| ended.take_waiting());
        for reply in waiting.into_iter().flatten() {
            self.out.answer_submission(reply, Ok(accepted(job, true)));
        }
    }
}
