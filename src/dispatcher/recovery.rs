//! What a term finds of its jobs in the store: plain values. The job store makes them; the Dispatcher takes them over.
//!
//! A record that can't be read hides no other, and one that is unreadable *for now* delays no other. Of two kinds of
//! jobs only the state is decoded, as decoding the graph may end the process: of crash suspects, and of jobs that are
//! quarantined because they ended the processes that led them.

use std::ops::RangeInclusive;

use tanist_ha::store::cache::Records;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

/// The recovered jobs and results.
#[derive(Debug, Default)]
pub struct RecoveredJobs {
    /// Jobs that are not terminal.
    pub jobs: Vec<(JobId, RecoveredJob)>,
    /// Records of results that are not read yet.
    pub kept: Records,
    /// Ended jobs with their results, clean or dirty.
    pub results: Vec<(JobId, pb::JobResult)>,
    /// Ended jobs with unreadable results: the kind and the reason.
    pub unreadable_results: Vec<(JobId, pb::QuarantineKind, String)>,
    /// Ended jobs whose results may be readable later, with the reason.
    pub unavailable_results: Vec<(JobId, String)>,
}

/// A recovered job that is not terminal.
#[derive(Debug)]
pub enum RecoveredJob {
    /// Both records were read.
    Readable {
        /// The job graph to run.
        graph: Box<pb::JobGraph>,
        /// Progress of the job.
        state: Box<pb::JobState>,
    },
    /// A record is missing or can't be read.
    Unreadable {
        /// Kind of the problem.
        kind: pb::QuarantineKind,
        /// Reason.
        reason: String,
        /// The state, if it can be read.
        state: Option<Box<pb::JobState>>,
        /// The graph, if it can be read.
        graph: Option<Box<pb::JobGraph>>,
    },
    /// A record can't be read for now, which says nothing about it.
    Unavailable {
        /// The state, if it can be read. The graph is not kept.
        state: Option<Box<pb::JobState>>,
        /// Reason.
        reason: String,
    },
    /// Quarantined, by an earlier term or this one.
    SetAside {
        /// The state, which contains the quarantine.
        state: Box<pb::JobState>,
        /// `None` if decoding the graph is dangerous or failed.
        graph: Option<Box<pb::JobGraph>>,
    },
    /// A crash suspect: started later, once its start is recorded.
    Suspect {
        /// Progress of the job.
        state: Box<pb::JobState>,
    },
}

impl RecoveredJob {
    /// Returns the state, if it can be read.
    pub fn state(&self) -> Option<&pb::JobState> {
        match self {
            RecoveredJob::Readable { state, .. }
            | RecoveredJob::SetAside { state, .. }
            | RecoveredJob::Suspect { state } => Some(state),
            RecoveredJob::Unreadable { state, .. } | RecoveredJob::Unavailable { state, .. } => {
                state.as_deref()
            }
        }
    }
}

/// Jobs that are recovered differently.
#[derive(Debug, Clone, Default)]
pub struct Caution {
    /// Crash suspects: only their state is decoded.
    pub suspects: Option<RangeInclusive<JobId>>,
    /// A job to be quarantined.
    pub set_aside: Option<(JobId, pb::Quarantine)>,
}

impl Caution {
    pub(super) fn suspects(&self, job: JobId) -> bool {
        self.suspects
            .as_ref()
            .is_some_and(|range| range.contains(&job))
    }
}

/// Whether decoding the job's graph may end the process.
pub(super) fn is_dangerous(state: &pb::JobState) -> bool {
    let quarantine = state.quarantine.as_ref();
    quarantine.is_some_and(|it| it.kind() == pb::QuarantineKind::EndedProcess)
}
