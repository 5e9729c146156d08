//! Connects: for records, for calls, for REST; and looks whose an address is.

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

/// A client of REST servers that keeps its connections for a while.
pub type HttpClient<B> = Client<HttpConnector, B>;

/// Connects to `host:port` within `patience`, for as long as the other end acknowledges what is sent.
pub async fn connect(address: &str, patience: Duration) -> io::Result<TcpStream> {
    let stream = timeout(patience, TcpStream::connect(address)).await??;
    set_up(&stream, SERVED_SILENCE)?;
    Ok(stream)
}

/// Connects for HTTP. With `silence` a connection breaks when the other end has not acknowledged anything for that long.
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

/// A client that connects by `connector`. It closes a connection before a server of ours would: no request is sent into a
/// connection that is just being closed.
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

/// Whether a connection to that address is refused, within `patience`. No answer is no refusal.
pub async fn is_refused(address: SocketAddr, patience: Duration) -> bool {
    match timeout(patience, TcpStream::connect(address)).await {
        Ok(Err(error)) => error.kind() == ErrorKind::ConnectionRefused,
        Ok(Ok(_)) | Err(_) => false,
    }
}

/// Whether an address is known to be this host's, in this network namespace. Nothing is sent.
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
        // An address for documentation, which no interface has.
        assert!(!is_own("192.0.2.1".parse().expect("an address")));
        assert!(!is_own("0.0.0.0".parse().expect("an address")));
        // Whatever address this host sends from to others is its own.
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a free port");
        if socket.connect("192.0.2.1:9").is_ok() {
            let own = socket.local_addr().expect("it is bound").ip();
            assert!(is_own(own), "{own}");
        }
    }
}
