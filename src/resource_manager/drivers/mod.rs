//! Drivers that start and stop workers. Each implements [`super::workers::ResourceManagerDriver`] and decides
//! nothing.

pub mod local_process;
mod processes;
