//! Notifies the other handles, in this and other processes, that a write was committed: a writer touches the
//! database file, and followers have an inotify watch on the directory.
//!
//! Only a hint: a writer that dies between commit and touch notifies no process, so followers also poll.
//! Writing to the log can't be the hint, because it precedes the commit by a full disk sync. Each [`Listener`]
//! owns one inotify watch and one thread.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};
use rustix::io::Errno;

use super::worker::{Worker, spawn};
use crate::error::Result;

/// Notifies all listeners.
pub(super) fn send(database: &Path) {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    let times = Timestamps {
        last_access: now,
        last_modification: now,
    };
    if let Err(error) = utimensat(CWD, database, &times, AtFlags::empty()) {
        tracing::debug!(%error, "the store's file can't be touched: others see the change later");
    }
}

/// Makes a worker look after each notification, until dropped.
#[derive(Debug)]
pub(super) struct Listener {
    inotify: Arc<OwnedFd>,
    watch: i32,
}

impl Listener {
    /// Starts to listen; `None` if the host grants no more inotify watches, which is logged.
    pub(super) fn start(database: &Path, worker: &Worker) -> Result<Option<Listener>> {
        let (inotify, watch) = match listen(database) {
            Ok(listening) => listening,
            Err(error) => {
                tracing::warn!(
                    %error,
                    "no inotify watch for the embedded store: it is polled more often instead"
                );
                return Ok(None);
            }
        };
        let listener = Listener {
            inotify: Arc::new(inotify),
            watch,
        };
        let (inotify, queue) = (Arc::clone(&listener.inotify), Arc::downgrade(&worker.queue));
        spawn("embedded-listen", move || {
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut events = inotify::Reader::new(&*inotify, &mut buffer);
            loop {
                match events.next() {
                    // The watch or its directory was removed.
                    Ok(event) if event.events().contains(ReadFlags::IGNORED) => return,
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => {
                        tracing::warn!(%error, "the inotify watch of the embedded store failed: changes are found by polling");
                        return;
                    }
                }
                // Several events that arrived together need only one check.
                if events.is_buffer_empty() {
                    let Some(queue) = queue.upgrade() else { return };
                    Worker { queue }.check_for_change();
                }
            }
        })?;
        Ok(Some(listener))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Ends the thread: removing a watch is an event. Fails if the directory and so the watch are gone.
        let _ = inotify::remove_watch(&*self.inotify, self.watch);
    }
}

fn listen(database: &Path) -> io::Result<(OwnedFd, i32)> {
    let directory = database.parent().unwrap_or(Path::new("/"));
    let inotify = inotify::init(CreateFlags::CLOEXEC)?;
    // Also when the file is removed or replaced.
    let what = WatchFlags::ATTRIB | WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_TO;
    let watch = inotify::add_watch(&inotify, directory, what)?;
    Ok((inotify, watch))
}
