//! Faults that tests plant into a TaskExecutor.

tanist_planted_faults::planted_faults! {
    /// A fault in how a TaskExecutor handles saved state.
    pub(crate) enum Fault {
        /// A snapshot is acknowledged before its object is written.
        AcknowledgedBeforeDurable,
    }
}
