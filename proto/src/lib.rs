//! Data that crosses a wire or a restart: messages, persisted records, and the ids in them.
//!
//! The messages are generated from `tanist/v1/*.proto`; fields are only ever added. Ids travel as text and
//! are parsed into the newtypes of [`id`] where they are used.

mod checksum;
pub mod id;
mod job_status;
pub mod manifest;
pub mod pieces;
pub mod resources;
pub mod segments;

pub use checksum::checksum;
pub use job_status::JobEnd;

/// The version of the protocol between processes. Added fields do not change it, because older and newer
/// programs work together then. Only a change with which they can't work together raises it.
pub const PROTOCOL_VERSION: u32 = 1;

/// The oldest version that this program works with.
pub const OLDEST_PROTOCOL_VERSION: u32 = 1;

/// Whether this program works with a program of that version. A newer version can't be judged here, so the
/// answer is no.
pub const fn speaks_protocol(version: u32) -> bool {
    OLDEST_PROTOCOL_VERSION <= version && version <= PROTOCOL_VERSION
}

/// Version 1 of the protocol and of the records.
pub mod v1 {
    #![allow(
        missing_docs,
        reason = "generated; the .proto files are the documentation"
    )]
    #![allow(clippy::all, rustdoc::all, reason = "generated")]
    tonic::include_proto!("tanist.v1");
}

include!(concat!(env!("OUT_DIR"), "/services.rs"));

/// A message to the JobMaster of one job.
pub trait JobMessage {
    /// Returns the id of the job; empty if the message names none.
    fn job_id(&self) -> &str;
}

include!(concat!(env!("OUT_DIR"), "/job_messages.rs"));
