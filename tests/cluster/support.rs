//! Shared by the tests of this binary: the program, the job that most of them run, and how jobs are stopped.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::{
    Attempts, Cluster, ClusterBuilder, JobView, Leader, Store, StoreKind, Submission, test_all,
    wait_for, wordcount,
};
use tanist_ha::clock::wall_clock_ms;
use tanist_proto::id::JobId;
use tokio::process::{Child, Command};

/// How the end of a killed leader is detected. All processes are on one host, so a running process
/// detects at once that another one has ended; the reports of other processes may arrive first.
pub(crate) const PROCESS_GONE: [&str; 2] = ["process-gone", "lost-by-several"];

/// The same, together with other evidence that may be found first.
pub(crate) fn process_gone_or(others: &[&'static str]) -> Vec<&'static str> {
    [&PROCESS_GONE, others].concat()
}

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_tanist");

/// A cluster on a store that is shared with other tests.
pub(crate) async fn cluster_on(kind: StoreKind) -> anyhow::Result<ClusterBuilder> {
    Ok(ClusterBuilder::new(PROGRAM, Store::shared(kind).await?))
}

/// The same with all settings as an operator gets them, but for long leases.
pub(crate) async fn default_cluster(kind: StoreKind) -> anyhow::Result<ClusterBuilder> {
    let builder = cluster_on(kind).await?.with_default_settings();
    Ok(with_long_leases(builder))
}

/// The same cluster, whose leaders are followed because of what others have seen of them, however late: their leases
/// end later.
pub(crate) fn with_long_leases(builder: ClusterBuilder) -> ClusterBuilder {
    let session = "high-availability.zookeeper.client.session-timeout";
    builder
        .set("high-availability.etcd.lease-ttl", "30 s")
        .set(session, "10 s")
}

/// The same with blobs that all its processes reach, with any store: an embedded one has them next to its data.
pub(crate) async fn cluster_with_blobs(
    kind: StoreKind,
    directory: &tempfile::TempDir,
) -> anyhow::Result<ClusterBuilder> {
    let builder = cluster_on(kind).await?;
    if kind == StoreKind::Embedded {
        return Ok(builder);
    }
    Ok(with_blobs(builder, directory))
}

/// Keeps the blobs of a cluster in a directory that all its processes reach.
pub(crate) fn with_blobs(builder: ClusterBuilder, directory: &tempfile::TempDir) -> ClusterBuilder {
    let path = directory.path().to_string_lossy();
    builder
        .store_directory(directory.path())
        .set("high-availability.storageDir", &path)
        .set("high-availability.storage-shared", "true")
}

/// The stores for a test whose result depends little on the store.
pub(crate) fn usually_on(kind: StoreKind) -> Vec<StoreKind> {
    if test_all() {
        vec![StoreKind::Embedded, StoreKind::Etcd, StoreKind::ZooKeeper]
    } else {
        vec![kind]
    }
}

/// Whether `cargo xtask chaos` runs these tests.
pub(crate) fn is_chaos() -> bool {
    std::env::var_os("TANIST_TEST_KILLS").is_some()
}

/// The number in a variable of the environment, if it is set.
pub(crate) fn setting(variable: &str) -> anyhow::Result<Option<u64>> {
    let Ok(text) = std::env::var(variable) else {
        return Ok(None);
    };
    let number = text.parse();
    number
        .map(Some)
        .with_context(|| format!("{variable}={text}"))
}

/// Fails if failpoints are not compiled in: the test could not kill at the right place.
pub(crate) fn need_failpoints() -> anyhow::Result<()> {
    ensure!(
        cfg!(feature = "failpoints"),
        "this test needs `--features failpoints`: run `cargo xtask test`"
    );
    Ok(())
}

/// Starts a process that dies at these failpoints, if there are any, and logs into a file. It is killed
/// when it is dropped.
pub(crate) fn spawn_logged(
    command: &mut Command,
    log: &Path,
    failpoints: &str,
) -> anyhow::Result<Child> {
    let log = std::fs::File::create(log)?;
    let child = command
        .env("TANIST_FAILPOINTS", failpoints)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()?;
    Ok(child)
}

/// Timeout for steps that normally take a second or two.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// Duration of a store outage: longer than the leases and sessions of these tests, or a minute if those
/// are the defaults.
pub(crate) fn outage(shortest: Duration) -> Duration {
    if test_all() {
        Duration::from_secs(60)
    } else {
        shortest
    }
}

/// The limit on a quiet machine, which applies if all tests are enabled. Otherwise the result depends on
/// the load of the machine.
pub(crate) fn on_a_quiet_machine(bound: Duration) -> Duration {
    if test_all() { bound } else { BOUND }
}

/// The TaskManagers to ask are in the leader's heartbeats, refreshed every second: a standby that knows too
/// few of them may have no process to ask, and then the lease decides.
pub(crate) async fn until_witnesses_are_known(cluster: &mut Cluster) -> anyhow::Result<()> {
    wait_for("the term to be some seconds old", BOUND, async || {
        let status = cluster.get("/v1/ha/status").await?;
        let since_ms = status["term"]["state-since"].as_u64();
        let age_ms = since_ms.map(|since_ms| wall_clock_ms().saturating_sub(since_ms));
        ensure!(age_ms.is_some_and(|age_ms| age_ms > 2_500), "{age_ms:?} ms");
        Ok(())
    })
    .await
}

/// Waits until a JobManager stands by under `leader`, by its own account and the leader's, with up-to-date records.
pub(crate) async fn until_standby(
    cluster: &mut Cluster,
    jobmanager: usize,
    leader: &Leader,
) -> anyhow::Result<()> {
    let address = cluster.rest_address(jobmanager).to_owned();
    let process = format!("jm-{jobmanager}");
    let what = format!("{process} to stand by");
    wait_for(&what, BOUND, async || {
        let own = cluster.rest().get(&address, "/v1/ha/self").await?;
        let is_current = own["cache"]["behind"] == 0 && own["epoch"] == leader.epoch;
        ensure!(own["role"] == "standby" && is_current, "{own}");
        // It is a member again, and the leader receives its heartbeats: the leader could invite it.
        let status = cluster.rest().get(&leader.rest, "/v1/ha/status").await?;
        let members = status["members"].as_array().map_or(&[][..], Vec::as_slice);
        let is_it = |member: &Value| member["process"] == *process && member["role"] == "standby";
        ensure!(members.iter().any(is_it), "{status}");
        Ok(())
    })
    .await
}

/// Makes `leader` hand over to this JobManager, as an operator does; returns the new leader.
pub(crate) async fn transfer_to(
    cluster: &mut Cluster,
    leader: &Leader,
    jobmanager: usize,
) -> anyhow::Result<Leader> {
    let to = format!("jm-{jobmanager}");
    let transfer = ["ha", "transfer", "--to", &to, "--address", &leader.rest];
    cluster.cli().run(&transfer).await?.success()?;
    let next = cluster.successor_of(leader).await?;
    ensure!(
        next.index == jobmanager && next.epoch == leader.epoch + 1,
        "handed over to {next:?}, not to {to}"
    );
    Ok(next)
}

/// A job file of these tests.
pub(crate) fn job_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/cluster/jobs")
        .join(name)
}

/// An example job file.
pub(crate) fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples")
        .join(name)
}

/// Stops a job as a user does, and waits until it has finished. All its tasks run or have finished before: a job that
/// is being restarted refuses a stop.
pub(crate) async fn stop_job(cluster: &mut Cluster, job: JobId) -> anyhow::Result<()> {
    let leader = cluster.leader().await?;
    let stop = ["stop", &job.to_string(), "--address", &leader.rest];
    cluster.cli().run(&stop).await?.success()?;
    cluster.wait_for_state(job, "FINISHED").await?;
    Ok(())
}

/// Waits until all tasks of `before` run as other attempts. If a job is stopped before the loss of its tasks is
/// noticed, it fails.
pub(crate) async fn until_restarted(
    cluster: &mut Cluster,
    job: JobId,
    before: &Attempts,
) -> anyhow::Result<()> {
    wait_for("all tasks to run again", 2 * BOUND, async || {
        let after = cluster.attempts(job).await?;
        let changed = before.changed(&after);
        ensure!(changed == before.count(), "{before:?}, {after:?}");
        anyhow::Ok(())
    })
    .await
}

/// The number of records that a vertex of a finished job sent: the output has to contain exactly these.
pub(crate) async fn records_sent(
    cluster: &mut Cluster,
    job: JobId,
    vertex: &str,
) -> anyhow::Result<u64> {
    let what = format!("the number of records that {vertex} sent");
    let path = format!("/v1/jobs/{job}");
    wait_for(&what, BOUND, async || {
        let body = cluster.get(&path).await?;
        let mut vertices = body["vertices"].as_array().into_iter().flatten();
        let found = vertices.find(|it| it["name"] == vertex);
        let metrics = &found.with_context(|| body.to_string())?["metrics"];
        let is_final = body["state"] == "FINISHED" && metrics["write-records-complete"] == true;
        ensure!(is_final, "{body}");
        metrics["write-records"].as_u64().context("no number")
    })
    .await
}

/// A job that counts the words of a text and, at a fixed rate, ticks: it lasts as long as the ticks do, or
/// until it is stopped. Its results are known: the words in advance, the ticks in advance or from its clock.
#[derive(Debug)]
pub(crate) struct WordsAndTicks {
    pub submission: Submission,
    /// The ticks that its result contains. Of a job that ticks until it is stopped, they are known from then on.
    ticks: OnceLock<u64>,
    expected_words: wordcount::Counts,
    words_output: PathBuf,
    ticks_output: PathBuf,
}

/// A job that ticks until it is stopped, and its attempts, which must not change with leaders.
#[derive(Debug)]
pub(crate) struct RunningOn {
    pub workload: WordsAndTicks,
    /// The leader when it began to tick.
    pub first: Leader,
    attempts: Attempts,
}

impl RunningOn {
    /// Submits it and waits until it ticks.
    pub(crate) async fn start(cluster: &mut Cluster) -> anyhow::Result<RunningOn> {
        let workload = WordsAndTicks::prepare_endless(cluster)?;
        let job = cluster.submit(&workload.submission).await?;
        cluster.wait_until_running_or_finished(job).await?;
        let attempts = cluster.attempts(job).await?;
        let first = cluster.leader().await?;
        Ok(RunningOn {
            workload,
            first,
            attempts,
        })
    }

    /// Checks that the leader knows every task with its old attempt, and that the job runs.
    pub(crate) async fn check_untouched(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        self.workload.check_adopted(cluster, &self.attempts).await
    }

    /// Kills the leader, and checks that the next one has the next epoch and finds every task unchanged.
    /// Returns the killed leader.
    pub(crate) async fn check_next_leader(&self, cluster: &mut Cluster) -> anyhow::Result<Leader> {
        let former = cluster.kill_leader().await?;
        let next = cluster.successor_of(&former).await?;
        ensure!(
            next.epoch == former.epoch + 1,
            "{next:?} follows {former:?}"
        );
        self.check_untouched(cluster).await?;
        Ok(former)
    }

    /// Checks that no other process has led, and the same as [`RunningOn::check_finished_under`].
    pub(crate) async fn check_finished_under_the_first(
        &self,
        cluster: &mut Cluster,
    ) -> anyhow::Result<()> {
        self.check_finished_under(cluster, &[]).await
    }

    /// Checks that no task was touched, and stops the job; checks its results, and that exactly these
    /// leaders followed the first, each in a higher epoch, also in the history. Each comes with the
    /// possible evidence of its predecessor's end.
    pub(crate) async fn check_finished_under(
        &self,
        cluster: &mut Cluster,
        successors: &[(Leader, &[&str])],
    ) -> anyhow::Result<()> {
        self.check_untouched(cluster).await?;
        self.workload.stop(cluster).await?;
        let last = successors.last().map_or(&self.first, |(last, _)| last);
        let leads = cluster.leader().await?;
        ensure!(leads == *last, "{leads:?} leads, not {last:?}");
        self.check_history(cluster, last, successors).await?;
        self.workload.check_finished(cluster).await
    }

    async fn check_history(
        &self,
        cluster: &Cluster,
        last: &Leader,
        successors: &[(Leader, &[&str])],
    ) -> anyhow::Result<()> {
        let terms = cluster.terms_up_to(last.epoch).await?;
        let mut told = terms
            .iter()
            .filter(|term| term["epoch"].as_u64() >= Some(self.first.epoch));
        let first = (&self.first, None);
        let later = successors
            .iter()
            .map(|(leader, detections)| (leader, Some(*detections)));
        for (leader, detections) in std::iter::once(first).chain(later) {
            let term = told.next().context("a term is not in the history")?;
            let name = format!("jm-{}", leader.index);
            ensure!(
                term["epoch"] == leader.epoch && term["process"] == name.as_str(),
                "not told of {leader:?} but {term}"
            );
            if let Some(detections) = detections {
                let detection = term["takeover"]["detection"].as_str().unwrap_or_default();
                ensure!(
                    detections.contains(&detection),
                    "the end of the term before was known by {detection:?}, not {detections:?}: {term}"
                );
                ensure!(
                    term["tasks_restarted"].as_u64().unwrap_or(0) == 0,
                    "tasks were restarted: {term}"
                );
            }
        }
        let more: Vec<_> = told.collect();
        ensure!(more.is_empty(), "another process has led: {more:?}");
        Ok(())
    }
}

/// Ticks per second.
const RATE: u64 = 1000;
/// Ticks of a job that lasts longer than any test: a day.
pub(crate) const ENDLESS: u64 = 24 * 60 * 60 * RATE;
/// The vertex that ticks.
const CLOCK: &str = "clock";
/// The vertices that run as long as it ticks.
const TICKING: [&str; 2] = [CLOCK, "tick-counts -> ticks-out"];

/// Whether a job has counted its words, and ticks in all subtasks.
fn only_ticks(view: &JobView) -> bool {
    let vertices = view.0["vertices"].as_array();
    let vertices = vertices.map_or(&[][..], Vec::as_slice);
    let is_as_wanted = |vertex: &Value| {
        let name = vertex["name"].as_str().unwrap_or_default();
        let is_ticking = TICKING.contains(&name);
        let wanted = if is_ticking { "RUNNING" } else { "FINISHED" };
        vertex["tasks"][wanted] == vertex["parallelism"]
    };
    view.state() == "RUNNING" && !vertices.is_empty() && vertices.iter().all(is_as_wanted)
}

impl WordsAndTicks {
    /// With input and outputs in the cluster's directory; it runs for `seconds` without a failure.
    pub(crate) fn prepare(cluster: &Cluster, seconds: u64) -> anyhow::Result<WordsAndTicks> {
        WordsAndTicks::prepare_in(cluster, "", seconds)
    }

    /// The same, but it runs until it is stopped.
    pub(crate) fn prepare_endless(cluster: &Cluster) -> anyhow::Result<WordsAndTicks> {
        WordsAndTicks::prepare_endless_in(cluster, "")
    }

    /// A job of this length in a subdirectory of that name, for clusters with several such jobs.
    pub(crate) fn prepare_in(
        cluster: &Cluster,
        name: &str,
        seconds: u64,
    ) -> anyhow::Result<WordsAndTicks> {
        WordsAndTicks::prepare_ticks(cluster, name, Some(RATE * seconds))
    }

    /// The same, but it runs until it is stopped.
    pub(crate) fn prepare_endless_in(
        cluster: &Cluster,
        name: &str,
    ) -> anyhow::Result<WordsAndTicks> {
        WordsAndTicks::prepare_ticks(cluster, name, None)
    }

    fn prepare_ticks(
        cluster: &Cluster,
        name: &str,
        ticks: Option<u64>,
    ) -> anyhow::Result<WordsAndTicks> {
        let directory = cluster.directory().join(name);
        let input = directory.join("input");
        let expected_words = wordcount::write_input(&input, 8, 40_000)?;
        let words_output = directory.join("words");
        let ticks_output = directory.join("ticks");
        let submission = Submission::new(job_file("words-and-ticks.yaml"))
            .path("input", &input.join("*.txt"))
            .path("words", &words_output)
            .path("ticks", &ticks_output)
            .parameter("rate", RATE)
            .parameter("count", ticks.unwrap_or(ENDLESS));
        Ok(WordsAndTicks {
            submission,
            ticks: ticks.map_or_else(OnceLock::new, OnceLock::from),
            expected_words,
            words_output,
            ticks_output,
        })
    }

    /// Its id.
    pub(crate) fn job(&self) -> JobId {
        self.submission.job
    }

    /// Stops it when its words are counted, and waits until it has finished: with the ticks that its clock sent.
    pub(crate) async fn stop(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        let what = "to have counted its words and to tick";
        cluster.wait_for_job(self.job(), what, only_ticks).await?;
        stop_job(cluster, self.job()).await?;
        let ticks = records_sent(cluster, self.job(), CLOCK).await?;
        ensure!(ticks > 0, "it was stopped before it ticked");
        let noted = self.ticks.set(ticks).ok();
        noted.context("its number of ticks was known before it was stopped")
    }

    /// Stops it; checks the same as [`WordsAndTicks::check_finished`].
    pub(crate) async fn stop_and_check(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        self.stop(cluster).await?;
        self.check_finished(cluster).await
    }

    /// Waits until it has finished; checks both results, and that nothing is left of the job or the cluster.
    pub(crate) async fn check_finished(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        cluster.wait_for_state(self.job(), "FINISHED").await?;
        self.check_result()?;
        cluster.check_nothing_left(&self.outputs()).await?;
        // The end of the cluster did not change anything.
        self.check_result()
    }

    /// Waits until its ticks are produced and counted.
    pub(crate) async fn wait_until_ticking(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        let ticks = |view: &JobView| TICKING.iter().all(|vertex| view.runs(vertex));
        cluster.wait_for_job(self.job(), "to tick", ticks).await?;
        Ok(())
    }

    /// The attempts of the tasks that run as long as it ticks.
    pub(crate) async fn ticking_attempts(&self, cluster: &mut Cluster) -> anyhow::Result<Attempts> {
        let attempts = cluster.attempts(self.job()).await?;
        Ok(attempts.of_vertices(|vertex| TICKING.contains(&vertex)))
    }

    /// Waits until it ticks under the current leader, and checks that this leader has adopted every task:
    /// `before` are the attempts under a former leader.
    pub(crate) async fn check_adopted(
        &self,
        cluster: &mut Cluster,
        before: &Attempts,
    ) -> anyhow::Result<()> {
        self.wait_until_ticking(cluster).await?;
        cluster.wait_for_state(self.job(), "RUNNING").await?;
        cluster.check_untouched(self.job(), before).await
    }

    /// Its output directories.
    pub(crate) fn outputs(&self) -> [PathBuf; 2] {
        [self.words_output.clone(), self.ticks_output.clone()]
    }

    /// Checks that both results of the finished job are visible and right.
    pub(crate) fn check_result(&self) -> anyhow::Result<()> {
        let words = wordcount::read_output(&self.words_output)?;
        wordcount::check_counts(&self.expected_words, &words)?;
        let expected = self.ticks.get().context("it ticks until it is stopped")?;
        let ticks: u64 = wordcount::read_output(&self.ticks_output)?.values().sum();
        ensure!(
            ticks == *expected,
            "{ticks} ticks were counted, not {expected}"
        );
        Ok(())
    }

    /// Checks that none of its output is visible.
    pub(crate) fn check_nothing_visible(&self) -> anyhow::Result<()> {
        for output in self.outputs() {
            let visible = wordcount::visible_files(&output)?;
            ensure!(
                visible.is_empty(),
                "visible although the job did not finish: {visible:?}"
            );
        }
        Ok(())
    }
}
