//! Typed records, generic over their types: encoded with format and checksum, large ones in a blob or in chunks.
//!
//! - [`store`]: reads and prepares records; a term's pipeline commits them.
//! - [`record`]: the envelope: format, encoding, checksum.
//! - [`chunks`]: large records as several items of the same store.
//! - `batches`: groups of records that are decoded together; `blob_timeout`: the timeout for reading their blobs.

mod batches;
mod blob_timeout;
pub mod chunks;
pub mod record;
pub mod store;

pub use chunks::CHUNKS;
