//! Many jobs at once, of every kind, while one leader after the other is killed: each that was acknowledged ends once, as it
//! should, and nothing is left of any.
//!
//! A few dozen of them usually, a thousand with `TANIST_TEST_ALL=1`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures::future::try_join_all;
use sha2::{Digest as _, Sha256};
use tanist::client::{ClientError, ClusterClient, JobClient};
use tanist::config::{Configuration, LoadOptions};
use tanist::job::{CompileOptions, JobBuilder, JobFile, compile};
use tanist_chaos::{
    Cluster, ClusterBuilder, LeaderKiller, Observer, Store, StoreDump, StoreKind, test_all,
    wait_for, wordcount,
};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::JobStatus;
use tokio_util::sync::CancellationToken;

use crate::support::{PROGRAM, job_file};

/// How many jobs, and how many leaders have to be killed meanwhile.
const LONG: (usize, usize) = (1_000, 6);
const SHORT: (usize, usize) = (100, 1);
/// The longest pause between two kills.
const PAUSE: Duration = Duration::from_secs(1);
/// How many ask at once, each for one job after the other.
const CLIENTS: usize = 32;
/// Slots of each of two TaskManagers.
const SLOTS: usize = 16;
/// How long a job may take to get where its client wants it: others may have its slots, and leaders are killed.
const BOUND: Duration = Duration::from_secs(120);
/// How long what has ended may take to be cleaned up after.
const CLEANUP_BOUND: Duration = Duration::from_secs(60);
/// Records of a job that ends by itself.
const RECORDS: u64 = 200;
/// Of a file that a job brings along: with it its graph is kept in a blob.
const SHIPPED: usize = 16 * 1024;

on_stores! {
    each { every_job_ends_once_and_leaves_nothing_while_leaders_are_killed }
}

async fn every_job_ends_once_and_leaves_nothing_while_leaders_are_killed(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let (count, least_kills) = if test_all() { LONG } else { SHORT };
    let blobs = tempfile::tempdir()?;
    let mut cluster = ClusterBuilder::new(PROGRAM, Store::shared(kind).await?)
        .slots(SLOTS)
        .set(
            "high-availability.storageDir",
            &blobs.path().to_string_lossy(),
        )
        .set("high-availability.storage-shared", "true")
        .set("high-availability.inline-threshold", "4 kb")
        .start()
        .await?;
    let addresses: Vec<String> = (0..cluster.jobmanagers())
        .map(|index| cluster.rest_address(index).to_owned())
        .collect();
    let observer = Observer::start(cluster.rest().clone(), addresses.clone());
    let clients = clients(&cluster, &addresses, count).await?;

    let mut killer = LeaderKiller::new(1, PAUSE);
    let all_ended = CancellationToken::new();
    let living = async {
        let ended = try_join_all(clients).await;
        all_ended.cancel();
        ended
    };
    let (ended, struck) = tokio::join!(living, strike_until(&all_ended, &mut killer, &mut cluster));
    let ended: BTreeMap<JobId, JobStatus> = ended?.into_iter().flatten().collect();
    struck?;
    let kills = killer.killed().len();
    ensure!(ended.len() == count, "{} of {count} jobs", ended.len());
    ensure!(kills >= least_kills, "only {kills} leaders were killed");

    check_ends(&mut cluster, &ended, &observer, &mut killer).await?;
    cluster.wait_until_slots_are_free().await?;
    cluster.check_no_programs().await?;
    cluster.check_blobs(blobs.path(), killer.killed()).await?;
    let outputs = outputs_of(&cluster)?;
    cluster.check_nothing_left(&outputs).await?;
    cluster.check_no_local_files(&[jobs_directory(&cluster)])?;
    let looks = observer.with(tanist_chaos::History::looks);
    println!("{count} jobs, {kills} leaders killed, all jobs looked at {looks} times");
    Ok(())
}

/// Kills one leader after the other, the first at once, until all jobs have ended.
async fn strike_until(
    all_ended: &CancellationToken,
    killer: &mut LeaderKiller,
    cluster: &mut Cluster,
) -> anyhow::Result<()> {
    loop {
        killer.strike(cluster).await?;
        let pause = killer.pause();
        if all_ended.run_until_cancelled(pause).await.is_none() {
            return Ok(());
        }
    }
}

/// Every job has one result, as its client has seen it end; and another leader says the same.
async fn check_ends(
    cluster: &mut Cluster,
    ended: &BTreeMap<JobId, JobStatus>,
    observer: &Observer,
    killer: &mut LeaderKiller,
) -> anyhow::Result<()> {
    let before = clean_dump(cluster).await?;
    for (job, status) in ended {
        let name = job.to_string().parse()?;
        let result = before.results.get(&name);
        let result = result.with_context(|| format!("{job} has no result"))?;
        ensure!(
            result.status() == *status,
            "{job} was seen {status:?}, and its result is {:?}",
            result.status()
        );
        observer.with(|history| {
            let seen = history
                .end_of(*job)
                .map(|state| format!("JOB_STATUS_{state}"));
            ensure!(
                seen.as_deref()
                    .is_none_or(|seen| seen == status.as_str_name()),
                "{job} ended {status:?}, and was seen {seen:?}"
            );
            Ok(())
        })?;
    }
    ensure!(
        before.results.len() == ended.len(),
        "{} results of {} jobs",
        before.results.len(),
        ended.len()
    );
    killer.strike(cluster).await?;
    let after = clean_dump(cluster).await?;
    ensure!(
        before.results == after.results,
        "another leader changed how jobs ended"
    );
    let listed = cluster.get("/v1/jobs?consistent=true").await?;
    let listed = listed["jobs"].as_array().context("no jobs")?;
    ensure!(
        listed.len() == ended.len(),
        "{} jobs are listed",
        listed.len()
    );
    for job in listed {
        let id: JobId = job["id"].as_str().unwrap_or_default().parse()?;
        let status = ended
            .get(&id)
            .with_context(|| format!("{id} is nobody's"))?;
        let state = status.as_str_name().trim_start_matches("JOB_STATUS_");
        ensure!(job["status"] == state, "{job} should be {state}");
    }
    observer.with(tanist_chaos::History::check)
}

/// What the store holds once all that ended is cleaned up after.
async fn clean_dump(cluster: &Cluster) -> anyhow::Result<StoreDump> {
    wait_for("only clean results to be left", CLEANUP_BOUND, async || {
        let dump = cluster.store_dump().await?;
        dump.check_empty()?;
        anyhow::Ok(dump)
    })
    .await
}

/// Where all that the test writes for its jobs is, and all that they write.
fn jobs_directory(cluster: &Cluster) -> PathBuf {
    cluster.directory().join("jobs")
}

fn outputs_of(cluster: &Cluster) -> anyhow::Result<Vec<PathBuf>> {
    let mut outputs = Vec::new();
    for job in std::fs::read_dir(jobs_directory(cluster))? {
        for entry in std::fs::read_dir(job?.path())? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                outputs.push(entry.path());
            }
        }
    }
    Ok(outputs)
}

type Ended = Vec<(JobId, JobStatus)>;

/// Clients that live through all jobs among them, each with connections of its own.
async fn clients(
    cluster: &Cluster,
    addresses: &[String],
    count: usize,
) -> anyhow::Result<Vec<impl Future<Output = anyhow::Result<Ended>> + use<>>> {
    let words = cluster.settings().into_iter().filter(|word| word != "-D");
    let configuration = Configuration::load(LoadOptions {
        overrides: words.collect(),
        ..LoadOptions::default()
    })?;
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = Vec::new();
    for number in 0..CLIENTS.min(count) {
        let mut addresses = addresses.to_vec();
        let first = number % addresses.len();
        addresses.rotate_left(first);
        let client = ClusterClient::connect_to(&configuration, &addresses).await?;
        let (next, directory) = (next.clone(), jobs_directory(cluster));
        clients.push(async move {
            let mut ended = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok(ended);
                }
                let life = Life::new(number, &directory)?;
                let what = format!("job {} ({:?}, number {number})", life.job, life.kind);
                ended.push((life.job, life.live(client.jobs()).await.context(what)?));
            }
        });
    }
    Ok(clients)
}

/// What becomes of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It ends by itself.
    Finishes,
    /// The same, and it brings a file along.
    Ships,
    /// It is cancelled when all its tasks run.
    CanceledRunning,
    /// It is cancelled while it is being submitted.
    CanceledAtOnce,
    /// It can't read its input.
    Fails,
    /// It is submitted twice at the same time, and another job under the same id with it.
    Twice,
    /// It runs programs that don't heed requests to end, and is cancelled.
    Programs,
}

/// One job from its client's point of view.
#[derive(Debug)]
struct Life {
    kind: Kind,
    job: JobId,
    /// For all that it reads and writes.
    directory: PathBuf,
}

impl Life {
    fn new(number: usize, directory: &Path) -> anyhow::Result<Life> {
        let kind = match number % 10 {
            0..=2 => Kind::Finishes,
            3 | 4 => Kind::CanceledRunning,
            5 | 6 => Kind::CanceledAtOnce,
            7 => Kind::Fails,
            8 => Kind::Twice,
            _ if number % 50 == 9 => Kind::Programs,
            _ => Kind::Ships,
        };
        let directory = directory.join(format!("{number:04}"));
        std::fs::create_dir_all(&directory)?;
        let job = JobId::random();
        Ok(Life {
            kind,
            job,
            directory,
        })
    }

    /// Lives it, and checks what was written; how it ended.
    async fn live(&self, jobs: &JobClient) -> anyhow::Result<JobStatus> {
        let output = self.directory.join("output");
        match self.kind {
            Kind::Finishes | Kind::Ships => {
                let mut graph = self.counting(&output)?;
                if self.kind == Kind::Ships {
                    graph.artifacts.push(shipped(self.job));
                }
                jobs.submit_as(&graph, "first").await?;
                self.ends(jobs, JobStatus::Finished).await?;
                check_counted(&output)?;
                Ok(JobStatus::Finished)
            }
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

    /// Two submissions of one job and one of another, all of one id: the two or the other are acknowledged.
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

    /// Counts so many records by key, in two tasks.
    fn counting(&self, output: &Path) -> anyhow::Result<pb::JobGraph> {
        let steps = JobBuilder::new("counts").datagen("numbers", None, Some(RECORDS), 1, 10);
        let steps = steps.key_by("by-key", ["key"]).count("counts");
        let job = steps.file_sink("out", output.to_string_lossy()).build();
        Ok(job.compile(&self.options())?)
    }

    /// The same of records that never end.
    fn endless(&self, output: &Path) -> anyhow::Result<pb::JobGraph> {
        let steps = JobBuilder::new("endless").datagen("numbers", Some(20), None, 1, 10);
        let steps = steps.key_by("by-key", ["key"]).count("counts");
        let job = steps.file_sink("out", output.to_string_lossy()).build();
        Ok(job.compile(&self.options())?)
    }

    async fn until_running(&self, jobs: &JobClient) -> anyhow::Result<()> {
        wait_for("all its tasks to run", BOUND, async || {
            let info = jobs.info(self.job).await?;
            let runs = info.state == JobStatus::Running && info.not_running.is_empty();
            ensure!(runs, "{info:?}");
            anyhow::Ok(())
        })
        .await
    }

    /// Cancels it as soon as somebody knows it; false if it is too late for that.
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

    async fn ends(&self, jobs: &JobClient, wanted: JobStatus) -> anyhow::Result<()> {
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

/// A file that compresses to nothing smaller.
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

fn check_counted(output: &Path) -> anyhow::Result<()> {
    let counted: u64 = wordcount::read_output(output)?.values().sum();
    ensure!(counted == RECORDS, "{counted} records were counted");
    Ok(())
}

fn check_nothing_visible(output: &Path) -> anyhow::Result<()> {
    let visible = wordcount::visible_files(output)?;
    ensure!(visible.is_empty(), "visible: {visible:?}");
    Ok(())
}
