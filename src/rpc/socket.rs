//! How the sockets of calls are set up: each end finds out by itself that the other one is out of reach, and makes a connection anew.
//!
//! A firewall that forgets a connection, or a host that loses its power, tells neither end. One that sends would hear of it after a
//! quarter of an hour, one that waits never. The kernels ask and answer, so that a process that stands still keeps its connections.

use std::io;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use hyper_util::client::legacy::connect::HttpConnector;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::server::TcpIncoming;

/// A connection that is silent for longer than half of what is tolerated is asked about so often in the other half.
const PROBES: u32 = 3;
/// The kernel counts in seconds.
const SHORTEST: Duration = Duration::from_secs(1);
/// After such a silence a server gives a connection up: it wants nothing of it but its descriptor back.
const SERVED: Duration = Duration::from_secs(60);

/// When it is asked about, and how often.
struct Probing {
    idle: Duration,
    interval: Duration,
}

impl Probing {
    fn within(silence: Duration) -> Probing {
        Probing {
            idle: (silence / 2).max(SHORTEST),
            interval: (silence / 2 / PROBES).max(SHORTEST),
        }
    }
}

/// Connects for calls. A connection breaks when the other end has not acknowledged anything for so long.
pub(super) fn connector(silence: Duration) -> HttpConnector {
    let Probing { idle, interval } = Probing::within(silence);
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(idle));
    connector.set_keepalive_interval(Some(interval));
    connector.set_keepalive_retries(Some(PROBES));
    connector.set_tcp_user_timeout(Some(silence));
    connector
}

/// The connections that come in. Without `nodelay` answers wait for the other side's delayed acknowledgement: 40 ms. The builder's own
/// is not for connections that come in this way.
pub(super) fn incoming(listener: TcpListener) -> impl Stream<Item = io::Result<TcpStream>> {
    let Probing { idle, interval } = Probing::within(SERVED);
    let incoming = TcpIncoming::from(listener)
        .with_nodelay(Some(true))
        .with_keepalive(Some(idle))
        .with_keepalive_interval(Some(interval))
        .with_keepalive_retries(Some(PROBES));
    incoming.inspect(|stream| {
        let Ok(stream) = stream else { return };
        let unacknowledged = u32::try_from(SERVED.as_millis()).unwrap_or(u32::MAX);
        if let Err(error) = sockopt::set_tcp_user_timeout(stream, unacknowledged) {
            tracing::warn!(%error, "a connection may stay when its other end is gone");
        }
    })
}

#[cfg(test)]
mod tests {
    use hyper_util::rt::TokioIo;
    use tonic::codegen::Service as _;

    use super::*;

    /// How long it takes to give up one that waits, and one that has sent.
    fn bounds(stream: &TcpStream) -> (Duration, Duration) {
        assert_eq!(sockopt::socket_keepalive(stream), Ok(true));
        let idle = sockopt::tcp_keepidle(stream).expect("read");
        let interval = sockopt::tcp_keepintvl(stream).expect("read");
        let probes = sockopt::tcp_keepcnt(stream).expect("read");
        let unacknowledged = sockopt::tcp_user_timeout(stream).expect("read");
        let unacknowledged = Duration::from_millis(unacknowledged.into());
        (idle + interval * probes, unacknowledged)
    }

    #[tokio::test]
    async fn a_silent_end_is_given_up_by_either_side_whether_it_waits_or_sends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let silence = Duration::from_secs(12);
        let uri = format!("http://{address}").parse().expect("an address");
        let connecting = connector(silence).call(uri);
        let mut served = std::pin::pin!(incoming(listener));
        let (connected, accepted) = tokio::join!(connecting, served.next());
        let connected = TokioIo::into_inner(connected.expect("connected"));
        assert_eq!(bounds(&connected), (silence, silence));
        assert_eq!(connected.nodelay().ok(), Some(true));
        let accepted = accepted.expect("it goes on").expect("accepted");
        assert_eq!(bounds(&accepted), (SERVED, SERVED));
        assert_eq!(accepted.nodelay().ok(), Some(true));
    }
}
