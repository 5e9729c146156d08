//! Checks that no process listens at an address of this host: proof that the process which did is gone.
//!
//! Not a failure detector. A refused connection to another host proves nothing, as a firewall's rejection looks
//! the same; for an address of this host and network namespace, this host's kernel answers, at once.

use std::net::IpAddr;
use std::time::Duration;

use tanist_ha::detector::Break;
use tanist_net::{is_own, is_refused};
use tokio::net::lookup_host;
use tokio::time::timeout;

/// Timeout for resolving and connecting. The kernel refuses in microseconds; a slower answer is not a refusal.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Whether no process listens at `address`; see the module. Every address that the name resolves to must refuse.
pub(super) async fn is_abandoned(address: &str) -> bool {
    let Ok(Ok(found)) = timeout(TIMEOUT, lookup_host(address)).await else {
        return false;
    };
    let mut is_abandoned = false;
    for at in found {
        if !is_own(at.ip()) || !is_refused(at, TIMEOUT).await {
            return false;
        }
        is_abandoned = true;
    }
    is_abandoned
}

/// Classifies a refusal at `address` by the kernel that refused. It was this host's only if all addresses that the name
/// resolves to are its own.
pub(super) async fn whose_refusal(address: &str) -> Break {
    let Ok(Ok(found)) = timeout(TIMEOUT, lookup_host(address)).await else {
        return Break::Refused;
    };
    let found: Vec<IpAddr> = found.map(|at| at.ip()).collect();
    if found.is_empty() || !found.iter().all(|address| is_own(*address)) {
        Break::Refused
    } else if found.iter().any(IpAddr::is_loopback) {
        Break::RefusedOnLoopback
    } else {
        Break::RefusedHere
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};

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
    async fn a_refusal_is_told_by_whose_it_is() {
        let refused = whose_refusal("127.0.0.1:1").await;
        assert_eq!(refused, Break::RefusedOnLoopback);
        assert_eq!(whose_refusal("192.0.2.1:1").await, Break::Refused);
        assert_eq!(whose_refusal("no address").await, Break::Refused);
        // An address from which this host sends is its own.
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a free port");
        if socket.connect("192.0.2.1:9").is_ok() {
            let own = socket.local_addr().expect("it is bound").ip();
            let refused = whose_refusal(&SocketAddr::new(own, 1).to_string()).await;
            assert_eq!(refused, Break::RefusedHere, "{own}");
        }
    }

    #[tokio::test]
    async fn what_is_not_of_this_host_proves_nothing() {
        // A documentation address, which no interface has.
        assert!(!is_own("192.0.2.1".parse().expect("an address")));
        assert!(!is_abandoned("192.0.2.1:1").await);
        assert!(!is_abandoned("no address").await);
    }
}
