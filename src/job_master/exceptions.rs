//! The part of the core that remembers what failed, and what failed with it.
//!
//! A failure that something follows from is an entry of its own, written with the decision that it leads to. What fails at the same
//! moment, or before what was to start anew has done so, is *concurrent* to it: mostly tasks that miss the first one, and those whose
//! output was lost with it and is made anew. Those ride
//! along with the next write, which there always is: of what is placed again, or of how the job ended.

use std::sync::Arc;

use tanist_proto::v1 as pb;

use super::core::{Failure, JobMasterCore};

/// So many failures are kept with one.
const KEPT_CONCURRENT: usize = 16;
/// So much of the cause of each of those, in bytes.
const KEPT_CAUSE: usize = 1024;

impl JobMasterCore {
    /// The first one, if there is any, is an entry of its own, and everything else came with it.
    pub(super) fn note_failures(
        &mut self,
        failures: &[Failure],
        others: Vec<Failure>,
        now_ms: u64,
    ) {
        if let Some((first, with_it)) = failures.split_first() {
            let first = record_of(first.clone(), now_ms);
            self.add_failure(first);
            for failure in with_it {
                self.note_concurrent(failure.clone(), now_ms);
            }
        }
        for failure in others {
            self.note_concurrent(failure, now_ms);
        }
    }

    /// The job as a whole fails.
    pub(super) fn note_job_failure(&mut self, cause: String, now_ms: u64) {
        self.add_failure(pb::FailureRecord {
            at_ms: now_ms,
            cause,
            ..pb::FailureRecord::default()
        });
    }

    fn add_failure(&mut self, failure: pb::FailureRecord) {
        let failures = &mut Arc::make_mut(&mut self.record).failures;
        failures.push(failure);
        let kept = self.options.exception_history_size.max(1);
        let surplus = failures.len().saturating_sub(kept);
        failures.drain(..surplus);
    }

    /// A failure that nothing follows from any more. Where tasks end because somebody wants that, how they do tells nothing.
    pub(super) fn note_concurrent(&mut self, failure: Failure, now_ms: u64) {
        if self.record.wanted() == pb::WantedStatus::Canceled || failure.task.is_empty() {
            return;
        }
        let Some(root) = self.record.failures.last() else {
            return;
        };
        let is_it = |it: &pb::FailureRecord| it.task == failure.task && it.cause == failure.cause;
        let is_known = is_it(root) || root.concurrent.iter().any(is_it);
        if is_known || root.concurrent.len() >= KEPT_CONCURRENT {
            return;
        }
        let mut concurrent = record_of(failure, now_ms);
        shorten(&mut concurrent.cause, KEPT_CAUSE);
        let failures = &mut Arc::make_mut(&mut self.record).failures;
        if let Some(root) = failures.last_mut() {
            root.concurrent.push(concurrent);
        }
    }
}

fn record_of(failure: Failure, at_ms: u64) -> pb::FailureRecord {
    pb::FailureRecord {
        at_ms,
        cause: failure.cause,
        task: failure.task,
        host: failure.host,
        resource_id: failure.resource_id,
        concurrent: Vec::new(),
    }
}

/// Cuts a text that is longer than so many bytes.
pub(super) fn shorten(text: &mut String, bytes: usize) {
    if text.len() > bytes {
        text.truncate(text.floor_char_boundary(bytes));
        text.push_str(" ...");
    }
}
