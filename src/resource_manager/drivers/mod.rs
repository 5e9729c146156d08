//! Drivers that start and stop workers. Each implements [`super::workers::ResourceManagerDriver`] and decides
//! nothing.

pub(crate) mod local_process;
mod processes;
