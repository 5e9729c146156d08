//! Faults that tests plant into tasks.

tanist_planted_faults::planted_faults! {
    /// A fault of a task.
    pub(super) enum Fault {
        /// A barrier is sent before what the task emitted before it.
        BarrierOvertakesRecords,
        /// A task reads on from a channel that has delivered the barrier.
        BlockedChannelRead,
        /// A cut is complete with the first barrier.
        OneBarrierCompletes,
        /// An ended channel does not count.
        EndedChannelNotCounted,
        /// An aborted number blocks its channels on.
        AbortReleasesNothing,
        /// A restored task emits its first records twice.
        EmittedTwiceAtReplay,
    }
}
