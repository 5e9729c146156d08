//! The steps of the demo and their commentary, in order. Each step waits for its result, with a timeout.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use tanist_proto::id::JobId;
use tokio::time::Instant;

use super::cluster::DemoCluster;
use super::external_kills::ExternalTakeovers;
use super::stream::StreamWatch;
use super::watch::{ClusterWatch, Leader};
use super::{print_line, ticks, words};
use crate::continuity::Attempts;
use crate::jobs::JobView;
use crate::wordcount::Counts;

/// The job file of the bounded job, as it is shipped.
const WORD_COUNT: &str = include_str!("../../../examples/wordcount.yaml");
/// The name of its first step; that of its first vertex begins with it.
const WORD_COUNT_SOURCE: &str = "lines";
const FILES: usize = 8;
const JOBMANAGERS: usize = 3;
const TASKMANAGERS: usize = 2;
const PARALLELISM: u32 = 2;
const KILLS: u32 = 3;
/// Percentage of the words that must have been read before the leader is killed for the first time.
const FIRST_KILL_AT_PERCENT: u64 = 20;
/// Number of records between a takeover and the next kill.
const RECORDS_BETWEEN: u64 = 2_000;
/// Timeout for the cluster to start.
const START_BOUND: Duration = Duration::from_secs(30);
/// Timeout for a standby to take over, and to find the tasks.
const TAKEOVER_BOUND: Duration = Duration::from_secs(30);
/// Timeout for a job.
const JOB_BOUND: Duration = Duration::from_secs(300);

/// The running demo.
pub(super) struct Scenario<'a> {
    cluster: &'a mut DemoCluster,
    watch: ClusterWatch,
    stream: StreamWatch,
    outside_takeovers: ExternalTakeovers,
}

impl Scenario<'_> {
    /// Plays the whole scenario, with `megabytes` of text to count.
    pub(super) async fn play(cluster: &mut DemoCluster, megabytes: usize) -> anyhow::Result<()> {
        print_line(&format!(
            "a cluster on this machine, on the embedded store in {}",
            cluster.directory().display()
        ));
        let mut scenario = start_cluster(cluster).await?;

        let stream_job = JobId::random();
        scenario
            .submit("stream.yaml", ticks::JOB_FILE, stream_job, &[])
            .await?;
        scenario.outside_takeovers.streaming(stream_job);
        scenario.records_after(0).await?;
        print_line("its records are read here, as they come out of the TaskManagers");

        let input = scenario.cluster.directory().join("input");
        let output = scenario.cluster.directory().join("output");
        let expected = words::write_and_count(input.clone(), FILES, megabytes << 20);
        let expected = scenario
            .cluster
            .bounded("the text to be written and counted", JOB_BOUND, expected)
            .await?;
        print_line(&format!(
            "{megabytes} MB of text in {FILES} files: one thread counts {} words, {} different ones",
            total(&expected),
            expected.len()
        ));
        let word_count = JobId::random();
        let submitted = Instant::now();
        scenario
            .submit_word_count(word_count, &input, &output)
            .await?;
        scenario.until_words_are_read(word_count, &expected).await?;

        let before = scenario.attempts(stream_job).await?;
        for _ in 0..KILLS {
            scenario.kill_the_leader(stream_job).await?;
        }
        ensure!(
            scenario.attempts(stream_job).await? == before,
            "tasks of the streaming job were restarted"
        );

        scenario.finish_word_count(word_count, submitted).await?;
        words::check(&expected, &output)?;
        print_line(&format!(
            "THE RESULT IS RIGHT: {} words, each counted exactly as by a single thread",
            expected.len()
        ));
        scenario.finish_stream(stream_job).await
    }

    /// Waits for the stream's record number `number + 1`.
    async fn records_after(&mut self, number: u64) -> anyhow::Result<u64> {
        let more = self.stream.records_above(number);
        self.cluster
            .bounded("records of the streaming job", TAKEOVER_BOUND, more)
            .await
    }

    async fn submit_word_count(
        &mut self,
        job: JobId,
        input: &Path,
        output: &Path,
    ) -> anyhow::Result<()> {
        let parameters = [
            format!("input={}/*.txt", input.display()),
            format!("output={}", output.display()),
        ];
        self.submit("wordcount.yaml", WORD_COUNT, job, &parameters)
            .await
    }

    /// Submits a job file as a user does.
    async fn submit(
        &mut self,
        name: &str,
        text: &str,
        job: JobId,
        parameters: &[String],
    ) -> anyhow::Result<()> {
        let file = self.cluster.directory().join(name);
        std::fs::write(&file, text)?;
        print_line(&format!(
            "$ tanist run {name} --detached --parallelism {PARALLELISM}"
        ));
        let mut arguments = vec![
            "run".to_owned(),
            file.display().to_string(),
            "--detached".to_owned(),
            "--job-id".to_owned(),
            job.to_string(),
            "--parallelism".to_owned(),
            PARALLELISM.to_string(),
        ];
        for parameter in parameters {
            arguments.extend(["--param".to_owned(), parameter.clone()]);
        }
        self.cluster.call(arguments).await
    }

    async fn until_words_are_read(&mut self, job: JobId, expected: &Counts) -> anyhow::Result<()> {
        let total = total(expected);
        let read = |view: &JobView| progress(view, total) >= FIRST_KILL_AT_PERCENT;
        let view = self.job("the job to read its input", job, read).await?;
        ensure!(
            view.state() != "FINISHED",
            "the job finished before its leader could be killed: give it more --megabytes"
        );
        print_line(&format!(
            "{} % of the words are read",
            progress(&view, total)
        ));
        Ok(())
    }

    /// Waits until the leader describes `job` as `wanted`, or as ended.
    async fn job(
        &mut self,
        what: &str,
        job: JobId,
        wanted: impl Fn(&JobView) -> bool,
    ) -> anyhow::Result<JobView> {
        let reached = self.watch.until(job, |view| wanted(view) || view.is_over());
        self.cluster.bounded(what, JOB_BOUND, reached).await
    }

    async fn attempts(&mut self, job: JobId) -> anyhow::Result<Attempts> {
        let attempts = self.watch.attempts(job);
        self.cluster
            .bounded("the job to run", JOB_BOUND, attempts)
            .await
    }

    /// Kills the leader, waits for the next one and for it to have found all tasks, and starts the dead process
    /// again.
    async fn kill_the_leader(&mut self, running: JobId) -> anyhow::Result<()> {
        // The current leader: the previous one may have been killed from outside.
        let leader = self.leader().await?;
        let pid = self.cluster.pid(&leader.process)?;
        print_line(&format!(
            "$ kill -9 {pid}   (that is {}, the leader)",
            leader.process
        ));
        let killed = Instant::now();
        self.cluster.kill(&leader.process)?;
        let successor = self.watch.leader_above(leader.epoch);
        let successor = self
            .cluster
            .bounded("a standby to take over", TAKEOVER_BOUND, successor)
            .await?;
        let took_over = killed.elapsed().as_millis();
        self.job("the job to run", running, JobView::all_tasks_run)
            .await?;
        let adopted = killed.elapsed().as_millis();
        let now = self.stream.records();
        print_line(&format!(
            "{} TOOK OVER {took_over} ms after the kill (epoch {}), and had adopted the streaming job after \
             {adopted} ms; its record counter stands at {now}",
            successor.process, successor.epoch
        ));
        self.cluster.restart_jobmanager(&leader.process)?;
        self.records_after(now + RECORDS_BETWEEN).await?;
        Ok(())
    }

    async fn leader(&mut self) -> anyhow::Result<Leader> {
        let leader = self.watch.leader_above(0);
        self.cluster
            .bounded("a leader", TAKEOVER_BOUND, leader)
            .await
    }

    async fn finish_word_count(&mut self, job: JobId, submitted: Instant) -> anyhow::Result<()> {
        let view = self.job("the end of the job", job, |_| false).await?;
        ensure!(
            view.state() == "FINISHED",
            "the word count ended as {}",
            view.state()
        );
        print_line(&format!(
            "the word count FINISHED {:.1} s after its submission",
            submitted.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    async fn finish_stream(&mut self, job: JobId) -> anyhow::Result<()> {
        let summary = self.stream.summary()?;
        print_line("$ tanist cancel STREAM");
        let arguments = ["cancel", &job.to_string()].map(str::to_owned);
        self.cluster.call(arguments.into()).await?;
        let view = self.job("the streaming job to end", job, |_| false).await?;
        ensure!(
            view.state() == "CANCELED",
            "the streaming job ended as {}",
            view.state()
        );
        let kills = match self.cluster.external_kills() {
            0 => format!("{KILLS} kills"),
            outside => format!("{KILLS} kills and {outside} from outside"),
        };
        print_line(&format!(
            "NO TASK NOTICED: {} records through {kills}, none missing, none twice, no task restarted; \
             the longest gap between two records of a key was {} ms",
            summary.records,
            summary.longest_gap.as_millis()
        ));
        Ok(())
    }
}

async fn start_cluster(cluster: &mut DemoCluster) -> anyhow::Result<Scenario<'_>> {
    let started = Instant::now();
    for index in 1..=JOBMANAGERS {
        cluster.start_jobmanager(&format!("jm-{index}"))?;
    }
    let mut outputs = Vec::new();
    for index in 1..=TASKMANAGERS {
        outputs.push(cluster.start_taskmanager(&format!("tm-{index}"), PARALLELISM)?);
    }
    let mut watch = ClusterWatch::open(cluster.directory()).await?;
    let leader = cluster
        .bounded("a leader", START_BOUND, watch.leader_above(0))
        .await?;
    let (outside_takeovers, kills) = ExternalTakeovers::follow(watch.clone());
    cluster.report_kills_to(kills);
    print_line(&format!(
        "{JOBMANAGERS} JobManagers and {TASKMANAGERS} TaskManagers started; {} leads (epoch {}), {} ms after the start",
        leader.process,
        leader.epoch,
        started.elapsed().as_millis()
    ));
    Ok(Scenario {
        cluster,
        watch,
        stream: StreamWatch::of(outputs),
        outside_takeovers,
    })
}

fn total(counts: &Counts) -> u64 {
    counts.values().sum()
}

/// The part of all words that the sources have passed on, in percent.
fn progress(view: &JobView, words: u64) -> u64 {
    if view.is_over() {
        return 100;
    }
    view.records_sent(WORD_COUNT_SOURCE) * 100 / words.max(1)
}
