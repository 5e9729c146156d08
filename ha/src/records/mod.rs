//! Typed records, generic over their types: encoded with format and checksum, large ones in a blob or in chunks.

mod batches;
mod blob_timeout;
pub mod chunks;
pub mod record;
pub mod store;

pub use chunks::CHUNKS;
