//! The REST server of every JobManager: Flink's paths, field names and error bodies.
//!
//! Any JobManager can be asked, and the leader answers: a request finds the leader's Dispatcher through
//! [`ClusterView`], waits for one while there is no leader, and asks the next leader if the leader changes
//! meanwhile. That is allowed because a repeated request has no further effect: a submission carries a job id and
//! a token, a savepoint a trigger id.
//!
//! The server keeps nothing between two requests and decides nothing: apart from the form of a request, the
//! Dispatcher validates it. A request without an answer in time ends with 503; each error has Flink's error body.

mod aggregates;
mod ask;
mod checkpoints;
mod cluster;
mod deadline;
mod drains;
mod error;
mod extract;
mod guard;
mod ha;
mod jobs;
mod json;
mod metrics;
mod peers;
mod rows;
mod savepoints;
mod server;
mod submit;
mod upload;
mod view;

#[cfg(test)]
mod tests;

pub use server::{RestServerOptions, serve};
pub use view::ClusterView;
