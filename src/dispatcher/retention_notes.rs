//! Writes the leaders' common count ([`super::core::Retention`]) from time to time, so that the next leader has it.

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::warn;

use super::actor::{DispatcherActor, Event};
use super::core::Entry;
use super::job_store::JobStoreError;

impl DispatcherActor {
    /// Writes the count from time to time, while there is a result to be forgotten: into the clean result with
    /// the highest start count.
    pub(super) fn note_retention(&mut self) {
        if self.unread.is_some() {
            return;
        }
        let now = self.started.uptime();
        let Some(counted_ms) = self.retention.due(now, self.options.result_retention) else {
            return;
        };
        if self.is_expiring || self.is_suspended() {
            return;
        }
        let clean = self.jobs.iter().filter_map(|(job, entry)| match entry {
            Entry::Ended { result, .. } if !result.dirty => Some((*job, &**result)),
            Entry::Ended { .. }
            | Entry::Persisting { .. }
            | Entry::Running { .. }
            | Entry::Rebuilding { .. }
            | Entry::Quarantined { .. } => None,
        });
        let kept_since_ms = |(job, result): &(JobId, &pb::JobResult)| {
            self.retention.kept_since_ms(now, *job, result)
        };
        let youngest = clean.max_by_key(kept_since_ms);
        let Some((job, youngest)) = youngest else {
            return;
        };
        let noted = pb::JobResult {
            counted_ms,
            ..youngest.clone()
        };
        // Nothing else writes or removes a clean result meanwhile. Tried once: a full store gains space when
        // expired results are removed, and that must not wait.
        self.is_expiring = true;
        let store = self.context.store.clone();
        self.tasks.spawn(async move {
            let result = store.try_clean_result(&noted).await;
            Event::RetentionNoted {
                job,
                counted_ms,
                result,
            }
        });
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
                if let Some(Entry::Ended { result, .. }) = self.jobs.get_mut(&job) {
                    result.counted_ms = counted_ms;
                }
            }
            Err(failure) => {
                warn!(%job, %failure, "the retention count could not be written: results may be kept longer");
            }
        }
    }
}
