//! Whether no process listens at an address of this very host: proof that whoever did is gone.
//!
//! Not a failure detector. A refused connection to another host proves nothing, since a firewall's rejection looks the same;
//! to an address of this host and network namespace the kernel answers itself, and at once.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// The kernel refuses in microseconds; what takes longer is no refusal.
const PATIENCE: Duration = Duration::from_millis(500);

/// See the module. All that the name resolves to has to refuse.
pub(super) async fn is_abandoned(address: &str) -> bool {
    let Ok(Ok(found)) = timeout(PATIENCE, lookup_host(address)).await else {
        return false;
    };
    let mut is_refused = false;
    for at in found {
        if !is_own(at.ip()) || !refuses(at).await {
            return false;
        }
        is_refused = true;
    }
    is_refused
}

async fn refuses(address: SocketAddr) -> bool {
    match timeout(PATIENCE, TcpStream::connect(address)).await {
        Ok(Err(error)) => error.kind() == ErrorKind::ConnectionRefused,
        Ok(Ok(_)) | Err(_) => false,
    }
}

/// Only an address of this network namespace can be bound.
fn is_own(address: IpAddr) -> bool {
    !address.is_unspecified() && UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_own_address_is_abandoned_once_its_listener_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        assert!(!is_abandoned(&address).await);
        drop(listener);
        assert!(is_abandoned(&address).await);
    }

    #[tokio::test]
    async fn what_is_not_of_this_host_proves_nothing() {
        // An address for documentation, which no interface has.
        assert!(!is_own("192.0.2.1".parse().expect("an address")));
        assert!(!is_abandoned("192.0.2.1:1").await);
        assert!(!is_abandoned("no address").await);
    }
}
