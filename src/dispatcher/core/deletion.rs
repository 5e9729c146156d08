//! What happens to clean results: they are removed after the retention time, descriptions beyond the limit are dropped,
//! and the time that all leaders together have counted ([`super::Retention`]) is written into one of them, for the next
//! leader. One of these writes runs at a time. One that fails is logged, and tried when it is due again.

use tanist_ha::clock::millis;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::faults::{Fault, is_planted};
use super::{DispatcherCore, Effect, Entry, LogLine, Replies, is_expired};
use crate::JobStoreError;
use crate::descriptions::beyond_capacity;

impl<R: Replies> DispatcherCore<R> {
    /// Starts the first of these writes that is due. The removal comes first, since it makes space in the store. Each
    /// does nothing while another one is in progress (`is_expiring`).
    pub(super) fn tend_results(&mut self) {
        self.expire_results();
        self.bound_descriptions();
        self.note_retention();
    }

    fn expire_results(&mut self) {
        if self.is_expiring || self.unread.is_some() || self.is_suspended() {
            return;
        }
        let (now, retention) = (self.now.uptime, &self.retention);
        let retention_ms = match is_planted(Fault::RemovedTooEarly) {
            true => 0,
            false => millis(self.options.result_retention),
        };
        let counted_ms = retention.counted_ms(now);
        let expired = self.jobs.ended().filter(|(job, result)| {
            let since_ms = retention.kept_since_ms(now, *job, result);
            is_expired(result, since_ms, counted_ms, retention_ms)
        });
        let expired: Vec<_> = expired.collect();
        if expired.is_empty() {
            return;
        }
        let leftovers = expired.iter();
        let leftovers = leftovers.filter_map(|(job, result)| Some((*job, result.remove.clone()?)));
        let effect = Effect::DeleteResults {
            leftovers: leftovers.collect(),
            jobs: expired.iter().map(|(job, _)| *job).collect(),
        };
        self.is_expiring = true;
        self.out.effect(effect);
    }

    pub(super) fn on_results_deleted(
        &mut self,
        jobs: &[JobId],
        deleted: Result<(), JobStoreError>,
    ) {
        self.is_expiring = false;
        match deleted {
            Ok(()) => {
                for job in jobs {
                    self.jobs.forget(*job);
                    self.retention.forget(*job);
                    self.job_master_failures.forget(*job);
                }
            }
            Err(failure) => self.out.log(LogLine::ResultsNotDeleted { failure }),
        }
        // These share `is_expiring` with the removal, so they may have been skipped.
        self.bound_descriptions();
        self.note_retention();
    }

    /// Drops the descriptions of the oldest jobs beyond the limit. Their results stay.
    pub(super) fn bound_descriptions(&mut self) {
        if self.is_expiring || self.unread.is_some() || self.is_suspended() {
            return;
        }
        let beyond = beyond_capacity(self.jobs.ended(), self.options.max_described);
        let results: Vec<pb::JobResult> = beyond
            .iter()
            .filter_map(|job| match self.jobs.get(*job) {
                Some(Entry::Ended(ended)) => Some(ended.result().clone()),
                _ => None,
            })
            .collect();
        if !results.is_empty() {
            self.is_expiring = true;
            self.out.effect(Effect::DropDescriptions { results });
        }
    }

    pub(super) fn on_descriptions_dropped(
        &mut self,
        results: Vec<pb::JobResult>,
        failure: Option<JobStoreError>,
    ) {
        self.is_expiring = false;
        for result in results {
            let job = result.job_id.parse::<JobId>().ok();
            if let Some(ended) = job.and_then(|job| self.jobs.ended_mut(job)) {
                ended.drop_description(result);
            }
        }
        if let Some(failure) = failure {
            self.out.log(LogLine::DescriptionsNotDropped { failure });
        }
        // It shares `is_expiring`, so it may have been skipped.
        self.note_retention();
    }

    /// Writes the counted time from time to time, while a clean result is kept: into the one that has been kept for the
    /// shortest time.
    fn note_retention(&mut self) {
        if self.is_expiring || self.unread.is_some() || self.is_suspended() {
            return;
        }
        let (now, retention) = (self.now.uptime, &self.retention);
        let Some(counted_ms) = retention.due(now, self.options.result_retention) else {
            return;
        };
        let clean = self.jobs.ended().filter(|(_, result)| !result.dirty);
        let youngest = clean.max_by_key(|(job, result)| retention.kept_since_ms(now, *job, result));
        let Some((job, youngest)) = youngest else {
            return;
        };
        let result = Box::new(pb::JobResult {
            counted_ms,
            ..youngest.clone()
        });
        // Nothing else writes or removes a clean result meanwhile. Tried once: a full store gains space when
        // expired results are removed, and that must not wait.
        self.is_expiring = true;
        self.out.effect(Effect::NoteRetention { job, result });
    }

    pub(super) fn on_retention_noted(
        &mut self,
        job: JobId,
        counted_ms: u64,
        noted: Result<(), JobStoreError>,
    ) {
        self.is_expiring = false;
        match noted {
            Ok(()) => {
                self.retention.noted(counted_ms);
                if let Some(ended) = self.jobs.ended_mut(job) {
                    ended.note_counted(counted_ms);
                }
            }
            Err(failure) => self.out.log(LogLine::RetentionNotNoted { job, failure }),
        }
    }
}
