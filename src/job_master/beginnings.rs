//! How many recovered JobMasters begin at once. A leader may recover ten thousand jobs, and whoever begins holds its record twice and
//! once more in a write that is on its way: what all of them need together for a moment is never given back.
//!
//! Who has its turn builds its ExecutionGraph and writes that it has the job; then, or when that takes long, it is the next one's turn.
//! Jobs that are submitted do not wait here. Invariant: a JobMaster that can't write holds up no other for longer than its patience.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Enough for a store to be busy all the time: a few of its round trips' worth. With 256 a takeover on ZooKeeper takes nearly twice as long.
const AT_ONCE: usize = 1024;

/// A write takes milliseconds. Whoever needs longer waits for a store that has trouble, or for a blob.
const PATIENCE: Duration = Duration::from_millis(500);

/// Those of one term. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Beginnings {
    turns: Arc<Semaphore>,
}

impl Default for Beginnings {
    fn default() -> Beginnings {
        Beginnings::at_once(AT_ONCE)
    }
}

impl Beginnings {
    pub(super) fn at_once(number: usize) -> Beginnings {
        let turns = Arc::new(Semaphore::new(number));
        Beginnings { turns }
    }

    /// Waits for its turn: those who came first have theirs first.
    pub(super) async fn turn(&self) -> Beginning {
        let turn = self.turns.clone().acquire_owned().await;
        Beginning {
            _turn: turn.expect("it is never closed"),
            until: Instant::now() + PATIENCE,
        }
    }
}

/// A turn. Over when it is dropped.
#[derive(Debug)]
pub(super) struct Beginning {
    _turn: OwnedSemaphorePermit,
    /// It is to be dropped by then.
    pub(super) until: Instant,
}
