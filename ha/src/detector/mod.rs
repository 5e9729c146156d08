//! Detects a leader that is dead, frozen or unreachable long before its lease ends, and deposes it.
//!
//! Each standby keeps one stream of *heartbeats* from the leader. Its conclusions are evidence, never proof,
//! and decide only how soon it deposes: the fence of every write makes that safe. A wrong conclusion costs a
//! change of leader.
//!
//! - [`peer_heartbeat`]: the messages between processes; [`peers`]: the trait that sends them.
//! - [`core`]: the pure decisions, with [`silence`] and [`inquiry`] as its parts; [`event`]: its input and
//!   output.
//! - [`service`]: [`Detector`], and `actor`, which runs the core beside an election.
//! - [`transfer`]: deposition by invitation; `hand_over`: invites a standby that reaches the followers that
//!   the leader misses.

mod actor;
pub mod core;
pub mod event;
mod hand_over;
pub mod inquiry;
pub mod peer_heartbeat;
pub mod peers;
pub mod service;
pub mod silence;
#[cfg(test)]
mod tests;
pub mod transfer;

pub use event::DetectorOptions;
pub use peer_heartbeat::{
    Break, Invitation, LivenessQuery, PeerHeartbeat, Phase, Progress, Reply, Role, SchedulingAges,
};
pub use peers::{HeartbeatStream, Peers};
pub use service::{Detector, DetectorServices, Identity};
pub use transfer::TransferError;
