//! Asks the kernel for the owner of the socket at the other end of a connection within this network namespace, for
//! the check of callers.
//!
//! Uses a netlink socket of `SOCK_DIAG` (sock_diag(7)): one message each way, no privilege needed, some
//! microseconds. If that is not available, reads the lists in `/proc/net`.
//!
//! A socket that its process has closed has no owner: kernels show root as its user. It has no inode, and
//! counts as unknown here.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// User id as seen in this process's user namespace.
pub(super) type Uid = u32;

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `nlmsghdr`.
const HEADER: usize = 16;
/// `nlmsghdr` and `inet_diag_req_v2`.
const REQUEST_SIZE: usize = HEADER + 56;
/// `nlmsghdr` and `inet_diag_msg`.
const ANSWER: usize = HEADER + 72;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
/// `TCP_LISTEN`.
const LISTEN: u8 = 10;
const ENOENT: i32 = 2;

/// The two ends of a connection, seen from the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    /// The caller's end.
    pub(super) caller: SocketAddr,
    /// Our end.
    pub(super) ours: SocketAddr,
}

impl Ends {
    /// Converts IPv4 addresses that an IPv6 socket shows to IPv4.
    pub(super) fn new(caller: SocketAddr, ours: SocketAddr) -> Ends {
        let canonical = |mut address: SocketAddr| {
            address.set_ip(address.ip().to_canonical());
            address
        };
        Ends {
            caller: canonical(caller),
            ours: canonical(ours),
        }
    }
}

/// Lookup by netlink.
#[derive(Debug)]
pub(super) struct Diag {
    socket: OwnedFd,
    sequence: u32,
}

/// Whether netlink has ever found a socket. If so, a socket that it does not find does not exist.
static IS_PROVEN: AtomicBool = AtomicBool::new(false);

impl Diag {
    pub(super) fn open() -> io::Result<Diag> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(SOCK_DIAG),
        )?;
        Ok(Diag {
            socket,
            sequence: 0,
        })
    }

    /// Returns the owner of the caller's socket; `None`: it has no known owner. An error: netlink can't tell.
    pub(super) fn user(&mut self, ends: Ends) -> io::Result<Option<Uid>> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = request_message(ends, self.sequence);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, &request, SendFlags::empty(), &kernel)?;
        let mut buffer = [0; 512];
        loop {
            // The kernel puts its answer into the queue before `sendto` returns.
            let (_, length) = recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
            let answer = buffer.get(..length).unwrap_or_default();
            match read_answer(answer, ends, self.sequence)? {
                DiagAnswer::Stale => {}
                DiagAnswer::None if !IS_PROVEN.load(Ordering::Relaxed) => {
                    return Err(io::Error::other("netlink may not support TCP sockets"));
                }
                DiagAnswer::None => return Ok(None),
                DiagAnswer::Known(user) => {
                    IS_PROVEN.store(true, Ordering::Relaxed);
                    return Ok(user);
                }
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum DiagAnswer {
    /// Answer to an earlier request.
    Stale,
    /// There is no such socket.
    None,
    /// The socket exists; `None`: it has no owner.
    Known(Option<Uid>),
}

fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// `inet_diag_sockid` without interface and cookie.
fn socket_id(ends: Ends) -> [u8; 36] {
    let mut id = [0; 36];
    id[..2].copy_from_slice(&ends.caller.port().to_be_bytes());
    id[2..4].copy_from_slice(&ends.ours.port().to_be_bytes());
    id[4..20].copy_from_slice(&address_bytes(ends.caller.ip()));
    id[20..].copy_from_slice(&address_bytes(ends.ours.ip()));
    id
}

fn request_message(ends: Ends, sequence: u32) -> [u8; REQUEST_SIZE] {
    let (family, interface) = match ends.caller {
        SocketAddr::V4(_) => (AF_INET, 0),
        SocketAddr::V6(address) => (AF_INET6, address.scope_id()),
    };
    let mut message = [0; REQUEST_SIZE];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        message[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&(REQUEST_SIZE as u32).to_ne_bytes());
    put(&BY_FAMILY.to_ne_bytes());
    put(&REQUEST.to_ne_bytes());
    put(&sequence.to_ne_bytes());
    put(&[0; 4]);
    put(&[family, IPPROTO_TCP, 0, 0]);
    // Sockets in any state.
    put(&u32::MAX.to_ne_bytes());
    put(&socket_id(ends));
    put(&interface.to_ne_bytes());
    // No cookie.
    put(&[0xff; 8]);
    message
}

fn read_answer(message: &[u8], ends: Ends, sequence: u32) -> io::Result<DiagAnswer> {
    let word = |at: usize| -> io::Result<u32> {
        let bytes = message
            .get(at..at + 4)
            .and_then(|bytes| bytes.try_into().ok());
        let bytes: [u8; 4] = bytes.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(u32::from_ne_bytes(bytes))
    };
    let kind = message.get(4..6).and_then(|bytes| bytes.try_into().ok());
    let kind = kind
        .map(u16::from_ne_bytes)
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    if word(8)? != sequence {
        return Ok(DiagAnswer::Stale);
    }
    if kind == ERROR {
        let error = i32::from_ne_bytes(word(HEADER)?.to_ne_bytes());
        return match error.saturating_neg() {
            ENOENT => Ok(DiagAnswer::None),
            other => Err(io::Error::from_raw_os_error(other)),
        };
    }
    if message.len() < ANSWER {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let state = message[HEADER + 1];
    // An IPv6 socket may be connected to an IPv4 address: it is found, and shows both ends as mapped addresses.
    let shown = match message[HEADER] {
        AF_INET6 => mapped(ends),
        _ => ends,
    };
    let is_callers = message[HEADER + 4..].starts_with(&socket_id(shown)) && state != LISTEN;
    let (uid, inode) = (word(HEADER + 64)?, word(HEADER + 68)?);
    Ok(DiagAnswer::Known((is_callers && inode != 0).then_some(uid)))
}

/// Returns the owner of the caller's socket from the lists in `/proc/net`; `None`: it has no known owner.
pub(super) fn listed_user(ends: Ends) -> io::Result<Option<Uid>> {
    let found = match ends.caller {
        SocketAddr::V4(_) => find("/proc/net/tcp", ends)?,
        SocketAddr::V6(_) => None,
    };
    match found {
        Some(user) => Ok(user),
        // An IPv6 socket may be connected to an IPv4 address.
        None => Ok(find("/proc/net/tcp6", mapped(ends))?.flatten()),
    }
}

fn mapped(ends: Ends) -> Ends {
    let mapped = |mut address: SocketAddr| {
        if let IpAddr::V4(ip) = address.ip() {
            address.set_ip(ip.to_ipv6_mapped().into());
        }
        address
    };
    Ends {
        caller: mapped(ends.caller),
        ours: mapped(ends.ours),
    }
}

fn find(list: &str, ends: Ends) -> io::Result<Option<Option<Uid>>> {
    Ok(find_in(&std::fs::read_to_string(list)?, ends))
}

/// The outer option: whether the socket is listed; the inner one: its owner.
fn find_in(list: &str, ends: Ends) -> Option<Option<Uid>> {
    let wanted = [listed(ends.caller), listed(ends.ours)];
    list.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let &[_, local, remote, state, _, _, _, uid, _, inode, ..] = fields.as_slice() else {
            return None;
        };
        if [local, remote] != wanted || state == "0A" {
            return None;
        }
        Some(uid.parse().ok().filter(|_| inode != "0"))
    })
}

/// Formats an address as in these lists: each four bytes are a number in the machine's byte order.
fn listed(address: SocketAddr) -> String {
    let bytes: &[u8] = match address.ip() {
        IpAddr::V4(ip) => &Ipv4Addr::octets(&ip),
        IpAddr::V6(ip) => &Ipv6Addr::octets(&ip),
    };
    let mut text = String::new();
    for four in bytes.chunks_exact(4) {
        let four = four.try_into().map_or(0, u32::from_ne_bytes);
        write!(text, "{four:08X}").expect("writing to a string succeeds");
    }
    write!(text, ":{:04X}", address.port()).expect("writing to a string succeeds");
    text
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn connection(address: &str) -> (TcpListener, TcpStream, Ends) {
        let listener = TcpListener::bind(address).expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let to = match address {
            "[::]:0" | "127.0.0.1:0" => format!("127.0.0.1:{port}"),
            // As a Java program connects to an IPv4 address.
            "127.0.0.2:0" => format!("[::ffff:127.0.0.2]:{port}"),
            _ => format!("[::1]:{port}"),
        };
        let stream = TcpStream::connect(to).expect("connected");
        let (accepted, caller) = listener.accept().expect("accepted");
        let ours = accepted.local_addr().expect("bound");
        drop(accepted);
        (listener, stream, Ends::new(caller, ours))
    }

    #[test]
    fn both_ways_tell_whose_socket_is_at_the_other_end() {
        let own = rustix::process::geteuid().as_raw();
        let mut diag = Diag::open().expect("netlink is there");
        for address in ["127.0.0.1:0", "127.0.0.2:0", "[::1]:0", "[::]:0"] {
            let (_listener, _stream, ends) = connection(address);
            assert_eq!(diag.user(ends).ok(), Some(Some(own)), "{address}");
            assert_eq!(listed_user(ends).ok(), Some(Some(own)), "{address}");
            let other = SocketAddr::new(ends.caller.ip(), 1);
            let unknown = Ends::new(other, ends.ours);
            assert_eq!(diag.user(unknown).ok(), Some(None), "{address}");
            assert_eq!(listed_user(unknown).ok(), Some(None), "{address}");
        }
    }

    #[test]
    fn a_socket_that_its_process_has_closed_has_no_owner() {
        let mut diag = Diag::open().expect("netlink is there");
        let (_listener, stream, ends) = {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let stream = TcpStream::connect(listener.local_addr().expect("bound"));
            let stream = stream.expect("connected");
            let ours = listener.local_addr().expect("bound");
            let ends = Ends::new(stream.local_addr().expect("bound"), ours);
            (listener, stream, ends)
        };
        assert!(diag.user(ends).is_ok_and(|user| user.is_some()));
        drop(stream);
        assert_eq!(diag.user(ends).ok(), Some(None));
        assert_eq!(listed_user(ends).ok(), Some(None));
    }

    #[test]
    fn lists_are_read_by_both_ends_and_listeners_are_passed_over() {
        let ends = Ends::new(
            "127.0.0.1:40000".parse().expect("an address"),
            "127.0.0.1:8081".parse().expect("an address"),
        );
        let (caller, ours) = (listed(ends.caller), listed(ends.ours));
        let line = |state: &str, uid: u32, inode: u32| {
            format!(
                " 1: {caller} {ours} {state} 00000000:00000000 00:00000000 00000000 {uid} 0 {inode} 1 0\n"
            )
        };
        let header = "  sl  local_address rem_address   st tx_queue rx_queue\n";
        assert_eq!(find_in(header, ends), None);
        assert_eq!(find_in(&line("01", 7, 9), ends), Some(Some(7)));
        assert_eq!(find_in(&line("0A", 0, 9), ends), None);
        assert_eq!(find_in(&line("04", 0, 0), ends), Some(None));
    }

    #[test]
    fn answers_that_are_cut_off_or_of_others_are_not_taken() {
        let (_listener, _stream, ends) = connection("127.0.0.1:0");
        let sent = request_message(ends, 7);
        assert!(read_answer(&sent, ends, 8).is_ok_and(|heard| heard == DiagAnswer::Stale));
        for length in 0..REQUEST_SIZE {
            assert!(read_answer(&sent[..length], ends, 7).is_err(), "{length}");
        }
    }
}
