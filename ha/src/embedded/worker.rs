//! A thread that owns one connection: async callers send it work through a bounded queue and await the
//! answer.
//!
//! Invariants: one piece of work at a time, in order. Work whose caller is already gone is skipped. The
//! thread ends, and its connection closes, when the last [`Worker`] is dropped.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use tokio::sync::oneshot;

use super::STORE;
use super::database::Database;
use crate::error::{Error, Result};

/// Maximum queue length. With a full queue the request fails, and nothing was done.
const QUEUE: usize = 1024;

pub(super) enum Message {
    Work(Box<dyn FnOnce(&mut Database) + Send>),
    /// Check for a change now, not only at the next interval.
    CheckForChange,
    /// Read again: something changed that the data does not show.
    Reread,
}

/// The handle of the thread. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Worker {
    pub(super) queue: Arc<SyncSender<Message>>,
}

/// The polling of a worker: runs at each interval, after each piece of work, and on request.
pub(super) trait Poll: Send + 'static {
    /// `is_forced`: read again, even if the data is unchanged.
    fn poll(&mut self, database: &mut Database, is_forced: bool);
}

impl Worker {
    /// Creates a queue, so that the poller can hold a sender to it.
    pub(super) fn queue() -> (Worker, Receiver<Message>) {
        let (sender, receiver) = sync_channel(QUEUE);
        (
            Worker {
                queue: Arc::new(sender),
            },
            receiver,
        )
    }

    /// Starts a thread that only works and does not poll.
    pub(super) fn start(name: &str, database: Database) -> Result<Worker> {
        let (worker, receiver) = Worker::queue();
        spawn(name, move || work(&receiver, database))?;
        Ok(worker)
    }

    /// Runs `work` on the thread. `Unavailable`: it was not started. `NoAnswer`: the thread ended during it.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Database) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        let work = move |database: &mut Database| {
            if sender.is_closed() {
                return;
            }
            let result = database.follow_file().and_then(|()| work(database));
            // The caller may have given up meanwhile.
            let _ = sender.send(result);
        };
        self.queue
            .try_send(Message::Work(Box::new(work)))
            .map_err(|error| {
                let reason = match error {
                    TrySendError::Full(_) => "too many requests are waiting".to_owned(),
                    TrySendError::Disconnected(_) => "its thread ended".to_owned(),
                };
                Error::Unavailable {
                    store: STORE,
                    reason,
                }
            })?;
        receiver.await.map_err(|_| Error::NoAnswer {
            store: STORE,
            reason: "its thread ended during the request".to_owned(),
        })?
    }

    /// Makes the thread check whether the data changed. If its queue is full, it will do so anyway.
    pub(super) fn check_for_change(&self) {
        let _ = self.queue.try_send(Message::CheckForChange);
    }

    /// Makes the thread read again. With a full queue the request is lost: the thread then reads again when the
    /// data changes.
    pub(super) fn reread(&self) {
        let _ = self.queue.try_send(Message::Reread);
    }
}

pub(super) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map(drop).map_err(|error| {
        let reason = format!("no thread {name} could be started: {error}");
        Error::Unavailable {
            store: STORE,
            reason,
        }
    })
}

fn work(queue: &Receiver<Message>, mut database: Database) {
    while let Ok(message) = queue.recv() {
        match message {
            Message::Work(work) => work(&mut database),
            Message::CheckForChange | Message::Reread => {}
        }
    }
}

/// Works and polls until the queue's last sender is gone.
pub(super) fn work_and_poll(
    queue: &Receiver<Message>,
    mut database: Database,
    interval: Duration,
    mut poll: impl Poll,
) {
    poll.poll(&mut database, true);
    loop {
        let is_forced = match queue.recv_timeout(interval) {
            Ok(Message::Work(work)) => {
                work(&mut database);
                false
            }
            Ok(Message::Reread) => true,
            Ok(Message::CheckForChange) | Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        poll.poll(&mut database, is_forced);
    }
}
