//! The sockets of the cluster's own ports: one layer that accepts and one that connects. No other module of the
//! library opens, binds or accepts a socket, except the steps that read and write a user's sockets
//! (`operators/socket_source.rs`, `socket_sink.rs`).
//!
//! Input passes four checks, each with a limit, before a message reaches a component:
//!
//! 1. [`Listener`]: the caller. Over loopback only the process's own user and root are served (`caller`).
//! 2. [`Listener`]: the number of connections. Each port has a share of the process's descriptors (`limits`),
//!    so that no port takes those of another port, of the store or of files.
//! 3. [`http::serve`]: the time. A connection sends its request within ten seconds, has an idle timeout, and
//!    its bodies must not be silent.
//! 4. [`http::serve`]: the memory. The bodies of all requests together have a limit (`body`).
//!
//! The exchange takes its connections from a [`Listener`] as well, and reads its own hello. After that, a task uses its
//! socket directly.

mod body;
mod caller;
mod closed_first;
mod connect;
mod diag;
mod ended;
pub mod http;
mod limits;
mod listener;
mod log_limiter;
mod observed_stream;
mod route;
mod socket;

pub use body::{BodyError, BodyShare, RequestBody, Reservation};
pub use closed_first::grow_descriptor_table;
pub use connect::{
    HttpClient, HttpConnector, connect, http_client, http_connector, is_own, is_refused,
};
pub use ended::{EndReport, ReportingConnector, reporting_connector};
pub use limits::{Connection, Connections, HANDSHAKE_TIMEOUT, Port};
pub use listener::{Accepted, BindError, DetachedListener, Listener};
pub use observed_stream::{ObservedStream, StreamObserver};
