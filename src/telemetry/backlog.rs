//! What a thread of its own takes from others and writes where that may hang: they leave it under a lock, and never wait for it
//! there. What waits, how much of it may, and what becomes of the rest is said by who keeps it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Backlog<S> {
    state: Mutex<S>,
    changed: Condvar,
}

impl<S: Send + 'static> Backlog<S> {
    /// Starts the thread, which ends with the process or when `work` returns.
    pub(crate) fn start(
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
    /// To be held for a moment only.
    pub(crate) fn lock(&self) -> MutexGuard<'_, S> {
        self.state.lock()
    }

    /// To be called when something was left here, and when it is done with.
    pub(crate) fn changed(&self) {
        self.changed.notify_all();
    }

    /// The thread's: waits until there is something to take.
    pub(crate) fn take<T>(&self, mut something: impl FnMut(&mut S) -> Option<T>) -> T {
        let mut state = self.lock();
        loop {
            if let Some(taken) = something(&mut state) {
                return taken;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Waits for this, for at most `bound`. Whether it is so.
    pub(crate) fn wait_until(&self, bound: Duration, is_so: impl Fn(&S) -> bool) -> bool {
        let mut state = self.lock();
        self.changed
            .wait_while_for(&mut state, |state| !is_so(state), bound);
        is_so(&state)
    }
}
