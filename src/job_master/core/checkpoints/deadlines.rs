//! When a number in flight can exceed a timeout. There may be ten thousand of them, so no event looks at all of them
//! before that moment.
//!
//! Invariant: no number in flight is overdue before `due_ms`. Whatever gives one a timeout adds it here; what takes one
//! away does not, so a look may find nothing overdue. Each look sets the next moment exactly.

/// The first moment to look at all numbers in flight; see the module. None: there is none with a timeout.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    due_ms: Option<u64>,
}

impl Deadlines {
    /// A number in flight may be overdue from this moment on.
    pub(super) fn add(&mut self, due_ms: u64) {
        self.due_ms = Some(self.due_ms.map_or(due_ms, |known| known.min(due_ms)));
    }

    /// All numbers in flight were looked at. This is the first moment after it at which one is overdue.
    pub(super) fn looked(&mut self, due_ms: Option<u64>) {
        self.due_ms = due_ms;
    }

    /// Whether a number in flight may be overdue.
    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        self.due_ms.is_some_and(|due_ms| due_ms <= now_ms)
    }

    /// The first moment at which a number in flight may be overdue.
    pub(super) fn due_ms(&self) -> Option<u64> {
        self.due_ms
    }
}
