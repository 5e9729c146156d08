//! Processes die, or are held beside a second leader, at each step of a checkpoint, a restore and a savepoint. Each
//! number of the job counts once nevertheless.
//!
//! One cluster runs one job a step. The armed JobManager leads when the job is submitted; the other one is never armed,
//! and leads after it. What was held goes on when its successor has completed a checkpoint, or ended the job.
//!
//! `checkpoint_faults.rs` has what else may happen at a step.
//!
//! Usually the steps that are most likely to break; all of them with `TANIST_TEST_ALL=1` and in `cargo xtask chaos`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tanist_chaos::{CliOutput, Cluster, Leader, Process, StoreKind, test_all, wait_for};
use tokio::task::JoinHandle;

use crate::savepoints::stop_with_savepoint;
use crate::support::{cluster_with_blobs, is_chaos, need_failpoints, transfer_to, until_standby};
use crate::verified::{TwoRegions, Verified};

/// Timeout until a step is reached, including restarts.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// It lasts until it is stopped with a savepoint. With two thousand keys its state is large enough for objects.
pub(crate) const SLOWLY: TwoRegions = TwoRegions {
    count: 60_000,
    rate: 3_000,
    keys: 2_000,
    interval_ms: 100,
};

/// Whose step it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    JobManager,
    TaskManager,
}

/// What has to happen so that the step is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Nothing: each checkpoint reaches it.
    Checkpoint,
    /// A TaskManager does not answer.
    Abort,
    /// A TaskManager dies.
    Restore,
    /// The job is stopped with a savepoint.
    Stop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Kill,
    Hold,
}

pub(crate) use Act::{Hold, Kill};
pub(crate) use Cause::{Abort, Checkpoint, Restore, Stop};
pub(crate) use Role::{JobManager, TaskManager};

pub(crate) const STEPS: [(&str, Role, Cause); 24] = [
    ("checkpoint.reserved", JobManager, Checkpoint),
    ("checkpoint.triggered-some", JobManager, Checkpoint),
    ("checkpoint.triggered", JobManager, Checkpoint),
    ("checkpoint.injected", TaskManager, Checkpoint),
    ("checkpoint.blocked", TaskManager, Checkpoint),
    ("checkpoint.frozen", TaskManager, Checkpoint),
    ("checkpoint.object-written", TaskManager, Checkpoint),
    ("checkpoint.acknowledged", TaskManager, Checkpoint),
    ("checkpoint.all-acknowledged", JobManager, Checkpoint),
    ("checkpoint.manifest-written", JobManager, Checkpoint),
    ("checkpoint.completed", JobManager, Checkpoint),
    ("checkpoint.some-committed", JobManager, Checkpoint),
    ("checkpoint.committed", JobManager, Checkpoint),
    ("checkpoint.commit-recorded", JobManager, Checkpoint),
    ("checkpoint.some-removed", JobManager, Checkpoint),
    ("checkpoint.aborted", JobManager, Abort),
    ("restore.placed", JobManager, Restore),
    ("restore.fetched", TaskManager, Restore),
    ("restore.opened", TaskManager, Restore),
    ("savepoint.requested", JobManager, Stop),
    ("savepoint.some-copied", JobManager, Stop),
    ("savepoint.copied", JobManager, Stop),
    ("savepoint.told", JobManager, Stop),
    ("stop.paused", TaskManager, Stop),
];

/// What runs usually: output that is half visible, objects of a deposed leader, an acknowledgement that only a dead
/// leader has, state that is read and in no task yet.
const SHORT: [(&str, Act); 4] = [
    ("checkpoint.some-committed", Kill),
    ("checkpoint.some-removed", Hold),
    ("checkpoint.acknowledged", Hold),
    ("restore.fetched", Kill),
];

on_stores! {
    each {
        whoever_dies_or_is_held_at_a_step_of_a_checkpoint_no_number_is_lost_or_counted_twice,
    }
}

async fn whoever_dies_or_is_held_at_a_step_of_a_checkpoint_no_number_is_lost_or_counted_twice(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let directory = tempfile::tempdir()?;
    // The tasks of each region are on two TaskManagers.
    let builder = cluster_with_blobs(kind, &directory).await?;
    let mut cluster = builder.taskmanagers(4).slots(1).start().await?;
    let mut outputs = Vec::new();
    for (name, role, cause) in STEPS {
        for act in [Kill, Hold] {
            if !(test_all() || is_chaos() || SHORT.contains(&(name, act))) {
                continue;
            }
            let step = Step::new((name, role, cause), act, directory.path());
            let began = tokio::time::Instant::now();
            let what = || format!("{act:?} the {role:?} at {name}");
            let job = step
                .counted(&mut cluster)
                .survives(&mut cluster)
                .await
                .with_context(what)?;
            println!("{}: {:?}", what(), began.elapsed());
            outputs.extend(job.directories());
        }
    }
    cluster.wait_until_slots_are_free().await?;
    cluster.check_nothing_left(&outputs).await
}

/// A client that stops a job with a savepoint.
type Stopping = JoinHandle<anyhow::Result<CliOutput>>;

/// A process that dies or is held at one step.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) cause: Cause,
    act: Act,
    /// While it exists, the process is held.
    file: PathBuf,
    /// The TaskManager that is armed.
    taskmanager: usize,
    /// Number of times that the process was at this step before.
    before: usize,
}

/// The JobManager and the TaskManager that are armed.
pub(crate) const ARMED: usize = 1;
/// The JobManager and the TaskManager that are not.
pub(crate) const OTHER: usize = 0;

impl Step {
    /// `directory` is for a file that says how long a process is held.
    pub(crate) fn new(
        (name, role, cause): (&'static str, Role, Cause),
        act: Act,
        directory: &Path,
    ) -> Step {
        Step {
            name,
            role,
            cause,
            act,
            file: directory.join(format!("held-at-{name}")),
            taskmanager: ARMED,
            before: 0,
        }
    }

    pub(crate) fn counted(mut self, cluster: &mut Cluster) -> Step {
        self.before = self.process(cluster).times_reached(self.name);
        self
    }

    fn process<'a>(&self, cluster: &'a mut Cluster) -> &'a mut Process {
        match self.role {
            JobManager => cluster.jobmanager(ARMED),
            TaskManager => cluster.taskmanager(self.taskmanager),
        }
    }

    /// Runs a job to its end with this step.
    async fn survives(mut self, cluster: &mut Cluster) -> anyhow::Result<Verified> {
        let armed = self.armed()?;
        if (self.role, self.cause) != (TaskManager, Restore) {
            self.start_armed(cluster, &armed).await?;
        }
        let job = Verified::submit(cluster, SLOWLY).await?;
        let stopping = self.bring_about(cluster, &job, &armed).await?;
        self.reached(cluster).await?;
        match (self.act, self.role) {
            (Kill, JobManager) => {
                cluster.jobmanager(ARMED).ended(BOUND).await?;
                cluster.leader().await?;
                cluster.jobmanager(ARMED).start()?;
            }
            (Kill, TaskManager) => {
                cluster.taskmanager(self.taskmanager).ended(BOUND).await?;
                cluster.taskmanager(self.taskmanager).start()?;
            }
            (Hold, JobManager) => {
                let former = cluster.leader().await?;
                ensure!(former.index == ARMED, "{former:?} leads");
                cluster.jobmanager(ARMED).stop()?;
                cluster.successor_of(&former).await?;
                self.until_it_goes_on(cluster, &job).await?;
                self.let_go()?;
                let held = cluster.jobmanager(ARMED);
                // Its successor may have ended it, if it was in the middle of a commit of the embedded store.
                if held.runs() {
                    held.cont()?;
                }
            }
            (Hold, TaskManager) => {
                let former = cluster.kill_leader().await?;
                cluster.successor_of(&former).await?;
                self.let_go()?;
                cluster.jobmanager(former.index).start()?;
            }
        }
        if self.is_only_a_change_of_leaders() {
            self.until_it_goes_on(cluster, &job).await?;
            let attempts = cluster.attempts(job.job).await?;
            ensure!(
                attempts.highest() <= 1,
                "tasks were restarted: {attempts:?}"
            );
        }
        self.finish(cluster, job, stopping).await
    }

    /// What a process is armed with.
    pub(crate) fn armed(&self) -> anyhow::Result<String> {
        match self.act {
            Kill => Ok(format!("{}=kill", self.name)),
            Hold => {
                std::fs::write(&self.file, "")?;
                Ok(format!("{}=hold-while:{}", self.name, self.file.display()))
            }
        }
    }

    /// Holds the process no longer.
    pub(crate) fn let_go(&self) -> anyhow::Result<()> {
        Ok(std::fs::remove_file(&self.file)?)
    }

    /// Has the job go on, ends it, and checks its output.
    pub(crate) async fn finish(
        &self,
        cluster: &mut Cluster,
        mut job: Verified,
        stopping: Option<Stopping>,
    ) -> anyhow::Result<Verified> {
        let path = match stopping {
            Some(stopping) => Some(path_in(&stopping.await??)?),
            None => {
                self.until_it_goes_on(cluster, &job).await?;
                match stop_with_savepoint(cluster, &job).await {
                    Ok(path) => Some(path),
                    // It may have read all of its numbers by then.
                    Err(error) => {
                        ensure!(cluster.job(job.job).await?.is_over(), "{error:#}");
                        None
                    }
                }
            }
        };
        cluster.wait_for_state(job.job, "FINISHED").await?;
        if let Some(path) = path {
            job = job
                .submit_next_from(cluster, SLOWLY.without_rate(), &path)
                .await?;
            cluster.wait_for_state(job.job, "FINISHED").await?;
        }
        job.check_output()?;
        Ok(job)
    }

    /// Whether no task may be restarted (K9).
    fn is_only_a_change_of_leaders(&self) -> bool {
        self.cause == Checkpoint && (self.act, self.role) != (Kill, TaskManager)
    }

    /// Starts the process whose step it is, so that it dies or is held there.
    pub(crate) async fn start_armed(
        &self,
        cluster: &mut Cluster,
        armed: &str,
    ) -> anyhow::Result<()> {
        let leader = cluster.leader().await?;
        if self.role == TaskManager {
            let taskmanager = cluster.taskmanager(self.taskmanager);
            taskmanager.arm(armed);
            taskmanager.start()?;
            return cluster.wait_until_complete().await;
        }
        let leader = match leader.index {
            OTHER => leader,
            _ => {
                until_standby(cluster, OTHER, &leader).await?;
                transfer_to(cluster, &leader, OTHER).await?
            }
        };
        start_standby(cluster, ARMED, armed, &leader).await?;
        transfer_to(cluster, &leader, ARMED).await?;
        Ok(())
    }

    /// Makes happen what leads to the step. Returns the client that stops the job.
    pub(crate) async fn bring_about(
        &mut self,
        cluster: &mut Cluster,
        job: &Verified,
        armed: &str,
    ) -> anyhow::Result<Option<Stopping>> {
        if self.cause == Checkpoint {
            return Ok(None);
        }
        // Its state is large enough for objects by then.
        job.until_completed_above(cluster, 12).await?;
        match self.cause {
            Checkpoint => Ok(None),
            Abort => {
                let paused = cluster.taskmanager(OTHER);
                paused.stop()?;
                let reached = self.reached(cluster).await;
                cluster.taskmanager(OTHER).cont()?;
                reached.map(|()| None)
            }
            Restore => {
                if self.role == TaskManager {
                    // What restores tasks is the next process of one whose state is in objects.
                    (self.taskmanager, _) = cluster.place_of(job.job, "counts").await?;
                    self.before = self.process(cluster).times_reached(self.name);
                }
                let killed = match self.role {
                    JobManager => cluster.taskmanager(OTHER),
                    TaskManager => cluster.taskmanager(self.taskmanager),
                };
                killed.kill();
                if self.role == TaskManager {
                    killed.arm(armed);
                }
                killed.start()?;
                Ok(None)
            }
            Stop => {
                let directory = cluster.directory().join("savepoints");
                let savepoint = format!("--savepoint={}", directory.display());
                let address = cluster.rest_address(OTHER).to_owned();
                let (cli, id) = (cluster.cli().clone(), job.job.to_string());
                Ok(Some(tokio::spawn(async move {
                    let arguments = ["stop", &savepoint, &id, "--address", &address];
                    cli.run(&arguments).await
                })))
            }
        }
    }

    /// Waits until the process is at the step.
    pub(crate) async fn reached(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        let process = self.process(cluster);
        wait_for(&format!("{} to be reached", self.name), BOUND, async || {
            let times = process.times_reached(self.name);
            ensure!(
                times > self.before,
                "the end of its log:\n{}",
                process.log_tail()
            );
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until another leader has completed a checkpoint of the job, or has ended it.
    pub(crate) async fn until_it_goes_on(
        &self,
        cluster: &mut Cluster,
        job: &Verified,
    ) -> anyhow::Result<()> {
        let at_first = newest(cluster, job).await.unwrap_or_default();
        wait_for("the job to go on", BOUND, async || {
            if cluster.job(job.job).await?.is_over() {
                return Ok(());
            }
            let newest = newest(cluster, job).await?;
            ensure!(newest > at_first, "{newest}");
            anyhow::Ok(())
        })
        .await
    }
}

/// Starts an armed JobManager beside the leader.
pub(crate) async fn start_standby(
    cluster: &mut Cluster,
    index: usize,
    armed: &str,
    leader: &Leader,
) -> anyhow::Result<()> {
    let jobmanager = cluster.jobmanager(index);
    jobmanager.arm(armed);
    jobmanager.start()?;
    until_standby(cluster, index, leader).await
}

/// The path of the savepoint that a client has waited for.
fn path_in(said: &CliOutput) -> anyhow::Result<String> {
    let said = said.clone().success()?;
    let path = said.lines().last().unwrap_or_default().trim();
    Ok(path.to_owned())
}

async fn newest(cluster: &mut Cluster, job: &Verified) -> anyhow::Result<u64> {
    let checkpoints = job.checkpoints(cluster).await?;
    let newest = checkpoints["latest"]["completed"]["id"].as_u64();
    newest.with_context(|| checkpoints.to_string())
}
