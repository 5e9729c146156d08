//! Health as ZooKeeper's servers report it, for display, in answer to `mntr` or, if that is not allowed, to `srvr`
//! (allowed by default): plain text on the client port. A server that gives no answer counts as unreachable, and
//! fails nothing else.

use std::time::Duration;

use futures::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::store::health::{ServerRole, StoreHealth, StoreServer};

/// Timeout for one server.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Limit in bytes, more than any answer has.
const LONGEST_ANSWER: u64 = 64 * 1024;

/// The answer of one server.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    mode: Option<String>,
    version: Option<String>,
    data_bytes: Option<u64>,
}

/// Asks all servers; `latency` was measured before.
pub(super) async fn health(quorum: &[String], latency: Duration) -> StoreHealth {
    let answers = join_all(quorum.iter().map(|server| query_within_timeout(server))).await;
    let mut health = StoreHealth {
        latency,
        ..StoreHealth::default()
    };
    for (name, answer) in quorum.iter().zip(answers) {
        let (role, version) = match answer {
            Ok(answer) => {
                health.size_bytes = health.size_bytes.max(answer.data_bytes);
                (role(answer.mode.as_deref()), answer.version)
            }
            Err(reason) => (ServerRole::Unreachable(reason), None),
        };
        let name = name.clone();
        health.servers.push(StoreServer {
            name,
            role,
            version,
        });
    }
    let is_unknown = |server: &StoreServer| server.role == ServerRole::Unknown;
    if health.servers.iter().any(is_unknown) {
        let text = "the roles of ZooKeeper's servers: allow `srvr` in 4lw.commands.whitelist";
        health.unknown.push(text.to_owned());
    }
    let text = "the space on the disks of ZooKeeper's servers: ZooKeeper does not report it, monitor it on the hosts";
    health.unknown.push(text.to_owned());
    if health.size_bytes.is_none() {
        let text = "the size of ZooKeeper's data: allow `mntr` in 4lw.commands.whitelist";
        health.unknown.push(text.to_owned());
    }
    health
}

fn role(mode: Option<&str>) -> ServerRole {
    match mode {
        Some("leader") => ServerRole::Leader,
        Some("follower" | "observer") => ServerRole::Follower,
        Some("standalone") => ServerRole::Standalone,
        Some(_) | None => ServerRole::Unknown,
    }
}

async fn query_within_timeout(server: &str) -> Result<Answer, String> {
    let answered = timeout(TIMEOUT, async {
        let answer = read_mntr(&query(server, "mntr").await?);
        match answer.mode {
            Some(_) => Ok(answer),
            None => Ok(read_srvr(&query(server, "srvr").await?)),
        }
    });
    let failed = |error: std::io::Error| error.to_string();
    match answered.await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(format!("none within {TIMEOUT:?}")),
    }
}

async fn query(server: &str, word: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(word.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Parses lines of name, tab, value.
fn read_mntr(answer: &str) -> Answer {
    let mut read = Answer::default();
    for (name, value) in answer.lines().filter_map(|line| line.split_once('\t')) {
        match name {
            "zk_server_state" => read.mode = Some(value.trim().to_owned()),
            "zk_version" => read.version = version(value),
            "zk_approximate_data_size" => read.data_bytes = value.trim().parse().ok(),
            _ => {}
        }
    }
    read
}

/// Parses lines of name, colon, value.
fn read_srvr(answer: &str) -> Answer {
    let mut read = Answer::default();
    for (name, value) in answer.lines().filter_map(|line| line.split_once(": ")) {
        match name {
            "Mode" => read.mode = Some(value.trim().to_owned()),
            "Zookeeper version" => read.version = version(value),
            _ => {}
        }
    }
    read
}

/// The version number, without the build.
fn version(text: &str) -> Option<String> {
    let number = text.trim().split(['-', ',']).next()?;
    Some(number.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_answers_are_read_and_a_refusal_says_nothing() {
        let mntr = "zk_version\t3.8.4-9316c2a7, built on 2024-02-12\nzk_server_state\tfollower\nzk_approximate_data_size\t4711\n";
        let expected = Answer {
            mode: Some("follower".to_owned()),
            version: Some("3.8.4".to_owned()),
            data_bytes: Some(4711),
        };
        assert_eq!(read_mntr(mntr), expected);
        let srvr = "Zookeeper version: 3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022\nLatency min/avg/max: 0/0.0/0\nMode: standalone\nNode count: 5\n";
        let expected = Answer {
            mode: Some("standalone".to_owned()),
            version: Some("3.8.0".to_owned()),
            data_bytes: None,
        };
        assert_eq!(read_srvr(srvr), expected);
        let refused = "mntr is not executed because it is not in the whitelist.\n";
        assert_eq!(read_mntr(refused), Answer::default());
        assert_eq!(role(None), ServerRole::Unknown);
    }
}
