//! Counts the landmarks of a property's runs: if none of the runs reaches a landmark, the property proves
//! nothing about it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

/// An event that has to happen in some run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Landmark {
    /// The store refused a transaction because the epoch of its term is over.
    WriteOfDeposedTermRefused,
    /// Only the epoch refused it: the younger term had not written yet.
    WriteRefusedByEpochAlone,
    /// A TaskExecutor refused a message because it knew a younger epoch.
    OldEpochRefused,
    /// A TaskExecutor refused a deployment after the dial or a message of a younger term.
    DeploymentRefusedByEpoch,
    /// A TaskExecutor refused a deployment of its own leader because it had registered again.
    DeploymentRefusedByRegistration,
    /// A task that one term started ended in another term's record.
    RunningTaskAdopted,
    /// A leader restarted a region that it could not adopt.
    RegionRestartedByReconciliation,
    /// A submission that was applied without an answer to its client was acknowledged when it was repeated.
    AmbiguousSubmissionResolved,
    /// A JobManager was deposed while it lived.
    DeposedAlive,
    /// A JobManager went on after it had been frozen past its lease.
    WentOnPastItsLease,
    /// A JobManager died before a step that it was about to take.
    StruckAtAStep,
    /// A job that was stopped has finished.
    StoppedJobFinished,
    /// A job that was stopped has failed, because something that it had read was lost.
    StoppedJobFailed,
    /// A region was restored from a checkpoint.
    RestoredFromCheckpoint,
    /// A term completed a checkpoint, and a term before it others.
    CheckpointsOfTwoTerms,
}

impl Landmark {
    pub(crate) const ALL: [Landmark; 13] = [
        Landmark::WriteOfDeposedTermRefused,
        Landmark::WriteRefusedByEpochAlone,
        Landmark::OldEpochRefused,
        Landmark::DeploymentRefusedByEpoch,
        Landmark::DeploymentRefusedByRegistration,
        Landmark::RunningTaskAdopted,
        Landmark::RegionRestartedByReconciliation,
        Landmark::AmbiguousSubmissionResolved,
        Landmark::DeposedAlive,
        Landmark::WentOnPastItsLease,
        Landmark::StruckAtAStep,
        Landmark::StoppedJobFinished,
        Landmark::StoppedJobFailed,
    ];

    /// Those of a job with checkpoints while JobManagers and the store have faults.
    pub(crate) const OF_CHECKPOINTS: [Landmark; 4] = [
        Landmark::DeposedAlive,
        Landmark::WriteOfDeposedTermRefused,
        Landmark::RestoredFromCheckpoint,
        Landmark::CheckpointsOfTwoTerms,
    ];

    /// The landmarks that faults of JobManagers and of the store lead to.
    pub(crate) const OF_CONTROL_PLANE: [Landmark; 9] = [
        Landmark::WriteOfDeposedTermRefused,
        Landmark::WriteRefusedByEpochAlone,
        Landmark::OldEpochRefused,
        Landmark::RunningTaskAdopted,
        Landmark::AmbiguousSubmissionResolved,
        Landmark::DeposedAlive,
        Landmark::WentOnPastItsLease,
        Landmark::StruckAtAStep,
        Landmark::StoppedJobFinished,
    ];
}

/// How often each landmark was reached. Clones share the counts.
#[derive(Clone, Default)]
pub(crate) struct Reached {
    counts: Arc<Mutex<BTreeMap<Landmark, u64>>>,
}

impl fmt::Debug for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.counts()).finish()
    }
}

impl Reached {
    pub(crate) fn note(&self, landmark: Landmark) {
        self.add(landmark, 1);
    }

    pub(crate) fn add(&self, landmark: Landmark, times: u64) {
        let mut counts = self.counts.lock();
        *counts.entry(landmark).or_default() += times;
    }

    /// Adds the counts of another run.
    pub(crate) fn add_all(&self, other: &Reached) {
        for (landmark, times) in other.counts() {
            self.add(landmark, times);
        }
    }

    pub(crate) fn counts(&self) -> BTreeMap<Landmark, u64> {
        let counts = self.counts.lock();
        counts.clone()
    }
}
