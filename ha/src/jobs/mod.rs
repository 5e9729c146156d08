//! Typed records of a cluster's jobs, generic over the record types.

mod batches;
pub mod parts;
mod patience;
pub mod record;
pub mod store;
