//! A shared value with notification of changes. Like tokio's `watch`, but smaller: for very many values with
//! few waiters each. `watch` has eight lists of waiters per value (half a kilobyte), this has one.
//!
//! Only the current value counts: a waiter may miss values in between.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// A shared value; see the module. Clones share the value.
#[derive(Default)]
pub struct Notice<T> {
    shared: Arc<Shared<T>>,
}

#[derive(Default)]
struct Shared<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T> Notice<T> {
    /// Creates it with a value.
    pub fn new(value: T) -> Notice<T> {
        let (value, changed) = (Mutex::new(value), Notify::new());
        let shared = Arc::new(Shared { value, changed });
        Notice { shared }
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

    /// Changes the value without waking the waiters. They see it with the next change that wakes them, or when they look.
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

impl<T> Clone for Notice<T> {
    fn clone(&self) -> Notice<T> {
        let shared = self.shared.clone();
        Notice { shared }
    }
}

impl<T: fmt::Debug> fmt::Debug for Notice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.look(|value| f.debug_tuple("Notice").field(value).finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_waits_hears_of_the_change_that_it_waits_for() {
        let notice = Notice::new(0);
        let waits = [2, 3, 3].map(|wanted| {
            let notice = notice.clone();
            tokio::spawn(async move {
                notice
                    .find(|value| (*value >= wanted).then_some(*value))
                    .await
            })
        });
        for _ in 0..3 {
            tokio::task::yield_now().await;
            notice.change(|value| *value += 1);
        }
        for (wait, wanted) in waits.into_iter().zip([2, 3, 3]) {
            assert!(wait.await.expect("it does not break") >= wanted);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_change_is_missed_between_the_look_and_the_wait() {
        for _ in 0..1_000 {
            let notice = Notice::new(false);
            let told = notice.clone();
            let told = tokio::spawn(async move { told.change(|value| *value = true) });
            notice.find(|value| value.then_some(())).await;
            told.await.expect("it does not break");
        }
    }
}
