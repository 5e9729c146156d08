//! The requests between the JobManagers of a cluster: heartbeats, queries about the leader, invitations to
//! depose, requests to hand over.
//!
//! The detector's own requests are [`Peers`]; [`PeerConnector`] adds those of the leadership. The other side of
//! all of them is [`PeerGateway`], which a [`PeerServer`] offers to the peers.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tanist_ha::detector::{
    HeartbeatStream, Invitation, LivenessQuery, PeerHeartbeat, Peers, Reply, TransferError,
};
use tanist_ha::election::{Epoch, ProcessId, TermHolder};
use tanist_proto::v1 as pb;

use super::GatewayResult;

/// Reaches the peers of a process by their addresses.
#[async_trait]
pub trait PeerConnector: Peers {
    /// Asks the leader at `address` to hand over: to the process named, else to the most current standby.
    /// Returns the successor's epoch. `Conflict`: no process took over. `NotYet`: it does not lead, or can't be
    /// reached.
    async fn transfer(&self, address: &str, to: Option<&ProcessId>) -> GatewayResult<Epoch>;

    /// Asks the process at `address` whether its store lists the process `who`. The error says why there is no
    /// answer.
    async fn ask_belonging(
        &self,
        address: &str,
        who: &TermHolder,
    ) -> Result<pb::AskBelongingResponse, String>;
}

/// A JobManager as its peers reach it.
#[async_trait]
pub trait PeerGateway: Send + Sync + fmt::Debug + 'static {
    /// Its heartbeat at this moment.
    fn heartbeat(&self) -> PeerHeartbeat;

    /// Its heartbeats: the first one at once, then at intervals, and whenever its role changes or it gives up
    /// its term.
    fn heartbeats(&self) -> HeartbeatStream;

    /// Invites it to depose `leader` in `epoch`, within `bound`. Returns when it leads; the error says why it
    /// does not.
    async fn invite(
        &self,
        leader: ProcessId,
        epoch: Epoch,
        invitation: Invitation,
        bound: Duration,
    ) -> Result<(), String>;

    /// Number of the processes at these addresses that answer it when it asks them `query`.
    async fn count_reached(&self, query: &LivenessQuery, addresses: &[String]) -> usize;

    /// Whether its store lists the process `who`. The error says why there is no answer.
    async fn ask_belonging(&self, who: &TermHolder) -> Result<pb::AskBelongingResponse, String>;

    /// Hands its term over: to the process named, else to the most current standby. Returns the successor's
    /// epoch.
    async fn transfer(&self, to: Option<&ProcessId>) -> Result<Epoch, TransferError>;

    /// What it knows of a leader.
    async fn answer(&self, query: &LivenessQuery) -> Reply;
}

/// Offers a JobManager to its peers, on a port that carries nothing else.
#[async_trait]
pub trait PeerServer: Send + Sync + fmt::Debug + 'static {
    /// Serves `peer` on the runtime of the caller, for as long as that lives. An error: it can't be served.
    async fn serve(&self, peer: Arc<dyn PeerGateway>) -> io::Result<()>;
}
