//! A cluster runtime for job graphs whose control plane does not go down.
pub mod dataflow;
pub mod job;
