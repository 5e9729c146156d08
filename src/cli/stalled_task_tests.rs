//! A TaskManager in the process of a JobManager that can't continue because a task hangs: the process ends
//! with a message, and a job that other processes can lead continues.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tanist_compile::{CompileOptions, JobBuilder, StreamGraph};
use tanist_config::{Configuration, LoadOptions};
use tanist_dataflow::{OperatorContext, OperatorError, Source, SourceState};
use tanist_model::{ColumnType, CustomSpec};
use tanist_operators::custom::{self, CustomOperator};
use tanist_process::ApplicationSetup;
use tanist_telemetry::ExitCode;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::args::{JobArgs, LocalArgs, OutputFormat, RestoreArgs};
use super::cluster::{FREE_PORTS, HostedCluster, HostedEnd};
use super::local::local;

const BOUND: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct State {
    /// Whether the first subtask hangs.
    hangs: bool,
    /// Whether the subtasks are released.
    is_free: bool,
}

/// The state that both subtasks share.
#[derive(Debug, Clone, Default)]
struct Shared(Arc<(Mutex<State>, Condvar)>);

impl Shared {
    fn let_go(&self) {
        let (state, changed) = &*self.0;
        state.lock().is_free = true;
        changed.notify_all();
    }
}

/// A source whose first subtask hangs; then its second subtask fails. Both end when they are released.
struct Hanging {
    shared: Shared,
    subtask: u32,
}

impl Source for Hanging {
    fn next(&mut self, now: Instant) -> Result<SourceState, OperatorError> {
        let (state, changed) = &*self.shared.0;
        let mut state = state.lock();
        if self.subtask == 0 {
            state.hangs = true;
            while !state.is_free {
                changed.wait(&mut state);
            }
        }
        match (state.is_free, state.hangs) {
            (true, _) => Ok(SourceState::End),
            (false, true) => Err(OperatorError::Unavailable("for this test".to_owned())),
            (false, false) => Ok(SourceState::Wait(now + Duration::from_millis(10))),
        }
    }
}

fn register(name: &str, shared: &Shared) {
    let shared = shared.clone();
    let make = move |_: &serde_json::Value, context: &OperatorContext| {
        let source: Box<dyn Source> = Box::new(Hanging {
            shared: shared.clone(),
            subtask: context.subtask,
        });
        Ok::<_, OperatorError>(source)
    };
    custom::register(name, CustomOperator::Source(Arc::new(make)));
}

/// Settings with short cancellation timeouts.
fn short_timeouts() -> LoadOptions {
    LoadOptions::default()
        .with("task.cancellation.timeout", "300 ms")
        .with("task.cancellation.interval", "100 ms")
        .with("restart-strategy.type", "fixed-delay")
        .with("restart-strategy.fixed-delay.attempts", "100")
        .with("restart-strategy.fixed-delay.delay", "10 ms")
}

/// All its tasks are one region: if one fails, all are cancelled.
fn job(operator: &str) -> StreamGraph {
    JobBuilder::new("hangs")
        .custom(
            operator,
            CustomSpec::source(operator, [("n", ColumnType::Int64)]),
        )
        .key_by("by-number", ["n"])
        .count("counts")
        .discard("out")
        .build()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_whose_taskmanager_hangs_ends_its_process_and_goes_on_in_the_next() {
    let (shared, operator) = (Shared::default(), "cli-tests-hosted");
    register(operator, &shared);
    let directory = tempfile::tempdir().expect("a directory");
    let store = directory.path().join("store");
    let mut load = short_timeouts()
        .with("high-availability.embedded.dir", &store.to_string_lossy())
        .with("taskmanager.numberOfTaskSlots", "2")
        .with("heartbeat.interval", "200 ms")
        .with("heartbeat.timeout", "2 s");
    for (key, value) in FREE_PORTS {
        load = load.with(key, value);
    }
    let configuration = Configuration::load(load).expect("it is valid");
    let run = async |number: u32| {
        let options = CompileOptions {
            default_parallelism: 2,
            ..CompileOptions::default()
        };
        let setup = ApplicationSetup::new("hangs", move |context| async move {
            context.execute(job(operator)).await?;
            Ok(())
        });
        let setup = setup.compiled_with(options);
        let own = directory.path().join(number.to_string());
        let bound = HostedCluster::bind(configuration.clone(), setup, 1, &own).await;
        let running = Box::pin(bound.expect("bound").run(CancellationToken::new()));
        tokio::time::timeout(BOUND, running).await.expect("it ends")
    };
    let first = run(1).await;
    let HostedEnd::TaskManager(failure) = first else {
        panic!("{first:?}");
    };
    assert_eq!(failure.code, ExitCode::Fatal, "{failure}");
    assert!(failure.cause.contains("did not end within"), "{failure}");
    shared.let_go();
    assert_eq!(run(2).await, HostedEnd::Decided(ExitCode::Ended));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_job_that_hangs_ends_its_command() {
    let (shared, operator) = (Shared::default(), "cli-tests-local");
    register(operator, &shared);
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("job.yaml");
    let text = format!(
        "version: 1\nname: hangs\nsteps:\n\
         - {{name: hangs, custom: {{name: {operator}, role: source, output: {{n: int64}}}}}}\n\
         - {{name: by-number, key-by: {{columns: [n]}}}}\n\
         - {{name: counts, count: {{}}}}\n\
         - {{name: out, discard: {{}}}}\n"
    );
    std::fs::write(&file, text).expect("the directory is ours");
    let working = directory.path().join("working");
    let load = short_timeouts().with("process.working-dir", &working.to_string_lossy());
    let configuration = Configuration::load(load.clone()).expect("it is valid");
    let args = LocalArgs {
        job: JobArgs {
            file,
            parameters: Vec::new(),
            parallelism: Some(2),
        },
        restore: RestoreArgs::default(),
        detached: false,
    };
    let running = Box::pin(local(load, &configuration, &args, OutputFormat::Table));
    let code = tokio::time::timeout(BOUND, running).await;
    shared.let_go();
    assert_eq!(code.ok(), Some(ExitCode::Fatal));
}
