//! The status of a job and the edges between statuses. `job_events.rs` keeps the times.
//!
//! Invariant: a job's status changes only along [`is_edge`].

use std::fmt::Debug;

use tanist_proto::v1 as pb;
use tanist_proto::v1::JobStatus;

use super::{JobMasterCore, LogLine};

/// Whether a job may go from one status to the other: Apache Flink's edges, plus those of RECONCILING, the
/// status of a recovered job until the state of its tasks is known.
pub(super) fn is_edge(from: JobStatus, to: JobStatus) -> bool {
    use JobStatus as S;
    match from {
        S::Initializing => matches!(to, S::Created | S::Reconciling | S::Failed | S::Suspended),
        S::Created => matches!(
            to,
            S::Running | S::Restarting | S::Failing | S::Cancelling | S::Suspended
        ),
        S::Reconciling => matches!(
            to,
            S::Running | S::Restarting | S::Failing | S::Cancelling | S::Suspended
        ),
        S::Running => matches!(
            to,
            S::Restarting | S::Failing | S::Cancelling | S::Finished | S::Suspended
        ),
        S::Restarting => matches!(to, S::Running | S::Failing | S::Cancelling | S::Suspended),
        S::Failing => matches!(to, S::Failed | S::Cancelling | S::Suspended),
        S::Cancelling => matches!(to, S::Canceled | S::Suspended),
        S::Finished | S::Canceled | S::Failed | S::Suspended => false,
    }
}

/// The report of a transition that was decided but is not in the tables. That is a bug, but ends no job.
pub(super) fn illegal(of: &str, from: &dyn Debug, to: &dyn Debug) -> LogLine {
    debug_assert!(false, "illegal transition of {of} from {from:?} to {to:?}");
    LogLine::IllegalTransition {
        of: of.to_owned(),
        from: format!("{from:?}"),
        to: format!("{to:?}"),
    }
}

impl JobMasterCore {
    /// The job's status, as Apache Flink names it, by the first case that applies. Never a terminal one: the Dispatcher
    /// reports the end once it has written the result. Until then the next leader would find the job not ended.
    pub fn status(&self) -> JobStatus {
        if let Some(result) = self.end.result() {
            return before(result.status());
        }
        // A stop whose decision is not durable yet is shown once it is.
        if self.record.is_durable()
            && self.record.is_stopping()
            && !self.record.is_durably_stopping()
        {
            return self.job_events.status();
        }
        self.status_by(self.record.durable(), self.record.is_durable())
    }

    /// The status that follows from this record if it is, or is not, durable.
    pub(super) fn status_by(&self, record: &pb::JobState, is_durable: bool) -> JobStatus {
        if !is_durable {
            return match self.is_recovered {
                true => JobStatus::Reconciling,
                false => JobStatus::Created,
            };
        }
        if record.wanted() == pb::WantedStatus::Canceled {
            return match record.stopped_with.as_str() {
                "" => JobStatus::Cancelling,
                // It stops with a savepoint, and is FINISHED at the end.
                _ => JobStatus::Running,
            };
        }
        if !record.fatal_cause.is_empty() {
            return JobStatus::Failing;
        }
        if self.is_reconciling() {
            return JobStatus::Reconciling;
        }
        match self.graph.restarting().is_empty() {
            true => JobStatus::Running,
            false => JobStatus::Restarting,
        }
    }

    /// The statuses that a job which ends with this status goes through, including that status.
    pub(super) fn way_to(&mut self, end: JobStatus) -> Vec<JobStatus> {
        let from = self.job_events.status();
        let way = match is_edge(from, end) {
            true => vec![end],
            false => vec![before(end), end],
        };
        let mut last = from;
        for status in &way {
            if !is_edge(last, *status) {
                self.out
                    .log(illegal(&self.record.decided().job_id, &last, status));
            }
            last = *status;
        }
        way
    }
}

/// The status of a job until its end is in the store.
fn before(end: JobStatus) -> JobStatus {
    match end {
        JobStatus::Canceled => JobStatus::Cancelling,
        JobStatus::Failed => JobStatus::Failing,
        _ => JobStatus::Running,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = JobStatus> + Clone {
        (0..16).filter_map(|number| JobStatus::try_from(number).ok())
    }

    #[test]
    fn nothing_follows_an_end() {
        use JobStatus as S;
        for end in [S::Finished, S::Canceled, S::Failed, S::Suspended] {
            assert!(all().all(|to| !is_edge(end, to)), "{end:?}");
        }
    }

    #[test]
    fn a_job_that_is_to_end_never_runs_again() {
        use JobStatus as S;
        for from in [S::Failing, S::Cancelling] {
            for to in [S::Running, S::Restarting, S::Created, S::Finished] {
                assert!(!is_edge(from, to), "{from:?} {to:?}");
            }
        }
        assert!(is_edge(S::Failing, S::Cancelling) && !is_edge(S::Cancelling, S::Failing));
    }

    #[test]
    fn every_status_is_reached_and_none_follows_itself() {
        assert_eq!(all().count(), 11);
        for status in all() {
            let is_reached = all().any(|from| is_edge(from, status));
            assert_eq!(is_reached, status != JobStatus::Initializing, "{status:?}");
            assert!(!is_edge(status, status));
        }
    }
}
