//! Tanist: a cluster runtime for job graphs whose control plane does not go down.

// Lets examples be compiled as tests of this crate, too.
#[cfg(test)]
extern crate self as tanist;

pub mod application;
pub mod cli;
pub mod client;
pub mod compact;
pub mod config;
pub mod dataflow;
pub mod dispatcher;
pub mod gateway;
pub mod job;
pub mod job_master;
pub mod net;
pub mod process;
#[cfg(test)]
mod property_tests;
pub mod resource_manager;
pub mod rest;
pub mod rpc;
pub mod task_executor;
pub mod telemetry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod umask;
