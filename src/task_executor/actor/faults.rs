//! Faults that tests plant into a TaskExecutor.

tanist_planted_faults::planted_faults! {
    /// A fault of what a TaskExecutor does with saved state.
    pub(crate) enum Fault {
        /// What was saved is acknowledged before its object is written.
        AcknowledgedBeforeDurable,
    }
}
