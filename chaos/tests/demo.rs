//! The demonstration: it does what it prints, and leaves nothing behind, even if it is interrupted.
//!
//! It runs the `tanist` beside `tanist-demo`. `cargo test --workspace` builds both; `cargo test --package tanist-chaos`
//! uses the `tanist` that was built last.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tanist_chaos::wait_for;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// The program under test.
const PROGRAM: &str = env!("CARGO_BIN_EXE_tanist-demo");
/// Timeout of a whole demo on a busy machine.
const DEMO_BOUND: Duration = Duration::from_secs(90);

fn start_demo(temporary: &Path) -> anyhow::Result<Child> {
    start_demo_with(temporary, &[])
}

fn start_demo_with(temporary: &Path, arguments: &[&str]) -> anyhow::Result<Child> {
    let tanist = Path::new(PROGRAM).with_file_name("tanist");
    ensure!(
        tanist.is_file(),
        "{} is missing: run `cargo build --package tanist` first",
        tanist.display()
    );
    let demo = Command::new(PROGRAM)
        .args(arguments)
        .env("TMPDIR", temporary)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    Ok(demo)
}

/// Processes whose working directory is in `directory`.
fn processes_in(directory: &Path) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Ok(working_directory) = std::fs::read_link(entry.path().join("cwd")) else {
            // Not a process, or it has ended.
            continue;
        };
        if working_directory.starts_with(directory) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(found)
}

/// Reads the output up to this part.
async fn until_printed(demo: &mut Child, part: &str) -> anyhow::Result<String> {
    let stdout = demo.stdout.take().context("it is a pipe")?;
    let mut story = BufReader::new(stdout).lines();
    let told = async {
        while let Some(line) = story.next_line().await? {
            if line.contains(part) {
                // Keeps reading the rest of the output, so that the demo does not block.
                tokio::spawn(async move { while let Ok(Some(_)) = story.next_line().await {} });
                return Ok(line);
            }
        }
        anyhow::bail!("the story ended before {part:?}")
    };
    tokio::time::timeout(DEMO_BOUND, told).await?
}

/// Its error output when it ends in another way than it wanted.
async fn final_output(mut demo: Child, code: i32, bound: Duration) -> anyhow::Result<String> {
    let status = tokio::time::timeout(bound, demo.wait()).await??;
    ensure!(status.code() == Some(code), "{status}");
    let mut said = String::new();
    let mut stderr = demo.stderr.take().context("it is a pipe")?;
    stderr.read_to_string(&mut said).await?;
    Ok(said)
}

fn signal(pid: i32, signal: Signal) -> anyhow::Result<()> {
    let pid = Pid::from_raw(pid).context("a process")?;
    Ok(kill_process(pid, signal)?)
}

fn check_nothing_left(temporary: &Path) -> anyhow::Result<()> {
    let processes = processes_in(temporary)?;
    ensure!(processes.is_empty(), "processes are left: {processes:?}");
    let files: Vec<_> = std::fs::read_dir(temporary)?.collect::<Result<_, _>>()?;
    ensure!(files.is_empty(), "files are left: {files:?}");
    Ok(())
}

#[tokio::test]
async fn the_demo_shows_three_takeovers_that_nobody_notices_and_leaves_nothing()
-> anyhow::Result<()> {
    let temporary = tempfile::tempdir()?;
    let demo = start_demo(temporary.path())?;
    let output = tokio::time::timeout(DEMO_BOUND, demo.wait_with_output()).await??;
    let story = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{output:?}");
    for part in [
        "kill -9",
        "TOOK OVER",
        "ms after the kill",
        "THE RESULT IS RIGHT",
        "NO TASK NOTICED",
        "the longest gap between two records",
    ] {
        ensure!(story.contains(part), "{part:?} is not told:\n{story}");
    }
    ensure!(
        story.lines().count() <= 20,
        "a short story is wanted:\n{story}"
    );
    check_nothing_left(temporary.path())
}

#[tokio::test]
async fn an_interrupted_demo_of_a_configuration_fails_and_leaves_nothing() -> anyhow::Result<()> {
    let temporary = tempfile::tempdir()?;
    let mine = tempfile::tempdir()?;
    let file = mine.path().join("mine.yaml").display().to_string();
    // No process could start on that port, and no file could be created in that directory.
    std::fs::write(
        &file,
        "jobmanager.rpc.port: 1\nhigh-availability.embedded.dir: /dev/null/store\n",
    )?;
    let mut demo = start_demo_with(temporary.path(), &["--config", &file])?;
    until_printed(&mut demo, " leads ").await?;
    // One that is about to execute its program has no command line for a moment.
    wait_for(
        "all processes to run with the file",
        DEMO_BOUND,
        async || {
            let of_the_file = with_setting(temporary.path(), &file)?;
            ensure!(of_the_file.len() == 5, "{of_the_file:?} run with {file}");
            anyhow::Ok(())
        },
    )
    .await?;
    let pid = demo.id().context("it runs")?;
    signal(i32::try_from(pid)?, Signal::INT)?;
    let said = final_output(demo, 130, DEMO_BOUND).await?;
    ensure!(said.contains("interrupted"), "{said:?}");
    let bound = Duration::from_secs(10);
    wait_for("all processes and files to be gone", bound, async || {
        check_nothing_left(temporary.path())
    })
    .await
}

/// The processes of a demo that are this JobManager.
fn named(directory: &Path, id: &str) -> anyhow::Result<Vec<i32>> {
    with_setting(directory, &format!("jobmanager.id={id}"))
}

fn with_setting(directory: &Path, setting: &str) -> anyhow::Result<Vec<i32>> {
    let mut found = Vec::new();
    for pid in processes_in(directory)? {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if line.split('\0').any(|argument| argument == setting) {
            found.push(pid.parse()?);
        }
    }
    Ok(found)
}

#[tokio::test]
async fn a_leader_that_somebody_else_kills_while_the_demo_submits_is_one_takeover_more()
-> anyhow::Result<()> {
    let temporary = tempfile::tempdir()?;
    let mut demo = start_demo(temporary.path())?;
    let stdout = demo.stdout.take().context("it is a pipe")?;
    let mut story = BufReader::new(stdout).lines();
    let mut told = Vec::new();
    let telling = async {
        while let Some(line) = story.next_line().await? {
            let leads = line.split_once(" leads ").map(|(before, _)| before);
            if let Some(leader) = leads.and_then(|before| before.rsplit(' ').next()) {
                for pid in named(temporary.path(), leader)? {
                    signal(pid, Signal::KILL)?;
                }
            }
            told.push(line);
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(DEMO_BOUND, telling).await??;
    let status = demo.wait().await?;
    let story = told.join("\n");
    ensure!(status.success(), "{status}:\n{story}");
    ensure!(
        story.contains("(signal: 9 (SIGKILL)): it is started again"),
        "{story}"
    );
    ensure!(
        story.contains("ms after that was seen (epoch 2)"),
        "{story}"
    );
    ensure!(story.contains("NO TASK NOTICED"), "{story}");
    ensure!(story.contains("3 kills and 1 from outside"), "{story}");
    check_nothing_left(temporary.path())
}

/// The processes of a demo that run as this TaskManager.
fn taskmanager(directory: &Path, id: &str) -> anyhow::Result<Vec<i32>> {
    with_setting(directory, &format!("taskmanager.resource-id={id}"))
}

#[tokio::test]
async fn a_taskmanager_that_somebody_else_kills_is_named_at_once() -> anyhow::Result<()> {
    let temporary = tempfile::tempdir()?;
    let mut demo = start_demo(temporary.path())?;
    until_printed(&mut demo, "records are read here").await?;
    for pid in taskmanager(temporary.path(), "tm-1")? {
        signal(pid, Signal::KILL)?;
    }
    let said = final_output(demo, 1, Duration::from_secs(20)).await?;
    ensure!(
        said.contains("tm-1") && said.contains("signal: 9"),
        "{said:?}"
    );
    Ok(())
}
