//! Records failures, and the failures that are concurrent to them, in the job's record. Decides nothing about restarts.
//!
//! A failure that leads to a decision is an entry of its own, written with that decision. A failure at the
//! same moment, or before the restart has happened, is *concurrent* to it: mostly tasks that lost their
//! connection to the first one, and tasks whose output was lost with it and is produced again. Those are part
//! of the next write, which always follows: of the new placement, or of the job's end.
//!
//! The entry names the cause: reports of several TaskManagers arrive in any order, so the first one may be of a task
//! that only lost its connection to the one that failed. The first concurrent failure with a reason of its own takes
//! the place of such an entry.

use tanist_gateway::shorten;
use tanist_proto::v1 as pb;

use super::durable_record::DurableRecord;
use super::failover::Failure;

/// Maximum number of concurrent failures kept with one failure.
const KEPT_CONCURRENT: usize = 16;
/// Length to which the cause of each of those is cut, in bytes.
const KEPT_CAUSE: usize = 1024;

impl DurableRecord {
    /// Records the first failure, if there is any, as an entry, and all others as concurrent to the newest entry. One
    /// of them may take the place of that entry: see [`DurableRecord::note_concurrent`].
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

    /// Records a failure of the whole job.
    pub(super) fn note_job_failure(&mut self, cause: String, now_ms: u64) {
        self.add_failure(pb::FailureRecord {
            at_ms: now_ms,
            cause,
            ..pb::FailureRecord::default()
        });
    }

    /// Records a failure as concurrent to the last entry, or in its place if only that entry is a consequence. Not
    /// recorded: a failure without a task, a repeated one, one beyond the maximum, and any while the job is cancelled.
    pub(super) fn note_concurrent(&mut self, failure: Failure, now_ms: u64) {
        if self.decided().wanted() == pb::WantedStatus::Canceled || failure.task.is_empty() {
            return;
        }
        let Some(root) = self.decided().failures.last() else {
            return;
        };
        if root.is_consequence && !failure.is_consequence {
            return self.note_cause(failure, now_ms);
        }
        let is_it = |it: &pb::FailureRecord| it.task == failure.task && it.cause == failure.cause;
        let is_known = is_it(root) || root.concurrent.iter().any(is_it);
        if is_known || root.concurrent.len() >= KEPT_CONCURRENT {
            return;
        }
        let mut concurrent = record_of(failure, now_ms);
        shorten(&mut concurrent.cause, KEPT_CAUSE);
        self.add_concurrent_failure(concurrent);
    }

    /// Records a failure as the cause of the last one, if that is a consequence.
    pub(super) fn note_cause(&mut self, failure: Failure, now_ms: u64) {
        let last = self.decided().failures.last();
        if !last.is_some_and(|last| last.is_consequence) || failure.is_consequence {
            return;
        }
        self.replace_failure(|mut consequence| {
            let mut concurrent = std::mem::take(&mut consequence.concurrent);
            shorten(&mut consequence.cause, KEPT_CAUSE);
            concurrent.insert(0, consequence);
            concurrent.truncate(KEPT_CONCURRENT);
            pb::FailureRecord {
                concurrent,
                ..record_of(failure, now_ms)
            }
        });
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
        is_consequence: failure.is_consequence,
    }
}
