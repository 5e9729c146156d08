//! The drivers that start and stop workers. Each is one implementation of [`super::workers::ResourceManagerDriver`]; none
//! decides anything.

pub mod local_process;
mod processes;
