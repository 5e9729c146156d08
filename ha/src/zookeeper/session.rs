//! The requests of one session.
//!
//! Invariants:
//! - A request is passed to the client library only while it is connected: otherwise it would wait inside and
//!   be sent much later, even after its caller gave up.
//! - Only the server's own answer to a request is definite. After any other error it may have been applied.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{try_join, try_join_all};
use zookeeper_client as zk;

use super::ZooKeeperOptions;
use super::multi::{Operation, Reply, check_size};
use crate::election::Nonce;
use crate::error::{Error, Result};
use crate::keys::{Kind, Kinds, path};

/// The store's name in errors.
pub(super) const STORE: &str = "ZooKeeper";

/// A node as read.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// Its data.
    pub data: Bytes,
    /// Its data version.
    pub version: i32,
}

/// One session, from its establishment to its end.
pub(super) struct Session {
    client: zk::Client,
    nonce: Nonce,
    /// The kinds whose directories it creates.
    kinds: Option<Kinds>,
    root: String,
    acls: zk::Acls<'static>,
    request_timeout: Duration,
}

impl Session {
    /// Opens a session, and creates the directories that are missing: those of the election, and of `kinds`.
    pub(super) async fn open(options: &ZooKeeperOptions, kinds: Option<Kinds>) -> Result<Session> {
        let endpoints = options.endpoints();
        let unreachable = |reason: String| {
            let endpoints = endpoints.clone();
            Error::Unreachable {
                store: STORE,
                endpoints,
                reason,
            }
        };
        let mut connector = zk::Client::connector()
            .with_session_timeout(options.session_timeout)
            .with_fail_eagerly();
        if let Some((user, password)) = &options.digest {
            connector = connector.with_auth("digest", format!("{user}:{password}").as_bytes());
        }
        let connect = connector.connect(&endpoints);
        let client = match tokio::time::timeout(options.connect_timeout, connect).await {
            Err(_) => {
                return Err(unreachable(format!(
                    "no session in {:?}",
                    options.connect_timeout
                )));
            }
            Ok(Ok(client)) => client,
            Ok(Err(zk::Error::AuthFailed)) => return Err(denied("authentication failed")),
            Ok(Err(error @ zk::Error::BadArguments(_))) => {
                return Err(Error::Misconfigured(
                    format!("the ZooKeeper servers {endpoints}: {error}").into(),
                ));
            }
            Ok(Err(zk::Error::NoHosts)) => return Err(unreachable("no server answered".into())),
            Ok(Err(error)) => return Err(unreachable(error.to_string())),
        };
        let acls = match options.digest {
            Some(_) => zk::Acls::creator_all(),
            None => zk::Acls::anyone_all(),
        };
        let session = Session {
            nonce: Nonce::new(format!("{:x}", client.session_id().0)),
            client,
            kinds,
            root: options.root()?,
            acls,
            request_timeout: options.request_timeout,
        };
        match tokio::time::timeout(options.connect_timeout, session.make_directories()).await {
            Err(_) => {
                return Err(unreachable(
                    "the directories could not be read in time".into(),
                ));
            }
            Ok(Err(error @ (Error::NoAnswer { .. } | Error::Unavailable { .. }))) => {
                return Err(unreachable(error.to_string()));
            }
            Ok(done) => done?,
        }
        tracing::info!(session = %session.nonce, timeout = ?session.timeout(), "ZooKeeper granted a session");
        Ok(session)
    }

    /// Identifies this session.
    pub(super) fn nonce(&self) -> &Nonce {
        &self.nonce
    }

    /// The absolute path of a node that is named relative to the namespace.
    pub(super) fn path(&self, relative: &str) -> String {
        format!("{}/{relative}", self.root)
    }

    /// The namespace.
    pub(super) fn root(&self) -> &str {
        &self.root
    }

    /// The timeout that the server granted.
    pub(super) fn timeout(&self) -> Duration {
        self.client.session_timeout()
    }

    pub(super) fn state(&self) -> zk::SessionState {
        self.client.state()
    }

    /// A watcher of the connection state.
    pub(super) fn states(&self) -> zk::StateWatcher {
        self.client.state_watcher()
    }

    /// The client, if it can send requests.
    pub(super) fn connected(&self) -> Result<&zk::Client> {
        match self.state() {
            zk::SessionState::SyncConnected => Ok(&self.client),
            other => Err(unavailable(format!("the session is in state {other}"))),
        }
    }

    /// Waits for an answer, up to the request timeout.
    async fn answer<T, E>(
        &self,
        answer: impl Future<Output = Result<T, E>>,
    ) -> Result<Result<T, E>> {
        tokio::time::timeout(self.request_timeout, answer)
            .await
            .map_err(|_| no_answer(format!("none in {:?}", self.request_timeout)))
    }

    /// Creates the namespace and its directories if they are missing, and checks that they can be read.
    pub(super) async fn make_directories(&self) -> Result<()> {
        let separators = self.root.match_indices('/').skip(1).map(|(at, _)| at);
        for end in separators.chain([self.root.len()]) {
            self.make_directory(&self.root[..end]).await?;
        }
        let kinds = self
            .kinds
            .into_iter()
            .flat_map(Kinds::iter)
            .map(Kind::directory);
        try_join_all(
            kinds
                .chain([path::MEMBERS, path::CHANGES])
                .map(async |directory| self.make_directory(&self.path(directory)).await),
        )
        .await?;
        // For ZooKeeper a wrong password is just another user: only reading shows it.
        self.read(&[self.path(path::CHANGES)]).await.map(|_| ())
    }

    async fn make_directory(&self, path: &str) -> Result<()> {
        // Check existence first: creating needs a permission on the parent, which may belong to another user.
        if self.stats(&[path.to_owned()]).await?[0] {
            return Ok(());
        }
        let options = zk::CreateMode::Persistent.with_acls(self.acls);
        match self
            .answer(self.connected()?.create(path, b"", &options))
            .await?
        {
            Ok(_) | Err(zk::Error::NodeExists) => Ok(()),
            Err(error) => Err(session_error(error)),
        }
    }

    /// A round trip to the ensemble's leader, which knows whether the session is alive. Later reads in this
    /// session are at least as new as the state that that leader had applied.
    pub(super) async fn sync(&self) -> Result<()> {
        self.answer(self.connected()?.sync(&self.root))
            .await?
            .map_err(session_error)
    }

    /// Same as [`Session::sync`], but answered by a majority: a leader that does not know yet that it was
    /// replaced can't answer this.
    pub(super) async fn barrier(&self) -> Result<()> {
        let check = Operation::Check {
            path: self.root.clone(),
            version: None,
        };
        // A refusal was answered by a majority, too.
        self.commit(&[check]).await.map(|_| ())
    }

    /// Whether each of the nodes exists.
    pub(super) async fn stats(&self, paths: &[String]) -> Result<Vec<bool>> {
        let client = self.connected()?;
        let all = try_join_all(paths.iter().map(|path| client.check_stat(path)));
        let stats = self.answer(all).await?.map_err(session_error)?;
        Ok(stats.into_iter().map(|stat| stat.is_some()).collect())
    }

    /// The nonce of the session that owns an ephemeral node; `None` if the node does not exist.
    pub(super) async fn owner(&self, path: &str) -> Result<Option<Nonce>> {
        let stat = self
            .answer(self.connected()?.check_stat(path))
            .await?
            .map_err(session_error)?;
        Ok(stat.map(|stat| Nonce::new(format!("{:x}", stat.ephemeral_owner))))
    }

    /// The nodes at one moment, as the connected server has them.
    pub(super) async fn read(&self, paths: &[String]) -> Result<Vec<Option<Node>>> {
        let mut reader = self.connected()?.new_multi_reader();
        for path in paths {
            reader.add_get_data(path).map_err(session_error)?;
        }
        let results = self.answer(reader.commit()).await?.map_err(session_error)?;
        let node = |result| match result {
            zk::MultiReadResult::Data { data, stat } => Ok(Some(Node {
                data: data.into(),
                version: stat.version,
            })),
            zk::MultiReadResult::Error {
                err: zk::Error::NoNode,
            } => Ok(None),
            zk::MultiReadResult::Error { err } => Err(session_error(err)),
            other => Err(no_answer(format!("{other:?} answers a read"))),
        };
        let nodes: Vec<_> = results.into_iter().map(node).collect::<Result<_>>()?;
        if nodes.len() != paths.len() {
            return Err(no_answer(format!(
                "{} results for {} reads",
                nodes.len(),
                paths.len()
            )));
        }
        Ok(nodes)
    }

    /// The nodes at one moment that is not before this call.
    pub(super) async fn read_linearizable(&self, paths: &[String]) -> Result<Vec<Option<Node>>> {
        // One session's requests are answered in order: no need to wait for the first answer.
        let (_, nodes) = try_join(self.barrier(), self.read(paths)).await?;
        Ok(nodes)
    }

    /// The names of a directory's children; `None` if it does not exist.
    pub(super) async fn children(&self, path: &str) -> Result<Option<Vec<String>>> {
        match self.answer(self.connected()?.list_children(path)).await? {
            Ok(names) => Ok(Some(names)),
            Err(zk::Error::NoNode) => Ok(None),
            Err(error) => Err(session_error(error)),
        }
    }

    /// Sets one-shot watches on the nodes, and returns the nodes as read after the watches were set.
    pub(super) async fn watch(
        &self,
        paths: &[String],
    ) -> Result<(Vec<zk::OneshotWatcher>, Vec<Option<Node>>)> {
        let client = self.connected()?;
        let watches = try_join_all(paths.iter().map(|path| client.check_and_watch_stat(path)));
        let watches = async { self.answer(watches).await?.map_err(session_error) };
        let (watches, nodes) = try_join(watches, self.read(paths)).await?;
        Ok((watches.into_iter().map(|(_, watch)| watch).collect(), nodes))
    }

    /// Sends the operations as one transaction, once.
    pub(super) async fn commit(&self, operations: &[Operation]) -> Result<Reply> {
        check_size(operations)?;
        let mut writer = self.connected()?.new_multi_writer();
        let persistent = zk::CreateMode::Persistent.with_acls(self.acls);
        let temporary = zk::CreateMode::Ephemeral.with_acls(self.acls);
        for operation in operations {
            let added = match operation {
                // Any version matches -1.
                Operation::Check { path, version } => {
                    writer.add_check_version(path, version.unwrap_or(-1))
                }
                Operation::Create {
                    path,
                    data,
                    ephemeral,
                } => {
                    let options = if *ephemeral { &temporary } else { &persistent };
                    writer.add_create(path, data, options)
                }
                Operation::Set {
                    path,
                    data,
                    version,
                } => writer.add_set_data(path, data, *version),
                Operation::Delete { path } => writer.add_delete(path, None),
            };
            added.map_err(session_error)?;
        }
        match self.answer(writer.commit()).await? {
            Ok(results) => Ok(Reply::Applied(
                results
                    .into_iter()
                    .map(|result| match result {
                        zk::MultiWriteResult::SetData { stat } => Some(stat.version),
                        _ => None,
                    })
                    .collect(),
            )),
            // Only these errors are refusals by a guard or by the state of a node; any other may be ambiguous.
            Err(zk::MultiWriteError::OperationFailed {
                index,
                source:
                    source @ (zk::Error::NoNode
                    | zk::Error::NodeExists
                    | zk::Error::BadVersion
                    | zk::Error::NotEmpty
                    | zk::Error::NoChildrenForEphemerals),
            }) => {
                tracing::debug!(index, reason = %source, "transaction refused");
                Ok(Reply::Refused { index })
            }
            Err(error) => Err(session_error(error.into())),
        }
    }
}

/// Converts a client error that is not a refusal by a guard.
fn session_error(error: zk::Error) -> Error {
    match error {
        zk::Error::NoAuth | zk::Error::InvalidAcl => denied(error.to_string()),
        zk::Error::Throttled
        | zk::Error::QuotaExceeded
        | zk::Error::NotReadOnly
        | zk::Error::NoNode
        | zk::Error::NodeExists
        | zk::Error::BadVersion
        | zk::Error::NotEmpty
        | zk::Error::NoChildrenForEphemerals => unavailable(error.to_string()),
        zk::Error::BadArguments(_) | zk::Error::Unimplemented | zk::Error::MarshallingError => {
            Error::Misconfigured(format!("ZooKeeper can't do this: {error}").into())
        }
        // All others occur for requests in flight when the connection or the session breaks.
        other => no_answer(other.to_string()),
    }
}

fn denied(reason: impl Into<String>) -> Error {
    Error::Denied {
        store: STORE,
        reason: reason.into(),
    }
}

/// Nothing was applied; a retry may succeed.
pub(super) fn unavailable(reason: impl Into<String>) -> Error {
    Error::Unavailable {
        store: STORE,
        reason: reason.into(),
    }
}

fn no_answer(reason: impl Into<String>) -> Error {
    Error::NoAnswer {
        store: STORE,
        reason: reason.into(),
    }
}
