//! A queue with a thread of its own for output that may block: callers add to the state under a lock and never
//! wait for the output. The user of the queue defines the state, its limit, and what happens beyond the limit.
//!
//! The thread must not hold the lock while it writes: then callers would wait for the output.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// See the module.
#[derive(Debug, Default)]
pub struct Backlog<S> {
    state: Mutex<S>,
    changed: Condvar,
}

impl<S: Send + 'static> Backlog<S> {
    /// Starts the thread, which ends with the process or when `work` returns.
    pub fn start(
        thread: &str,
        state: S,
        work: impl FnOnce(&Backlog<S>) + Send + 'static,
    ) -> io::Result<Arc<Backlog<S>>> {
        let backlog = Arc::new(Backlog {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let of_thread = backlog.clone();
        let thread = std::thread::Builder::new().name(thread.to_owned());
        thread.spawn(move || work(&of_thread))?;
        Ok(backlog)
    }
}

impl<S> Backlog<S> {
    /// Locks the state. Hold the lock only briefly.
    pub fn lock(&self) -> MutexGuard<'_, S> {
        self.state.lock()
    }

    /// Wakes waiting threads. Call it after the state was changed.
    pub fn changed(&self) {
        self.changed.notify_all();
    }

    /// Called by the thread: waits until there is something to take.
    pub fn take<T>(&self, mut something: impl FnMut(&mut S) -> Option<T>) -> T {
        let mut state = self.lock();
        loop {
            if let Some(taken) = something(&mut state) {
                return taken;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Waits until `is_so` holds, for at most `bound`. Returns whether it holds.
    pub fn wait_until(&self, bound: Duration, is_so: impl Fn(&S) -> bool) -> bool {
        let mut state = self.lock();
        self.changed
            .wait_while_for(&mut state, |state| !is_so(state), bound);
        is_so(&state)
    }
}
