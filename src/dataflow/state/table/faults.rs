//! Faults that tests plant into tables.

tanist_planted_faults::planted_faults! {
    /// A fault of a table.
    pub(super) enum Fault {
        /// A removal is forgotten before a durable snapshot has it.
        RemovalForgottenTooEarly,
        /// A snapshot has the changes since the last number, which may have been aborted.
        ChangesSinceAnAbortedNumber,
        /// The older segments of a slice that is written whole count for it further on.
        SliceCountsAfterRewrite,
        /// A restore skips the last key group of each segment.
        KeyGroupSkipped,
    }
}
