//! Stops the threads of elections: what SIGSTOP does to a process, for one thread.

use std::collections::HashMap;
use std::fmt;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::election::ProcessId;

/// The election threads of processes, by the latest start of each. Threads that are stopped go on when this is dropped.
#[derive(Default)]
pub(super) struct Gates {
    runtimes: std::sync::Arc<Mutex<HashMap<ProcessId, Handle>>>,
    stopped: Mutex<Vec<(ProcessId, SyncSender<()>)>>,
}

impl fmt::Debug for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gates").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gates {
    /// What an election's thread calls to make itself known.
    pub(super) fn enter(&self, process: &ProcessId) -> impl FnOnce() + Send + 'static {
        let (runtimes, process) = (self.runtimes.clone(), process.clone());
        move || {
            lock(&runtimes).insert(process, Handle::current());
        }
    }

    /// Stops the thread of a process; returns when it stands still.
    pub(super) async fn stop(&self, process: &ProcessId) {
        let Some(runtime) = lock(&self.runtimes).get(process).cloned() else {
            return;
        };
        let (go_on, gate) = sync_channel(1);
        let (stands, standing) = oneshot::channel();
        runtime.spawn(async move {
            let _ = stands.send(());
            // Blocks the thread, which is the point. It also goes on when the sender is dropped.
            let _ = gate.recv();
        });
        let _ = standing.await;
        lock(&self.stopped).push((process.clone(), go_on));
    }

    /// Lets it go on.
    pub(super) fn cont(&self, process: &ProcessId) {
        lock(&self.stopped).retain(|(stopped, _)| stopped != process);
    }
}
