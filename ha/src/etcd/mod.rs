//! The etcd backend: elections and records in etcd 3.4 or newer.
//!
//! The token of a term is the modification revision of the key `epoch`. Every guarded write compares it, and the value
//! of `epoch` too, as revisions start again when the store is wiped. `leader` and the members live under a lease, which
//! a task keeps alive on the election's own connection.
//!
//! What etcd does not do for its clients is done here: a call that was never sent goes to another endpoint; watches and
//! lease streams are established anew after every break; an expired token is renewed. A request that may have been
//! applied is never repeated here.

mod client;
mod election;
mod follow;
mod health;
mod lease;
mod permissions;
mod status;
mod store;
#[cfg(all(test, feature = "testing"))]
mod tests;
mod values;

use std::fmt;
use std::time::Duration;

use etcd_client::DeleteOptions;

use self::client::{Connection, Repeat};
use self::values::Keys;
use crate::clock::Clock;
use crate::error::{Error, Result};

pub use election::EtcdElection;
pub use store::EtcdStore;

/// How errors name this store.
const STORE: &str = "etcd";

/// Where etcd is, and how it is used.
#[derive(Clone)]
pub struct EtcdOptions {
    /// The servers, as `http://host:port` or `host:port`.
    pub endpoints: Vec<String>,
    /// The prefix of all keys, such as `/tanist/default`.
    pub namespace: String,
    /// Name and password, if etcd asks for them.
    pub user: Option<(String, String)>,
    /// How long the leader's lease lasts; whole seconds, and etcd may grant more.
    pub lease_ttl: Duration,
    /// How long a call may take before its answer counts as lost.
    pub request_timeout: Duration,
    /// The servers' `--quota-backend-bytes`, for those that don't say it (before 3.6); none: taken for etcd's default.
    pub quota_bytes: Option<u64>,
}

impl Default for EtcdOptions {
    fn default() -> EtcdOptions {
        EtcdOptions {
            endpoints: vec!["http://127.0.0.1:2379".to_owned()],
            namespace: "/tanist/default".to_owned(),
            user: None,
            lease_ttl: Duration::from_secs(5),
            request_timeout: Duration::from_secs(5),
            quota_bytes: None,
        }
    }
}

impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("namespace", &self.namespace)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("lease_ttl", &self.lease_ttl)
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }
}

impl EtcdOptions {
    /// Refuses what can't work, before anything is connected.
    fn check(&self) -> Result<()> {
        let misconfigured = |text: &'static str| Err(Error::Misconfigured(text.into()));
        if self.endpoints.is_empty() {
            return misconfigured("etcd needs at least one endpoint");
        }
        if self.namespace.trim_matches('/').is_empty() {
            return misconfigured("the namespace in etcd must not be empty: use /tanist/<cluster>");
        }
        if self.lease_ttl.is_zero() || self.request_timeout.is_zero() {
            return misconfigured("lease and request timeout of etcd must be longer than zero");
        }
        Ok(())
    }
}

/// Connects for an election. With `contends`, a lease is kept from now on. Returns soon, also if no server answers:
/// `Unreachable`, `Unavailable` or `Denied`; callers try again.
pub async fn open_election(
    options: EtcdOptions,
    clock: Clock,
    contends: bool,
) -> Result<EtcdElection> {
    options.check()?;
    EtcdElection::open(options, clock, contends).await
}

/// Connects for reading and writing records, on a connection of its own. Returns soon, as [`open_election`] does.
pub async fn open_store(options: EtcdOptions) -> Result<EtcdStore> {
    options.check()?;
    EtcdStore::open(options).await
}

/// Removes all that is there of a cluster that has ended for good, its epochs too: nobody may contend for it any more.
pub async fn remove_cluster(options: EtcdOptions) -> Result<()> {
    options.check()?;
    let keys = Keys::new(&options.namespace);
    let connection = Connection::new(options);
    let removing = connection.call(Repeat::Always, |client| {
        let all = DeleteOptions::new().with_prefix();
        let prefix = keys.prefix().to_owned();
        async move { client.kv_client().delete(prefix, Some(all)).await }
    });
    removing.await.map(drop)
}
