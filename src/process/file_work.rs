//! File work of sinks on dedicated threads: a file system that hangs blocks its own calls and nothing else.
//!
//! Invariants: at most [`THREADS`] calls run at once, and at most one per directory, so that a directory that
//! does not answer costs one thread. A caller that waits for a lock takes no thread. A call that has begun
//! can't be ended: when its caller stops waiting, the work can see that and begins nothing more.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Mutex as DirectoryLock, OwnedMutexGuard, Semaphore, oneshot};

/// Number of directories that may hang before work on other file systems has to wait for them.
const THREADS: usize = 32;

/// Runs file work of sinks.
#[derive(Debug)]
pub(super) struct FileWork {
    threads: Arc<Semaphore>,
    locks: Mutex<BTreeMap<PathBuf, Weak<DirectoryLock<()>>>>,
}

/// Tells the work whether its caller still waits for the result.
pub(super) struct Awaited<'a>(&'a dyn Fn() -> bool);

impl Awaited<'_> {
    pub(super) fn is_awaited(&self) -> bool {
        (self.0)()
    }
}

impl Default for FileWork {
    fn default() -> FileWork {
        FileWork {
            threads: Arc::new(Semaphore::new(THREADS)),
            locks: Mutex::default(),
        }
    }
}

impl FileWork {
    /// Does `work` when it has the locks of all its directories. The error says why it was not completed.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        mut directories: Vec<PathBuf>,
        work: impl FnOnce(Awaited<'_>) -> T + Send + 'static,
    ) -> Result<T, String> {
        // All callers take the locks in the same order, so there is no deadlock.
        directories.sort();
        directories.dedup();
        let mut locks: Vec<OwnedMutexGuard<()>> = Vec::with_capacity(directories.len());
        for directory in directories {
            locks.push(self.lock_of(directory).lock_owned().await);
        }
        let thread = self.threads.clone().acquire_owned().await;
        let thread = thread.map_err(|error| error.to_string())?;
        let (reply, result) = oneshot::channel();
        let call = move || {
            let result = work(Awaited(&|| !reply.is_closed()));
            // Before the answer: its receiver may call again at once.
            drop((locks, thread));
            let _ = reply.send(result);
        };
        let started = std::thread::Builder::new().name("sinks".to_owned());
        started
            .spawn(call)
            .map_err(|error| format!("no thread for file work: {error}"))?;
        let ended = |_| "the file work ended without an answer".to_owned();
        result.await.map_err(ended)
    }

    fn lock_of(&self, directory: PathBuf) -> Arc<DirectoryLock<()>> {
        let mut locks = self.locks.lock();
        let known = locks.get(&directory).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            locks.retain(|_, lock| lock.strong_count() > 0);
            let lock = Arc::default();
            locks.insert(directory, Arc::downgrade(&lock));
            lock
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn directory(name: &str) -> Vec<PathBuf> {
        vec![PathBuf::from(name)]
    }

    #[tokio::test]
    async fn a_directory_that_hangs_gets_no_second_call_and_holds_no_other_one_up() {
        let files = Arc::new(FileWork::default());
        let (hung, hangs) = sync_channel::<()>(0);
        let (begun, begins) = oneshot::channel();
        let first = files.clone();
        let first = tokio::spawn(async move {
            let work = move |awaited: Awaited<'_>| {
                let _ = begun.send(());
                let _ = hangs.recv();
                awaited.is_awaited()
            };
            first.run(directory("/hangs"), work).await
        });
        begins.await.expect("it has begun");
        let mut waiting: Vec<_> = (0..2 * THREADS)
            .map(|_| Box::pin(files.run(directory("/hangs"), |_| ())))
            .collect();
        for second in &mut waiting {
            assert!(futures::poll!(second).is_pending());
        }
        assert_eq!(files.threads.available_permits(), THREADS - 1);
        let other = files.run(directory("/other"), |_| "done").await;
        assert_eq!(other, Ok("done"));
        drop(hung);
        assert_eq!(first.await.expect("no panic"), Ok(true));
        for second in waiting {
            assert_eq!(second.await, Ok(()));
        }
    }

    #[tokio::test]
    async fn work_learns_that_its_caller_has_stopped_waiting() {
        let files = FileWork::default();
        let (hung, hangs) = sync_channel::<()>(0);
        let (reply, answered) = oneshot::channel();
        let mut first = Box::pin(files.run(directory("/hangs"), move |awaited: Awaited<'_>| {
            let _ = hangs.recv();
            let _ = reply.send(awaited.is_awaited());
        }));
        assert!(futures::poll!(&mut first).is_pending());
        drop(first);
        drop(hung);
        assert_eq!(answered.await, Ok(false));
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_releases_its_lock() {
        let files = FileWork::default();
        let failed = files.run(directory("/out"), |_| panic!("a test")).await;
        let failed: Result<(), String> = failed;
        failed.expect_err("it has no answer");
        assert_eq!(files.run(directory("/out"), |_| 7).await, Ok(7));
    }
}
