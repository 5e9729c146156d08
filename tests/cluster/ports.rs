//! Clients that send nothing or not enough to the ports of processes with 1,024 descriptors: floods of
//! idle connections on each port in turn, slow request heads, bodies that never arrive. Meanwhile the
//! leader leads, answers, and is reachable.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tanist_chaos::{Cluster, Leader, StoreKind, wait_for};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::support::{BOUND, WordsAndTicks, cluster_on, until_standby};

/// Descriptors of each process: the default of many systems.
const DESCRIPTORS: u32 = 1024;
/// More than all of them.
const FLOOD: usize = 1400;
/// The target is 50 ms; a machine that runs other tests at the same time only has to keep this.
const ANSWER_BOUND: Duration = Duration::from_secs(2);

/// A cluster whose processes have few descriptors, under the leader `jm-0`.
async fn cluster() -> anyhow::Result<(Cluster, Leader)> {
    // The attacker has more.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, all)?;
    let builder = cluster_on(StoreKind::Embedded).await?;
    let builder = builder.descriptors(DESCRIPTORS).taskmanagers(2);
    let mut cluster = builder.start().await?;
    let leader = cluster.leader().await?;
    until_standby(&mut cluster, 1, &leader).await?;
    Ok((cluster, leader))
}

/// `host:port` of each port of the leader, and of a TaskManager, by name.
async fn ports(cluster: &mut Cluster, leader: &Leader) -> anyhow::Result<Vec<(String, String)>> {
    let members = cluster.members().await?;
    let process = format!("jm-{}", leader.index);
    let member = members.iter().find(|it| it.process.as_str() == process);
    let addresses = &member.context("the leader is no member")?.addresses;
    let mut ports: Vec<_> = addresses.clone().into_iter().collect();
    ensure!(ports.len() == 4, "{ports:?}");
    let managers = cluster.get("/v1/taskmanagers").await?;
    let manager = &managers["taskmanagers"][0];
    let data = manager["dataPort"].as_u64().context("it has a data port")?;
    ports.push(("data".to_owned(), format!("127.0.0.1:{data}")));
    let rpc = manager["path"].as_str().context("it has a path")?;
    ports.push(("taskmanager".to_owned(), rpc.to_owned()));
    Ok(ports)
}

/// Sends a request over a new connection, as a new client does. Returns the status and the time that it took.
async fn timed_request(address: &str, path: &str) -> anyhow::Result<(u16, Duration)> {
    let begun = Instant::now();
    let asking = async {
        let mut stream = TcpStream::connect(address).await?;
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let status = answer.get(9..12).context("no answer")?.parse()?;
        anyhow::Ok(status)
    };
    let status = timeout(BOUND, asking)
        .await
        .context("no answer in time")??;
    Ok((status, begun.elapsed()))
}

/// Sends many requests that only the leader can answer, and checks the time of the slowest answer.
async fn check_answers(what: &str, leader: &Leader) -> anyhow::Result<()> {
    let mut times = Vec::new();
    for _ in 0..40 {
        let (status, took) = timed_request(&leader.rest, "/v1/overview?consistent=true").await?;
        ensure!(status == 200, "{what}: status {status}");
        times.push(took);
    }
    times.sort();
    let (median, slowest) = (times[times.len() / 2], times[times.len() - 1]);
    println!("{what}: answers after {median:?} (median), {slowest:?} (slowest)");
    ensure!(slowest < ANSWER_BOUND, "{what}: {slowest:?}");
    Ok(())
}

/// Checks that the same process leads, that it reaches its TaskManagers, and that a job runs to its end.
async fn check_unharmed(cluster: &mut Cluster, leader: &Leader) -> anyhow::Result<()> {
    let leads = cluster.leader().await?;
    ensure!(leads == *leader, "{leads:?} leads, not {leader:?}");
    let managers = cluster.get("/v1/taskmanagers").await?;
    let managers = managers["taskmanagers"].as_array().context("a list")?;
    ensure!(managers.len() == 2, "{managers:?}");
    let workload = WordsAndTicks::prepare(cluster, 1)?;
    cluster.submit(&workload.submission).await?;
    workload.check_finished(cluster).await
}

/// As many connections as possible that send `something` and then nothing.
async fn flood(address: &str, something: &[u8]) -> anyhow::Result<Vec<TcpStream>> {
    let mut streams = Vec::new();
    for _ in 0..FLOOD {
        let mut stream = TcpStream::connect(address).await?;
        // It may have been closed in favour of another one by now.
        let _written = stream.write_all(something).await;
        streams.push(stream);
    }
    Ok(streams)
}

#[tokio::test]
async fn idle_connections_on_any_port_silence_neither_it_nor_another_one() -> anyhow::Result<()> {
    let (mut cluster, leader) = cluster().await?;
    let mut peer = None;
    for (name, address) in ports(&mut cluster, &leader).await? {
        let idle = flood(&address, b"").await?;
        let what = format!("{FLOOD} idle connections on {name}");
        check_answers(&what, &leader).await?;
        if name == "peer" {
            peer = Some(address);
        }
        drop(idle);
    }
    let leads = cluster.leader().await?;
    ensure!(leads == leader, "{leads:?} leads, not {leader:?}");
    let _idle = flood(&peer.context("it has a peer port")?, b"").await?;
    // The standby that gets the request asks the leader, over a new connection to that port.
    let standby = cluster.rest_address(1).to_owned();
    let transfer = ["ha", "transfer", "--to", "jm-1", "--address", &standby];
    cluster.cli().run(&transfer).await?.success()?;
    let next = cluster.successor_of(&leader).await?;
    cluster.wait_until_complete().await?;
    check_unharmed(&mut cluster, &next).await
}

#[tokio::test]
async fn slow_heads_are_given_up_and_delay_nobody() -> anyhow::Result<()> {
    let (mut cluster, leader) = cluster().await?;
    let begun = Instant::now();
    let mut slow = JoinSet::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(&leader.rest).await?;
        let head = format!("GET /v1/jobs HTTP/1.1\r\nhost: {}\r\nx-slow: ", leader.rest);
        stream.write_all(head.as_bytes()).await?;
        slow.spawn(async move {
            let mut rest = Vec::new();
            timeout(BOUND, stream.read_to_end(&mut rest)).await.is_ok()
        });
    }
    check_answers("100 slow heads", &leader).await?;
    let closed = slow.join_all().await;
    ensure!(closed.iter().all(|closed| *closed), "some stay");
    println!("slow heads are closed after {:?}", begun.elapsed());
    check_unharmed(&mut cluster, &leader).await
}

/// The peak memory of a process so far, in bytes.
fn peak_memory(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let line = line.context("no VmHWM")?.trim();
    let kilobytes: u64 = line.trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024)
}

#[tokio::test]
async fn large_bodies_that_stay_silent_take_little_memory_and_delay_nobody() -> anyhow::Result<()> {
    const SENT: usize = 60 << 20;
    let (mut cluster, leader) = cluster().await?;
    let pid = cluster.jobmanager(leader.index).pid().context("it runs")?;
    check_answers("nothing", &leader).await?;
    let before = peak_memory(pid)?;
    let mut bodies = JoinSet::new();
    for _ in 0..40 {
        let address = leader.rest.clone();
        bodies.spawn(async move {
            let stream = TcpStream::connect(&address).await?;
            let (mut reader, mut writer) = stream.into_split();
            let head = format!(
                "POST /v1/jobs HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/yaml\r\ncontent-length: {}\r\n\r\n",
                SENT + 1
            );
            let chunk = vec![b' '; 1 << 20];
            let writing = async {
                writer.write_all(head.as_bytes()).await?;
                for _ in 0..SENT / chunk.len() {
                    writer.write_all(&chunk).await?;
                }
                std::io::Result::Ok(())
            };
            let mut answer = [0; 512];
            let length = tokio::select! {
                biased;
                length = reader.read(&mut answer) => length.unwrap_or(0),
                // The server refused it with an answer, or stays silent from here on.
                written = writing => match written {
                    Ok(()) => 0,
                    Err(_) => reader.read(&mut answer).await.unwrap_or(0),
                },
            };
            let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
            anyhow::Ok((answer, reader, writer))
        });
    }
    check_answers("40 bodies of 60 MB on their way", &leader).await?;
    let sent = timeout(BOUND, bodies.join_all()).await?;
    check_answers("40 silent bodies", &leader).await?;
    let answers = sent.iter().filter_map(|sent| sent.as_ref().ok());
    let refused = answers.filter(|(answer, ..)| {
        let answer = answer.to_ascii_lowercase();
        answer.starts_with("http/1.1 503 ") && answer.contains("retry-after")
    });
    let refused = refused.count();
    let grown = peak_memory(pid)?.saturating_sub(before) >> 20;
    println!("{refused} of 40 silent bodies were refused; memory grew by {grown} MiB");
    ensure!(grown <= 300, "{grown} MiB");
    ensure!(refused > 0, "nothing was refused");
    drop(sent);
    // The resources of the flood are available again.
    wait_for("a job to be taken", BOUND, async || {
        let workload = WordsAndTicks::prepare_in(&cluster, "after", 1)?;
        cluster.submit(&workload.submission).await.map(|_| ())
    })
    .await?;
    cluster.discard();
    Ok(())
}
