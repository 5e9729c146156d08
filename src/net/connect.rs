//! Outgoing connections for records, calls and REST; and checks of addresses.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hyper::body::Body;
use hyper_util::client::legacy::Client;
pub use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::http::KEPT_IDLE;
use super::route;
use super::socket::{PROBES, Probing, SERVED_SILENCE, set_up};

/// An HTTP client for REST servers that keeps connections open for a while.
pub type HttpClient<B> = Client<HttpConnector, B>;

/// Connects to `host:port` within `limit`. The connection lasts while the other end acknowledges what is sent.
pub async fn connect(address: &str, limit: Duration) -> io::Result<TcpStream> {
    let stream = timeout(limit, TcpStream::connect(address)).await??;
    set_up(&stream, SERVED_SILENCE)?;
    Ok(stream)
}

/// Returns a connector for HTTP. With `silence`, a connection breaks when the other end has acknowledged
/// nothing for that time.
pub fn http_connector(silence: Option<Duration>) -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    if let Some(silence) = silence {
        let Probing { idle, interval } = Probing::within(silence);
        connector.set_keepalive(Some(idle));
        connector.set_keepalive_interval(Some(interval));
        connector.set_keepalive_retries(Some(PROBES));
        connector.set_tcp_user_timeout(Some(silence));
    }
    connector
}

/// Returns a client that connects with `connector`. It closes an idle connection before one of our servers
/// would, so that no request is sent into a connection that is being closed.
pub fn http_client<B>(connector: HttpConnector) -> HttpClient<B>
where
    B: Body + Send,
    B::Data: Send,
{
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(KEPT_IDLE / 2)
        .build(connector)
}

/// Whether a connection to that address is refused within `limit`. No answer is not a refusal.
pub async fn is_refused(address: SocketAddr, limit: Duration) -> bool {
    match timeout(limit, TcpStream::connect(address)).await {
        Ok(Err(error)) => error.kind() == ErrorKind::ConnectionRefused,
        Ok(Ok(_)) | Err(_) => false,
    }
}

/// Whether an address is known to belong to this host, in this network namespace. Sends nothing to it.
pub fn is_own(address: IpAddr) -> bool {
    address.is_loopback() || !address.is_unspecified() && route::is_local(address).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[tokio::test]
    async fn an_address_is_own_if_the_host_takes_what_is_sent_to_it() {
        assert!(is_own("127.0.0.2".parse().expect("an address")));
        // A documentation address, which no interface has.
        assert!(!is_own("192.0.2.1".parse().expect("an address")));
        assert!(!is_own("0.0.0.0".parse().expect("an address")));
        // An address from which this host sends is its own.
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a free port");
        if socket.connect("192.0.2.1:9").is_ok() {
            let own = socket.local_addr().expect("it is bound").ip();
            assert!(is_own(own), "{own}");
        }
    }
}
