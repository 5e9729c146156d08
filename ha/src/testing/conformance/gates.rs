//! Stops the threads of elections: like SIGSTOP for a process, but for one thread.

use std::collections::HashMap;
use std::fmt;
use std::sync::mpsc::{SyncSender, sync_channel};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::election::ProcessId;

/// The election threads of processes, by the latest start of each. Stopped threads continue when this is
/// dropped.
#[derive(Default)]
pub(crate) struct Gates {
    runtimes: std::sync::Arc<Mutex<HashMap<ProcessId, Handle>>>,
    stopped: Mutex<Vec<(ProcessId, SyncSender<()>)>>,
}

impl fmt::Debug for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gates").finish_non_exhaustive()
    }
}

impl Gates {
    /// Returns a function that an election's thread calls to register itself.
    pub(crate) fn enter(&self, process: &ProcessId) -> impl FnOnce() + Send + 'static {
        let (runtimes, process) = (self.runtimes.clone(), process.clone());
        move || {
            runtimes.lock().insert(process, Handle::current());
        }
    }

    /// Stops the thread of a process; returns when it is stopped.
    pub(crate) async fn stop(&self, process: &ProcessId) {
        let Some(runtime) = self.runtimes.lock().get(process).cloned() else {
            return;
        };
        let (go_on, gate) = sync_channel(1);
        let (is_stopped, stopping) = oneshot::channel();
        runtime.spawn(async move {
            let _ = is_stopped.send(());
            // Blocks the thread intentionally. Also continues when the sender is dropped.
            let _ = gate.recv();
        });
        let _ = stopping.await;
        self.stopped.lock().push((process.clone(), go_on));
    }

    /// Lets the thread of a process continue.
    pub(crate) fn cont(&self, process: &ProcessId) {
        self.stopped
            .lock()
            .retain(|(stopped, _)| stopped != process);
    }
}
