//! How the sockets of the exchange are set up: each end finds out by itself that the other one is out of reach.
//!
//! A firewall that forgets a connection, or a network that separates two TaskManagers, tells neither end. One that sends would
//! hear of it after a quarter of an hour, one that waits never.

use std::io;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;

/// After such a silence the other end is asked whether it is there.
const IDLE: Duration = Duration::from_secs(30);
/// How often it is asked again.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// So many questions without an answer end the connection.
const PROBES: u32 = 3;
/// How long what was sent may stay without an acknowledgement: as long as a silent end is waited for. More than
/// `heartbeat.timeout` has by default: a TaskManager that stands still is the JobMaster's to judge.
const UNACKNOWLEDGED_MS: u32 = 60_000;

/// Sets a socket up, on either side.
pub(super) fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_MS)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_silent_end_is_given_up_when_one_that_does_not_acknowledge_is() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let stream = TcpStream::connect(address).await.expect("connected");
        set_up(&stream).expect("a socket of TCP");
        assert_eq!(sockopt::socket_keepalive(&stream), Ok(true));
        let idle = sockopt::tcp_keepidle(&stream).expect("read");
        let interval = sockopt::tcp_keepintvl(&stream).expect("read");
        let probes = sockopt::tcp_keepcnt(&stream).expect("read");
        let silent = idle + interval * probes;
        let unacknowledged = sockopt::tcp_user_timeout(&stream).expect("read");
        assert_eq!(silent, Duration::from_millis(unacknowledged.into()));
    }
}
