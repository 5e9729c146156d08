//! What crosses a wire or a restart: messages, persisted records, and the ids in them.
//!
//! The messages are generated from `tanist/v1/*.proto`; fields are only ever added. Ids travel as text and are parsed
//! into the newtypes of [`id`] where they are used.

pub mod id;

/// Version 1 of the protocol and of the records.
pub mod v1 {
    #![allow(
        missing_docs,
        reason = "generated; the .proto files are the documentation"
    )]
    #![allow(clippy::all, rustdoc::all, reason = "generated")]
    tonic::include_proto!("tanist.v1");
}
