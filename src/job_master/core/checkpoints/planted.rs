//! Faults that tests plant into this core, to show that the simulation finds them. Outside of tests there are none.

#[cfg(test)]
use std::cell::Cell;

/// A fault, named by what goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
}

#[cfg(test)]
thread_local! {
    static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
}

/// Plants a fault into the cores of this thread, or removes it.
#[cfg(test)]
pub(in crate::core) fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}

/// Whether a fault is planted.
#[cfg(test)]
pub(super) fn is_planted(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Whether a fault is planted: never outside of tests.
#[cfg(not(test))]
pub(super) const fn is_planted(_: Fault) -> bool {
    false
}
