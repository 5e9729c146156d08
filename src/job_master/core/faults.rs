//! Faults that tests plant into the cores of a job, to show that the simulations find them.

tanist_planted_faults::planted_faults! {
    /// A fault of a core.
    pub(in crate::core) enum Fault {
        NumberGivenOutTwice,
        OlderGenerationCounted,
        SnapshotAfterFailure,
        LastButOneRestored,
        EndedTaskNotCounted,
        EndWithoutLastSnapshot,
        DeletionBeforeFloor,
        NumberBelowFloorAdopted,
        CarriedOverObjectDeleted,
        CommitBeforeWrite,
        CommitForgotten,
        CopyBeforeCommit,
        PinnedSubsumed,
        ResumedWhileStopping,
        CheckpointAfterStop,
        /// The coordinators of a region that is restored are prepared again.
        FilesListedAgain,
    }
}
