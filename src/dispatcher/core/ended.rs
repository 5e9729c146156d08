//! A job whose result is in the store: being cleaned up after (*dirty*), or clean. The result here is as it was last
//! written: it changes only when a write has succeeded.

use tanist_proto::v1 as pb;

use super::{Replies, SubmissionKey, result_key};

type Reply<R> = <R as Replies>::To<pb::SubmitJobResponse>;

/// A job whose result is in the store.
#[derive(Debug)]
pub(crate) struct Ended<R: Replies> {
    key: SubmissionKey,
    result: Box<pb::JobResult>,
    /// Submissions of the same job that arrived before its cleanup was done.
    waiting: Vec<Reply<R>>,
    /// Why this term stopped the cleanup; `None`: the cleanup goes on, or is done.
    left: Option<String>,
}

impl<R: Replies> Ended<R> {
    pub(super) fn of(result: Box<pb::JobResult>) -> Ended<R> {
        Ended {
            key: result_key(&result),
            result,
            waiting: Vec::new(),
            left: None,
        }
    }

    pub(super) fn key(&self) -> &SubmissionKey {
        &self.key
    }

    pub(super) fn result(&self) -> &pb::JobResult {
        &self.result
    }

    /// Number of submissions that wait for the cleanup.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Why this term stopped the cleanup.
    pub(super) fn left(&self) -> Option<&str> {
        self.left.as_deref()
    }

    /// Adds a submission that is answered after the cleanup.
    pub(super) fn wait(&mut self, reply: Reply<R>) {
        self.waiting.push(reply);
    }

    /// Takes the submissions that wait for the cleanup.
    pub(super) fn take_waiting(&mut self) -> Vec<Reply<R>> {
        std::mem::take(&mut self.waiting)
    }

    /// Records why this term stops the cleanup.
    pub(super) fn give_up(&mut self, reason: String) {
        self.left = Some(reason);
    }

    /// Returns the result as it is after the cleanup.
    pub(super) fn cleaned(&self) -> pb::JobResult {
        pb::JobResult {
            dirty: false,
            // A TaskExecutor that is cut off may still write there: checked again when the result is removed.
            remove: self.result.remove.as_ref().map(|remove| pb::Cleanup {
                blobs: Vec::new(),
                chunks: Vec::new(),
                uploads: Vec::new(),
                sink_directories: remove.sink_directories.clone(),
                run: remove.run.clone(),
                checkpoints: remove.checkpoints,
                savepoints: remove.savepoints.clone(),
            }),
            ..(*self.result).clone()
        }
    }

    /// Records that the result is stored as clean.
    pub(super) fn mark_clean(&mut self) {
        *self.result = self.cleaned();
    }

    /// Records the retention count that the stored result has.
    pub(super) fn note_counted(&mut self, counted_ms: u64) {
        self.result.counted_ms = counted_ms;
    }

    /// Records that the stored result has no description any more.
    pub(super) fn drop_description(&mut self, result: pb::JobResult) {
        *self.result = result;
    }
}
