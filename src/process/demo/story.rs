//! The steps of the demo and their commentary, in order. Each step waits for its result, with a timeout.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use tanist_proto::id::JobId;
use tanist_proto::v1::{JobDetails, JobStatus};
use tokio::time::Instant;

use super::children::{Child, Playground};
use super::others::OthersKills;
use super::stream::StreamWatch;
use super::watch::{ClusterWatch, Leader, all_tasks_run};
use super::words::{self, WordCounts};
use super::{DemoError, DemoOptions, tell, ticks, unexpected};

/// The job file of the bounded job, as it is shipped.
const WORD_COUNT: &str = include_str!("../../../examples/wordcount.yaml");
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

/// The attempt number of each task, by the id of its vertex and its index.
type Attempts = BTreeMap<(String, u32), u64>;

/// The cluster in the middle of the story.
pub(super) struct Story<'a> {
    playground: &'a mut Playground,
    watch: ClusterWatch,
    managers: Vec<Child>,
    stream: StreamWatch,
    others: OthersKills,
}

impl Story<'_> {
    /// Plays the whole story.
    pub(super) async fn play(
        playground: &mut Playground,
        options: &DemoOptions,
    ) -> Result<(), DemoError> {
        tell(&format!(
            "a cluster on this machine, on the embedded store in {}",
            playground.directory().display()
        ));
        let mut story = start_cluster(playground).await?;

        let counting = JobId::random();
        story
            .submit("stream.yaml", ticks::JOB_FILE, counting, &[])
            .await?;
        story.others.streaming(counting);
        story.records_after(0).await?;
        tell("its records are read here, as they come out of the TaskManagers");

        let input = story.playground.directory().join("input");
        let output = story.playground.directory().join("output");
        let expected = words::write_and_count(input.clone(), FILES, options.megabytes << 20);
        let expected = story
            .playground
            .bounded("the text to be written and counted", JOB_BOUND, expected)
            .await?;
        tell(&format!(
            "{} MB of text in {FILES} files: one thread counts {} words, {} different ones",
            options.megabytes,
            expected.total(),
            expected.different()
        ));
        let word_count = JobId::random();
        let submitted = Instant::now();
        story.submit_word_count(word_count, &input, &output).await?;
        story.until_words_are_read(word_count, &expected).await?;

        let before = story.attempts(counting).await?;
        for _ in 0..KILLS {
            story.kill_the_leader(counting).await?;
        }
        if story.attempts(counting).await? != before {
            return unexpected("tasks of the streaming job were restarted");
        }

        story.finish_word_count(word_count, submitted).await?;
        expected.check(output).await?;
        tell(&format!(
            "THE RESULT IS RIGHT: {} words, each counted exactly as by a single thread",
            expected.different()
        ));
        story.finish_stream(counting).await
    }

    /// Waits for the stream's record number `number + 1`.
    async fn records_after(&mut self, number: u64) -> Result<u64, DemoError> {
        let more = self.stream.records_above(number);
        self.playground
            .bounded("records of the streaming job", TAKEOVER_BOUND, more)
            .await
    }

    async fn submit_word_count(
        &mut self,
        job: JobId,
        input: &Path,
        output: &Path,
    ) -> Result<(), DemoError> {
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
    ) -> Result<(), DemoError> {
        let file = self.playground.directory().join(name);
        std::fs::write(&file, text).map_err(DemoError::io(file.display().to_string()))?;
        tell(&format!(
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
        self.playground.call(arguments).await
    }

    async fn until_words_are_read(
        &mut self,
        job: JobId,
        expected: &WordCounts,
    ) -> Result<(), DemoError> {
        let total = expected.total();
        let read = |details: &JobDetails| progress(details, total) >= FIRST_KILL_AT_PERCENT;
        let details = self.job("the job to read its input", job, read).await?;
        if details.status() == JobStatus::Finished {
            return unexpected(
                "the job finished before its leader could be killed: give it more --megabytes",
            );
        }
        tell(&format!(
            "{} % of the words are read",
            progress(&details, total)
        ));
        Ok(())
    }

    /// Waits until the leader describes `job` as `wanted`, or as ended.
    async fn job(
        &mut self,
        what: &str,
        job: JobId,
        wanted: impl Fn(&JobDetails) -> bool,
    ) -> Result<JobDetails, DemoError> {
        let reached = self.watch.until(job, |details| {
            wanted(details) || details.status().has_ended()
        });
        self.playground.bounded(what, JOB_BOUND, reached).await
    }

    async fn attempts(&mut self, job: JobId) -> Result<Attempts, DemoError> {
        let details = self.job("the job to run", job, all_tasks_run).await?;
        let attempt_of_each = details.vertices.iter().flat_map(|vertex| {
            let subtasks = vertex.subtasks.iter();
            subtasks.map(|subtask| ((vertex.id.clone(), subtask.subtask), subtask.attempt))
        });
        Ok(attempt_of_each.collect())
    }

    /// Kills the leader, waits for the next one and for it to have found all tasks, and starts the dead process
    /// again.
    async fn kill_the_leader(&mut self, running: JobId) -> Result<(), DemoError> {
        // The current leader: the previous one may have been killed from outside.
        let leader = self.leader().await?;
        let position = self
            .managers
            .iter()
            .position(|child| child.name() == leader.process);
        let Some(position) = position else {
            return unexpected(&format!(
                "the leader {} is not a process of the demo",
                leader.process
            ));
        };
        let victim = self.managers.remove(position);
        tell(&format!(
            "$ kill -9 {}   (that is {}, the leader)",
            self.playground.pid(&victim),
            leader.process
        ));
        let killed = Instant::now();
        self.playground.kill(&victim);
        let successor = self.watch.leader_above(leader.epoch);
        let successor = self
            .playground
            .bounded("a standby to take over", TAKEOVER_BOUND, successor)
            .await?;
        let took_over = killed.elapsed().as_millis();
        self.job("the job to run", running, all_tasks_run).await?;
        let adopted = killed.elapsed().as_millis();
        let now = self.stream.records();
        tell(&format!(
            "{} TOOK OVER {took_over} ms after the kill (epoch {}), and had adopted the streaming job after {adopted} ms; \
             its record counter stands at {now}",
            successor.process, successor.epoch
        ));
        self.managers
            .push(start_jobmanager(self.playground, victim.name())?);
        self.records_after(now + RECORDS_BETWEEN).await?;
        Ok(())
    }

    async fn leader(&mut self) -> Result<Leader, DemoError> {
        let leader = self.watch.leader_above(0);
        self.playground
            .bounded("a leader", TAKEOVER_BOUND, leader)
            .await
    }

    async fn finish_word_count(&mut self, job: JobId, submitted: Instant) -> Result<(), DemoError> {
        let details = self.job("the end of the job", job, |_| false).await?;
        if details.status() != JobStatus::Finished {
            let status = details.status().as_str_name();
            return unexpected(&format!("the word count ended as {status}"));
        }
        tell(&format!(
            "the word count FINISHED {:.1} s after its submission",
            submitted.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    async fn finish_stream(&mut self, job: JobId) -> Result<(), DemoError> {
        let summary = self.stream.summary()?;
        tell("$ tanist cancel STREAM");
        let arguments = ["cancel", &job.to_string()].map(str::to_owned);
        self.playground.call(arguments.into()).await?;
        let details = self.job("the streaming job to end", job, |_| false).await?;
        if details.status() != JobStatus::Canceled {
            let status = details.status().as_str_name();
            return unexpected(&format!("the streaming job ended as {status}"));
        }
        let kills = match self.playground.ended_by_others() {
            0 => format!("{KILLS} kills"),
            others => format!("{KILLS} kills and {others} from outside"),
        };
        tell(&format!(
            "NO TASK NOTICED: {} records through {kills}, none missing, none twice, no task restarted; \
             the longest gap between two records of a key was {} ms",
            summary.records,
            summary.longest_gap.as_millis()
        ));
        Ok(())
    }
}

async fn start_cluster(playground: &mut Playground) -> Result<Story<'_>, DemoError> {
    let started = Instant::now();
    let mut managers = Vec::new();
    for index in 1..=JOBMANAGERS {
        managers.push(start_jobmanager(playground, &format!("jm-{index}"))?);
    }
    let mut outputs = Vec::new();
    for index in 1..=TASKMANAGERS {
        let id = format!("tm-{index}");
        let own = vec![
            format!("taskmanager.resource-id={id}"),
            format!("taskmanager.numberOfTaskSlots={PARALLELISM}"),
        ];
        outputs.push(playground.start_taskmanager(&id, own)?);
    }
    let mut watch = ClusterWatch::open(playground.store()).await?;
    let leader = playground
        .bounded("a leader", START_BOUND, watch.leader_above(0))
        .await?;
    let (others, ends) = OthersKills::follow(watch.clone());
    playground.tell_ends_to(ends);
    tell(&format!(
        "{JOBMANAGERS} JobManagers and {TASKMANAGERS} TaskManagers started; {} leads (epoch {}), {} ms after the start",
        leader.process,
        leader.epoch,
        started.elapsed().as_millis()
    ));
    Ok(Story {
        playground,
        watch,
        managers,
        stream: StreamWatch::of(outputs),
        others,
    })
}

fn start_jobmanager(playground: &mut Playground, id: &str) -> Result<Child, DemoError> {
    playground.start_jobmanager(id, vec![format!("jobmanager.id={id}")])
}

/// The part of all words that the sources have passed on, in percent.
fn progress(details: &JobDetails, words: u64) -> u64 {
    if details.status().has_ended() {
        return 100;
    }
    let source = details.vertices.iter().min_by_key(|vertex| {
        details
            .edges
            .iter()
            .filter(|edge| edge.target == vertex.id)
            .count()
    });
    let passed: u64 = source
        .iter()
        .flat_map(|vertex| &vertex.subtasks)
        .filter_map(|subtask| subtask.metrics.as_ref())
        .map(|metrics| metrics.records_out)
        .sum();
    passed * 100 / words.max(1)
}
