//! Notices a leader that is dead, frozen or unreachable long before its lease ends, and deposes it.
//!
//! Each standby keeps one stream of *beats* to the leader. What it concludes is evidence, never proof, and decides only how
//! soon it tries: the fence of every write is what makes acting on it safe. A wrong conclusion costs a change of leader.
//!
//! - [`beat`]: what processes tell and ask each other; [`peers`]: the trait by which they do.
//! - [`core`]: the decisions, pure, with [`silence`] and [`inquiry`] as its parts; [`event`]: what goes in and comes out.
//! - [`service`]: [`Detector`], and `actor`, which runs the core beside an election.
//! - [`transfer`]: deposition by invitation; `hand_over`: inviting whoever hears the TaskManagers that the leader misses.

mod actor;
pub mod beat;
pub mod core;
pub mod event;
mod hand_over;
pub mod inquiry;
pub mod peers;
pub mod service;
pub mod silence;
#[cfg(test)]
mod tests;
pub mod transfer;

pub use beat::{Beat, Break, Invitation, Phase, Progress, Question, Reply, Stance, Turns};
pub use event::DetectorOptions;
pub use peers::{BeatStream, Peers};
pub use service::{Detector, DetectorServices, Identity};
pub use transfer::TransferError;
