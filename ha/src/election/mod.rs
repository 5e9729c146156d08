//! Leader election with fencing: who leads, in which epoch, and how another process ends that.
//!
//! - [`driver`]: what an election needs from a store; each backend implements it.
//! - [`core`]: the decisions, pure; [`event`]: what goes into it and comes out.
//! - `actor`: runs the core on a driver; [`service`]: the handle to it: [`LeaderElection`].
//! - `claims`: epochs that messages tell of and the own store does not have: [`Claim`].
//! - `accepting`: makes a restored or copied store the cluster's: [`accept`].
//! - `deposing`: wishes to end another's term: [`Wish`].
//! - [`session`]: leadership as a value: [`Leadership`], [`LeaderSession`].
//! - [`takeover`]: how a term came about, by name: [`Takeover`].

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
pub use deposing::Wish;
pub use driver::*;
pub use service::{ElectionOptions, LeaderElection};
pub use session::{LeaderSession, Leadership, NotLeading};
pub use takeover::{Detection, Evidence, Former, Takeover};
