//! Leader election with fencing: which process leads, in which epoch, and how another process ends that term.
//!
//! The actor owns all state of one process's election; the store owns the keys. An election bounds the time
//! without a leader. Two processes may believe at the same time that they lead: only the fence of each write makes
//! that safe.
//!
//! - [`driver`]: the store operations that an election needs; each backend implements it.
//! - [`core`]: the pure decisions; [`event`]: their input and output.
//! - `actor`: runs the core on a driver; [`service`]: its handle, [`LeaderElection`].
//! - `claims`: epochs in messages that the own store does not have: [`Claim`].
//! - `accepting`: makes a restored or copied store the cluster's store: [`accept`].
//! - `confirming`: publishes `leader-info` again when another writer changes it.
//! - `deposing`: pending requests to depose another process: [`DeposeRequest`].
//! - `hold_off`: how long free leadership is left to the former term.
//! - [`session`]: leadership as a value: [`Leadership`], [`LeaderSession`].
//! - [`takeover`]: why a term followed another one: [`Takeover`].

mod accepting;
mod actor;
mod claims;
mod confirming;
pub mod core;
#[cfg(test)]
mod core_tests;
mod deposing;
pub mod driver;
pub mod event;
mod hold_off;
pub mod service;
pub mod session;
pub mod takeover;
#[cfg(test)]
mod tests;

pub use accepting::{Acceptance, accept, propose};
pub use claims::Claim;
pub use deposing::DeposeRequest;
pub use driver::*;
pub use service::{ElectionOptions, LeaderElection};
pub use session::{LeaderSession, Leadership, NotLeading};
pub use takeover::{Detection, Evidence, Former, Takeover};
