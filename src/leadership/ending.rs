//! The end that a term decides for its process: its application has ended, or the cluster belongs to another one. The
//! contender owns it, and ends the process when the term has stopped. The first decision stays.

use std::sync::{Arc, OnceLock};

use tanist_telemetry::ExitCode;

/// The exit code of a process and the cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The exit code.
    pub code: ExitCode,
    /// Why the process ends.
    pub cause: String,
}

/// The end of a process, decided once by a term: the first cause wins. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Ending {
    decided: Arc<OnceLock<End>>,
}

impl Ending {
    /// Decides that the process must end.
    pub(super) fn decide(&self, code: ExitCode, cause: impl Into<String>) {
        let cause = cause.into();
        let _the_first_stays = self.decided.set(End { code, cause });
    }

    /// The exit code once the end is decided, also for a process that is then asked to end.
    pub fn code(&self) -> Option<ExitCode> {
        self.decided().map(|end| end.code)
    }

    /// The decided end.
    pub fn decided(&self) -> Option<&End> {
        self.decided.get()
    }
}
