//! Shows the state of a job to the holders of its handle: that it has begun and is reconciled, its description, and its
//! result. All but the description is published once, in the cell of [`crate::handle::Progress`].

use std::sync::Arc;

use tanist_gateway::Detail;
use tanist_proto::v1 as pb;

use super::JobMasterActor;
use crate::checkpointing::{self, Checkpoints};

impl JobMasterActor {
    /// Publishes, once, that the record names this JobMaster.
    pub(super) fn publish_begun(&mut self) {
        if self.core.is_durable() && self.progress.0.look(|progress| progress.begun.is_none()) {
            self.permit = None;
            let incarnation = self.core.job_incarnation();
            self.progress
                .0
                .change(|progress| progress.begun = Some(incarnation));
        }
    }

    /// Publishes, once, that nothing is awaited any more.
    pub(super) fn publish_reconciled(&self) {
        let is_published = self
            .progress
            .0
            .look(|progress| progress.reconciled.is_some());
        if !is_published && let Some(adoption) = self.core.adoption() {
            self.progress
                .0
                .change(|progress| progress.reconciled = Some(adoption));
        }
    }

    /// Publishes the result, once no write of the checkpoints is under way: the result is written by the Dispatcher,
    /// and replaces their record.
    pub(crate) fn publish_end(&mut self) {
        let is_writing = |it: &Checkpoints| it.is_writing();
        if self.checkpoints.as_deref().is_some_and(is_writing) {
            return;
        }
        let Some(mut result) = self.ending.take() else {
            return;
        };
        if let Some(checkpoints) = &self.checkpoints {
            let failed = checkpoints.failed_savepoints();
            result.remove.get_or_insert_default().savepoints = failed;
        }
        let (status, cause) = (result.status(), result.cause.as_str());
        tracing::info!(job = result.job_id, ?status, cause, "job ended");
        let result: Arc<pb::JobResult> = Arc::from(self.described(result));
        // Nothing of them is written after it.
        let checkpoints = self.checkpoints.take();
        let retained = checkpoints.and_then(|it| it.end(result.status()));
        self.progress.0.change(|progress| {
            progress.retained = retained;
            progress.outcome = Some(result);
        });
    }

    /// The description of the job.
    pub(crate) fn details(&self, detail: Detail) -> pb::JobDetails {
        let mut details = self.core.details();
        details.checkpoints = self.checkpoint_details(detail);
        details
    }

    /// A result, with the description of the job's checkpoints.
    fn described(&self, mut result: Box<pb::JobResult>) -> Box<pb::JobResult> {
        let status = result.status();
        let kept = self.checkpoints.as_ref();
        let kept = kept.map_or(0, |checkpoints| checkpoints.kept_after(status));
        if let Some(details) = &mut result.details {
            details.checkpoints = self.checkpoint_details(Detail::Full);
            if let Some(checkpoints) = &mut details.checkpoints {
                checkpoints.kept = kept;
                checkpointing::end_open(checkpoints);
            }
        }
        result
    }

    fn checkpoint_details(&self, detail: Detail) -> Option<pb::CheckpointDetails> {
        let checkpoints = self.checkpoints.as_ref()?;
        Some(checkpoints.details(&self.core, detail))
    }
}
