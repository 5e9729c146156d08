//! A cluster runtime for job graphs whose control plane does not go down.
pub mod dataflow;
pub mod gateway;
pub mod job;
pub mod resource_manager;
pub mod task_executor;
