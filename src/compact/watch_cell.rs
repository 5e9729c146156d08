//! A shared value that tasks wait on until it meets a condition. Replaces tokio's `watch` where there are very many
//! values with few waiters each: a `watch` has nine lists of waiters, this has one.
//!
//! Only the current value counts: a waiter may miss values in between. The closures run under the lock of the value:
//! one that uses the cell itself never returns.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A shared value; see the module. Clones share the value.
#[derive(Default)]
pub struct WatchCell<T> {
    shared: Arc<Shared<T>>,
}

#[derive(Default)]
struct Shared<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T> WatchCell<T> {
    /// Creates it with a value.
    pub fn new(value: T) -> WatchCell<T> {
        let (value, changed) = (Mutex::new(value), Notify::new());
        let shared = Arc::new(Shared { value, changed });
        WatchCell { shared }
    }

    /// Reads the value.
    pub fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.shared.value.lock())
    }

    /// Changes the value and wakes the waiters.
    pub fn change(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.shared.value.lock());
        self.shared.changed.notify_waiters();
    }

    /// Changes the value without waking the waiters. They see it with the next change that wakes them, or when they
    /// look.
    pub fn change_quietly(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.shared.value.lock());
    }

    /// Waits until `find` returns something for the value.
    pub async fn find<R>(&self, mut find: impl FnMut(&T) -> Option<R>) -> R {
        loop {
            // Before the read, so that no change after it is missed.
            let mut changed = pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            if let Some(found) = self.look(&mut find) {
                return found;
            }
            changed.await;
        }
    }
}

impl<T> Clone for WatchCell<T> {
    fn clone(&self) -> WatchCell<T> {
        let shared = self.shared.clone();
        WatchCell { shared }
    }
}

impl<T: fmt::Debug> fmt::Debug for WatchCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.look(|value| f.debug_tuple("WatchCell").field(value).finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_waiter_sees_the_change_that_it_waits_for() {
        let cell = WatchCell::new(0);
        let waits = [2, 3, 3].map(|wanted| {
            let cell = cell.clone();
            tokio::spawn(async move {
                cell.find(|value| (*value >= wanted).then_some(*value))
                    .await
            })
        });
        for _ in 0..3 {
            tokio::task::yield_now().await;
            cell.change(|value| *value += 1);
        }
        for (wait, wanted) in waits.into_iter().zip([2, 3, 3]) {
            assert!(wait.await.expect("it does not break") >= wanted);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_change_is_missed_between_the_look_and_the_wait() {
        for _ in 0..1_000 {
            let cell = WatchCell::new(false);
            let changed = cell.clone();
            let changed = tokio::spawn(async move { changed.change(|value| *value = true) });
            cell.find(|value| value.then_some(())).await;
            changed.await.expect("it does not break");
        }
    }

    #[test]
    fn it_has_one_list_of_waiters() {
        let value_and_lock = 2 * size_of::<u64>();
        assert_eq!(
            size_of::<Shared<u64>>(),
            value_and_lock + size_of::<Notify>()
        );
    }
}
