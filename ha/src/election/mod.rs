//! Leader election with fencing: who leads, in which epoch, and how another process ends that.
//!
//! - [`driver`]: what an election needs from a store; each backend implements it.
//! - [`core`]: the decisions, pure; [`event`]: what goes into it and comes out.
//! - `actor`: runs the core on a driver; [`service`]: the handle to it: [`LeaderElection`].
//! - `deposing`: wishes to end another's term: [`Wish`].
//! - [`session`]: leadership as a value: [`Leadership`], [`LeaderSession`].
//! - [`takeover`]: how a term came about, by name: [`Takeover`].

mod actor;
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

pub use deposing::Wish;
pub use driver::*;
pub use service::{ElectionOptions, LeaderElection};
pub use session::{LeaderSession, Leadership, NotLeading};
pub use takeover::{Detection, Evidence, Former, Takeover};
