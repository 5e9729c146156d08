//! Gateways over the wire: tonic clients that implement gateways, and tonic services that forward to gateways.
//!
//! Makes no decisions. A service looks up the gateway that is responsible at this moment (the components of a
//! term come and go, the server stays) and forwards the message. A client adds a deadline and converts a status
//! back into the other side's error.

mod abandoned;
mod blobs;
mod client;
mod peers;
mod server;
mod status;

pub use blobs::BlobServer;
pub use client::{RpcOptions, TonicConnector};
pub use peers::{TonicPeerServer, TonicPeers};
pub use server::{RpcServer, Services};
