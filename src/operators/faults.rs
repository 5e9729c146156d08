//! Faults that tests plant into operators.

tanist_planted_faults::planted_faults! {
    /// A fault of an operator.
    pub(crate) enum Fault {
        /// A restored file sink appends to the file that its snapshot names.
        PendingFileAppended,
        /// A file sink that ends removes the file that a snapshot names.
        PendingFileRemoved,
        /// A restored file sink begins without the records of its open part.
        OpenPartForgotten,
        /// A generator saves the position before its last record.
        RecordEmittedTwiceAtReplay,
    }
}
