//! Binds servers to their configured addresses, and says which port was taken, or that the address is none of this host.

use std::io;

use tokio::net::{TcpListener, TcpSocket, lookup_host};
use tracing::info;

use crate::config::{Host, PortRange};

/// How many connections may wait to be accepted, where the system allows as many (`net.core.somaxconn`). After a takeover all
/// TaskManagers come at once; one that finds no place tries again after a second.
const BACKLOG: u32 = 16_384;

/// A server's address or port can't be bound.
#[derive(Debug, thiserror::Error)]
#[error("{what} can't listen on {host}: {reason}; {advice}")]
pub struct BindError {
    what: &'static str,
    host: String,
    reason: String,
    advice: String,
}

/// Why one port of a host can't be listened on.
enum Unbound {
    /// Nor can any other one: the host has no such address.
    Host(io::Error),
    Port(io::Error),
}

impl From<io::Error> for Unbound {
    fn from(error: io::Error) -> Unbound {
        match error.kind() {
            io::ErrorKind::AddrNotAvailable => Unbound::Host(error),
            _ => Unbound::Port(error),
        }
    }
}

/// The option beside that of the port.
fn host_key(port_key: &str) -> &'static str {
    match port_key.split('.').next() {
        Some("taskmanager") => "taskmanager.bind-host",
        Some("rest") => "rest.bind-address",
        _ => "jobmanager.bind-host",
    }
}

fn another_port(key: &str) -> String {
    format!("set {key} to a free port, to a range, or to 0 for any")
}

/// Takes a listener off this runtime, so that another one can serve it.
pub(super) fn detach(listener: TcpListener) -> Result<std::net::TcpListener, BindError> {
    let bound = listener.local_addr();
    listener.into_std().map_err(|error| BindError {
        what: "the server",
        host: bound.map_or_else(|_| String::new(), |address| address.to_string()),
        reason: error.to_string(),
        advice: another_port("the port"),
    })
}

/// Binds the first free port of a range.
pub(super) async fn bind(
    what: &'static str,
    key: &'static str,
    host: &Host,
    ports: &PortRange,
) -> Result<TcpListener, BindError> {
    let failed = |reason, advice| BindError {
        what,
        host: host.as_str().to_owned(),
        reason,
        advice,
    };
    let mut last: Option<(u16, io::Error)> = None;
    for port in ports.iter() {
        match listen(host, port).await {
            Ok(listener) => {
                let port = listener.local_addr().map_or(port, |address| address.port());
                info!(host = host.as_str(), port, "{what} listens");
                return Ok(listener);
            }
            Err(Unbound::Port(error)) => last = Some((port, error)),
            Err(Unbound::Host(error)) => {
                let advice = format!(
                    "set {} to an address or a name of this host, or to 0.0.0.0 for all",
                    host_key(key)
                );
                return Err(failed(error.to_string(), advice));
            }
        }
    }
    let reason = last.map_or_else(
        || "no port is configured".to_owned(),
        |(port, error)| format!("port {port}: {error}"),
    );
    Err(failed(reason, another_port(key)))
}

/// Listens on the first of a host's addresses that can be bound.
async fn listen(host: &Host, port: u16) -> Result<TcpListener, Unbound> {
    let mut last = None;
    let addresses = lookup_host((host.as_str(), port)).await;
    for address in addresses.map_err(Unbound::Host)? {
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
    let no_address = || Unbound::Host(io::Error::other("the host has no address"));
    Err(last.map_or_else(no_address, Unbound::from))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Configuration, LoadOptions};

    async fn refused(key: &'static str, host: &str, ports: &str) -> String {
        let load = LoadOptions::default()
            .with("rest.bind-address", host)
            .with("rest.bind-port", ports);
        let configuration = Configuration::load(load).expect("it is valid");
        let rest = configuration.rest();
        let bound = bind("the server", key, &rest.bind_address, &rest.bind_ports).await;
        bound.expect_err("it can't be bound").to_string()
    }

    #[tokio::test]
    async fn an_address_that_is_none_of_this_host_is_told_by_the_option_that_names_it() {
        // Set aside for documentation: no host has it.
        let elsewhere = "192.0.2.1";
        for (key, named) in [
            ("jobmanager.rpc.port", "jobmanager.bind-host"),
            ("blob.server.port", "jobmanager.bind-host"),
            ("rest.bind-port", "rest.bind-address"),
            ("taskmanager.data.port", "taskmanager.bind-host"),
        ] {
            let told = refused(key, elsewhere, "0").await;
            assert!(told.contains(named) && told.contains(elsewhere), "{told}");
            assert!(!told.contains(key), "no port is wrong: {told}");
        }
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_told_by_its_own_option() {
        let taken = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = taken.local_addr().expect("it is bound").port().to_string();
        let told = refused("rest.bind-port", "127.0.0.1", &port).await;
        assert!(
            told.contains("rest.bind-port") && told.contains(&port),
            "{told}"
        );
    }
}
