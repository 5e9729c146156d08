//! Access of others than the cluster's own user to its ports: another user of the host, a page of another
//! site in a browser, any process on the network. All are refused.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use tanist_chaos::{Cluster, Leader, StoreKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{BOUND, WordsAndTicks, cluster_on, until_standby};

/// The user `nobody`.
const OTHER_USER: u32 = 65534;

async fn cluster(settings: &[(&str, &str)]) -> anyhow::Result<(Cluster, Leader)> {
    let mut builder = cluster_on(StoreKind::Embedded).await?.taskmanagers(1);
    for (key, value) in settings {
        builder = builder.set(key, value);
    }
    let mut cluster = builder.start().await?;
    let leader = cluster.leader().await?;
    until_standby(&mut cluster, 1, &leader).await?;
    Ok((cluster, leader))
}

/// Sends this to `host:port` as another user, and returns the answer until the connection is closed; with
/// `leaves`, closes it at once.
fn as_another_user(address: &str, sent: &str, leaves: bool) -> anyhow::Result<String> {
    let (host, port) = address.rsplit_once(':').context("host:port")?;
    let wait = if leaves { "" } else { "timeout 8 cat <&3" };
    let script = format!("exec 3<>/dev/tcp/{host}/{port} && printf '{sent}' >&3; {wait}");
    let said = Command::new("bash")
        .args(["-c", &script])
        .uid(OTHER_USER)
        .gid(OTHER_USER)
        .current_dir("/")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .context("bash as another user")?;
    ensure!(said.status.code() != Some(124), "{address}: it stays open");
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("not tried: only root can start a process of another user");
    }
    is_root
}

/// A request to move leadership.
fn transfer(host: &str, header: &str) -> String {
    format!(
        "POST /v1/ha/transfer HTTP/1.1\\r\\nhost: {host}\\r\\nconnection: close\\r\\n{header}content-length: 0\\r\\n\\r\\n"
    )
}

/// The connection preface of HTTP/2, which a server answers.
const PREFACE: &str = "PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n\\0\\0\\0\\004\\0\\0\\0\\0\\0";

async fn check_same_leader(cluster: &mut Cluster, leader: &Leader) -> anyhow::Result<()> {
    let leads = cluster.leader().await?;
    ensure!(leads == *leader, "{leads:?} leads, not {leader:?}");
    Ok(())
}

#[tokio::test]
async fn another_user_of_the_host_is_served_on_no_port() -> anyhow::Result<()> {
    if !is_root() {
        return Ok(());
    }
    let (mut cluster, leader) = cluster(&[]).await?;
    let rest = leader.rest.clone();
    let asked = transfer(&rest, "");
    let answer = as_another_user(&rest, &asked, false)?;
    ensure!(answer.starts_with("HTTP/1.1 403 "), "{answer:?}");
    ensure!(answer.contains("security.local-users"), "{answer:?}");
    // A socket without an owner is shown as one of root.
    for _ in 0..20 {
        as_another_user(&rest, &asked, true)?;
    }
    let members = cluster.members().await?;
    let others = members.iter().flat_map(|member| &member.addresses);
    let others = others.filter(|(name, _)| *name != "rest");
    let mut others: Vec<String> = others.map(|(_, address)| address.clone()).collect();
    let managers = cluster.get("/v1/taskmanagers").await?;
    let manager = &managers["taskmanagers"][0];
    others.push(manager["path"].as_str().context("a path")?.to_owned());
    for address in &others {
        let answer = as_another_user(address, PREFACE, false)?;
        ensure!(answer.is_empty(), "{address}: {answer:?}");
    }
    let data = format!("127.0.0.1:{}", manager["dataPort"]);
    let begun = tokio::time::Instant::now();
    let answer = as_another_user(&data, "", false)?;
    ensure!(answer.is_empty(), "{data}: {answer:?}");
    // It was refused, not closed by the timeout for the hello.
    ensure!(begun.elapsed().as_secs() < 7, "{:?}", begun.elapsed());
    let who = format!("user {OTHER_USER} of this host called");
    cluster.jobmanager(leader.index).logs(&who, BOUND).await?;
    cluster.taskmanager(0).logs(&who, BOUND).await?;
    check_same_leader(&mut cluster, &leader).await?;
    let workload = WordsAndTicks::prepare(&cluster, 1)?;
    cluster.submit(&workload.submission).await?;
    workload.check_finished(&mut cluster).await
}

#[tokio::test]
async fn another_user_of_the_host_is_served_where_that_is_configured() -> anyhow::Result<()> {
    if !is_root() {
        return Ok(());
    }
    let (mut cluster, leader) = cluster(&[("security.local-users", "any")]).await?;
    let asked = format!(
        "GET /v1/overview HTTP/1.1\\r\\nhost: {}\\r\\nconnection: close\\r\\n\\r\\n",
        leader.rest
    );
    let answer = as_another_user(&leader.rest, &asked, false)?;
    ensure!(answer.starts_with("HTTP/1.1 200 "), "{answer:?}");
    let members = cluster.members().await?;
    let peer = &members[leader.index].addresses["peer"];
    let script = format!("{PREFACE}\\0\\0\\010\\007\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0");
    let answer = as_another_user(peer, &script, false)?;
    ensure!(!answer.is_empty(), "the peer port says nothing");
    cluster.check_nothing_left(&[]).await
}

/// The status of the answer to a request.
async fn status(address: &str, request: &str) -> anyhow::Result<u16> {
    let mut stream = TcpStream::connect(address).await?;
    let request = request.replace("\\r\\n", "\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    Ok(answer.get(9..12).context("no answer")?.parse()?)
}

#[tokio::test]
async fn a_page_of_another_site_moves_nothing_and_reads_nothing() -> anyhow::Result<()> {
    let (mut cluster, leader) = cluster(&[("rest.allowed-hosts", "flink.example.com")]).await?;
    let rest = leader.rest.clone();
    for (host, header, expected) in [
        ("evil.example", "", 421),
        (&rest, "origin: http://evil.example\\r\\n", 403),
        (
            &rest,
            "origin: null\\r\\ncontent-type: text/plain\\r\\n",
            403,
        ),
        (&rest, "sec-fetch-site: cross-site\\r\\n", 403),
        (&rest, "sec-fetch-site: same-site\\r\\n", 403),
    ] {
        let got = status(&rest, &transfer(host, header)).await?;
        ensure!(got == expected, "{host} {header}: {got}");
    }
    for (host, expected) in [
        ("evil.example", 421),
        ("localhost:1", 200),
        ("flink.example.com", 200),
        (&rest, 200),
    ] {
        let read = format!(
            "GET /v1/overview HTTP/1.1\\r\\nhost: {host}\\r\\nconnection: close\\r\\n\\r\\n"
        );
        let got = status(&rest, &read).await?;
        ensure!(got == expected, "{host}: {got}");
    }
    check_same_leader(&mut cluster, &leader).await?;
    // The same request without the headers of a browser takes effect.
    let got = status(&rest, &transfer(&rest, "")).await?;
    ensure!(got < 300, "{got}");
    cluster.successor_of(&leader).await?;
    cluster.check_nothing_left(&[]).await
}

#[tokio::test]
async fn a_port_that_others_reach_is_not_opened_unless_somebody_says_so() -> anyhow::Result<()> {
    let builder = cluster_on(StoreKind::Embedded).await?;
    let builder = builder.jobmanagers(1).taskmanagers(1);
    let builder = builder
        .set("rest.bind-address", "0.0.0.0")
        .set("taskmanager.bind-host", "0.0.0.0");
    let mut cluster = builder.launch().await?;
    for is_jobmanager in [true, false] {
        let process = match is_jobmanager {
            true => cluster.jobmanager(0),
            false => cluster.taskmanager(0),
        };
        let ended = process.ended(BOUND).await?;
        ensure!(ended.code() == Some(10), "{ended}: {}", process.log_tail());
        process.logs("security.insecure: true", BOUND).await?;
    }
    cluster.check_nothing_left(&[]).await
}
