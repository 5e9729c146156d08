//! A whole cluster in one process on paused time: several JobManagers and TaskManagers, the memory store, a
//! local network.
//!
//! The code is that of real processes: [`tanist_leadership`] and [`tanist_task_executor`]. Tasks
//! are scripted, unless a test brings its own. All relevant events are recorded in one order ([`history`]), and
//! checked at the end ([`invariants`]). A JobManager can die at any of its steps (a commit, a call, a sink's
//! commit): see [`world`].

pub(super) mod checkpoints;
pub(super) mod client;
pub(super) mod cluster;
mod election;
mod executor;
pub(super) mod faults;
pub(super) mod fencing_invariants;
pub(super) mod graphs;
pub(super) mod history;
pub(super) mod invariants;
mod outputs;
pub(super) mod random_faults;
pub(super) mod reached;
pub(super) mod running;
mod sinks;
pub(super) mod store;
pub(super) mod tasks;
mod waiting;
pub(super) mod world;
