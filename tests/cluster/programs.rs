//! Programs of tasks do not outlive a TaskManager that is killed by SIGKILL, nor a cancelled job, nor, in isolated
//! jobs, the time after which a silent TaskManager counts as lost. Files of their job survive the leader that accepted
//! it. A missing program fails its job at once, and so does a program with unreadable output, even if it keeps running.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tanist_chaos::process::is_alive;
use tanist_chaos::wordcount::visible_files;
use tanist_chaos::{Cluster, StoreKind, Submission, wait_for};
use tanist_proto::id::JobId;

use crate::support::{cluster_on, example, job_file, need_failpoints};

/// Timeout for the start and the end of processes.
const BOUND: Duration = Duration::from_secs(30);

on_stores! {
    usually on embedded(Embedded) {
        programs_end_with_their_job_and_with_a_killed_taskmanager,
        what_a_job_ships_survives_the_leader_that_took_it,
        a_job_whose_program_says_what_can_not_be_read_fails_though_the_program_goes_on,
        a_job_whose_program_is_missing_fails_in_its_first_attempt,
        a_job_whose_program_is_missing_fails_under_the_next_leader_too,
    }
    usually on etcd(Etcd) {
        a_program_of_an_isolated_job_ends_before_the_next_one_begins_also_while_its_taskmanager_is_stopped,
    }
}

async fn programs_end_with_their_job_and_with_a_killed_taskmanager(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.jobmanagers(2).taskmanagers(1);
    let mut cluster = builder.slots(2).start().await?;
    let directory = tempfile::tempdir()?;
    let file = |name: &str| directory.path().join(name);

    let first = Submission::new(job_file("family.yaml")).path("pids", &file("first"));
    let job = cluster.submit(&first).await?;
    let pids = family(&file("first")).await?;
    let leader = cluster.leader().await?.rest;
    let arguments = ["cancel", &job.to_string(), "--address", &leader];
    cluster.cli().run(&arguments).await?.success()?;
    // All of them ignore SIGTERM, and the leader that requested the cancellation is dead.
    cluster.kill_leader().await?;
    cluster.wait_for_state(job, "CANCELED").await?;
    let left = running(&pids);
    ensure!(left.is_empty(), "CANCELED, but {left:?} are there");

    let second = Submission::new(job_file("family.yaml")).path("pids", &file("second"));
    let job = cluster.submit(&second).await?;
    let mut pids = family(&file("second")).await?;
    let third = Submission::new(job_file("family.yaml")).path("pids", &file("third"));
    let other = cluster.submit(&third).await?;
    let others = family(&file("third")).await?;
    // A stopped supervisor does not notice the end of its TaskManager by itself.
    let stopped = rustix::process::Pid::from_raw(supervisor(&others)?).context("positive")?;
    rustix::process::kill_process(stopped, rustix::process::Signal::STOP)?;
    pids.extend(others);
    pids.push(stopped.as_raw_pid());
    cluster.taskmanager(0).kill();
    wait_for(
        "the programs of a killed TaskManager to be gone",
        BOUND,
        async || {
            let left = running(&pids);
            ensure!(left.is_empty(), "{left:?} are there");
            Ok::<_, anyhow::Error>(())
        },
    )
    .await?;
    cluster.wait_for_state(job, "FAILED").await?;
    cluster.wait_for_state(other, "FAILED").await?;
    cluster.check_nothing_left(&[]).await
}

/// The process that started the family.
fn supervisor(family: &[i32]) -> anyhow::Result<i32> {
    for pid in family {
        let parent = parent(*pid)?;
        let name = std::fs::read_to_string(format!("/proc/{parent}/comm"))?;
        if name.trim() == "exec-child" {
            return Ok(parent);
        }
    }
    anyhow::bail!("{family:?} has no supervisor")
}

/// The example's count is right whether its programs started before or after the change of the leader.
async fn what_a_job_ships_survives_the_leader_that_took_it(kind: StoreKind) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.jobmanagers(2).taskmanagers(1);
    let mut cluster = builder.slots(2).start().await?;
    let output = cluster.directory().join("lengths");
    let submission = Submission::new(example("exec.yaml")).path("output", &output);
    let job = cluster.submit(&submission).await?;
    cluster.kill_leader().await?;
    cluster.wait_for_state(job, "FINISHED").await?;
    let mut lines = Vec::new();
    for part in visible_files(&output)? {
        let text = std::fs::read_to_string(part)?;
        lines.extend(text.lines().map(str::to_owned));
    }
    lines.sort();
    ensure!(lines == ["1 9", "2 90", "3 900", "4 1"], "{lines:?}");
    cluster.check_nothing_left(&[output]).await
}

async fn a_program_of_an_isolated_job_ends_before_the_next_one_begins_also_while_its_taskmanager_is_stopped(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.jobmanagers(1).taskmanagers(2);
    let mut cluster = builder.start().await?;
    let directory = tempfile::tempdir()?;
    let pids = directory.path().join("pids");
    std::fs::write(&pids, "")?;
    let submission = Submission::new(job_file("isolated.yaml")).path("pids", &pids);
    let job = cluster.submit(&submission).await?;
    let attempts = async |count: usize| {
        wait_for("the next attempt", 2 * BOUND, async || {
            let text = std::fs::read_to_string(&pids)?;
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            ensure!(lines.len() >= count, "{lines:?}");
            anyhow::Ok(lines)
        })
        .await
    };
    let first = attempts(1).await?[0].parse()?;
    let supervisor = parent(first)?;
    let of = u32::try_from(parent(supervisor)?)?;
    let index = (0..2).find(|index| cluster.taskmanager(*index).pid() == Some(of));
    let stopped = index.context("the program is of none of the TaskManagers")?;
    cluster.taskmanager(stopped).stop()?;
    let said = attempts(2).await?;
    ensure!(
        said.len() == 2 && running(&[first]).is_empty(),
        "two at a time: {said:?}"
    );
    // It continues, and its tasks should have ended long ago.
    cluster.taskmanager(stopped).cont()?;
    let status = cluster.taskmanager(stopped).ended(BOUND).await?;
    ensure!(status.signal() == Some(9), "{status}");
    let leader = cluster.leader().await?.rest;
    let arguments = ["cancel", &job.to_string(), "--address", &leader];
    cluster.cli().run(&arguments).await?.success()?;
    cluster.wait_for_state(job, "CANCELED").await?;
    let said = attempts(2).await?;
    ensure!(said.len() == 2, "more attempts: {said:?}");
    cluster.check_nothing_left(&[]).await
}

/// The parent of a process.
fn parent(pid: i32) -> anyhow::Result<i32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    Ok(parent.context("every process has one")?.trim().parse()?)
}

async fn a_job_whose_program_says_what_can_not_be_read_fails_though_the_program_goes_on(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.jobmanagers(1).taskmanagers(1);
    let mut cluster = builder.start().await?;
    let submission = Submission::new(job_file("talkative.yaml"));
    let job = cluster.submit(&submission).await?;
    cluster.wait_for_state(job, "FAILED").await?;
    let told = cluster.get(&format!("/v1/jobs/{job}/exceptions")).await?;
    let told = told.to_string();
    ensure!(
        told.contains("no JSON object") && told.contains("ready"),
        "{told}"
    );
    cluster.check_nothing_left(&[]).await
}

async fn a_job_whose_program_is_missing_fails_in_its_first_attempt(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = cluster_on(kind).await?.jobmanagers(1).taskmanagers(1);
    let mut cluster = builder.start().await?;
    let submission = Submission::new(job_file("missing-program.yaml"));
    let job = cluster.submit(&submission).await?;
    check_failed_at_once(&mut cluster, job).await
}

async fn a_job_whose_program_is_missing_fails_under_the_next_leader_too(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let failpoint = "job.failure-persisted";
    let builder = cluster_on(kind).await?.jobmanagers(2).taskmanagers(1);
    let mut cluster = builder
        .failpoints(0, &format!("{failpoint}=kill"))
        .start()
        .await?;
    let former = cluster.leader().await?;
    let submission = Submission::new(job_file("missing-program.yaml"));
    let job = cluster.submit(&submission).await?;
    cluster.jobmanager(0).reached(failpoint, BOUND).await?;
    cluster.successor_of(&former).await?;
    check_failed_at_once(&mut cluster, job).await
}

async fn check_failed_at_once(cluster: &mut Cluster, job: JobId) -> anyhow::Result<()> {
    let view = cluster.wait_for_state(job, "FAILED").await?;
    let mut attempts = Vec::new();
    for vertex in view.0["vertices"].as_array().into_iter().flatten() {
        let id = vertex["id"].as_str().unwrap_or_default();
        let body = cluster
            .get(&format!("/v1/jobs/{job}/vertices/{id}"))
            .await?;
        let subtasks = body["subtasks"].as_array().into_iter().flatten();
        attempts.extend(subtasks.map(|subtask| subtask["attempt"].as_u64()));
    }
    ensure!(
        !attempts.is_empty() && attempts.iter().all(|attempt| *attempt == Some(1)),
        "attempts {attempts:?}: {view:?}"
    );
    let told = cluster.get(&format!("/v1/jobs/{job}/exceptions")).await?;
    let told = told.to_string();
    ensure!(told.contains("no-such-program-anywhere"), "{told}");
    cluster.check_nothing_left(&[]).await
}

/// The process ids of all three, once all have reported them.
async fn family(file: &std::path::Path) -> anyhow::Result<Vec<i32>> {
    wait_for("the family to be complete", BOUND, async || {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let pids: Vec<i32> = text.lines().flat_map(str::parse).collect();
        ensure!(pids.len() == 3 && running(&pids).len() == 3, "{text:?}");
        Ok::<_, anyhow::Error>(pids)
    })
    .await
}

fn running(pids: &[i32]) -> Vec<i32> {
    pids.iter().copied().filter(|pid| is_alive(*pid)).collect()
}
