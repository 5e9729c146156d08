//! Tanist: a cluster runtime for job graphs whose control plane does not go down.

pub mod config;
pub mod dispatcher;
pub mod gateway;
pub mod job;
pub mod process;
pub mod rest;
pub mod rpc;
pub mod telemetry;
