//! Binds servers to their configured addresses, and says which port was taken.

use std::io;

use tokio::net::{TcpListener, TcpSocket, lookup_host};
use tracing::info;

use crate::config::{Host, PortRange};

/// How many connections may wait to be accepted, where the system allows as many (`net.core.somaxconn`). After a takeover all
/// TaskManagers come at once; one that finds no place tries again after a second.
const BACKLOG: u32 = 16_384;

/// A server's port can't be bound.
#[derive(Debug, thiserror::Error)]
#[error(
    "{what} can't listen on {host}: {reason}; set {key} to a free port, to a range, or to 0 for any"
)]
pub struct BindError {
    what: &'static str,
    host: String,
    key: &'static str,
    reason: String,
}

/// Takes a listener off this runtime, so that another one can serve it.
pub(super) fn detach(listener: TcpListener) -> Result<std::net::TcpListener, BindError> {
    let bound = listener.local_addr();
    listener.into_std().map_err(|error| BindError {
        what: "the server",
        host: bound.map_or_else(|_| String::new(), |address| address.to_string()),
        key: "the port",
        reason: error.to_string(),
    })
}

/// Binds the first free port of a range.
pub(super) async fn bind(
    what: &'static str,
    key: &'static str,
    host: &Host,
    ports: &PortRange,
) -> Result<TcpListener, BindError> {
    let mut last: Option<(u16, io::Error)> = None;
    for port in ports.iter() {
        match listen(host, port).await {
            Ok(listener) => {
                let port = listener.local_addr().map_or(port, |address| address.port());
                info!(host = host.as_str(), port, "{what} listens");
                return Ok(listener);
            }
            Err(error) => last = Some((port, error)),
        }
    }
    let reason = last.map_or_else(
        || "no port is configured".to_owned(),
        |(port, error)| format!("port {port}: {error}"),
    );
    Err(BindError {
        what,
        host: host.as_str().to_owned(),
        key,
        reason,
    })
}

/// Listens on the first of a host's addresses that can be bound.
async fn listen(host: &Host, port: u16) -> io::Result<TcpListener> {
    let mut last = None;
    for address in lookup_host((host.as_str(), port)).await? {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        // A process that was started again finds connections of its predecessor that are not quite over.
        socket.set_reuseaddr(true)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::other("the host has no address")))
}
