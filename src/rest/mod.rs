//! The REST server of every JobManager: Flink's paths, field names and error bodies.
//!
//! Whichever JobManager is asked, the leader answers: a request finds the leader's Dispatcher through [`ClusterView`], waits
//! for one while none leads, and asks the next leader when one goes in the middle. That is allowed because nothing here
//! takes effect twice: reads, cancelling, and submitting, which carries a job id and a token.
//!
//! It keeps nothing between two requests and decides nothing: what is wrong with a request beyond its form is the
//! Dispatcher's to say.

mod aggregates;
mod ask;
mod cluster;
mod deadline;
mod drains;
mod error;
mod extract;
mod guard;
mod ha;
mod jobs;
pub mod json;
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

pub use error::RestError;
pub use server::{RestServerOptions, serve};
pub use view::ClusterView;
