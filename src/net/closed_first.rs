//! Descriptors that the kernel closes first when the process dies.
//!
//! Linux closes the descriptors of a process that was killed one after the other, the highest number first. A standby
//! notices the death when its connection breaks, and has the proof when a new connection is refused. Until the
//! listening socket is closed, new connections wait in its queue. Other descriptors can take long: an inotify instance
//! 15 ms, sockets to a store some milliseconds together.

use std::net::TcpListener;
use std::os::fd::{AsFd, RawFd};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

/// Number of descriptors within which the high ones are. The kernel's table of a process grows up to the highest one.
const TABLE: u64 = 4096;

/// Grows the kernel's table of descriptors so that it holds the high ones. To be called before the process starts
/// threads: while threads share the table, the kernel waits some 10 ms before it replaces it by a larger one.
pub fn grow_descriptor_table() {
    // Without the larger table only time is lost.
    let _closed_again = fcntl_dupfd_cloexec(std::io::stderr(), lowest());
}

/// Returns a duplicate of the listener with a higher descriptor than usual sockets and files have; with any
/// descriptor if that is not possible.
pub(super) fn duplicate(listener: &TcpListener) -> std::io::Result<TcpListener> {
    match fcntl_dupfd_cloexec(listener.as_fd(), lowest()) {
        Ok(descriptor) => Ok(descriptor.into()),
        Err(_) => listener.try_clone(),
    }
}

/// The lowest of the high descriptors: above seven eighths of those that the process may have.
fn lowest() -> RawFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(TABLE);
    RawFd::try_from(limit.min(TABLE) / 8 * 7).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_grown_table_holds_the_high_descriptors() {
        grow_descriptor_table();
        let status = std::fs::read_to_string("/proc/self/status").expect("readable");
        let line = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
        let size: RawFd = line.expect("named").trim().parse().expect("a number");
        assert!(size > lowest(), "{size}");
    }

    #[test]
    fn a_duplicate_is_above_what_is_opened_later() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let high = duplicate(&listener).expect("duplicated");
        assert_eq!(high.local_addr().ok(), listener.local_addr().ok());
        drop(listener);
        let later: Vec<TcpListener> = (0..50)
            .map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"))
            .collect();
        for other in &later {
            assert!(other.as_raw_fd() < high.as_raw_fd());
        }
    }
}
