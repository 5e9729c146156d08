//! Faults that tests plant into redistribution.

tanist_planted_faults::planted_faults! {
    /// A fault, named by what goes wrong.
    pub(super) enum Fault {
        KeyGroupLost,
    }
}
