//! Communication between processes besides the components: heartbeats, queries about the leader, invitations
//! to depose.
//!
//! [`client`] implements the detector's [`Peers`](tanist_ha::detector::Peers) and the leadership's
//! [`PeerConnector`](tanist_gateway::peers::PeerConnector) over the wire; [`server`] offers a JobManager to its
//! peers; [`witness`] is the answering side in a TaskManager; [`messages`] converts.

mod client;
mod messages;
mod server;
pub(super) mod witness;

pub use client::TonicPeers;
pub use server::TonicPeerServer;
