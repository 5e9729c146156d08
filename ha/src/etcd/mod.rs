//! The etcd backend: elections and records in etcd 3.4 or newer.
//!
//! The token of a term is the modification revision of the key `epoch`. Every guarded write compares it, and
//! also the value of `epoch`, because revisions restart when the store is wiped. `leader` and the members are
//! under a lease, which a task keeps alive on the election's own connection.
//!
//! This module adds what etcd does not do for its clients: a call that was never sent goes to another
//! endpoint; watches and lease streams are opened again after every break; an expired token is renewed. A
//! request that may have been applied is never repeated here.

mod backend;
mod client;
#[cfg(feature = "testing")]
pub mod conformance;
mod election;
mod follow;
mod health;
mod lease;
mod permissions;
mod status;
mod store;
#[cfg(feature = "testing")]
pub mod test_servers;
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
use crate::keys::Kinds;

pub use election::EtcdElection;
pub use store::EtcdStore;

/// The name of this store in errors.
const STORE: &str = "etcd";

/// Location of etcd, and timeouts.
#[derive(Clone)]
pub struct EtcdOptions {
    /// The servers, as `http://host:port` or `host:port`.
    pub endpoints: Vec<String>,
    /// The prefix of all keys, such as `/tanist/default`.
    pub namespace: String,
    /// Name and password, if etcd requires them.
    pub user: Option<(String, String)>,
    /// Lifetime of the leader's lease in whole seconds; etcd may grant more.
    pub lease_ttl: Duration,
    /// Timeout of a call, after which its answer counts as lost.
    pub request_timeout: Duration,
    /// The servers' `--quota-backend-bytes`, for servers before 3.6, which don't report it; `None`: etcd's
    /// default is assumed.
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
    /// Refuses an invalid configuration before connecting.
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

/// Connects for an election. With `contends`, keeps a lease from then on. Returns quickly even if no server
/// answers, with `Unreachable`, `Unavailable` or `Denied`; callers retry.
pub async fn open_election(
    options: EtcdOptions,
    clock: Clock,
    contends: bool,
) -> Result<EtcdElection> {
    options.check()?;
    EtcdElection::open(options, clock, contends).await
}

/// Connects for reading and writing records, on a separate connection. Returns quickly, like
/// [`open_election`].
pub async fn open_store(options: EtcdOptions, kinds: Kinds) -> Result<EtcdStore> {
    options.check()?;
    EtcdStore::open(options, kinds).await
}

/// Removes all keys of a cluster that has ended for good, including its epochs. No process may contend for it
/// after that.
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
