//! A whole cluster in one process on paused time: several JobManagers and TaskManagers, the memory store, a local network.
//!
//! What runs is what real processes run: [`super::contender`] and [`super::taskmanager::start_executor`]. Tasks are
//! scripted, unless a test brings its own. All that matters is written down in one order ([`history`]), and judged at the end
//! ([`invariants`]). Any step of a JobManager (a commit, a call, a sink's commit) can be its last ([`world`]).

pub(super) mod client;
pub(super) mod cluster;
mod election;
mod executor;
pub(super) mod faults;
pub(super) mod graphs;
pub(super) mod history;
pub(super) mod invariants;
pub(super) mod obedience;
mod outputs;
pub(super) mod reached;
pub(super) mod running;
mod sinks;
pub(super) mod store;
pub(super) mod tasks;
mod waiting;
pub(super) mod weather;
pub(super) mod world;
