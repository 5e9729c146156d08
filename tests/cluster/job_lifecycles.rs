//! Jobs of every kind from their clients' view: submitted, observed, stopped, cancelled, and their output is checked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use sha2::{Digest as _, Sha256};
use tanist::client::{ClientError, ClusterClient, JobClient};
use tanist::config::{Configuration, LoadOptions};
use tanist::job::{CompileOptions, Exchange, JobBuilder, JobFile, compile};
use tanist_chaos::{Cluster, wait_for, wordcount};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::JobStatus;

use crate::support::job_file;

/// Timeout until a job reaches the state that its client wants: other jobs may have its slots, and leaders are killed.
const BOUND: Duration = Duration::from_secs(120);
/// Pause before a refused client retries.
const PAUSE: Duration = Duration::from_millis(50);
/// Records of a job that ends by itself.
const RECORDS: u64 = 200;
/// Records per second of a job that does not end by itself soon.
const RATE: u64 = 20;
/// Size of a file of the job: with it the graph is kept in a blob.
const SHIPPED: usize = 16 * 1024;

/// The kind of a job's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It ends by itself.
    Finishes,
    /// The same, with a file of the job.
    Ships,
    /// The same in two stages, where the second reads the kept output of the first.
    InStages,
    /// It is stopped when all its tasks run, and ends with the records read so far.
    Stopped,
    /// The same in two stages: it is stopped when the first has read something, and the second starts after that.
    StoppedInStages,
    /// It is cancelled when all its tasks run.
    CanceledRunning,
    /// It is cancelled while it is being submitted.
    CanceledAtOnce,
    /// It can't read its input.
    Fails,
    /// It is submitted twice at the same time, together with another job under the same id.
    Twice,
    /// It runs programs that ignore requests to end, and is cancelled.
    Programs,
}

/// One job from its client's view.
#[derive(Debug)]
pub(crate) struct Life {
    pub kind: Kind,
    pub job: JobId,
    /// For all its inputs and outputs.
    pub directory: PathBuf,
    /// Whether TaskManagers are killed at the same time.
    loses_tasks: bool,
}

impl Life {
    /// One of many; its kind depends on its number.
    pub(crate) fn new(number: usize, directory: &Path) -> anyhow::Result<Life> {
        let kind = match number % 10 {
            0 => Kind::Finishes,
            1 => Kind::InStages,
            2 if number % 20 == 2 => Kind::StoppedInStages,
            2 | 4 => Kind::Stopped,
            3 => Kind::CanceledRunning,
            5 | 6 => Kind::CanceledAtOnce,
            7 => Kind::Fails,
            8 => Kind::Twice,
            _ if number % 50 == 9 => Kind::Programs,
            _ => Kind::Ships,
        };
        Life::of(kind, &directory.join(format!("{number:04}")))
    }

    /// A job of this kind, with its own directory.
    pub(crate) fn of(kind: Kind, directory: &Path) -> anyhow::Result<Life> {
        std::fs::create_dir_all(directory)?;
        Ok(Life {
            kind,
            job: JobId::random(),
            directory: directory.to_owned(),
            loses_tasks: false,
        })
    }

    /// The same while TaskManagers are killed, so that records that a job had read before it was stopped may be lost.
    #[must_use]
    pub(crate) fn among_killed_taskmanagers(mut self) -> Life {
        self.loses_tasks = true;
        self
    }

    /// Runs the job, and checks its output; returns its final status.
    pub(crate) async fn live(&self, jobs: &JobClient) -> anyhow::Result<JobStatus> {
        let output = self.directory.join("output");
        match self.kind {
            Kind::Finishes | Kind::Ships | Kind::InStages => {
                let mut graph = match self.kind {
                    Kind::InStages => self.counting_in_stages(&output)?,
                    _ => self.counting(&output)?,
                };
                if self.kind == Kind::Ships {
                    graph.artifacts.push(shipped(self.job));
                }
                jobs.submit_as(&graph, "first").await?;
                self.ends(jobs, JobStatus::Finished).await?;
                check_counted(&output)?;
                Ok(JobStatus::Finished)
            }
            Kind::Stopped | Kind::StoppedInStages => self.live_until_stopped(jobs, &output).await,
            Kind::CanceledRunning => {
                jobs.submit_as(&self.endless(&output)?, "first").await?;
                self.until_running(jobs).await?;
                jobs.cancel(self.job).await?;
                self.ends(jobs, JobStatus::Canceled).await?;
                check_nothing_visible(&output)?;
                Ok(JobStatus::Canceled)
            }
            Kind::CanceledAtOnce => {
                let graph = self.counting(&output)?;
                let submitting = jobs.submit_as(&graph, "first");
                let (submitted, canceled) = tokio::join!(submitting, self.cancel_if_known(jobs));
                submitted?;
                if canceled? {
                    self.ends(jobs, JobStatus::Canceled).await?;
                    check_nothing_visible(&output)?;
                    Ok(JobStatus::Canceled)
                } else {
                    self.ends(jobs, JobStatus::Finished).await?;
                    check_counted(&output)?;
                    Ok(JobStatus::Finished)
                }
            }
            Kind::Fails => {
                let missing = self.directory.join("no-such-file");
                let job = JobBuilder::new("fails").restart_strategy(never());
                let steps = job.file_source("lines", [missing.to_string_lossy()]);
                let graph = steps.discard("out").build().compile(&self.options())?;
                jobs.submit_as(&graph, "first").await?;
                self.ends(jobs, JobStatus::Failed).await?;
                Ok(JobStatus::Failed)
            }
            Kind::Twice => self.live_twice(jobs).await,
            Kind::Programs => self.live_with_programs(jobs).await,
        }
    }

    /// It finishes with the records read so far, or fails because they were lost.
    async fn live_until_stopped(
        &self,
        jobs: &JobClient,
        output: &Path,
    ) -> anyhow::Result<JobStatus> {
        let is_in_stages = self.kind == Kind::StoppedInStages;
        jobs.submit_as(&self.listing(output, is_in_stages)?, "first")
            .await?;
        match is_in_stages {
            true => self.until_reading(jobs).await?,
            false => self.until_running(jobs).await?,
        }
        let is_too_late = loop {
            match jobs.stop(self.job).await {
                Ok(()) => break false,
                Err(ClientError::Refused { status: 409, .. }) => {}
                Err(error) => return Err(error).context("stopping it"),
            }
            // Not while it is being restarted.
            if jobs.info(self.job).await?.has_ended() {
                break true;
            }
            tokio::time::sleep(PAUSE).await;
        };
        let ending = tokio::time::timeout(BOUND, jobs.wait_for_end(self.job, |_| {}));
        let info = ending.await.context("it does not end")??;
        match info.state {
            JobStatus::Finished if !is_too_late => check_prefix(output)?,
            JobStatus::Failed if self.loses_tasks => check_nothing_visible(output)?,
            state => bail!("it is {state:?} (stopped too late: {is_too_late}): {info:?}"),
        }
        Ok(info.state)
    }

    /// Two submissions of one job and one of another, all with one id: either both of the first or the
    /// other one are acknowledged.
    async fn live_twice(&self, jobs: &JobClient) -> anyhow::Result<JobStatus> {
        let outputs = ["output", "other-output"].map(|name| self.directory.join(name));
        let (graph, other) = (self.counting(&outputs[0])?, self.counting(&outputs[1])?);
        let (first, second, third) = tokio::join!(
            jobs.submit_as(&graph, "first"),
            jobs.submit_as(&graph, "first"),
            jobs.submit_as(&other, "other"),
        );
        let taken = [first, second, third].map(|answer| match answer {
            Ok(submitted) if submitted.job == self.job => Ok(true),
            Err(ClientError::Refused { status: 409, .. }) => Ok(false),
            answer => bail!("answered {answer:?}"),
        });
        let [first, second, third] = taken;
        let (first, second, third) = (first?, second?, third?);
        ensure!(
            first == second && first != third,
            "of {first}, {second} and {third} one graph is to be taken"
        );
        self.ends(jobs, JobStatus::Finished).await?;
        let [of_it, of_the_other] = match first {
            true => outputs,
            false => {
                let [output, other] = outputs;
                [other, output]
            }
        };
        check_counted(&of_it)?;
        check_nothing_visible(&of_the_other)?;
        Ok(JobStatus::Finished)
    }

    async fn live_with_programs(&self, jobs: &JobClient) -> anyhow::Result<JobStatus> {
        let text = std::fs::read_to_string(job_file("family.yaml"))?;
        let pids = self.directory.join("pids");
        let parameter = ("pids".to_owned(), pids.to_string_lossy().into_owned());
        let options = CompileOptions {
            parameters: [parameter].into(),
            ..self.options()
        };
        let mut graph = compile(&JobFile::new("family.yaml", text), &options)?;
        // It continues even if its TaskManager is killed, until it is cancelled.
        if let Some(options) = &mut graph.options {
            options.restart_strategy = None;
        }
        graph.artifacts.push(shipped(self.job));
        jobs.submit_as(&graph, "first").await?;
        wait_for("the programs to run", BOUND, async || {
            let text = std::fs::read_to_string(&pids).unwrap_or_default();
            ensure!(text.lines().count() >= 3, "{text:?}");
            anyhow::Ok(())
        })
        .await?;
        jobs.cancel(self.job).await?;
        self.ends(jobs, JobStatus::Canceled).await?;
        Ok(JobStatus::Canceled)
    }

    fn options(&self) -> CompileOptions {
        CompileOptions {
            job_id: self.job,
            ..CompileOptions::default()
        }
    }

    /// Counts this number of records by key, in two tasks.
    pub(crate) fn counting(&self, output: &Path) -> anyhow::Result<pb::JobGraph> {
        let steps = JobBuilder::new("counts").datagen("numbers", None, Some(RECORDS), 1, 10);
        let steps = steps.key_by("by-key", ["key"]).count("counts");
        let job = steps.file_sink("out", output.to_string_lossy()).build();
        Ok(job.compile(&self.options())?)
    }

    /// The same in two stages.
    fn counting_in_stages(&self, output: &Path) -> anyhow::Result<pb::JobGraph> {
        let steps = JobBuilder::new("stages").exchange(Exchange::Blocking);
        let steps = steps.datagen("numbers", None, Some(RECORDS), 1, 10);
        let steps = steps.key_by("by-key", ["key"]).count("counts");
        let job = steps.file_sink("out", output.to_string_lossy()).build();
        Ok(job.compile(&self.options())?)
    }

    /// Counts each record by its number, at a fixed rate: the output shows how far it has read. Stages
    /// need an input that ends at some time.
    fn listing(&self, output: &Path, is_in_stages: bool) -> anyhow::Result<pb::JobGraph> {
        let (exchange, count) = match is_in_stages {
            true => (Exchange::Blocking, Some(RATE * 3600)),
            false => (Exchange::Pipelined, None),
        };
        let steps = JobBuilder::new("lists").exchange(exchange);
        let steps = steps.datagen("numbers", Some(RATE), count, 1, 10);
        let steps = steps.key_by("by-number", ["seq"]).count("counts");
        let job = steps.file_sink("out", output.to_string_lossy()).build();
        Ok(job.compile(&self.options())?)
    }

    /// The same with an endless input.
    fn endless(&self, output: &Path) -> anyhow::Result<pb::JobGraph> {
        let steps = JobBuilder::new("endless").datagen("numbers", Some(RATE), None, 1, 10);
        let steps = steps.key_by("by-key", ["key"]).count("counts");
        let job = steps.file_sink("out", output.to_string_lossy()).build();
        Ok(job.compile(&self.options())?)
    }

    /// Waits until all its tasks run. That nothing blocks them is not enough, because their placement may
    /// not be durable yet.
    async fn until_running(&self, jobs: &JobClient) -> anyhow::Result<()> {
        wait_for("all its tasks to run", BOUND, async || {
            let info = jobs.info(self.job).await?;
            let tasks = info.parallelism();
            ensure!(tasks > 0 && info.running() == tasks, "{info:?}");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until its first stage runs.
    async fn until_reading(&self, jobs: &JobClient) -> anyhow::Result<()> {
        wait_for("its first stage to run", BOUND, async || {
            let info = jobs.info(self.job).await?;
            ensure!(info.running() > 0, "{info:?}");
            anyhow::Ok(())
        })
        .await
    }

    /// Cancels it as soon as it is known; returns false if it is too late for that.
    async fn cancel_if_known(&self, jobs: &JobClient) -> anyhow::Result<bool> {
        wait_for("it to be known", BOUND, async || {
            match jobs.cancel(self.job).await {
                Ok(()) => Ok(Ok(true)),
                Err(ClientError::Refused { status: 409, .. }) => Ok(Ok(false)),
                Err(error) if error.is_not_found() => Err(error),
                Err(error) => Ok(Err(error)),
            }
        })
        .await?
        .context("cancelling it")
    }

    pub(crate) async fn ends(&self, jobs: &JobClient, wanted: JobStatus) -> anyhow::Result<()> {
        let ending = tokio::time::timeout(BOUND, jobs.wait_for_end(self.job, |_| {}));
        let info = ending.await.context("it does not end")??;
        ensure!(
            info.state == wanted && info.quarantine.is_none(),
            "it is {:?}, not {wanted:?}: {info:?}",
            info.state
        );
        Ok(())
    }
}

fn never() -> pb::RestartStrategy {
    pb::RestartStrategy {
        strategy: Some(pb::restart_strategy::Strategy::None(pb::NoRestart {})),
    }
}

/// A file with incompressible content.
fn shipped(job: JobId) -> pb::Artifact {
    let mut content = Vec::with_capacity(SHIPPED);
    let mut block = Sha256::digest(job.to_string());
    while content.len() < SHIPPED {
        content.extend_from_slice(&block);
        block = Sha256::digest(block);
    }
    pb::Artifact {
        name: "noise".to_owned(),
        sha256: Sha256::digest(&content).to_vec().into(),
        executable: false,
        content: content.into(),
        ..pb::Artifact::default()
    }
}

pub(crate) fn check_counted(output: &Path) -> anyhow::Result<()> {
    let counted: u64 = wordcount::read_output(output)?.values().sum();
    ensure!(counted == RECORDS, "{counted} records were counted");
    Ok(())
}

/// Checks that the output is a prefix of the records, none missing and none twice.
fn check_prefix(output: &Path) -> anyhow::Result<()> {
    let counted = wordcount::read_output(output)?;
    for number in 0..counted.len() {
        let count = counted.get(&number.to_string());
        ensure!(count == Some(&1), "record {number}: {count:?}: {counted:?}");
    }
    Ok(())
}

fn check_nothing_visible(output: &Path) -> anyhow::Result<()> {
    let visible = wordcount::visible_files(output)?;
    ensure!(visible.is_empty(), "visible: {visible:?}");
    Ok(())
}

/// The addresses of all JobManagers.
pub(crate) fn addresses_of(cluster: &Cluster) -> Vec<String> {
    let all = 0..cluster.jobmanagers();
    all.map(|index| cluster.rest_address(index).to_owned())
        .collect()
}

/// A client with its own connections; its number decides which JobManager it asks first.
pub(crate) async fn client(
    cluster: &Cluster,
    addresses: &[String],
    number: usize,
) -> anyhow::Result<ClusterClient> {
    let words = cluster.settings().into_iter().filter(|word| word != "-D");
    let configuration = Configuration::load(LoadOptions {
        overrides: words.collect(),
        ..LoadOptions::default()
    })?;
    let mut addresses = addresses.to_vec();
    let first = number % addresses.len();
    addresses.rotate_left(first);
    Ok(ClusterClient::connect_to(&configuration, &addresses).await?)
}
