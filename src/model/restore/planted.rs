//! Faults that tests plant into redistribution, to show that they would find them. Outside of tests there are none.

/// A fault, named by what goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    KeyGroupLost,
}

#[cfg(test)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// Plants a fault in this thread, or removes it.
#[cfg(test)]
pub(super) fn plant(fault: Option<Fault>) {
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
