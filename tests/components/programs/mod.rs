//! Tasks that run programs: one task with a chain of steps, whose programs are supervised by the real
//! binary. Here: their input, output and environment. Their end is in [`ends`], programs that ignore
//! requests to end in [`misbehaving`], resource limits in [`limits`], and fetched files in [`fetched`].

mod ends;
mod fetched;
mod limits;
mod misbehaving;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tanist_compile::{CompileOptions, JobBuilder, Steps};
use tanist_dataflow::{Exchange, ExchangeOptions, RunningTask, TaskRuntime, TaskSpec, TaskStatus};
use tanist_gateway::fencing::HighestEpoch;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_model::{ArtifactSpec, ColumnType, ExecColumn, ExecFormat, ExecLimits, ExecSpec};
use tanist_operators::{Operators, TaskHost, UploadSource};
use tanist_proto::v1 as pb;
use tanist_telemetry::control_group::ControlGroups;
use tempfile::TempDir;
use tokio::runtime::Handle;

pub(super) const BOUND: Duration = Duration::from_secs(60);

/// A directory for a job's files, and one for its programs.
pub(super) struct World {
    files: TempDir,
    working: TempDir,
    binary: String,
    control_groups: Result<ControlGroups, String>,
    uploads: Option<Arc<dyn UploadSource>>,
    cancellation_timeout: Option<Duration>,
}

impl World {
    pub(super) fn new() -> World {
        let directory = || tempfile::tempdir().expect("a directory");
        World {
            files: directory(),
            working: directory(),
            binary: env!("CARGO_BIN_EXE_tanist").to_owned(),
            control_groups: Err("these tests have none".to_owned()),
            uploads: None,
            cancellation_timeout: None,
        }
    }

    pub(super) fn file(&self, name: &str) -> String {
        self.files.path().join(name).to_string_lossy().into_owned()
    }

    /// Runs the one task into which all these steps are chained.
    pub(super) async fn start(&self, steps: Steps) -> RunningTask {
        let (runtime, spec) = self.task(steps).await;
        runtime.start(spec)
    }

    /// The runtime, and the specification of the task.
    async fn task(&self, steps: Steps) -> (TaskRuntime, TaskSpec) {
        let options = CompileOptions {
            artifact_dir: Some(self.files.path().to_owned()),
            ..CompileOptions::default()
        };
        let graph = steps.build().compile(&options);
        let graph = graph.expect("the job is valid");
        assert_eq!(graph.vertices.len(), 1, "all steps are chained");
        let gate = Arc::new(HighestEpoch::default());
        let options = ExchangeOptions::new("tm", "1", gate);
        let exchange = Exchange::bind("127.0.0.1:0", options, Handle::current());
        let exchange = exchange.await.expect("a free port");
        let host = TaskHost::new(self.working.path().to_owned());
        let host = host.supervised_by(self.binary.clone().into());
        let devices = Some("DEVICES".to_owned());
        let resources = [("gpu".to_owned(), devices), ("fpga-a".to_owned(), None)];
        let host = host.with_external_resources(resources.into());
        let host = host.with_control_groups(self.control_groups.clone());
        let host = host.ended_by_tasks_after(self.cancellation_timeout);
        let host = match &self.uploads {
            Some(uploads) => host.fetching_from(uploads.clone()),
            None => host,
        };
        let spec = TaskSpec {
            deployment: pb::TaskDeployment {
                vertex_id: graph.vertices[0].id.clone(),
                generation: 3,
                ..pb::TaskDeployment::default()
            },
            graph: Arc::new(graph),
            cluster_incarnation: ClusterIncarnation::new("test"),
            epoch: Epoch::new(1),
            job_incarnation: 1,
            external_resources: BTreeMap::from([("gpu".to_owned(), vec![1, 3])]),
            managed_memory: 0,
        };
        let operators = Operators::new(host);
        (
            TaskRuntime::new(Handle::current(), exchange, operators),
            spec,
        )
    }

    async fn run(&self, steps: Steps) -> TaskStatus {
        let task = self.start(steps).await;
        let ended = tokio::time::timeout(BOUND, task.ended());
        let ended = ended.await.expect("it takes no minute");
        let left = fs::read_dir(self.working.path().join("programs"));
        let left = left.map_or(0, Iterator::count);
        assert_eq!(left, 0, "no program's directory is left");
        let left = fs::read_dir(self.working.path().join("artifacts"));
        let left = left.map_or(0, Iterator::count);
        assert_eq!(left, 0, "no artifact is left");
        ended
    }

    /// The lines that the job's file sink has written.
    async fn lines(&self, steps: Steps) -> Vec<String> {
        match self.run(steps.file_sink("out", self.file("out"))).await {
            TaskStatus::Finished { output } => {
                let text =
                    fs::read_to_string(&output.committables[0].pending_path).expect("written");
                text.lines().map(str::to_owned).collect()
            }
            other => panic!("it ended as {other:?}"),
        }
    }

    async fn cause(&self, steps: Steps) -> String {
        match self.run(steps).await {
            TaskStatus::Failed { cause, .. } => cause,
            other => panic!("it ended as {other:?}"),
        }
    }
}

pub(super) fn sh(script: &str) -> ExecSpec {
    ExecSpec::new(["sh", "-c", script])
}

pub(super) fn numbers(count: u64) -> Steps {
    JobBuilder::new("test").datagen("numbers", None, Some(count), 1, 10)
}

#[tokio::test(flavor = "multi_thread")]
async fn records_go_through_programs_in_order() {
    let world = World::new();
    let sed = ExecSpec::new(["sed", "s/ /-/g"]);
    let lines = world
        .lines(
            numbers(200_000)
                .exec("first", sh("cat"))
                .exec("second", sed),
        )
        .await;
    assert_eq!(lines.len(), 200_000);
    for (n, line) in lines.iter().enumerate() {
        assert!(line.starts_with(&format!("{n}-")), "{line} is at {n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_may_read_all_before_it_writes_and_write_more_than_it_reads() {
    let world = World::new();
    let spread = sh("while read line; do echo $line; echo $line; echo $line; done");
    let steps = numbers(20_000)
        .exec("reversed", ExecSpec::new(["tac"]))
        .exec("spread", spread);
    let lines = world.lines(steps).await;
    assert_eq!(lines.len(), 60_000);
    assert!(lines[0].starts_with("19999 ") && lines[59_999].starts_with("0 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_finds_the_indices_of_its_extended_resources() {
    let world = World::new();
    let said = sh(
        "cat > /dev/null; echo gpu=$TANIST_RESOURCE_GPU devices=$DEVICES fpga=$TANIST_RESOURCE_FPGA_A.",
    );
    let lines = world.lines(numbers(1).exec("said", said)).await;
    assert_eq!(lines, ["gpu=1,3 devices=1,3 fpga=."]);
}

#[tokio::test(flavor = "multi_thread")]
async fn json_and_frames_have_columns_and_types() {
    let world = World::new();
    let json = ExecSpec {
        input: ExecFormat::JsonLines,
        output: ExecFormat::JsonLines,
        columns: vec![
            ExecColumn {
                name: "key".to_owned(),
                column_type: ColumnType::Int64,
            },
            ExecColumn {
                name: "seq".to_owned(),
                column_type: ColumnType::Float64,
            },
        ],
        ..sh("cat")
    };
    let frames = ExecSpec {
        input: ExecFormat::JsonFrames,
        output: ExecFormat::JsonFrames,
        ..json.clone()
    };
    let lines = world
        .lines(numbers(9).exec("json", json).exec("frames", frames))
        .await;
    assert_eq!(lines.len(), 9);
    assert!(
        lines
            .iter()
            .enumerate()
            .all(|(n, line)| line.ends_with(&format!(" {n}.0")))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_knows_where_it_runs_and_nothing_that_is_not_its_business() {
    let world = World::new();
    let mut program = sh(
        "echo $TANIST_JOB_NAME $TANIST_SUBTASK_INDEX $TANIST_PARALLELISM $TANIST_ATTEMPT $MINE; \
         echo $TANIST_VERTEX; echo ${#TANIST_JOB_ID}; pwd; echo $CARGO_MANIFEST_DIR; ulimit -n",
    );
    program.env.insert("MINE".to_owned(), "a b".to_owned());
    program.limits = ExecLimits {
        open_files: Some(77),
        ..ExecLimits::default()
    };
    let lines = world
        .lines(JobBuilder::new("test").exec_source("source", program))
        .await;
    assert_eq!(lines[..3], ["test 0 1 3 a b", "source -> out", "32"]);
    let working = fs::canonicalize(world.working.path()).expect("it is there");
    assert!(Path::new(&lines[3]).starts_with(working), "{}", lines[3]);
    assert_eq!(lines[4..], ["", "77"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_find_what_their_job_ships() {
    let world = World::new();
    fs::write(world.file("model.txt"), "knowledge").expect("written");
    let script = "#!/bin/sh\necho $(cat $1) $(cat model) $(cat $TANIST_ARTIFACTS_DIR/model)\n";
    fs::write(world.file("tool.sh"), script).expect("written");
    let program = ExecSpec::new(["./tool", "${artifact:model}"]);
    let steps = JobBuilder::new("test")
        .artifact(ArtifactSpec::new("model", "model.txt"))
        .artifact(ArtifactSpec::new("tool", "tool.sh").executable())
        .exec_source("it", program);
    let lines = world.lines(steps).await;
    assert_eq!(lines, ["knowledge knowledge knowledge"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binary_that_can_not_supervise_is_said() {
    let mut world = World::new();
    world.binary = "true".to_owned();
    let cause = world.cause(numbers(1).exec_sink("it", sh("cat"))).await;
    assert!(cause.contains("become_child_if_asked"), "{cause}");
}
