//! Faults that a test plants, to prove that it would find them. There are none outside tests.

/// A fault of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A removal is forgotten before a durable snapshot has it.
    RemovalForgottenTooEarly,
    /// A snapshot has the changes since the last number, which may have been aborted.
    ChangesSinceAnAbortedNumber,
    /// The older segments of a slice that is written whole count for it further on.
    SliceCountsAfterRewrite,
}

/// Whether this thread has a fault planted.
#[cfg(not(test))]
pub(super) const fn is_planted(_fault: Fault) -> bool {
    false
}

#[cfg(test)]
pub(super) use planted::{is_planted, plant};

#[cfg(test)]
mod planted {
    use std::cell::Cell;

    use super::Fault;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// Plants a fault in this thread, or removes it.
    pub(in super::super) fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    pub(in super::super) fn is_planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}
