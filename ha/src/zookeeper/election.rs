//! The election part of the ZooKeeper backend.
//!
//! A session is the lease: its id is the nonce, and it expires on the server when no message arrives from it
//! for its timeout. The client library keeps it alive but does not report when it was last answered, so this
//! module sends its own ping: its sending time plus the timeout is the deadline.
//!
//! Invariant: every write to `epoch`, `leader` and `leader-info` is one transaction whose first operation
//! checks the version of `epoch`. The later operations of that transaction may be adapted to existing nodes
//! and tried again. After an ambiguous answer nothing is tried again here: the core decides.
//!
//! Three tasks, owned by the connection: [`keep`] publishes the session, [`observe`] the keys, and [`enrol`] writes
//! the member.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use zookeeper_client::SessionState as ConnectionState;

use super::client::{Connection, Sessions};
use super::follow::{follow, next_session};
use super::multi::{Operation, Reply};
use super::nodes::{
    self, create_epoch, decode, decode_epoch, encode, fence, replace_epoch, set_epoch,
};
use super::session::{Node, Session, unavailable};
use crate::clock::Clock;
use crate::election::{
    Attempt, ElectionDriver, ElectionView, EpochRecord, EpochToken, LeaderInformation, LeaderKey,
    Member, SessionState, Unreadable,
};
use crate::error::{Error, Outcome, Result};
use crate::keys::path;
use crate::retry::Backoff;

/// Number of times that a transaction is adapted to nodes that appear or disappear.
const ADAPTATIONS: usize = 8;

/// The election part on its own session. When dropped or closed, its session and its tasks end.
#[derive(Debug)]
pub struct ZooKeeperElection {
    shared: Arc<Shared>,
    session: watch::Sender<SessionState>,
    observed: watch::Sender<Option<ElectionView>>,
}

#[derive(Debug)]
struct Shared {
    connection: Connection,
    members: Arc<Members>,
    /// The term that this process last tried to take: the value of `epoch` at that token. Tokens repeat after
    /// the store was wiped; this value distinguishes such terms.
    term: Mutex<Option<(EpochToken, EpochRecord)>>,
}

/// The member that is written under each session.
#[derive(Debug, Default)]
struct Members {
    announced: tokio::sync::Mutex<Option<Member>>,
    changed: Notify,
}

impl ZooKeeperElection {
    pub(super) fn start(connection: Connection, clock: Clock, contends: bool) -> ZooKeeperElection {
        let session = watch::Sender::new(SessionState::None);
        let observed = watch::Sender::new(None);
        let shared = Arc::new(Shared {
            connection,
            members: Arc::default(),
            term: Mutex::new(None),
        });
        let connection = &shared.connection;
        let sessions = connection.sessions();
        if contends {
            connection.spawn(keep(sessions.clone(), clock, session.clone()));
        }
        connection.spawn(observe(
            sessions.clone(),
            shared.fixed_paths(),
            observed.clone(),
        ));
        connection.spawn(enrol(sessions, shared.members.clone()));
        ZooKeeperElection {
            shared,
            session,
            observed,
        }
    }
}

/// Publishes the session: alive until its timeout has passed since the last answered ping was sent.
async fn keep(mut sessions: Sessions, clock: Clock, report: watch::Sender<SessionState>) {
    let mut last = None;
    while let Some(session) = next_session(&mut sessions, last.as_ref()).await {
        last = Some(session.nonce().clone());
        let timeout = session.timeout();
        let mut states = session.states();
        loop {
            match states.state() {
                ConnectionState::SyncConnected => {}
                state if state.is_terminated() => break,
                _ => {
                    states.changed().await;
                    continue;
                }
            }
            let sent = clock.now();
            let pause = match session.sync().await {
                Ok(()) => {
                    let deadline = Some(sent.after(timeout));
                    let nonce = session.nonce().clone();
                    report.send_replace(SessionState::Alive {
                        nonce,
                        deadline,
                        timeout,
                    });
                    timeout / 3
                }
                Err(error) => {
                    tracing::debug!(%error, "a ping was not answered");
                    timeout / 12
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = states.changed() => {}
            }
        }
        report.send_replace(SessionState::None);
    }
    report.send_replace(SessionState::None);
}

/// Publishes the content of the election's nodes.
async fn observe(
    sessions: Sessions,
    paths: Vec<String>,
    report: watch::Sender<Option<ElectionView>>,
) {
    follow(sessions, paths, |nodes| match Found::of(&nodes) {
        Ok(Found { view, .. }) => {
            report.send_if_modified(|last| {
                let modified = last.as_ref() != Some(&view);
                *last = Some(view);
                modified
            });
        }
        Err(error) => tracing::error!(%error, "the election's nodes can't be read"),
    })
    .await;
}

/// Writes the announced member again under each new session.
async fn enrol(mut sessions: Sessions, members: Arc<Members>) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    loop {
        let session = sessions.borrow_and_update().clone();
        let written = match session {
            Some(session) => members.write(&session).await,
            None => Ok(()),
        };
        let again = async {
            match &written {
                Ok(()) => std::future::pending().await,
                Err(error) => {
                    tracing::debug!(%error, "the member is not announced yet");
                    tokio::time::sleep(backoff.next_delay()).await;
                }
            }
        };
        tokio::select! {
            changed = sessions.changed() => if changed.is_err() { return },
            () = members.changed.notified() => {}
            () = again => continue,
        }
        backoff.reset();
    }
}

impl Members {
    /// Writes the announced member, if there is one, under this session.
    async fn write(&self, session: &Session) -> Result<()> {
        let announced = self.announced.lock().await;
        let Some(member) = announced.as_ref() else {
            return Ok(());
        };
        let path = session.path(&nodes::member(&member.process));
        let data = encode(member)?;
        for _ in 0..ADAPTATIONS {
            let (path, data) = (path.clone(), data.clone());
            let owner = session.owner(&path).await?;
            let operations = if owner.as_ref() == Some(session.nonce()) {
                vec![Operation::Set {
                    path,
                    data,
                    version: None,
                }]
            } else {
                // The node of an earlier session would be removed with that session, so it is replaced.
                let stale = owner.map(|_| Operation::Delete { path: path.clone() });
                let own = Operation::Create {
                    path,
                    data,
                    ephemeral: true,
                };
                stale.into_iter().chain([own]).collect()
            };
            match session.commit(&operations).await? {
                Reply::Applied(_) => return Ok(()),
                Reply::Refused { .. } => session.make_directories().await?,
            }
        }
        Err(unsettled())
    }
}

impl Shared {
    /// `epoch`, `leader` and `leader-info`.
    fn fixed_paths(&self) -> Vec<String> {
        [path::EPOCH, path::LEADER, path::LEADER_INFO]
            .map(|name| self.connection.path(name))
            .to_vec()
    }

    async fn read(&self, session: &Session) -> Result<ElectionView> {
        Ok(self.find(session).await?.view)
    }

    /// Reads the nodes: linearizable.
    async fn find(&self, session: &Session) -> Result<Found> {
        let nodes = session.read_linearizable(&self.fixed_paths()).await?;
        Found::of(&nodes)
    }

    /// Reads the nodes if `holds` is true of them; otherwise returns the current view, which refuses the
    /// request. The nodes may be slightly old; the transaction that is built on them detects that. A refusal must not
    /// be old, so it needs the linearizable read.
    async fn read_if(
        &self,
        session: &Session,
        holds: impl Fn(&ElectionView) -> bool,
    ) -> Result<Result<Found, ElectionView>> {
        let cheap = Found::of(&session.read(&self.fixed_paths()).await?)?;
        if holds(&cheap.view) {
            return Ok(Ok(cheap));
        }
        let found = self.find(session).await?;
        Ok(if holds(&found.view) {
            Ok(found)
        } else {
            Err(found.view)
        })
    }

    /// Whether the term at `token` continues. The version alone does not distinguish it from a term of
    /// another incarnation.
    fn continues(&self, view: &ElectionView, token: EpochToken) -> bool {
        let term = self.term.lock();
        view.epoch.as_ref().is_some_and(|(record, found)| {
            *found == token
                && term
                    .as_ref()
                    .is_none_or(|(taken, term)| *taken != token || term == record)
        })
    }

    /// Writes under the guard of the term at `token`; `writes` builds the operations from the existing nodes.
    /// If applied, `epoch` is at `after`.
    async fn write_in_term(
        &self,
        session: &Session,
        (token, after): (EpochToken, EpochToken),
        needs_leader: bool,
        writes: impl Fn(&Found, &EpochRecord) -> Result<Vec<Operation>>,
    ) -> Result<Attempt> {
        let may_write = |view: &ElectionView| {
            self.continues(view, token) && (view.leader.is_some() || !needs_leader)
        };
        for _ in 0..ADAPTATIONS {
            let found = match self.read_if(session, may_write).await? {
                Ok(found) => found,
                Err(view) => return Ok(Attempt::Refused(view)),
            };
            let Some((record, _)) = &found.view.epoch else {
                continue;
            };
            if let Reply::Applied(_) = session.commit(&writes(&found, record)?).await? {
                return Ok(Attempt::Applied(after));
            }
        }
        Err(unsettled())
    }
}

/// Deletes `leader` if it exists.
fn without_leader(session: &Session, found: &Found) -> Option<Operation> {
    let path = session.path(path::LEADER);
    found.has_leader.then_some(Operation::Delete { path })
}

fn put_leader(session: &Session, leader: &LeaderKey) -> Result<Operation> {
    let (path, data) = (session.path(path::LEADER), encode(leader)?);
    Ok(Operation::Create {
        path,
        data,
        ephemeral: true,
    })
}

#[async_trait]
impl ElectionDriver for ZooKeeperElection {
    fn session(&self) -> watch::Receiver<SessionState> {
        self.session.subscribe()
    }

    fn observed(&self) -> watch::Receiver<Option<ElectionView>> {
        self.observed.subscribe()
    }

    async fn read(&self) -> Result<ElectionView> {
        let session = self.shared.connection.session()?;
        self.shared.read(&session).await
    }

    async fn advance(
        &self,
        seen: &ElectionView,
        next: &EpochRecord,
        leader: &LeaderKey,
    ) -> Result<Attempt> {
        let shared = &self.shared;
        let session = shared.connection.session_of(&leader.nonce)?;
        let (put_epoch, token) = match &seen.epoch {
            None => (create_epoch(&session, next)?, EpochToken(0)),
            Some((_, token)) => (set_epoch(&session, *token, next)?, EpochToken(token.0 + 1)),
        };
        for _ in 0..ADAPTATIONS {
            let found = match shared
                .read_if(&session, |view| {
                    view.epoch == seen.epoch && view.unreadable.is_none()
                })
                .await?
            {
                Ok(found) => found,
                Err(view) => return Ok(Attempt::Refused(view)),
            };
            // Before the commit: the term must be known here also if the answer is lost.
            *shared.term.lock() = Some((token, next.clone()));
            let mut operations = put_epoch.to_vec();
            operations.extend(without_leader(&session, &found));
            operations.push(put_leader(&session, leader)?);
            match session.commit(&operations).await? {
                Reply::Applied(_) => return Ok(Attempt::Applied(token)),
                // The epoch moved, or the old leader's node appeared or disappeared: the next read shows which. Or
                // all nodes are gone.
                Reply::Refused { .. } => session.make_directories().await?,
            }
        }
        Err(unsettled())
    }

    async fn attach(&self, token: EpochToken, leader: &LeaderKey) -> Result<Attempt> {
        let session = self.shared.connection.session_of(&leader.nonce)?;
        let writes = |found: &Found, record: &EpochRecord| {
            let mut operations = fence(&session, token, &record.incarnation)?.to_vec();
            operations.extend(without_leader(&session, found));
            operations.push(put_leader(&session, leader)?);
            Ok(operations)
        };
        self.shared
            .write_in_term(&session, (token, token), false, writes)
            .await
    }

    async fn resign(&self, token: EpochToken) -> Result<Attempt> {
        let session = self.shared.connection.session()?;
        let writes = |found: &Found, record: &EpochRecord| {
            let mut operations = set_epoch(&session, token, record)?.to_vec();
            operations.extend(without_leader(&session, found));
            Ok(operations)
        };
        let after = EpochToken(token.0 + 1);
        self.shared
            .write_in_term(&session, (token, after), false, writes)
            .await
    }

    async fn accept(&self, seen: &ElectionView, next: &EpochRecord) -> Result<Attempt> {
        let session = self.shared.connection.session()?;
        let Some(token) = seen.token() else {
            return Ok(Attempt::Refused(self.shared.read(&session).await?));
        };
        let is_as_seen =
            |view: &ElectionView| view.epoch == seen.epoch && view.unreadable == seen.unreadable;
        for _ in 0..ADAPTATIONS {
            let found = match self.shared.read_if(&session, is_as_seen).await? {
                Ok(found) => found,
                Err(view) => return Ok(Attempt::Refused(view)),
            };
            let mut operations = replace_epoch(&session, token, next).await?;
            operations.extend(without_leader(&session, &found));
            if let Reply::Applied(_) = session.commit(&operations).await? {
                return Ok(Attempt::Applied(EpochToken(token.0 + 1)));
            }
        }
        Err(unsettled())
    }

    async fn publish(&self, token: EpochToken, info: &LeaderInformation) -> Result<Attempt> {
        let session = self.shared.connection.session()?;
        let writes = |found: &Found, record: &EpochRecord| {
            let mut operations = fence(&session, token, &record.incarnation)?.to_vec();
            operations.push(Operation::Check {
                path: session.path(path::LEADER),
                version: None,
            });
            let (path, data) = (session.path(path::LEADER_INFO), encode(info)?);
            let put = if found.has_info {
                Operation::Set {
                    path,
                    data,
                    version: None,
                }
            } else {
                Operation::Create {
                    path,
                    data,
                    ephemeral: false,
                }
            };
            operations.push(put);
            Ok(operations)
        };
        self.shared
            .write_in_term(&session, (token, token), true, writes)
            .await
    }

    /// Writes the member now, or as soon as there is a session.
    async fn announce(&self, member: &Member) -> Result<()> {
        let members = &self.shared.members;
        let mut announced = members.announced.lock().await;
        *announced = Some(member.clone());
        drop(announced);
        let written = match self.shared.connection.session() {
            Ok(session) => members.write(&session).await,
            Err(error) => Err(error),
        };
        match written {
            Err(error) if error.outcome() != Outcome::Fatal => {
                tracing::debug!(%error, "the member could not be announced: retrying");
                members.changed.notify_one();
                Ok(())
            }
            done => done,
        }
    }

    async fn members(&self) -> Result<Vec<Member>> {
        let session = self.shared.connection.session()?;
        session.sync().await?;
        let directory = self.shared.connection.path(path::MEMBERS);
        let names = session.children(&directory).await?.unwrap_or_default();
        let paths: Vec<_> = names
            .iter()
            .map(|name| format!("{directory}/{name}"))
            .collect();
        if paths.is_empty() {
            return Ok(Vec::new());
        }
        let nodes = session.read(&paths).await?;
        let mut members = Vec::new();
        for (name, node) in names.iter().zip(nodes) {
            let Some(node) = node else { continue };
            match decode(&format!("{}/{name}", path::MEMBERS), &node) {
                Ok(member) => members.push(member),
                Err(error) => tracing::warn!(%error, "an unreadable member is skipped"),
            }
        }
        members.sort_by(|a: &Member, b| a.process.cmp(&b.process));
        Ok(members)
    }

    async fn close(&self) {
        self.shared.connection.close().await;
        self.session.send_replace(SessionState::None);
    }
}

/// The nodes at [`Shared::fixed_paths`].
struct Found {
    view: ElectionView,
    /// The node `leader` exists, even if it is unreadable.
    has_leader: bool,
    /// The node `leader-info` exists, even if it is unreadable.
    has_info: bool,
}

impl Found {
    fn of(nodes: &[Option<Node>]) -> Result<Found> {
        let [epoch, leader, info] = nodes else {
            return Err(unavailable(format!(
                "{} nodes instead of three",
                nodes.len()
            )));
        };
        let at = epoch.as_ref().map_or(0, |node| node.version);
        let (epoch, unreadable) = match epoch.as_ref().map(decode_epoch).transpose() {
            Ok(epoch) => (epoch, None),
            Err(error) => {
                let reason = error.to_string();
                let token = EpochToken(u64::try_from(at).unwrap_or(0));
                (None, Some(Unreadable { reason, token }))
            }
        };
        let view = ElectionView {
            // A standalone server stores no identity that a copy of its data would not contain.
            store: None,
            epoch,
            unreadable,
            leader: readable(path::LEADER, leader.as_ref()),
            info: readable(path::LEADER_INFO, info.as_ref()),
            is_resigned: false,
        };
        Ok(Found {
            view,
            has_leader: leader.is_some(),
            has_info: info.is_some(),
        })
    }
}

/// An unreadable value counts as missing: its owner writes it again.
fn readable<T: DeserializeOwned>(key: &str, node: Option<&Node>) -> Option<T> {
    let decoded = decode(key, node?);
    decoded
        .inspect_err(|error| tracing::debug!(%error, "an unreadable value is ignored"))
        .ok()
}

fn unsettled() -> Error {
    unavailable("the nodes kept changing under a transaction")
}
