//! The election part of the embedded backend: the epoch row, and the locks that show which processes are
//! alive.
//!
//! Invariants: a view contains `leader` only if the named start of the process is alive. For each living
//! leader other than this process one thread waits for its death, and then makes the view be read again.

use std::collections::HashSet;
use std::io;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::change_signal::{self, Listener};
use super::database::{DataVersion, Database};
use super::member_locks::{Members, OwnFile, Owner, wait_for_end};
use super::stopped_lock_holder::{kill_holder_if_stopped, kill_stopped_holder};
use super::tables::Tables;
use super::worker::{Message, Poll, Worker, spawn, work_and_poll};
use super::{EmbeddedOptions, STORE, blocking};
use crate::election::{
    Attempt, ClusterIncarnation, ElectionDriver, ElectionView, EpochRecord, EpochToken,
    LeaderInformation, LeaderKey, Member, Nonce, SessionState,
};
use crate::error::{Error, Result};

/// Time after which a request of the election checks whether the holder of the write lock is stopped.
const FIRST_TIMEOUT: Duration = Duration::from_millis(200);

/// The election handle of a process on an embedded store.
#[derive(Debug)]
pub struct EmbeddedElection {
    reader: Worker,
    writer: Worker,
    members: Members,
    /// The lock of this process; `None` if it only observes, or was closed.
    own: Mutex<Option<OwnFile>>,
    session: watch::Sender<SessionState>,
    observed: watch::Receiver<Option<ElectionView>>,
    /// The incarnation of the term that this process last tried to take: numbers repeat in another
    /// incarnation.
    incarnation: Mutex<Option<ClusterIncarnation>>,
    /// Ends its thread when dropped.
    _listener: Option<Listener>,
}

/// The view as stored, without a dead leader.
fn living_view(database: &mut Database, members: &Members) -> Result<ElectionView> {
    let view = database.read(|tables| tables.view())?;
    without_dead_leader(view, database, members)
}

/// Same, for a view that a transaction on `database` read.
fn without_dead_leader(
    mut view: ElectionView,
    database: &Database,
    members: &Members,
) -> Result<ElectionView> {
    view.store = database.store().cloned();
    if let Some(leader) = &view.leader
        && !members
            .is_alive(&leader.process, &leader.nonce)
            .map_err(unreadable)?
    {
        view.leader = None;
    }
    Ok(view)
}

fn unreadable(error: io::Error) -> Error {
    let reason = format!("member files can't be read: {error}");
    Error::Unavailable {
        store: STORE,
        reason,
    }
}

/// Publishes the view whenever a process changed it or the leader died.
struct Follow {
    members: Members,
    own: Option<Nonce>,
    view: watch::Sender<Option<ElectionView>>,
    version: Option<DataVersion>,
    fails: bool,
    /// Nonces of the leaders that a thread waits for.
    awaited: Arc<Mutex<HashSet<Nonce>>>,
    queue: Weak<SyncSender<Message>>,
}

impl Follow {
    fn refresh(&mut self, database: &mut Database) -> Result<()> {
        database.poll_file()?;
        let version = database.version()?;
        if self.version == Some(version) {
            return Ok(());
        }
        let mut view = living_view(database, &self.members)?;
        if let Some(leader) = &view.leader
            && !self.await_end(leader)?
        {
            view.leader = None;
        }
        self.version = Some(version);
        self.view.send_if_modified(|seen| {
            let other = seen.as_ref() != Some(&view);
            *seen = Some(view);
            other
        });
        Ok(())
    }

    /// Ensures that a thread waits for the leader's death. Returns false if it is already dead.
    fn await_end(&self, leader: &LeaderKey) -> Result<bool> {
        if self.own.as_ref() == Some(&leader.nonce) || self.awaited.lock().contains(&leader.nonce) {
            return Ok(true);
        }
        let open = self
            .members
            .open_alive(&leader.process, &leader.nonce)
            .map_err(unreadable)?;
        let Some(file) = open else { return Ok(false) };
        self.awaited.lock().insert(leader.nonce.clone());
        let (awaited, queue) = (Arc::clone(&self.awaited), self.queue.clone());
        let nonce = leader.nonce.clone();
        let wait = move || {
            if let Err(error) = wait_for_end(file) {
                tracing::warn!(%error, "can't wait for the leader's lock");
            }
            awaited.lock().remove(&nonce);
            if let Some(queue) = queue.upgrade() {
                // An error means that the worker has ended.
                let _ = queue.send(Message::Reread);
            }
        };
        spawn("await-leader-end", wait).inspect_err(|_| {
            self.awaited.lock().remove(&leader.nonce);
        })?;
        Ok(true)
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
                self.version = None;
                if !std::mem::replace(&mut self.fails, true) {
                    tracing::warn!(%error, "the election's rows can't be read: retrying");
                }
            }
        }
    }
}

impl EmbeddedElection {
    pub(super) fn start(
        options: &EmbeddedOptions,
        members: Members,
        own: Option<OwnFile>,
        reading: Database,
        writing: Database,
    ) -> Result<EmbeddedElection> {
        let session = own
            .as_ref()
            .map_or(SessionState::None, |own| SessionState::Alive {
                nonce: own.owner.nonce.clone(),
                deadline: None,
                timeout: Duration::ZERO,
            });
        let (view, observed) = watch::channel(None);
        let (reader, queue) = Worker::queue();
        let follow = Follow {
            members: members.clone(),
            own: session.nonce().cloned(),
            view,
            version: None,
            fails: false,
            awaited: Arc::default(),
            queue: Arc::downgrade(&reader.queue),
        };
        let listener = Listener::start(reading.path(), &reader)?;
        let interval = options.poll_interval(listener.as_ref());
        spawn("election-read", move || {
            work_and_poll(&queue, reading, interval, follow)
        })?;
        let writer = Worker::start("election-write", writing)?;
        Ok(EmbeddedElection {
            reader,
            writer,
            members,
            own: Mutex::new(own),
            session: watch::Sender::new(session),
            observed,
            incarnation: Mutex::default(),
            _listener: listener,
        })
    }

    fn owner(&self) -> Option<Owner> {
        self.own.lock().as_ref().map(|own| own.owner.clone())
    }

    fn incarnation(&self) -> Option<ClusterIncarnation> {
        self.incarnation.lock().clone()
    }

    /// `SessionLost` if `leader` names another start than this process's.
    fn check_session(&self, leader: &LeaderKey) -> Result<()> {
        match self.owner() {
            Some(owner) if owner.nonce == leader.nonce => Ok(()),
            _ => Err(Error::SessionLost),
        }
    }

    /// Runs a guarded write. If the write lock stays busy, kills a stopped holder and tries again: first after a
    /// short time, and once more at the timeout.
    async fn write(
        &self,
        write: impl Fn(&Tables<'_>) -> Result<Attempt> + Send + 'static,
    ) -> Result<Attempt> {
        let members = self.members.clone();
        let attempt = move |database: &mut Database| {
            let first = match database.write_surely_within(FIRST_TIMEOUT, &write) {
                // Its holder is stopped, or slow and still within the timeout.
                Err(_) if database.was_busy() => {
                    kill_holder_if_stopped(database.path(), &members);
                    database.write_surely(&write)
                }
                result => result,
            };
            // The second check logs why a holder is not killed.
            let result = match first {
                Err(_) if database.was_busy() && kill_stopped_holder(database.path(), &members) => {
                    database.write_surely(&write)
                }
                result => result,
            };
            match result? {
                Attempt::Refused(view) => Ok(Attempt::Refused(without_dead_leader(
                    view, database, &members,
                )?)),
                applied => {
                    change_signal::send(database.path());
                    Ok(applied)
                }
            }
        };
        let attempt = self.writer.call(attempt).await?;
        self.reader.check_for_change();
        Ok(attempt)
    }
}

#[async_trait]
impl ElectionDriver for EmbeddedElection {
    fn session(&self) -> watch::Receiver<SessionState> {
        self.session.subscribe()
    }

    fn observed(&self) -> watch::Receiver<Option<ElectionView>> {
        self.observed.clone()
    }

    async fn read(&self) -> Result<ElectionView> {
        let members = self.members.clone();
        self.reader
            .call(move |database| living_view(database, &members))
            .await
    }

    async fn advance(
        &self,
        seen: &ElectionView,
        next: &EpochRecord,
        leader: &LeaderKey,
    ) -> Result<Attempt> {
        self.check_session(leader)?;
        *self.incarnation.lock() = Some(next.incarnation.clone());
        let (seen, next, leader) = (seen.clone(), next.clone(), leader.clone());
        self.write(move |tables| tables.advance(&seen, &next, &leader))
            .await
    }

    async fn attach(&self, token: EpochToken, leader: &LeaderKey) -> Result<Attempt> {
        self.check_session(leader)?;
        let (incarnation, leader) = (self.incarnation(), leader.clone());
        self.write(move |tables| tables.attach(token, incarnation.as_ref(), &leader))
            .await
    }

    async fn resign(&self, token: EpochToken) -> Result<Attempt> {
        let incarnation = self.incarnation();
        self.write(move |tables| tables.resign(token, incarnation.as_ref()))
            .await
    }

    async fn accept(&self, seen: &ElectionView, next: &EpochRecord) -> Result<Attempt> {
        let (seen, next) = (seen.clone(), next.clone());
        self.write(move |tables| tables.accept(&seen, &next)).await
    }

    async fn publish(&self, token: EpochToken, info: &LeaderInformation) -> Result<Attempt> {
        let (incarnation, info) = (self.incarnation(), info.clone());
        self.write(move |tables| tables.publish(token, incarnation.as_ref(), &info))
            .await
    }

    async fn announce(&self, member: &Member) -> Result<()> {
        let Some(owner) = self.owner() else {
            let text = "a process that only observes, or was closed, can't be announced";
            return Err(Error::Misconfigured(text.into()));
        };
        let (members, member) = (self.members.clone(), member.clone());
        blocking(move || members.announce(&owner, &member)).await
    }

    async fn members(&self) -> Result<Vec<Member>> {
        let members = self.members.clone();
        blocking(move || members.announced()).await
    }

    async fn close(&self) {
        self.session.send_replace(SessionState::None);
        drop(self.own.lock().take());
        self.reader.reread();
    }
}
