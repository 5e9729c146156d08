//! Communication between the processes of a cluster, without the store: a trait that the user of this crate
//! implements over its own transport. It decides nothing, and a failed call only says how it failed: a [`Break`], or of
//! an invitation a text.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use super::peer_heartbeat::{Break, Invitation, LivenessQuery, PeerHeartbeat, Reply};
use crate::election::{Epoch, ProcessId};

/// Incoming heartbeats. The stream ends with the connection.
pub type HeartbeatStream = BoxStream<'static, PeerHeartbeat>;

/// The other processes of the cluster, by address. Calls have no timeout here: the caller sets it.
#[async_trait]
pub trait Peers: Send + Sync + fmt::Debug + 'static {
    /// Opens the heartbeat stream of the process at `address`. The first heartbeat follows at once.
    async fn heartbeats(&self, address: &str) -> Result<HeartbeatStream, Break>;

    /// Gets one heartbeat of the process at `address`.
    async fn probe(&self, address: &str) -> Result<PeerHeartbeat, Break>;

    /// Asks the process at `address` about a leader.
    async fn query(&self, address: &str, query: &LivenessQuery) -> Result<Reply, Break>;

    /// Number of the processes at the addresses `of` that answer the process at `address` when it asks them
    /// `query`.
    async fn count_reached(
        &self,
        address: &str,
        query: &LivenessQuery,
        of: &[String],
    ) -> Result<usize, Break>;

    /// Invites the process at `address` to depose `leader` in `epoch`, within `bound`. Returns when it leads;
    /// the error says why it does not.
    async fn invite(
        &self,
        address: &str,
        leader: &ProcessId,
        epoch: Epoch,
        invitation: Invitation,
        bound: Duration,
    ) -> Result<(), String>;
}
