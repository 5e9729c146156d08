//! What the process gives to its tasks beside a runtime and the exchange, and what of a task may outlive its own code.

use std::path::PathBuf;

use tokio::sync::mpsc;

/// What every task of a process gets.
#[derive(Debug, Clone)]
pub struct TaskHost {
    /// The binary that supervises programs: this one, unless somebody else's `main` runs here.
    pub exec_binary: PathBuf,
    /// Where programs get their directories.
    pub working_dir: PathBuf,
}

impl Default for TaskHost {
    /// This very binary, also after its file was replaced, and the system's directory for temporary files.
    fn default() -> TaskHost {
        TaskHost {
            exec_binary: PathBuf::from("/proc/self/exe"),
            working_dir: std::env::temp_dir(),
        }
    }
}

/// Held by whatever belongs to a task and may outlive its future: the task counts as ended when all clones are dropped.
#[derive(Debug, Clone)]
pub struct Lingering {
    _held: mpsc::Sender<()>,
}

/// Waits for all that lingers of a task.
#[derive(Debug)]
pub(super) struct AllGone(mpsc::Receiver<()>);

impl Lingering {
    pub(super) fn new() -> (Lingering, AllGone) {
        let (held, released) = mpsc::channel(1);
        (Lingering { _held: held }, AllGone(released))
    }
}

impl AllGone {
    pub(super) async fn wait(mut self) {
        let _nothing_is_ever_sent = self.0.recv().await;
    }
}
