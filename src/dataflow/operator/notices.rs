//! Notices of a task's operators to people, such as that input is lost. Each one becomes an event of the job. Nothing
//! is decided from them.

use tokio::sync::watch;

/// Number of notices of one task. Later ones are dropped: they would displace all other events of its job.
const MOST: usize = 16;

/// The notices of one task, oldest first. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Notices(watch::Sender<Vec<String>>);

impl Notices {
    /// Adds a notice: what happened and where, without the name of the task.
    pub fn say(&self, text: String) {
        self.0.send_if_modified(|said| {
            let is_kept = said.len() < MOST;
            if is_kept {
                said.push(text);
            }
            is_kept
        });
    }

    /// Watches all notices.
    pub fn watch(&self) -> watch::Receiver<Vec<String>> {
        self.0.subscribe()
    }
}
