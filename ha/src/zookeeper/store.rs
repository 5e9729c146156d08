//! The records part of the ZooKeeper backend.
//!
//! A transaction is one multi: it checks the version of `epoch` and its incarnation, the existence of
//! `leader` and the version of `changes`, then makes the writes, then sets the ring entry. ZooKeeper has no
//! upsert and no idempotent delete, so the store remembers which nodes it has seen and guesses; after a wrong
//! guess the whole transaction is refused, corrected and sent again.
//!
//! Invariants: at the data version of `changes` that the transaction expects, `changes` had the value that
//! the request follows, and the incarnation was the fence's, as read in this session. So no copy of a request
//! can be applied after another one, and none in a store that was wiped in between.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::{try_join, try_join_all};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::client::Connection;
use super::follow::follow;
use super::health::health;
use super::multi::{OPERATION_OVERHEAD, Operation, REQUEST_LIMIT, Reply, check_size};
use super::nodes::{decode, decode_epoch, encode, fence, marker, ring};
use super::permissions;
use super::session::{Node, STORE, Session, unavailable};
use crate::election::{ClusterIncarnation, Nonce};
use crate::error::{Error, Result};
use crate::keys::{CHANGES_RING, Key, Kind, Kinds, Name, path};
use crate::store::health::StoreHealth;
use crate::store::{
    Change, CommitReply, CommitRequest, CoordinationStore, Fence, Guard, Limits, Page, PageToken,
    Touched, Write,
};

/// Maximum number of corrections of a transaction.
const CORRECTIONS: usize = 5;
/// Limit of writes in one transaction, as reported to callers.
const WRITES: usize = 512;
/// Limits for multi-reads: number in flight, nodes in each, and bytes in each.
const READS_IN_FLIGHT: usize = 4;
const NODES_PER_READ: usize = 100;
const BYTES_PER_READ: usize = 2 << 20;
/// Nodes in a multi-read while their size is unknown.
const NODES_PER_FIRST_READ: usize = 16;
/// Number of operations before the writes: `epoch`, its incarnation, `leader`, `changes`, built in this order by
/// [`ZooKeeperStore::operations`]. `commit` relies on it: it takes a refusal below this index for that of a guard,
/// and the version of the last of them for that of `changes`.
const GUARDS: usize = 4;

/// The records part on its own session. Dropping it ends its session.
#[derive(Debug)]
pub struct ZooKeeperStore {
    connection: Connection,
    kinds: Kinds,
    /// All servers, for health requests to each.
    quorum: Vec<String>,
    changes: watch::Sender<Option<Change>>,
    /// Locked while a transaction is in flight. `None`: not known, so it is read before the next transaction.
    position: tokio::sync::Mutex<Option<Position>>,
    /// Nodes that existed when last seen, relative to the namespace: a guess, not a fact.
    present: Mutex<HashSet<String>>,
    /// The sorted names of unfinished listings.
    listings: Mutex<HashMap<Kind, Arc<Vec<Name>>>>,
}

/// The state of `changes`, as this session knows it.
#[derive(Debug)]
struct Position {
    session: Nonce,
    incarnation: ClusterIncarnation,
    change: Change,
    /// The data version of `changes` with that value.
    version: i32,
}

impl ZooKeeperStore {
    pub(super) fn start(
        connection: Connection,
        kinds: Kinds,
        quorum: Vec<String>,
    ) -> ZooKeeperStore {
        let changes = watch::Sender::new(None);
        let report = changes.clone();
        let paths = vec![connection.path(path::CHANGES)];
        connection.spawn(follow(
            connection.sessions(),
            paths,
            move |nodes| match decode_change(nodes.first().and_then(Option::as_ref)) {
                Ok(change) => {
                    report.send_if_modified(|last| last.replace(change) != Some(change));
                }
                Err(error) => tracing::error!(%error, "the change number can't be read"),
            },
        ));
        ZooKeeperStore {
            connection,
            kinds,
            quorum,
            changes,
            position: tokio::sync::Mutex::new(None),
            present: Mutex::default(),
            listings: Mutex::default(),
        }
    }

    /// Ends the session, and waits until the server has closed it.
    pub async fn close(&self) {
        self.connection.close().await;
    }

    /// Reads the values that the guards would find, and the data version of `changes`.
    async fn read_guard(&self, session: &Session) -> Result<(Guard, i32)> {
        let paths = [path::EPOCH, path::LEADER, path::CHANGES].map(|name| session.path(name));
        let nodes = session.read_linearizable(&paths).await?;
        let [epoch, leader, changes] = nodes.as_slice() else {
            return Err(unavailable(format!(
                "{} nodes instead of three",
                nodes.len()
            )));
        };
        let epoch = epoch.as_ref().map(decode_epoch).transpose()?;
        let guard = Guard {
            epoch: epoch.map(|(record, token)| (record.epoch, token, record.incarnation)),
            leader_present: leader.is_some(),
            change: decode_change(changes.as_ref())?,
        };
        // If the node is missing, every transaction is refused, whichever version it expects.
        Ok((guard, changes.as_ref().map_or(0, |node| node.version)))
    }

    /// Reads many nodes with several concurrent multi-reads, each of a size that suits the server.
    async fn read_all(&self, session: &Session, paths: &[String]) -> Result<Vec<Option<Node>>> {
        let mut nodes: Vec<Option<Node>> = Vec::with_capacity(paths.len());
        let mut per_read = NODES_PER_FIRST_READ;
        let mut bytes = 0;
        while nodes.len() < paths.len() {
            let rest = &paths[nodes.len()..];
            let round = &rest[..rest.len().min(per_read * READS_IN_FLIGHT)];
            let reads = try_join_all(round.chunks(per_read).map(|chunk| session.read(chunk)));
            for node in reads.await?.into_iter().flatten() {
                bytes += node.as_ref().map_or(0, |node| node.data.len());
                nodes.push(node);
            }
            let average = (bytes / nodes.len()).max(1);
            per_read = (BYTES_PER_READ / average).clamp(1, NODES_PER_READ);
        }
        Ok(nodes)
    }

    /// Looks up which of the nodes exist now, and remembers it.
    async fn refresh_known(&self, session: &Session, nodes: &[String]) -> Result<()> {
        let paths: Vec<_> = nodes.iter().map(|node| session.path(node)).collect();
        let there = session.stats(&paths).await?;
        self.note_known(nodes.iter().cloned().zip(there));
        Ok(())
    }

    fn note_known(&self, nodes: impl IntoIterator<Item = (String, bool)>) {
        let mut present = self.present.lock();
        for (node, there) in nodes {
            if there {
                present.insert(node);
            } else {
                present.remove(&node);
            }
        }
    }

    /// Builds the transaction for the nodes as last seen. A put takes a node that was never seen for absent;
    /// a delete takes it for present unless it was `is_refreshed`: deleting a missing node is refused and
    /// corrected, but a skipped deletion would be lost.
    fn operations(
        &self,
        session: &Session,
        request: &CommitRequest,
        changes_version: i32,
        is_refreshed: bool,
    ) -> Result<Vec<Operation>> {
        let present = self.present.lock();
        let put = |node: &str, data: Bytes| {
            let path = session.path(node);
            if present.contains(node) {
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
            }
        };
        let Fence {
            token, incarnation, ..
        } = &request.fence;
        let mut operations = fence(session, *token, incarnation)?.to_vec();
        operations.push(Operation::Check {
            path: session.path(path::LEADER),
            version: None,
        });
        operations.push(Operation::Set {
            path: session.path(path::CHANGES),
            data: encode(&request.change())?,
            version: Some(changes_version),
        });
        for write in &request.writes {
            match write {
                Write::Put { key, value } => operations.push(put(&key.to_string(), value.clone())),
                Write::Delete { key } if !is_refreshed || present.contains(&key.to_string()) => {
                    operations.push(Operation::Delete {
                        path: session.path(&key.to_string()),
                    });
                }
                Write::Delete { .. } => {}
            }
        }
        operations.push(put(
            &ring(request.change().number),
            encode(&request.touched())?,
        ));
        Ok(operations)
    }
}

#[async_trait]
impl CoordinationStore for ZooKeeperStore {
    fn limits(&self) -> Limits {
        // The size of a write counts its name once, but a request contains the name twice, in the path and in the ring.
        // The path also has the namespace as prefix.
        let uncounted = self.connection.path("/").len() + self.kinds.longest_directory() + 200;
        let guards = GUARDS
            * (OPERATION_OVERHEAD
                + self
                    .connection
                    .path(&marker(&ClusterIncarnation::generate()))
                    .len());
        let bytes = REQUEST_LIMIT - WRITES * uncounted - 2 * guards;
        Limits {
            writes: WRITES,
            bytes,
        }
    }

    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Bytes>>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        self.kinds.check(keys.iter().map(|key| key.kind))?;
        let session = self.connection.session()?;
        let names: Vec<_> = keys.iter().map(Key::to_string).collect();
        let paths: Vec<_> = names.iter().map(|name| session.path(name)).collect();
        let nodes = self.read_all(&session, &paths);
        let (_, nodes) = try_join(session.barrier(), nodes).await?;
        self.note_known(names.into_iter().zip(nodes.iter().map(Option::is_some)));
        Ok(nodes
            .into_iter()
            .map(|node| node.map(|node| node.data))
            .collect())
    }

    /// Lists the names once, at the first page. Items that are gone when their page is read are skipped, so a
    /// page may have fewer items than requested although more pages follow.
    async fn list(&self, kind: Kind, page: Option<PageToken>, limit: usize) -> Result<Page> {
        self.kinds.check([kind])?;
        let session = self.connection.session()?;
        let kept = page.as_ref().and_then(|_| {
            let listings = self.listings.lock();
            listings.get(&kind).cloned()
        });
        let names = match kept {
            Some(names) => names,
            None => Arc::new(names(&session, kind).await?),
        };
        let start = page.map_or(0, |page| names.partition_point(|name| *name <= page.after));
        let end = names.len().min(start.saturating_add(limit.max(1)));
        let keys: Vec<_> = names[start..end]
            .iter()
            .map(|name| Key::new(kind, name.clone()).to_string())
            .collect();
        let paths: Vec<_> = keys.iter().map(|key| session.path(key)).collect();
        let nodes = self.read_all(&session, &paths);
        // The session may differ from the previous page's, on a server that is further behind.
        let (_, nodes) = try_join(session.barrier(), nodes).await?;
        self.note_known(keys.into_iter().zip(nodes.iter().map(Option::is_some)));

        let mut listings = self.listings.lock();
        let next = if end < names.len() {
            listings.insert(kind, names.clone());
            Some(PageToken {
                after: names[end - 1].clone(),
                revision: None,
            })
        } else {
            listings.remove(&kind);
            None
        };
        let items = names[start..end].iter().zip(nodes);
        let items = items
            .filter_map(|(name, node)| Some((name.clone(), node?.data)))
            .collect();
        Ok(Page { items, next })
    }

    async fn keys(&self, kinds: &[Kind]) -> Result<Vec<Key>> {
        self.kinds.check(kinds.iter().copied())?;
        let session = self.connection.session()?;
        // One sync for all of them, because a takeover waits for it.
        session.sync().await?;
        let listings = kinds.iter().map(|kind| {
            let session = &session;
            async move {
                let names = synced_names(session, *kind).await?.into_iter();
                Ok::<_, Error>(names.map(|name| Key::new(*kind, name)))
            }
        });
        let listed = try_join_all(listings).await?;
        Ok(listed.into_iter().flatten().collect())
    }

    async fn guard(&self) -> Result<Guard> {
        let session = self.connection.session()?;
        Ok(self.read_guard(&session).await?.0)
    }

    async fn health(&self) -> Result<StoreHealth> {
        let asked = Instant::now();
        self.guard().await?;
        Ok(health(&self.quorum, asked.elapsed()).await)
    }

    async fn missing_permissions(&self) -> Result<Vec<String>> {
        permissions::missing(&*self.connection.session()?, self.kinds).await
    }

    fn changes(&self) -> watch::Receiver<Option<Change>> {
        self.changes.subscribe()
    }

    async fn touched(&self, first: u64, last: u64) -> Result<Vec<Option<Touched>>> {
        let numbers: Vec<_> = (first..=last).take(CHANGES_RING as usize).collect();
        if numbers.is_empty() {
            return Ok(Vec::new());
        }
        let session = self.connection.session()?;
        session.sync().await?;
        let paths: Vec<_> = numbers
            .iter()
            .map(|number| session.path(&ring(*number)))
            .collect();
        let nodes = self.read_all(&session, &paths).await?;
        let entry = |(number, node): (&u64, Option<Node>)| {
            let Some(node) = node else { return Ok(None) };
            let touched: Touched = decode(&ring(*number), &node)?;
            Ok((touched.change.number == *number).then_some(touched))
        };
        numbers.iter().zip(nodes).map(entry).collect()
    }

    async fn commit(&self, request: &CommitRequest) -> Result<CommitReply> {
        self.kinds.check(request.kinds())?;
        let mut position = self.position.lock().await;
        let session = self.connection.session()?;
        let mut is_refreshed = false;
        for _ in 0..CORRECTIONS {
            // An earlier session may have read a store that was wiped since, and versions repeat after that.
            let fits = position.as_ref().is_some_and(|position| {
                position.session == *session.nonce()
                    && position.change == request.after
                    && position.incarnation == request.fence.incarnation
            });
            if !fits {
                let (guard, version) = self.read_guard(&session).await?;
                let Some((_, _, incarnation)) = &guard.epoch else {
                    return Ok(CommitReply::Refused(guard));
                };
                if guard.change != request.after || *incarnation != request.fence.incarnation {
                    return Ok(CommitReply::Refused(guard));
                }
                *position = Some(Position {
                    session: session.nonce().clone(),
                    incarnation: incarnation.clone(),
                    change: guard.change,
                    version,
                });
            }
            // Cleared until the answer is known: if this call ends early, no wrong position is left.
            let Some(known) = position.take() else {
                continue;
            };
            let operations = self.operations(&session, request, known.version, is_refreshed)?;
            check_size(&operations)?;
            match session.commit(&operations).await? {
                Reply::Applied(versions) => {
                    self.note_known(request.writes.iter().map(|write| {
                        (write.key().to_string(), matches!(write, Write::Put { .. }))
                    }));
                    self.note_known([(ring(request.change().number), true)]);
                    *position =
                        versions
                            .get(GUARDS - 1)
                            .copied()
                            .flatten()
                            .map(|version| Position {
                                change: request.change(),
                                version,
                                ..known
                            });
                    return Ok(CommitReply::Applied);
                }
                Reply::Refused { index } if index < GUARDS => {
                    let (guard, _) = self.read_guard(&session).await?;
                    if !would_pass(&guard, request) {
                        return Ok(CommitReply::Refused(guard));
                    }
                    // `leader` is back, or `changes` does not exist at all.
                    session.make_directories().await?;
                }
                Reply::Refused { .. } => {
                    // A node was created or deleted since it was last seen; a missing directory also has this
                    // result.
                    session.make_directories().await?;
                    let writes = request.writes.iter().map(|write| write.key().to_string());
                    let nodes: Vec<_> = writes.chain([ring(request.change().number)]).collect();
                    self.refresh_known(&session, &nodes).await?;
                    is_refreshed = true;
                    *position = Some(known);
                }
            }
        }
        Err(Error::Unavailable {
            store: STORE,
            reason: "the nodes kept changing under a transaction".into(),
        })
    }
}

/// Whether the cause of a refusal has passed: `leader` may have been attached again in between.
fn would_pass(guard: &Guard, request: &CommitRequest) -> bool {
    guard.leader_present
        && guard.change == request.after
        && guard.epoch.as_ref().is_some_and(|(_, token, incarnation)| {
            *token == request.fence.token && *incarnation == request.fence.incarnation
        })
}

/// Decodes the value of `changes`, which is created as an empty directory.
fn decode_change(node: Option<&Node>) -> Result<Change> {
    match node {
        Some(node) if !node.data.is_empty() => decode(path::CHANGES, node),
        _ => Ok(Change::default()),
    }
}

/// The names of a kind at present.
async fn names(session: &Session, kind: Kind) -> Result<Vec<Name>> {
    session.sync().await?;
    synced_names(session, kind).await
}

/// The names as this session's server has them.
async fn synced_names(session: &Session, kind: Kind) -> Result<Vec<Name>> {
    let directory = session.path(kind.directory());
    let children = session.children(&directory).await?.unwrap_or_default();
    let mut names: Vec<_> = children.into_iter().filter_map(known_name).collect();
    names.sort_unstable();
    Ok(names)
}

fn known_name(text: String) -> Option<Name> {
    Name::new(text)
        .inspect_err(|error| tracing::warn!(%error, "a foreign node in ZooKeeper is skipped"))
        .ok()
}
