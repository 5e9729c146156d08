//! Setup of the cluster's sockets, on both sides: each end detects on its own that the other one is unreachable.
//!
//! A firewall that forgets a connection, or a host that loses power, notifies neither end. A sender would
//! notice after a quarter of an hour, a waiting end never. The kernels send and answer the probes, so a frozen
//! process keeps its connections.

use std::io;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;

/// Number of probes to a silent end, in the second half of the silence timeout.
pub(super) const PROBES: u32 = 3;
/// The kernel counts in seconds.
const SHORTEST: Duration = Duration::from_secs(1);
/// Silence timeout of a connection that was accepted or carries records. Longer than the default of
/// `heartbeat.timeout`, so that the JobMaster decides about a silent TaskManager before its connections break.
pub(crate) const SERVED_SILENCE: Duration = Duration::from_secs(60);

/// Idle time before the first probe, and interval of probes.
pub(super) struct Probing {
    pub(super) idle: Duration,
    pub(super) interval: Duration,
}

impl Probing {
    pub(super) fn within(silence: Duration) -> Probing {
        Probing {
            idle: (silence / 2).max(SHORTEST),
            interval: (silence / 2 / PROBES).max(SHORTEST),
        }
    }
}

/// Sets a socket up: it breaks when the other end has acknowledged nothing for `silence`, whether it waits or
/// sends. Without `nodelay` an answer would wait for the other side's delayed acknowledgement: 40 ms.
pub(super) fn set_up(stream: &TcpStream, silence: Duration) -> io::Result<()> {
    let Probing { idle, interval } = Probing::within(silence);
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, idle)?;
    sockopt::set_tcp_keepintvl(stream, interval)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    let unacknowledged = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, unacknowledged)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use hyper_util::rt::TokioIo;
    use tower_service::Service as _;

    use super::super::{Listener, Port, connect, http_connector};
    use super::*;

    /// Returns the times after which a waiting and a sending connection are given up.
    fn bounds(stream: &TcpStream) -> (Duration, Duration) {
        assert_eq!(sockopt::socket_keepalive(stream), Ok(true));
        assert_eq!(stream.nodelay().ok(), Some(true));
        let idle = sockopt::tcp_keepidle(stream).expect("read");
        let interval = sockopt::tcp_keepintvl(stream).expect("read");
        let probes = sockopt::tcp_keepcnt(stream).expect("read");
        let unacknowledged = sockopt::tcp_user_timeout(stream).expect("read");
        let unacknowledged = Duration::from_millis(unacknowledged.into());
        (idle + interval * probes, unacknowledged)
    }

    #[tokio::test]
    async fn a_silent_end_is_given_up_by_either_side_whether_it_waits_or_sends() {
        let mut listener = Listener::bind("127.0.0.1:0", Port::Rpc)
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let silence = Duration::from_secs(12);
        let uri = format!("http://{address}").parse().expect("an address");
        let connecting = http_connector(Some(silence)).call(uri).await;
        let connected = TokioIo::into_inner(connecting.expect("connected"));
        assert_eq!(bounds(&connected), (silence, silence));
        let accepted = listener.accept().await.stream;
        assert_eq!(bounds(&accepted), (SERVED_SILENCE, SERVED_SILENCE));
        let connected = connect(&address, silence).await.expect("connected");
        assert_eq!(bounds(&connected), (SERVED_SILENCE, SERVED_SILENCE));
    }
}
