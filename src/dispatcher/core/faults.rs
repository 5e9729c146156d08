//! Faults that tests plant into the core, to show that the simulation finds them. Each is asked for where it would
//! break an invariant. Without the tests none is planted.

tanist_planted_faults::planted_faults! {
    /// A fault of the core.
    pub(in crate::core) enum Fault {
        FailedWriteAcknowledged,
        RepeatedAcceptedAsNew,
        WaitingSubmissionForgotten,
        DecidedWhileSuspended,
        ReleasedBeforeResult,
        CleanBeforeCleanup,
        RemovedTooEarly,
        FailedCancellationAcknowledged,
        LedWithoutWrite,
        RecordsNotAwaited,
    }
}
