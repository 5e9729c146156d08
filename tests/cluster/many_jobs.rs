//! Many jobs of every kind at the same time, while leaders are killed one after another, and TaskManagers
//! one by one, in bursts, and all at once: each acknowledged job ends exactly once with the right status,
//! and nothing is left of it.
//!
//! Usually a few dozen jobs, a thousand with `TANIST_TEST_ALL=1`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::future::try_join_all;
use tanist_chaos::{
    Cluster, LeaderKiller, Observer, StoreDump, StoreKind, TaskManagerKiller, dump, test_all,
    wait_for,
};
use tanist_gateway::kinds;
use tanist_ha::keys::Key;
use tanist_proto::id::JobId;
use tanist_proto::v1::JobStatus;
use tokio_util::sync::CancellationToken;

use crate::job_lifecycles::{self, Life, addresses_of, check_counted, client};
use crate::support::{cluster_on, need_failpoints};

/// Number of jobs, of killed leaders, and of killed TaskManagers that are required.
const LONG: (usize, usize, usize) = (1_000, 6, 12);
const SHORT: (usize, usize, usize) = (100, 1, 1);
/// The longest pause between two kills.
const PAUSE: Duration = Duration::from_secs(1);
/// Number of concurrent clients, each with one job after another.
const CLIENTS: usize = 32;
/// Slots of each of the two TaskManagers.
const SLOTS: usize = 16;
/// Timeout of the cleanup of ended jobs.
const CLEANUP_BOUND: Duration = Duration::from_secs(60);

on_stores! {
    each {
        every_job_ends_once_and_leaves_nothing_while_leaders_and_taskmanagers_are_killed,
        a_storm_of_submissions_of_one_job_over_a_change_of_leader_runs_it_once,
    }
}
on_stores! {
    of_one_store(Etcd) { one_graph_among_many_that_cannot_be_read_sets_one_job_aside }
}

async fn every_job_ends_once_and_leaves_nothing_while_leaders_and_taskmanagers_are_killed(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let (count, least_leaders, least_taskmanagers) = if test_all() { LONG } else { SHORT };
    let blobs = tempfile::tempdir()?;
    let mut cluster = cluster_on(kind)
        .await?
        .slots(SLOTS)
        .set(
            "high-availability.storageDir",
            &blobs.path().to_string_lossy(),
        )
        .set("high-availability.storage-shared", "true")
        .set("high-availability.inline-threshold", "4 kb")
        .start()
        .await?;
    let addresses = addresses_of(&cluster);
    let observer = Observer::start(cluster.rest().clone(), addresses.clone());
    let how_many = Arc::<AtomicUsize>::default();
    let clients = clients(&cluster, &addresses, count, &how_many).await?;

    let mut killer = LeaderKiller::new(1, PAUSE);
    let all_ended = CancellationToken::new();
    let living = async {
        let ended = try_join_all(clients).await;
        all_ended.cancel();
        ended
    };
    let mut of_taskmanagers = TaskManagerKiller::new(2);
    let striking = strike_until(
        &all_ended,
        &how_many,
        &mut killer,
        &mut of_taskmanagers,
        &mut cluster,
    );
    let (ended, struck) = tokio::join!(living, striking);
    let ended: Ends = ended?.into_iter().flatten().collect();
    struck?;
    let leaders = killer.killed().len();
    let taskmanagers = of_taskmanagers.killed();
    ensure!(ended.len() == count, "{} of {count} jobs", ended.len());
    ensure!(
        leaders >= least_leaders && taskmanagers >= least_taskmanagers,
        "only {leaders} leaders and {taskmanagers} TaskManagers were killed"
    );

    check_ends(&mut cluster, &ended, &observer, &mut killer).await?;
    cluster.wait_until_slots_are_free().await?;
    cluster.check_no_programs().await?;
    cluster.check_blobs(blobs.path(), killer.killed()).await?;
    let outputs = outputs_of(&cluster)?;
    cluster.check_nothing_left(&outputs).await?;
    cluster.check_no_local_files(&[jobs_directory(&cluster)])?;
    let observations = observer.with(tanist_chaos::History::observations);
    let lost = ended.values();
    let lost = lost
        .filter(|(kind, status)| is_lost(*kind, *status))
        .count();
    println!(
        "{count} jobs, {lost} of them failed while they were being stopped, {leaders} leaders and {taskmanagers} TaskManagers killed, \
         all jobs looked at {observations} times"
    );
    Ok(())
}

async fn a_storm_of_submissions_of_one_job_over_a_change_of_leader_runs_it_once(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let builder = cluster_on(kind).await?;
    let mut cluster = builder
        .failpoints(0, "submit.persisted=kill")
        .start()
        .await?;
    let life = Life::new(0, &jobs_directory(&cluster))?;
    let output = life.directory.join("output");
    let graph = life.counting(&output)?;
    let addresses = addresses_of(&cluster);
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        clients.push(client(&cluster, &addresses, number).await?);
    }
    let submissions = clients
        .iter()
        .map(|client| client.jobs().submit_as(&graph, "first"));
    let submitted = try_join_all(submissions).await?;
    ensure!(
        submitted.iter().all(|submitted| submitted.job == life.job),
        "{submitted:?}"
    );
    life.ends(clients[0].jobs(), JobStatus::Finished).await?;
    check_counted(&output)?;
    let dump = clean_dump(&cluster).await?;
    ensure!(dump.results.len() == 1, "{:?}", dump.results);
    cluster.check_nothing_left(&[output]).await
}

async fn one_graph_among_many_that_cannot_be_read_sets_one_job_aside(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let (count, ..) = if test_all() { LONG } else { SHORT };
    let mut cluster = cluster_on(kind).await?.taskmanagers(0).start().await?;
    let client = client(&cluster, &addresses_of(&cluster), 0).await?;
    let directory = jobs_directory(&cluster);
    let lives = (0..count).map(|number| Life::new(number, &directory));
    let lives: Vec<Life> = lives.collect::<Result<_, _>>()?;
    for some in lives.chunks(CLIENTS) {
        let submissions = some.iter().map(async |life| {
            let graph = life.counting(&life.directory.join("output"))?;
            anyhow::Ok(client.jobs().submit_as(&graph, "first").await?)
        });
        try_join_all(submissions).await?;
    }
    let damaged = lives[count / 2].job;
    let key = Key::new(kinds::GRAPHS, damaged.to_string().parse()?);
    dump::damage(&*cluster.records().await?, &key, b"no record at all").await?;
    let former = cluster.kill_leader().await?;
    cluster.successor_of(&former).await?;
    let aside = client.jobs().quarantined().await?;
    let aside: Vec<JobId> = aside.iter().map(|job| job.jid).collect();
    ensure!(aside == [damaged], "{aside:?} are set aside");
    let listed = client.jobs().list().await?;
    let waiting = listed.iter().filter(|job| job.quarantine.is_none());
    ensure!(waiting.count() == count - 1, "of {} jobs", listed.len());
    for some in lives.chunks(CLIENTS) {
        try_join_all(some.iter().map(|life| client.jobs().cancel(life.job))).await?;
    }
    cluster.check_nothing_left(&[]).await
}

/// The effect of killed TaskManagers on a job: without a checkpoint, a job that is being stopped loses
/// the records that it had read.
fn is_lost(kind: job_lifecycles::Kind, status: JobStatus) -> bool {
    let is_stopped = matches!(
        kind,
        job_lifecycles::Kind::Stopped | job_lifecycles::Kind::StoppedInStages
    );
    is_stopped && status == JobStatus::Failed
}

/// Kills leaders one after another, the first at once, until all jobs have ended. Also kills
/// TaskManagers, which sometimes stay dead until the next leader: each time as many jobs have ended as
/// there are clients, because jobs would make no progress if TaskManagers died all the time.
async fn strike_until(
    all_ended: &CancellationToken,
    ended: &AtomicUsize,
    killer: &mut LeaderKiller,
    of_taskmanagers: &mut TaskManagerKiller,
    cluster: &mut Cluster,
) -> anyhow::Result<()> {
    let mut next = 0;
    loop {
        let now = ended.load(Ordering::Relaxed);
        if now >= next {
            next = now + CLIENTS;
            of_taskmanagers.strike(cluster).await?;
            if !of_taskmanagers.is_late() {
                of_taskmanagers.start_again(cluster)?;
            }
        }
        killer.strike(cluster).await?;
        of_taskmanagers.start_again(cluster)?;
        let pause = killer.pause();
        if all_ended.run_until_cancelled(pause).await.is_none() {
            return Ok(());
        }
    }
}

/// Checks that every job has one result, the end that its client saw, and that another leader shows the same.
async fn check_ends(
    cluster: &mut Cluster,
    ended: &Ends,
    observer: &Observer,
    killer: &mut LeaderKiller,
) -> anyhow::Result<()> {
    let before = clean_dump(cluster).await?;
    for (job, (kind, status)) in ended {
        let name = job.to_string().parse()?;
        let result = before.results.get(&name);
        let result = result.with_context(|| format!("{job} has no result"))?;
        ensure!(
            result.status() == *status,
            "{job} was seen {status:?}, and its result is {:?}",
            result.status()
        );
        ensure!(
            !is_lost(*kind, *status) || result.cause.contains("what its sources had read"),
            "{job} was being stopped, and failed for {:?}",
            result.cause
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
        let (_, status) = ended
            .get(&id)
            .with_context(|| format!("no client submitted {id}"))?;
        let state = status.as_str_name().trim_start_matches("JOB_STATUS_");
        ensure!(job["status"] == state, "{job} should be {state}");
    }
    observer.with(tanist_chaos::History::check)
}

/// The content of the store after the cleanup of all ended jobs.
async fn clean_dump(cluster: &Cluster) -> anyhow::Result<StoreDump> {
    wait_for("only clean results to be left", CLEANUP_BOUND, async || {
        let dump = cluster.store_dump().await?;
        dump.check_empty()?;
        anyhow::Ok(dump)
    })
    .await
}

/// The directory of the inputs and outputs of the jobs.
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

/// The kind of each job, and the end that its client saw.
type Ends = BTreeMap<JobId, (job_lifecycles::Kind, JobStatus)>;
type Ended = Vec<(JobId, (job_lifecycles::Kind, JobStatus))>;

/// Clients that run all jobs together, each with its own connections; they count ended jobs.
async fn clients(
    cluster: &Cluster,
    addresses: &[String],
    count: usize,
    how_many: &Arc<AtomicUsize>,
) -> anyhow::Result<Vec<impl Future<Output = anyhow::Result<Ended>> + use<>>> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = Vec::new();
    for number in 0..CLIENTS.min(count) {
        let client = client(cluster, addresses, number).await?;
        let (next, directory) = (next.clone(), jobs_directory(cluster));
        let how_many = how_many.clone();
        clients.push(async move {
            let mut ended = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok(ended);
                }
                let life = Life::new(number, &directory)?.among_killed_taskmanagers();
                let what = format!("job {} ({:?}, number {number})", life.job, life.kind);
                let status = life.live(client.jobs()).await.context(what)?;
                ended.push((life.job, (life.kind, status)));
                how_many.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    Ok(clients)
}
