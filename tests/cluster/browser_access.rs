//! A page of another site in a real browser on the cluster's host: it tries to stop a job and to move the
//! leadership, and a name that resolves to this host (DNS rebinding) tries to read. Both have no effect.

use std::process::Stdio;

use anyhow::{Context as _, ensure};
use tanist_chaos::StoreKind;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::{BOUND, WordsAndTicks, cluster_on};

/// The site of the page. The browser is configured to resolve it to this host.
const EVIL: &str = "evil.example";

/// The final content of a page in the browser.
async fn visit(url: &str, profile: &tempfile::TempDir) -> anyhow::Result<String> {
    let browsing = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            "--virtual-time-budget=5000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--host-resolver-rules=MAP {EVIL} 127.0.0.1"))
        .arg(url)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output();
    let shown = timeout(BOUND, browsing)
        .await
        .context("the browser hangs")?;
    let shown = shown.context("chromium: `cargo xtask setup` installs it")?;
    Ok(String::from_utf8_lossy(&shown.stdout).into_owned())
}

/// Answers each request with `page`.
async fn serve(listener: TcpListener, page: String) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(answer(stream, page.clone()));
    }
}

async fn answer(mut stream: TcpStream, page: String) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let length = page.len();
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{page}"
    );
    stream.write_all(answer.as_bytes()).await
}

/// A page that sends requests, and shows what the browser lets it see of each answer.
fn attack(targets: &[String]) -> String {
    let targets: Vec<String> = targets.iter().map(|url| format!("{url:?}")).collect();
    format!(
        "<html><body><p id=seen></p><script>
        Promise.all([{}].map(url => fetch(url, {{method: 'POST', mode: 'no-cors', body: '{{}}'}})
            .then(answer => answer.type, error => 'failed')))
            .then(seen => document.getElementById('seen').textContent = 'seen: ' + seen.join())
        </script></body></html>",
        targets.join(",")
    )
}

#[tokio::test]
async fn a_page_of_another_site_stops_nothing_moves_nothing_and_reads_nothing() -> anyhow::Result<()>
{
    // A browser that starts takes all processors: no leader counts as lost because it is silent meanwhile.
    let builder = cluster_on(StoreKind::Embedded).await?;
    let builder = builder.set("high-availability.detector.silence-timeout", "6 s");
    let mut cluster = builder.start().await?;
    let leader = cluster.leader().await?;
    let workload = WordsAndTicks::prepare_endless(&cluster)?;
    let job = cluster.submit(&workload.submission).await?;
    cluster.wait_for_state(job, "RUNNING").await?;
    let profile = tempfile::tempdir()?;
    let (_, port) = leader.rest.rsplit_once(':').context("host:port")?;

    let mut targets = Vec::new();
    for host in ["127.0.0.1", "localhost", EVIL] {
        targets.push(format!("http://{host}:{port}/v1/jobs/{job}/stop"));
        targets.push(format!("http://{host}:{port}/v1/ha/transfer"));
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let evil = format!("http://{EVIL}:{}/", listener.local_addr()?.port());
    let serving = tokio::spawn(serve(listener, attack(&targets)));
    let shown = visit(&evil, &profile).await?;
    serving.abort();
    // Each request was answered, and the page may not see the answer.
    let seen = vec!["opaque"; targets.len()].join(",");
    ensure!(shown.contains(&format!("seen: {seen}")), "{shown}");

    // The page now has the name of this very server, and could read the answers.
    let rebound = format!("http://{EVIL}:{port}/v1/overview");
    let shown = visit(&rebound, &profile).await?;
    ensure!(shown.contains("this server is not"), "{shown}");
    ensure!(!shown.contains("taskmanagers"), "{shown}");

    let leads = cluster.leader().await?;
    ensure!(leads == leader, "{leads:?} leads, not {leader:?}");
    let job = cluster.get(&format!("/v1/jobs/{job}")).await?;
    ensure!(job["state"] == "RUNNING", "{job}");
    let id = workload.job().to_string();
    let cancel = ["cancel", &id, "--address", &leader.rest];
    cluster.cli().run(&cancel).await?.success()?;
    cluster.wait_for_state(workload.job(), "CANCELED").await?;
    cluster.check_nothing_left(&workload.outputs()).await
}
