//! Messages between processes that no component sends: heartbeats, queries about the leader, invitations to depose,
//! transfers. The client keeps no connection. An error of a connection is a [`Break`](tanist_ha::detector::Break),
//! which the detector judges; of an invitation or a transfer, it is a text.
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
