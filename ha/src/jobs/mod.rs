//! What a cluster keeps of its jobs, generic over the record types.

pub mod record;
pub mod store;
