//! How processes reach each other beside the components: signs of life, questions about the leader, invitations.
//!
//! The [`client`] is the detector's [`Peers`](tanist_ha::detector::Peers) over the wire; [`witness`] is how a TaskManager
//! answers; [`messages`] translates. The JobManager's own service is built where its process is wired.

pub mod client;
pub mod messages;
pub mod witness;

pub use client::TonicPeers;
