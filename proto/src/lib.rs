//! What crosses a wire or a restart: messages, persisted records, and the ids in them.
//!
//! The messages are generated from `tanist/v1/*.proto`; fields are only ever added. Ids travel as text and are parsed
//! into the newtypes of [`id`] where they are used.

pub mod id;
mod job_status;
pub mod resources;

pub use job_status::JobEnd;

/// The version of what processes say to each other. Fields are only ever added, with which older and newer programs work
/// together: then it stays. It is raised by a change with which they would not, and never otherwise.
pub const PROTOCOL_VERSION: u32 = 1;

/// The oldest version that this program works with.
pub const OLDEST_PROTOCOL_VERSION: u32 = 1;

/// Whether this program works with one of that version. A newer one can't be judged from here, so it is none.
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
