//! The records part of the embedded backend. Each handle has two workers, one connection each; the records are in
//! the database file.
//!
//! Reads have their own connection, so that a long listing does not delay commits. A write that finds the
//! write lock busy kills the holder if it is stopped (ADR 42): no election does that while the leader is
//! alive, so the write would wait forever.

use std::path::Path;

use async_trait::async_trait;
use bytes::Bytes;
use rustix::fs::Access;
use tokio::sync::watch;
use tokio::time::Instant;

use super::change_signal::{self, Listener};
use super::database::{DataVersion, Database};
use super::member_locks::Members;
use super::stopped_lock_holder::kill_stopped_holder;
use super::worker::{Poll, Worker, spawn, work_and_poll};
use super::{EmbeddedOptions, STORE};
use crate::error::{Error, Result};
use crate::failpoint::failpoint_on_a_thread;
use crate::keys::{CHANGES_RING, Key, Kind, Kinds};
use crate::store::health::StoreHealth;
use crate::store::{
    Change, CommitReply, CommitRequest, CoordinationStore, Guard, Limits, Page, PageToken, Touched,
    Write,
};

/// Number of free bytes below which the health of the store warns.
const FULL: u64 = 1024 * 1024;

/// The records of a cluster, in an embedded store.
#[derive(Debug)]
pub struct EmbeddedStore {
    reader: Worker,
    writer: Worker,
    members: Members,
    kinds: Kinds,
    changes: watch::Receiver<Option<Change>>,
    limits: Limits,
    /// Ends its thread when dropped.
    _listener: Option<Listener>,
}

/// Publishes the last change whenever a process committed.
struct Follow {
    changes: watch::Sender<Option<Change>>,
    version: Option<DataVersion>,
    fails: bool,
}

impl Follow {
    fn refresh(&mut self, database: &mut Database) -> Result<()> {
        database.poll_file()?;
        let version = database.version()?;
        if self.version == Some(version) {
            return Ok(());
        }
        let change = database.read(|tables| tables.change())?;
        self.version = Some(version);
        self.changes
            .send_if_modified(|seen| seen.replace(change) != Some(change));
        Ok(())
    }
}

impl Poll for Follow {
    fn poll(&mut self, database: &mut Database, is_forced: bool) {
        if is_forced {
            self.version = None;
        }
        match self.refresh(database) {
            Ok(()) => self.fails = false,
            Err(error) => {
                // Logged once; retried at every interval.
                if !std::mem::replace(&mut self.fails, true) {
                    tracing::warn!(%error, "the embedded store can't be read: retrying");
                }
            }
        }
    }
}

impl EmbeddedStore {
    pub(super) fn start(
        options: &EmbeddedOptions,
        members: Members,
        kinds: Kinds,
        reading: Database,
        writing: Database,
    ) -> Result<EmbeddedStore> {
        let (sender, changes) = watch::channel(None);
        let (reader, queue) = Worker::queue();
        let follow = Follow {
            changes: sender,
            version: None,
            fails: false,
        };
        let listener = Listener::start(reading.path(), &reader)?;
        let interval = options.poll_interval(listener.as_ref());
        spawn("store-read", move || {
            work_and_poll(&queue, reading, interval, follow)
        })?;
        let writer = Worker::start("store-write", writing)?;
        Ok(EmbeddedStore {
            reader,
            writer,
            members,
            kinds,
            changes,
            limits: options.limits,
            _listener: listener,
        })
    }

    /// Writes, and notifies all followers. If the write lock stays busy, kills a stopped holder and tries
    /// once more.
    async fn change(
        &self,
        write: impl Fn(&mut Database) -> Result<CommitReply> + Send + 'static,
    ) -> Result<CommitReply> {
        let members = self.members.clone();
        let change = move |database: &mut Database| {
            let reply = match write(database) {
                Err(Error::Unavailable { .. })
                    if database.was_busy() && kill_stopped_holder(database.path(), &members) =>
                {
                    write(database)?
                }
                result => result?,
            };
            if reply == CommitReply::Applied {
                change_signal::send(database.path());
            }
            Ok(reply)
        };
        let reply = self.writer.call(change).await?;
        self.reader.check_for_change();
        Ok(reply)
    }
}

#[async_trait]
impl CoordinationStore for EmbeddedStore {
    fn limits(&self) -> Limits {
        self.limits
    }

    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Bytes>>> {
        self.kinds.check(keys.iter().map(|key| key.kind))?;
        let keys = keys.to_vec();
        let read = move |database: &mut Database| database.read(|tables| tables.get(&keys));
        let values = self.reader.call(read).await?;
        let copies = values.iter().map(|value| value.as_ref().map(copied));
        Ok(copies.collect())
    }

    async fn list(&self, kind: Kind, page: Option<PageToken>, limit: usize) -> Result<Page> {
        self.kinds.check([kind])?;
        let after = page.map(|page| page.after);
        let list =
            move |database: &mut Database| database.read(|t| t.list(kind, after.as_ref(), limit));
        let Page { items, next } = self.reader.call(list).await?;
        let copies = items
            .iter()
            .map(|(name, value)| (name.clone(), copied(value)));
        Ok(Page {
            items: copies.collect(),
            next,
        })
    }

    async fn keys(&self, kinds: &[Kind]) -> Result<Vec<Key>> {
        self.kinds.check(kinds.iter().copied())?;
        let kinds = kinds.to_vec();
        self.reader
            .call(move |database| {
                database.read(|tables| {
                    let mut keys = Vec::new();
                    for kind in &kinds {
                        let names = tables.names(*kind)?.into_iter();
                        keys.extend(names.map(|name| Key::new(*kind, name)));
                    }
                    Ok(keys)
                })
            })
            .await
    }

    async fn guard(&self) -> Result<Guard> {
        self.reader
            .call(|database| database.read(|tables| tables.guard()))
            .await
    }

    fn changes(&self) -> watch::Receiver<Option<Change>> {
        self.changes.clone()
    }

    async fn touched(&self, first: u64, last: u64) -> Result<Vec<Option<Touched>>> {
        let last = last.min(first.saturating_add(CHANGES_RING - 1));
        self.reader
            .call(move |database| database.read(|tables| tables.touched(first, last)))
            .await
    }

    async fn commit(&self, request: &CommitRequest) -> Result<CommitReply> {
        self.kinds.check(request.kinds())?;
        self.limits.check(STORE, &request.writes)?;
        let request = request.clone();
        let puts = request
            .writes
            .iter()
            .any(|write| matches!(write, Write::Put { .. }));
        let commit = move |database: &mut Database| {
            failpoint_on_a_thread("embedded.committing");
            if puts {
                database.write_with_room(|tables| tables.commit(&request))
            } else {
                database.write_surely(|tables| tables.commit(&request))
            }
        };
        self.change(commit).await
    }

    async fn delete_unnumbered(&self, request: &CommitRequest) -> Result<CommitReply> {
        self.kinds.check(request.kinds())?;
        let request = request.clone();
        let delete = move |database: &mut Database| {
            database.write_surely(|tables| tables.delete_unnumbered(&request))
        };
        self.change(delete).await
    }

    async fn health(&self) -> Result<StoreHealth> {
        let asked = Instant::now();
        self.guard().await?;
        let latency = asked.elapsed();
        let check = move |database: &mut Database| {
            let path = database.path();
            let mut log = path.as_os_str().to_owned();
            log.push("-wal");
            let size = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
            let space = rustix::fs::statvfs(path).ok();
            let free = space.map(|space| space.f_bavail.saturating_mul(space.f_frsize));
            Ok(StoreHealth {
                latency,
                size_bytes: Some(size(path) + size(Path::new(&log))),
                free_bytes: free,
                advice: advice(free),
                ..StoreHealth::default()
            })
        };
        self.reader.call(check).await
    }

    async fn missing_permissions(&self) -> Result<Vec<String>> {
        let check = move |database: &mut Database| {
            let file = database.path();
            let paths = [Some(file), file.parent()];
            let refused = paths.into_iter().flatten().filter_map(|path| {
                let answer = rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK);
                let error = answer.err()?;
                Some(format!("to write {}: {error}", path.display()))
            });
            Ok(refused.collect())
        };
        self.reader.call(check).await
    }
}

/// What an operator does about a disk with `free` bytes.
fn advice(free: Option<u64>) -> Option<String> {
    free.filter(|free| *free < FULL)?;
    let text = "the disk of the embedded store is full: deletions and takeovers use reserved space; new records may be \
                refused, and jobs that have to write one wait. Free that disk";
    Some(text.to_owned())
}

/// Copies values for the caller, so that the reader's thread gets its memory back for its next read.
/// Otherwise all memory of a recovery's reads would stay with that thread, unused. The whole answer is copied
/// before any of it is freed: otherwise the allocator would reuse the freed memory for the next copy.
fn copied(value: &Bytes) -> Bytes {
    Bytes::copy_from_slice(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_asked_to_free_a_full_disk() {
        let said = advice(Some(0)).expect("it is full");
        assert!(said.contains("Free that disk"), "{said}");
        assert_eq!((advice(Some(FULL)), advice(None)), (None, None));
    }
}
