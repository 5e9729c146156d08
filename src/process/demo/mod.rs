//! `tanist demo`: a cluster of real processes whose leader is killed in the middle of a word count, told as a story.
//!
//! Three JobManagers and two TaskManagers run as child processes on the embedded store, in a directory of their own. Both the
//! processes and the directory are gone when the demo ends, also when it fails or is interrupted. It succeeds only if the
//! result is what a single thread counts.

mod children;
mod watch;
mod words;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tanist_proto::id::JobId;
use tanist_proto::v1::{JobDetails, JobStatus};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use self::children::Playground;
use self::watch::ClusterWatch;

/// The job file that the demo runs, as it is shipped.
const JOB_FILE: &str = include_str!("../../../examples/wordcount.yaml");
const FILES: usize = 8;
const JOBMANAGERS: usize = 3;
const TASKMANAGERS: usize = 2;
const PARALLELISM: u32 = 2;
/// The leader is killed when this part of the words has been read.
const KILL_AT_PERCENT: u64 = 30;
/// How long the cluster may take to stand.
const START_BOUND: Duration = Duration::from_secs(30);
/// How long somebody may take to take over, and the job to run again.
const TAKEOVER_BOUND: Duration = Duration::from_secs(30);
/// How long the job may take.
const JOB_BOUND: Duration = Duration::from_secs(300);
/// How often the leader is asked about the job.
const ASK_INTERVAL: Duration = Duration::from_millis(10);

/// What can be chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoOptions {
    /// How much text is counted. More text, a longer job.
    pub megabytes: usize,
    /// Whether the directory with logs, input and output stays.
    pub keep: bool,
}

impl Default for DemoOptions {
    fn default() -> DemoOptions {
        // A few seconds of work, whether the program was built for speed or for debugging.
        let megabytes = if cfg!(debug_assertions) { 24 } else { 160 };
        DemoOptions {
            megabytes,
            keep: false,
        }
    }
}

/// Why the demo did not show what it should.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A file or a process of its own.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The store could not be watched.
    #[error("the store can't be watched: {0}")]
    Store(#[source] tanist_ha::Error),
    /// The cluster or the job did not do what was expected.
    #[error("{0}")]
    Unexpected(String),
    /// A process ended that should not have.
    #[error("{name} ended by itself: {status}; the end of its log:\n{log}")]
    Ended {
        /// Which.
        name: String,
        /// How.
        status: String,
        /// What it said.
        log: String,
    },
    /// The result is not what a single thread counts.
    #[error("THE RESULT IS WRONG: {0}")]
    WrongResult(String),
    /// A signal.
    #[error("interrupted")]
    Interrupted,
}

impl DemoError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> DemoError {
        let what = what.into();
        move |source| DemoError::Io { what, source }
    }
}

/// Runs the demo with `program` as the `tanist` of all processes. Everything is cleaned up when it returns.
pub async fn run(program: PathBuf, options: DemoOptions) -> Result<(), DemoError> {
    let listen = |kind| signal(kind).map_err(DemoError::io("signals can't be listened to"));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    let mut playground = Playground::create(program, options.keep)?;
    let played = tokio::select! {
        played = play(&mut playground, &options) => played,
        _ = interrupt.recv() => Err(DemoError::Interrupted),
        _ = terminate.recv() => Err(DemoError::Interrupted),
        _ = hangup.recv() => Err(DemoError::Interrupted),
    };
    let directory = playground.directory().display().to_string();
    let stopped = playground.stop().await;
    if options.keep {
        tell(&format!(
            "all processes are stopped; logs and files stay in {directory}"
        ));
    } else {
        tell("all processes are stopped, and the directory is removed");
    }
    played.and(stopped)
}

async fn play(playground: &mut Playground, options: &DemoOptions) -> Result<(), DemoError> {
    tell(&format!(
        "a cluster on this machine, on the embedded store in {}",
        playground.directory().display()
    ));
    let started = Instant::now();
    let mut managers = Vec::new();
    for index in 1..=JOBMANAGERS {
        let id = format!("jm-{index}");
        let own = format!("jobmanager.id={id}");
        managers.push(playground.start(
            &id,
            "jobmanager",
            &[&own, "jobmanager.rpc.port=0", "rest.bind-port=0"],
        )?);
    }
    for index in 1..=TASKMANAGERS {
        let id = format!("tm-{index}");
        let own = format!("taskmanager.resource-id={id}");
        playground.start(
            &id,
            "taskmanager",
            &[&own, "taskmanager.numberOfTaskSlots=1"],
        )?;
    }
    let mut watch = ClusterWatch::open(playground.store()).await?;
    let first = playground
        .bounded("a leader", START_BOUND, watch.leader_above(0))
        .await?;
    tell(&format!(
        "{JOBMANAGERS} JobManagers and {TASKMANAGERS} TaskManagers started; {} leads (epoch {}), {} after the start",
        first.process,
        first.epoch,
        milliseconds(started)
    ));

    let input = playground.directory().join("input");
    let output = playground.directory().join("output");
    let expected = words::write_and_count(input.clone(), FILES, options.megabytes << 20).await?;
    tell(&format!(
        "{} MB of text in {FILES} files: one thread counts {} words, {} different ones",
        options.megabytes,
        expected.total(),
        expected.different()
    ));

    let job = JobId::random();
    let submitted = Instant::now();
    submit(playground, job, &first, &input, &output).await?;
    let read = watch.until(&first, job, |details| {
        progress(details, expected.total()) >= KILL_AT_PERCENT
    });
    let details = playground
        .bounded("the job to read its input", JOB_BOUND, read)
        .await?;
    if details.status() == JobStatus::Finished {
        return unexpected(
            "the job finished before its leader could be killed: give it more --megabytes",
        );
    }
    let percent = progress(&details, expected.total());
    let victim = managers.iter().find(|child| child.name() == first.process);
    let victim = victim.ok_or_else(|| {
        DemoError::Unexpected(format!("the leader {} is none of ours", first.process))
    })?;
    tell(&format!(
        "{percent} % of the words are read: $ kill -9 {}   (that is {}, the leader)",
        playground.pid(victim),
        first.process
    ));
    let killed = Instant::now();
    playground.kill(victim);

    let successor = watch.leader_above(first.epoch);
    let second = playground
        .bounded("somebody to take over", TAKEOVER_BOUND, successor)
        .await?;
    tell(&format!(
        "{} TOOK OVER {} after the kill (epoch {}): all jobs recovered from the store",
        second.process,
        milliseconds(killed),
        second.epoch
    ));
    let runs = watch.until(&second, job, all_tasks_run);
    playground
        .bounded("the job to run again", TAKEOVER_BOUND, runs)
        .await?;
    tell(&format!(
        "the job runs again {} after the kill",
        milliseconds(killed)
    ));
    let over = watch.until(&second, job, |details| is_over(details.status()));
    let details = playground
        .bounded("the end of the job", JOB_BOUND, over)
        .await?;
    if details.status() != JobStatus::Finished {
        return unexpected(&format!(
            "the job ended as {}",
            details.status().as_str_name()
        ));
    }
    tell(&format!(
        "the job FINISHED {:.1} s after its submission",
        submitted.elapsed().as_secs_f64()
    ));
    expected.check(output).await?;
    tell(&format!(
        "THE RESULT IS RIGHT: {} words, each counted exactly as by a single thread",
        expected.different()
    ));
    Ok(())
}

/// Submits the word count as a person does.
async fn submit(
    playground: &Playground,
    job: JobId,
    leader: &watch::Leader,
    input: &std::path::Path,
    output: &std::path::Path,
) -> Result<(), DemoError> {
    let file = playground.directory().join("wordcount.yaml");
    std::fs::write(&file, JOB_FILE).map_err(DemoError::io(file.display().to_string()))?;
    tell(&format!(
        "$ tanist run wordcount.yaml --detached --parallelism {PARALLELISM}"
    ));
    let arguments = [
        "run".to_owned(),
        file.display().to_string(),
        "--detached".to_owned(),
        "--job-id".to_owned(),
        job.to_string(),
        "--address".to_owned(),
        leader.rest.clone(),
        "--parallelism".to_owned(),
        PARALLELISM.to_string(),
        "--param".to_owned(),
        format!("input={}/*.txt", input.display()),
        "--param".to_owned(),
        format!("output={}", output.display()),
    ];
    playground.call(&arguments).await
}

/// The part of all words that the sources have passed on, in percent.
fn progress(details: &JobDetails, words: u64) -> u64 {
    if is_over(details.status()) {
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

fn all_tasks_run(details: &JobDetails) -> bool {
    use tanist_proto::v1::ExecutionState as State;
    let mut subtasks = details.vertices.iter().flat_map(|vertex| &vertex.subtasks);
    let runs = |state: State| matches!(state, State::Running | State::Finished);
    is_over(details.status())
        || details.status() == JobStatus::Running && subtasks.all(|subtask| runs(subtask.state()))
}

fn is_over(status: JobStatus) -> bool {
    matches!(
        status,
        JobStatus::Finished | JobStatus::Canceled | JobStatus::Failed
    )
}

fn unexpected(text: &str) -> Result<(), DemoError> {
    Err(DemoError::Unexpected(text.to_owned()))
}

fn milliseconds(since: Instant) -> String {
    format!("{} ms", since.elapsed().as_millis())
}

/// One line of the story.
fn tell(line: &str) {
    println!("  {line}");
}
