//! Specifications of connectors to the outside of the cluster: growing files, sockets.

use serde::{Deserialize, Serialize};

use crate::fields::path_problems;

/// Reads text files line by line, and continues when they grow or new files match. Emits `line: string`. Never
/// ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FollowFiles {
    /// Files, directories (all files in them that are not hidden) or globs. They need not exist yet.
    pub paths: Vec<String>,
    /// Interval at which new, removed and replaced files are searched.
    pub discovery_interval_ms: u64,
}

impl FollowFiles {
    /// Default discovery interval, in milliseconds.
    pub const DISCOVERY_INTERVAL_MS: u64 = 1_000;

    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = path_problems(&self.paths);
        if !(10..=86_400_000).contains(&self.discovery_interval_ms) {
            problems.push("`discovery-interval` must be from 10 ms to 1 d".into());
        }
        problems
    }
}

/// Connects to a TCP server and reads lines. Emits `line: string`. One subtask.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocketSource {
    /// host:port
    pub address: String,
    /// Whether it connects again when the connection ends. If not, the input ends then.
    pub reconnect: bool,
}

impl SocketSource {
    pub(crate) fn problems(&self) -> Vec<String> {
        address_problem(&self.address).into_iter().collect()
    }
}

/// Connects to a TCP server and writes records as lines, with columns separated by a space.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocketSink {
    /// host:port
    pub address: String,
}

impl SocketSink {
    pub(crate) fn problems(&self) -> Vec<String> {
        address_problem(&self.address).into_iter().collect()
    }
}

fn address_problem(address: &str) -> Option<String> {
    let parts = address.rsplit_once(':');
    let sound = parts.is_some_and(|(host, port)| {
        !host.is_empty()
            && address.len() <= 300
            && !host.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/')
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    (!sound).then(|| format!("`address` is {address:?}: write `host:port`"))
}
