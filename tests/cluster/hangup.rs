//! SIGHUP makes a process read its configuration again, and never ends it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};

use crate::support::PROGRAM;

const LOG_TIMEOUT: Duration = Duration::from_secs(30);

fn start(directory: &Path, file: &Path) -> anyhow::Result<Child> {
    let ports = [
        "rest.port",
        "rest.bind-port",
        "jobmanager.rpc.port",
        "jobmanager.peer.port",
    ];
    let mut command = Command::new(PROGRAM);
    command.arg("jobmanager").arg("--config").arg(file);
    for port in ports {
        command.arg(format!("-D{port}=0"));
    }
    for (key, place) in [
        ("high-availability.embedded.dir", "store"),
        ("process.working-dir", "process"),
    ] {
        command.arg(format!("-D{key}={}", directory.join(place).display()));
    }
    let process = command
        .env("NO_COLOR", "1")
        .env_remove("TANIST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    Ok(process)
}

/// Reads the log up to this text.
async fn until_logged(
    log: &mut Lines<BufReader<ChildStderr>>,
    text: &str,
) -> anyhow::Result<String> {
    let said = async {
        while let Some(line) = log.next_line().await? {
            if line.contains(text) {
                return Ok(line);
            }
        }
        anyhow::bail!("the log ended before {text:?}")
    };
    tokio::time::timeout(LOG_TIMEOUT, said)
        .await
        .with_context(|| format!("{text:?} was not said"))?
}

#[tokio::test]
async fn a_process_that_gets_sighup_takes_the_new_log_level_and_goes_on() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("tanist.yaml");
    std::fs::write(&file, "log.level: info\n")?;
    let mut process = start(directory.path(), &file)?;
    let stderr = process.stderr.take().context("it is a pipe")?;
    let mut log = BufReader::new(stderr).lines();
    until_logged(&mut log, "leadership confirmed").await?;
    let pid = i32::try_from(process.id().context("it runs")?)?;
    let pid = Pid::from_raw(pid).context("it has a number")?;

    std::fs::write(&file, "log.level: loud\n")?;
    kill_process(pid, Signal::HUP)?;
    until_logged(&mut log, "nothing is changed").await?;

    std::fs::write(&file, "log.level: debug\nheartbeat.interval: 7 s\n")?;
    kill_process(pid, Signal::HUP)?;
    let said = until_logged(&mut log, "the configuration was read again").await?;
    ensure!(said.contains("heartbeat.interval"), "{said}");

    // It continues, and ends in order; the log is more detailed now.
    kill_process(pid, Signal::TERM)?;
    until_logged(&mut log, "DEBUG").await?;
    let ended = async {
        // Without a reader the log could block.
        while log.next_line().await?.is_some() {}
        anyhow::Ok(process.wait().await?)
    };
    let status = tokio::time::timeout(LOG_TIMEOUT, ended).await??;
    ensure!(status.code() == Some(0), "{status}");
    Ok(())
}
