//! Answers that need a confirmation of the term by the store first: "no such job", and consistent reads.
//!
//! A leader that was deposed and does not know it yet does not know the jobs acknowledged since. So a denial
//! waits for a linearizable read that begins after the request arrived; all waiting requests share the next
//! read. What is known of a job rests on durable writes and needs no such read. Pure.

/// Requests that wait for the store's confirmation of the term.
#[derive(Debug)]
pub(crate) struct ReadBarrier<T> {
    /// Arrived before the read in progress began.
    confirming: Vec<T>,
    /// Arrived after it began.
    waiting: Vec<T>,
}

impl<T> ReadBarrier<T> {
    /// Adds a request. Returns true if a read must be started.
    pub(crate) fn take(&mut self, command: T) -> bool {
        self.waiting.push(command);
        self.begin()
    }

    /// Whether a read must be started for the waiting requests.
    pub(crate) fn begin(&mut self) -> bool {
        let begins = self.confirming.is_empty() && !self.waiting.is_empty();
        if begins {
            self.confirming = std::mem::take(&mut self.waiting);
        }
        begins
    }

    /// Ends the read. Returns the requests that it confirms.
    pub(crate) fn end(&mut self) -> Vec<T> {
        std::mem::take(&mut self.confirming)
    }
}

impl<T> Default for ReadBarrier<T> {
    fn default() -> ReadBarrier<T> {
        ReadBarrier {
            confirming: Vec::new(),
            waiting: Vec::new(),
        }
    }
}
