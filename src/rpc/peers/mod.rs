//! Communication between processes besides the components: heartbeats, questions about the leader, invitations
//! to depose.
//!
//! [`client`] implements the detector's [`Peers`](tanist_ha::detector::Peers) over the wire; [`witness`] is the
//! answering side in a TaskManager; [`messages`] converts. The JobManager's own service is created where its
//! process is wired.

pub mod client;
pub mod messages;
pub mod witness;

pub use client::TonicPeers;
