//! The processes' own files are closed to other users of the host, files of jobs are as open as the
//! user's umask allows, and a directory that another user owns or may write to is not used.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tanist_chaos::wordcount::visible_files;
use tanist_chaos::{Cluster, StoreKind, Submission, wait_for};
use tokio::process::Command;

use crate::support::{PROGRAM, cluster_on, example, job_file};

const BOUND: Duration = Duration::from_secs(30);
/// The password of a store that is not in use.
const SECRET: (&str, &str) = ("TANIST_HIGH_AVAILABILITY_ETCD_PASSWORD", "hunter2");
/// Another user of this host.
const OTHER_USER: u32 = 65534;

on_stores! {
    usually on embedded(Embedded) {
        only_what_jobs_write_can_be_read_by_others,
        only_what_jobs_write_can_be_read_by_others_where_a_driver_starts_the_taskmanager,
    }
}

async fn only_what_jobs_write_can_be_read_by_others(kind: StoreKind) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.jobmanagers(1).taskmanagers(1);
    check_modes(builder.slots(4).start().await?).await
}

async fn only_what_jobs_write_can_be_read_by_others_where_a_driver_starts_the_taskmanager(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.jobmanagers(1).taskmanagers(0);
    let builder = builder
        .set("resourcemanager.driver", "local-process")
        .set("resourcemanager.taskmanager-timeout", "2 s")
        .set("taskmanager.numberOfTaskSlots", "4");
    check_modes(builder.start().await?).await
}

async fn check_modes(mut cluster: Cluster) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let ours = directory.path().join("ours");
    fs::write(&ours, "")?;
    let as_the_user_has_it = mode(&ours)?;
    ensure!(
        as_the_user_has_it & 0o044 != 0,
        "this test needs a umask that lets others read, as 022"
    );

    let output = directory.path().join("below/lengths");
    let submission = Submission::new(example("exec.yaml")).path("output", &output);
    let job = cluster.submit(&submission).await?;
    cluster.wait_for_state(job, "FINISHED").await?;
    let parts = visible_files(&output)?;
    ensure!(!parts.is_empty(), "the job has no output");
    for part in parts {
        let found = mode(&part)?;
        ensure!(found == as_the_user_has_it, "{part:?} has {found:o}");
    }
    let open = fs::metadata(&ours)?.mode() & 0o044;
    for made in [&output, &directory.path().join("below")] {
        let found = mode(made)?;
        ensure!(found & 0o044 == open, "{made:?} has {found:o}");
    }

    let pids = directory.path().join("pids");
    let submission = Submission::new(job_file("family.yaml")).path("pids", &pids);
    let job = cluster.submit(&submission).await?;
    wait_for("the program to write", BOUND, async || {
        ensure!(fs::read_to_string(&pids)?.lines().count() > 0, "empty");
        anyhow::Ok(())
    })
    .await?;
    let found = mode(&pids)?;
    ensure!(found == as_the_user_has_it, "{pids:?} has {found:o}");

    let user = rustix::process::geteuid().as_raw();
    let mut looked_at = 0;
    for part in ["store".to_owned(), format!("tanist-{user}")] {
        looked_at += check_closed(&cluster.directory().join(part))?;
    }
    ensure!(looked_at > 10, "only {looked_at} files and directories");
    let leader = cluster.leader().await?.rest;
    let arguments = ["cancel", &job.to_string(), "--address", &leader];
    cluster.cli().run(&arguments).await?.success()?;
    cluster.wait_for_state(job, "CANCELED").await?;
    cluster.check_nothing_left(&[output]).await
}

/// Counts files and directories, and checks that all of them are closed to others.
fn check_closed(path: &Path) -> anyhow::Result<usize> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        // The process is still running and may have removed it.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    if found.is_symlink() {
        return Ok(0);
    }
    ensure!(
        found.mode() & 0o077 == 0,
        "{path:?} has {:o}",
        found.mode() & 0o7777
    );
    let mut count = 1;
    if found.is_dir() {
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        for entry in entries.flatten() {
            count += check_closed(&entry.path())?;
        }
    }
    Ok(count)
}

fn mode(path: &Path) -> anyhow::Result<u32> {
    let found = fs::metadata(path).with_context(|| path.display().to_string())?;
    Ok(found.mode() & 0o777)
}

/// A directory that others may write to, or, for root, one that belongs to another user.
fn of_others(parent: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let path = parent.join(name);
    fs::create_dir(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(OTHER_USER), None)?;
    }
    Ok(path)
}

async fn run(arguments: &[&str], temporary: &Path) -> anyhow::Result<Output> {
    let running = Command::new(PROGRAM)
        .args(arguments)
        .env(SECRET.0, SECRET.1)
        .env("TMPDIR", temporary)
        .env("XDG_STATE_HOME", temporary.join("state"))
        .kill_on_drop(true)
        .output();
    let bound = tokio::time::timeout(2 * BOUND, running);
    Ok(bound.await.context("it does not end")??)
}

#[tokio::test]
async fn a_directory_of_another_user_ends_a_process_at_its_start() -> anyhow::Result<()> {
    let root = tempfile::tempdir()?;
    let theirs = of_others(root.path(), "theirs")?;
    let link = root.path().join("link");
    std::os::unix::fs::symlink(&theirs, &link)?;
    let (theirs, link) = (theirs.to_string_lossy(), link.to_string_lossy());
    let free = ["rest.bind-port=0", "jobmanager.rpc.port=0"];
    for (command, key, value) in [
        ("jobmanager", "process.working-dir", &theirs),
        ("taskmanager", "process.working-dir", &theirs),
        ("taskmanager", "process.working-dir", &link),
        ("jobmanager", "high-availability.embedded.dir", &theirs),
        ("taskmanager", "high-availability.embedded.dir", &theirs),
        ("jobmanager", "high-availability.storageDir", &theirs),
    ] {
        let set = format!("{key}={value}");
        let arguments = [command, "-D", &set, "-D", free[0], "-D", free[1]];
        let ended = run(&arguments, root.path()).await?;
        let said = String::from_utf8_lossy(&ended.stderr);
        ensure!(
            ended.status.code() == Some(13),
            "{command} {key}: {}\n{said}",
            ended.status
        );
        let says_what_to_do = said.contains("name another directory") && said.contains(key);
        ensure!(says_what_to_do, "{command} {key}: {said}");
    }
    Ok(())
}

/// The first user on the host could create a directory that all users share.
#[tokio::test]
async fn another_users_directory_is_not_the_default_one() -> anyhow::Result<()> {
    let root = tempfile::tempdir()?;
    let theirs = of_others(root.path(), "tanist")?;
    let output = root.path().join("output");
    let file = example("exec.yaml");
    let parameter = format!("output={}", output.display());
    let arguments = ["local", &file.to_string_lossy(), "--param", &parameter];
    let ended = run(&arguments, root.path()).await?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{}\n{said}", ended.status);
    ensure!(fs::read_dir(&theirs)?.count() == 0, "it was used");
    let user = rustix::process::geteuid().as_raw();
    let own = root.path().join(format!("tanist-{user}"));
    ensure!(mode(&own)? == 0o700, "{own:?} has {:o}", mode(&own)?);
    Ok(())
}

/// A program runs as the user of its TaskManager, so it can read the environment of the process that started it.
#[tokio::test]
async fn a_program_does_not_find_the_secrets_of_its_taskmanager_in_its_parents_environment()
-> anyhow::Result<()> {
    let root = tempfile::tempdir()?;
    let output = root.path().join("output");
    let file = job_file("environment-of-the-parent.yaml");
    let parameter = format!("output={}", output.display());
    let arguments = ["local", &file.to_string_lossy(), "--param", &parameter];
    let ended = run(&arguments, root.path()).await?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{}\n{said}", ended.status);
    let mut found = String::new();
    for part in visible_files(&output)? {
        found.push_str(&fs::read_to_string(part)?);
    }
    ensure!(found.contains("of exec-child"), "another parent: {found}");
    ensure!(!found.contains(SECRET.1), "{found}");
    Ok(())
}
