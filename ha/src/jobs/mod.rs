//! Typed records of a cluster's jobs, generic over the record types.

mod batches;
mod blob_timeout;
pub mod chunks;
pub mod record;
pub mod store;
