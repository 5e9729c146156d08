//! A job whose turn to be recovered has not come. Makes no decisions.

use super::Quarantined;

/// A job whose turn has not come.
#[derive(Debug)]
pub struct Suspect {
    /// Its data, in the same form as for a quarantined job.
    pub known: Quarantined,
    /// Its turn came while its result was being written.
    pub was_passed_over: bool,
}
