//! Free TCP ports for servers that can't pick one themselves.
//!
//! Taken from below the range that the kernel uses for outgoing connections, so that a port stays free
//! between the check and the server's bind, and while a server is down. One process never gets the same port
//! twice.

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};

use parking_lot::Mutex;

const RANGE: std::ops::Range<u16> = 12_000..32_000;

static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// A port of 127.0.0.1 on which no process listens.
pub fn free_port() -> u16 {
    let mut given = GIVEN.lock();
    let given = given.get_or_insert_default();
    loop {
        let port = rand::random_range(RANGE);
        if !given.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            given.insert(port);
            return port;
        }
    }
}
