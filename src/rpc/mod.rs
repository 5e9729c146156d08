//! Gateways over the wire: tonic clients that are gateways, and tonic services that pass on to gateways.
//!
//! No decision is made here. A service looks up the gateway that is responsible at this moment (the components of a
//! term come and go, the server stays) and passes the message on; a client adds a deadline and turns a status back into
//! the error that the other side meant.

mod abandoned;
mod blobs;
mod client;
pub mod peers;
mod server;
mod status;

pub use blobs::BlobServer;
pub use client::{RpcOptions, TonicConnector};
pub use peers::TonicPeers;
pub use server::{RpcServer, Services};
