//! Asks the kernel whether an address belongs to this host, in this network namespace.
//!
//! Uses a netlink socket of `NETLINK_ROUTE` (rtnetlink(7)): one message each way, no privilege needed. The
//! kernel keeps a route of type *local* for each address for which it accepts packets, including an interface's
//! second address in one subnet, from which it never sends on its own. Binding the address would prove less:
//! with `ip_nonlocal_bind`, as on hosts whose addresses move, any address can be bound.

use std::io;
use std::net::IpAddr;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// `RTM_GETROUTE`.
const GET_ROUTE: u16 = 26;
/// `RTM_NEWROUTE`.
const NEW_ROUTE: u16 = 24;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `nlmsghdr`.
const HEADER: usize = 16;
/// `rtmsg`.
const ROUTE_MESSAGE: usize = 12;
/// Offset of the route type in an `rtmsg`.
const KIND: usize = 7;
/// `RTN_LOCAL`.
const LOCAL: u8 = 2;
/// `RTA_DST`.
const DESTINATION: u16 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// `ENETUNREACH` and `EHOSTUNREACH`. There is no route to the address: it does not belong to this host.
const UNREACHABLE: [i32; 2] = [101, 113];

/// Whether the kernel accepts packets to `address` for this host. An error: it does not say.
pub(super) fn is_local(address: IpAddr) -> io::Result<bool> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        // `NETLINK_ROUTE` is the default.
        None,
    )?;
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(
        &socket,
        &request_message(address),
        SendFlags::empty(),
        &kernel,
    )?;
    let mut buffer = [0; 1024];
    // The kernel puts its answer into the queue before `sendto` returns.
    let (_, length) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
    read_answer(buffer.get(..length).unwrap_or_default())
}

fn request_message(address: IpAddr) -> Vec<u8> {
    let (family, bytes) = match address {
        IpAddr::V4(address) => (AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (AF_INET6, address.octets().to_vec()),
    };
    // Both lengths are small numbers.
    let bits = (bytes.len() * 8) as u8;
    let attribute = (4 + bytes.len()) as u16;
    let length = (HEADER + ROUTE_MESSAGE + 4 + bytes.len()) as u32;
    let mut message = Vec::new();
    message.extend(length.to_ne_bytes());
    message.extend(GET_ROUTE.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend(1_u32.to_ne_bytes());
    message.extend([0; 4]);
    message.extend([family, bits, 0, 0, 0, 0, 0, 0]);
    message.extend([0; 4]);
    message.extend(attribute.to_ne_bytes());
    message.extend(DESTINATION.to_ne_bytes());
    message.extend(bytes);
    message
}

fn read_answer(message: &[u8]) -> io::Result<bool> {
    let kind = message.get(4..6).and_then(|bytes| bytes.try_into().ok());
    match kind.map(u16::from_ne_bytes) {
        Some(NEW_ROUTE) => match message.get(HEADER + KIND) {
            Some(kind) => Ok(*kind == LOCAL),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        },
        Some(ERROR) => {
            let code = message.get(HEADER..HEADER + 4);
            let code = code.and_then(|bytes| bytes.try_into().ok());
            match code.map(i32::from_ne_bytes).map(i32::saturating_neg) {
                Some(code) if UNREACHABLE.contains(&code) => Ok(false),
                Some(code) => Err(io::Error::from_raw_os_error(code)),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Some(_) | None => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_are_local_and_others_are_not() {
        let is_local = |text: &str| is_local(text.parse().expect("an address"));
        assert_eq!(is_local("127.0.0.2").ok(), Some(true));
        assert_eq!(is_local("::1").ok(), Some(true));
        // Documentation addresses, which no interface has.
        assert_eq!(is_local("192.0.2.1").ok(), Some(false));
        assert_eq!(is_local("2001:db8::1").ok(), Some(false));
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        assert!(read_answer(&[]).is_err());
        assert!(read_answer(&[0; 40]).is_err());
        let error = |code: i32| {
            let mut message = vec![0; HEADER];
            message[4..6].copy_from_slice(&ERROR.to_ne_bytes());
            message.extend((-code).to_ne_bytes());
            read_answer(&message)
        };
        assert_eq!(error(UNREACHABLE[0]).ok(), Some(false));
        assert!(error(1).is_err());
    }
}
