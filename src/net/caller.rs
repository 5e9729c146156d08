//! Identity of callers: over loopback, or from another address of this host, only the process's own user and
//! root are served.
//!
//! Every user of a host can reach its loopback ports, also those who run a container that shares its network.
//! Within the network namespace, the kernel knows the owner of the socket at the other end of a connection. A
//! caller that the kernel does not know is refused: it has gone already, or its user has no number in this
//! process's user namespace.
//!
//! A caller on another host, or in another network namespace, is not looked up: it can only reach ports that
//! were bound beyond loopback.

use std::fmt;
use std::net::SocketAddr;
use std::sync::LazyLock;

use parking_lot::Mutex;
use rustix::process::geteuid;
use tanist_config::LocalUsers;

use super::diag::{Diag, Ends, Uid, listed_user};
use super::route;

const ROOT: Uid = 0;

/// Why a caller is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It belongs to another user.
    OtherUser(Uid),
    /// Its user is unknown.
    Unknown,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::OtherUser(uid) => write!(f, "user {uid} of this host called"),
            Refusal::Unknown => f.write_str("an unknown user of this host called"),
        }
    }
}

/// Decides which callers are served.
#[derive(Debug)]
pub(super) struct Callers {
    users: LocalUsers,
    own: Uid,
    diag: Mutex<Option<Diag>>,
}

impl Callers {
    pub(super) fn new(users: LocalUsers) -> Callers {
        Callers {
            users,
            own: geteuid().as_raw(),
            diag: Mutex::default(),
        }
    }

    /// Returns why `caller`, accepted at `ours`, is refused; `None`: it is served.
    pub(super) fn refuse(&self, caller: SocketAddr, ours: SocketAddr) -> Option<Refusal> {
        match self.users {
            LocalUsers::Any => None,
            LocalUsers::Same => {
                let ends = Ends::new(caller, ours);
                if !is_of_this_host(ends) {
                    return None;
                }
                refusal_for(self.user(ends), self.own, is_ambiguous)
            }
        }
    }

    fn user(&self, ends: Ends) -> Option<Uid> {
        let mut diag = self.diag.lock();
        if diag.is_none() {
            *diag = Diag::open().ok();
        }
        match diag.as_mut().map(|diag| diag.user(ends)) {
            Some(Ok(user)) => user,
            Some(Err(error)) => {
                tracing::debug!(%error, "netlink can't determine the owner of a socket");
                // Closed, because its unread data would be taken for the next answer.
                *diag = None;
                listed_user(ends).ok().flatten()
            }
            None => listed_user(ends).ok().flatten(),
        }
    }
}

/// Whether the caller is on this host; true if the kernel can't tell.
fn is_of_this_host(ends: Ends) -> bool {
    let caller = ends.caller.ip();
    caller == ends.ours.ip() || caller.is_loopback() || route::is_local(caller).unwrap_or(true)
}

/// The order matters: an ambiguous number proves nothing, even if it is the process's own.
fn refusal_for(user: Option<Uid>, own: Uid, is_ambiguous: impl Fn(Uid) -> bool) -> Option<Refusal> {
    match user {
        None => Some(Refusal::Unknown),
        Some(user) if is_ambiguous(user) => Some(Refusal::Unknown),
        Some(user) if user == own || user == ROOT => None,
        Some(user) => Some(Refusal::OtherUser(user)),
    }
}

/// Whether this user number is ambiguous: the overflow number stands for all users without a number in the
/// process's user namespace.
fn is_ambiguous(user: Uid) -> bool {
    static STAND_IN: LazyLock<Option<Uid>> = LazyLock::new(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let is_whole = map.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
        let number = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
        let number = number.ok().and_then(|text| text.trim().parse().ok());
        (!is_whole).then(|| number.unwrap_or(65534))
    });
    *STAND_IN == Some(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_user_and_root_are_served_and_others_and_the_unknown_are_not() {
        let judged = |user| refusal_for(user, 1000, |user| user == 65534);
        assert_eq!(judged(Some(1000)), None);
        assert_eq!(judged(Some(ROOT)), None);
        assert_eq!(judged(Some(1001)), Some(Refusal::OtherUser(1001)));
        assert_eq!(judged(None), Some(Refusal::Unknown));
        assert_eq!(judged(Some(65534)), Some(Refusal::Unknown));
        // Also if it is the process's own number.
        let judged = refusal_for(Some(65534), 65534, |user| user == 65534);
        assert_eq!(judged, Some(Refusal::Unknown));
    }

    #[test]
    fn a_caller_of_this_host_that_has_gone_is_refused_and_one_elsewhere_is_not_looked_up() {
        let callers = Callers::new(LocalUsers::Same);
        let address = |text: &str| text.parse().expect("an address");
        let gone = callers.refuse(address("127.0.0.1:1"), address("127.0.0.1:2"));
        assert_eq!(gone, Some(Refusal::Unknown));
        let elsewhere = callers.refuse(address("192.0.2.1:1"), address("192.0.2.2:2"));
        assert_eq!(elsewhere, None);
        let any = Callers::new(LocalUsers::Any);
        let gone = any.refuse(address("127.0.0.1:1"), address("127.0.0.1:2"));
        assert_eq!(gone, None);
    }
}
