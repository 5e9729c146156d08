//! Binds servers to their configured addresses. Its errors say which port is in use, that the address does not
//! belong to this host, or that others reach it although `security.insecure` is not set; and which option to change.

use std::io;

use tanist_config::{Host, PortRange, SecurityOptions};
use tanist_net::{self as net, DetachedListener, Listener, Port};
use tanist_telemetry::ExitCode;
use tracing::info;

/// A server's address or port can't be bound, or must not be.
#[derive(Debug, thiserror::Error)]
#[error("{what} can't listen on {host}: {reason}; {advice}")]
pub struct BindError {
    what: &'static str,
    host: String,
    reason: String,
    advice: String,
    code: ExitCode,
}

impl BindError {
    /// The exit code of a process whose servers can't be bound.
    pub fn exit_code(&self) -> ExitCode {
        self.code
    }
}

/// The option of the host that belongs to the option of a port.
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
pub(super) fn detach(listener: Listener) -> Result<DetachedListener, BindError> {
    let bound = listener.local_addr();
    listener.detach().map_err(|error| BindError {
        what: "the server",
        host: bound.map_or_else(|_| String::new(), |address| address.to_string()),
        reason: error.to_string(),
        advice: another_port("the port"),
        code: ExitCode::Port,
    })
}

/// Binds the first free port of a range.
pub(super) async fn bind(
    (what, kind): (&'static str, Port),
    key: &'static str,
    host: &Host,
    ports: &PortRange,
    security: SecurityOptions,
) -> Result<Listener, BindError> {
    let failed = |reason, advice, code| BindError {
        what,
        host: host.as_str().to_owned(),
        reason,
        advice,
        code,
    };
    let mut last: Option<(u16, io::Error)> = None;
    for port in ports.iter() {
        let at = (host.as_str(), port);
        let (users, insecure) = (security.local_users, security.insecure);
        match Listener::bind_host(at, kind, users, insecure).await {
            Ok(listener) => {
                let port = listener.local_addr().map_or(port, |address| address.port());
                info!(host = host.as_str(), port, "{what} listens");
                return Ok(listener);
            }
            Err(net::BindError::Port(error)) => last = Some((port, error)),
            Err(net::BindError::Host(error)) => {
                let advice = format!(
                    "set {} to an address or a name of this host, or to 0.0.0.0 for all",
                    host_key(key)
                );
                return Err(failed(error.to_string(), advice, ExitCode::Port));
            }
            Err(error @ net::BindError::BeyondLoopback(_)) => {
                let reason = format!(
                    "{error}, and nothing is encrypted or authenticated: a caller who reaches the port has full control"
                );
                let advice = format!(
                    "set {} to a loopback address such as 127.0.0.1, or, if you trust all who reach this network, set security.insecure: true",
                    host_key(key)
                );
                return Err(failed(reason, advice, ExitCode::Configuration));
            }
        }
    }
    let reason = last.map_or_else(
        || "no port is configured".to_owned(),
        |(port, error)| format!("port {port}: {error}"),
    );
    Err(failed(reason, another_port(key), ExitCode::Port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tanist_config::{Configuration, LoadOptions};

    async fn refused(key: &'static str, host: &str, ports: &str, insecure: &str) -> BindError {
        let load = LoadOptions::default()
            .with("rest.bind-address", host)
            .with("rest.bind-port", ports)
            .with("security.insecure", insecure);
        let configuration = Configuration::load(load).expect("it is valid");
        let rest = configuration.rest();
        let security = configuration.options().security;
        let what = ("the server", Port::Rest);
        let bound = bind(what, key, &rest.bind_address, &rest.bind_ports, security).await;
        bound.expect_err("it can't be bound")
    }

    #[tokio::test]
    async fn an_address_that_is_none_of_this_host_is_told_by_the_option_that_names_it() {
        // Reserved for documentation: no host has it.
        let elsewhere = "192.0.2.1";
        for (key, named) in [
            ("jobmanager.rpc.port", "jobmanager.bind-host"),
            ("blob.server.port", "jobmanager.bind-host"),
            ("rest.bind-port", "rest.bind-address"),
            ("taskmanager.data.port", "taskmanager.bind-host"),
        ] {
            let error = refused(key, elsewhere, "0", "true").await;
            assert_eq!(error.exit_code(), ExitCode::Port);
            let told = error.to_string();
            assert!(told.contains(named) && told.contains(elsewhere), "{told}");
            assert!(!told.contains(key), "no port is wrong: {told}");
        }
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_told_by_its_own_option() {
        let taken = Listener::bind("127.0.0.1:0", Port::Rest).await;
        let taken = taken.expect("a free port");
        let port = taken.local_addr().expect("it is bound").port().to_string();
        let error = refused("rest.bind-port", "127.0.0.1", &port, "false").await;
        assert_eq!(error.exit_code(), ExitCode::Port);
        let told = error.to_string();
        assert!(
            told.contains("rest.bind-port") && told.contains(&port),
            "{told}"
        );
    }

    #[tokio::test]
    async fn an_address_that_others_reach_is_not_bound_and_the_message_says_what_to_do() {
        for host in ["0.0.0.0", "::", "192.0.2.1"] {
            let error = refused("rest.bind-port", host, "0", "false").await;
            assert_eq!(error.exit_code(), ExitCode::Configuration, "{host}");
            let told = error.to_string();
            for word in ["rest.bind-address", "127.0.0.1", "security.insecure: true"] {
                assert!(told.contains(word), "{told}");
            }
        }
    }
}
