//! Tasks that run programs: one task with a chain of steps, whose programs are supervised by the real binary.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tanist::dataflow::{
    Exchange, ExchangeOptions, RunningTask, TaskHost, TaskRuntime, TaskSpec, TaskStatus,
};
use tanist::gateway::fencing::HighestEpoch;
use tanist::job::{
    ArtifactSpec, ColumnType, CompileOptions, ExecColumn, ExecFormat, ExecLimits, ExecSpec,
    JobBuilder, Steps,
};
use tanist::telemetry::control_group::ControlGroups;
use tanist_chaos::wait_for;
use tanist_ha::clock::Clock;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_proto::v1 as pb;
use tempfile::TempDir;
use tokio::runtime::Handle;

pub(super) const BOUND: Duration = Duration::from_secs(60);

/// A directory for a job's files, and one for its programs.
pub(super) struct World {
    files: TempDir,
    working: TempDir,
    binary: String,
    control_groups: Result<ControlGroups, String>,
}

impl World {
    pub(super) fn new() -> World {
        let directory = || tempfile::tempdir().expect("a directory");
        World {
            files: directory(),
            working: directory(),
            binary: env!("CARGO_BIN_EXE_tanist").to_owned(),
            control_groups: Err("these tests have none".to_owned()),
        }
    }

    pub(super) fn file(&self, name: &str) -> String {
        self.files.path().join(name).to_string_lossy().into_owned()
    }

    /// Runs the one task that all these steps are chained into.
    pub(super) async fn start(&self, steps: Steps) -> RunningTask {
        let (runtime, spec) = self.task(steps).await;
        runtime.start(spec)
    }

    /// What runs the task, and the task.
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
        };
        (TaskRuntime::new(Handle::current(), exchange).on(host), spec)
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
            TaskStatus::Finished { committables } => {
                let text = fs::read_to_string(&committables[0].pending_path).expect("written");
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

pub(super) fn is_alive(pid: i32) -> bool {
    // What is dead and not reaped has no command line.
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

/// The process ids that a script has written, one a line, once there are so many.
pub(super) async fn pids(file: &str, count: usize) -> Vec<i32> {
    wait_for("the processes to say who they are", BOUND, async || {
        let text = fs::read_to_string(file).unwrap_or_default();
        let pids: Vec<i32> = text.lines().flat_map(str::parse).collect();
        if pids.len() == count {
            Ok(pids)
        } else {
            Err(text)
        }
    })
    .await
    .expect("they all do")
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
async fn how_a_program_failed_is_the_cause() {
    for (script, expected) in [
        (
            "echo no way >&2; exit 3",
            "ended with exit code 3; the last lines of its stderr: no way",
        ),
        ("kill -9 $$", "was killed by signal SIGKILL (9)"),
        ("exec /no/such/program", "exit code 127"),
        ("exit 0", "before it had read all its input"),
    ] {
        let cause = World::new()
            .cause(numbers(100_000).exec("it", sh(script)).discard("out"))
            .await;
        assert!(
            cause.contains(expected) && cause.contains("\"it\" (1/1)"),
            "{cause}"
        );
    }
    let missing = ExecSpec::new(["no-such-program"]);
    let cause = World::new()
        .cause(numbers(1).exec_sink("it", missing))
        .await;
    assert!(
        cause.contains("\"no-such-program\" can't be started"),
        "{cause}"
    );
    let wrong = ExecSpec {
        output: ExecFormat::Frames,
        ..sh("cat")
    };
    let cause = World::new()
        .cause(numbers(1).exec("it", wrong).discard("out"))
        .await;
    assert!(cause.contains("longer than"), "{cause}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_program_leaves_running_ends_with_it() {
    let world = World::new();
    let file = world.file("pids");
    let script = format!(
        "setsid sh -c 'echo $$ >> {file}; exec sleep 1000' & until test -s {file}; do :; done; cat"
    );
    let lines = world.lines(numbers(5).exec("it", sh(&script))).await;
    assert_eq!(lines.len(), 5);
    let pids = pids(&file, 1).await;
    assert!(
        !is_alive(pids[0]),
        "nothing is left when the task has finished"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_program_may_end_in_peace() {
    let world = World::new();
    let file = world.file("goodbye");
    let ready = world.file("pids");
    let script = format!(
        "trap 'echo bye > {file}; exit 0' TERM; echo $$ > {ready}; while :; do sleep 0.01; done"
    );
    let source = JobBuilder::new("test").exec_source("it", sh(&script));
    let task = world.start(source.discard("out")).await;
    pids(&ready, 1).await;
    task.cancel();
    assert_eq!(task.ended().await, TaskStatus::Canceled);
    assert_eq!(fs::read_to_string(file).expect("it said goodbye"), "bye\n");
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
async fn a_program_that_is_missing_is_beyond_a_restart_and_one_that_fails_is_not() {
    let world = World::new();
    let plain = world.file("plain");
    fs::write(&plain, "it can't be executed").expect("written");
    for (program, expected) in [
        (ExecSpec::new(["no-such-program"]), true),
        (ExecSpec::new([plain]), true),
        (sh("no-such-program"), true),
        (sh("exit 3"), false),
        (sh("kill -9 $$"), false),
        (sh("exit 0"), false),
    ] {
        let described = format!("{:?}", program.command);
        match world.run(numbers(100_000).exec_sink("it", program)).await {
            TaskStatus::Failed { unrecoverable, .. } => {
                assert_eq!(unrecoverable, expected, "{described}");
            }
            other => panic!("{described} ended as {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binary_that_can_not_supervise_is_said() {
    let mut world = World::new();
    world.binary = "true".to_owned();
    let cause = world.cause(numbers(1).exec_sink("it", sh("cat"))).await;
    assert!(cause.contains("become_child_if_asked"), "{cause}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_a_source_ends_in_peace_when_its_task_is_stopped() {
    let world = World::new();
    let script = "trap 'echo last; exit 0' TERM; echo first; while :; do sleep 0.05; done";
    let shell = "echo first; while :; do sleep 0.05; done";
    for (script, expected) in [(script, &["first", "last"][..]), (shell, &["first"][..])] {
        let steps = JobBuilder::new("test").exec_source("source", sh(script));
        let task = world.start(steps.file_sink("out", world.file("out"))).await;
        // The line is in the pipe, or on its way to the sink.
        wait_for("the source to run", BOUND, async || {
            let running = *task.status().borrow() == TaskStatus::Running;
            if running { Ok(()) } else { Err("it does not") }
        })
        .await
        .expect("it does");
        task.stop();
        let ended = tokio::time::timeout(BOUND, task.ended()).await;
        let TaskStatus::Finished { committables } = ended.expect("it ends") else {
            panic!("it did not finish: {:?}", task.ended().await);
        };
        let text = fs::read_to_string(&committables[0].pending_path).expect("written");
        let lines: Vec<&str> = text.lines().collect();
        // It may be stopped before it has begun.
        assert!(
            lines == expected || expected.ends_with(&lines) || lines.is_empty(),
            "{lines:?}"
        );
    }
}

#[tokio::test]
async fn a_program_of_an_isolated_job_is_killed_when_nobody_says_that_it_may_go_on() {
    let world = World::new();
    let said = world.file("pids");
    let script = format!("echo $$ > {said}; sleep 600 & echo $! >> {said}; wait");
    let steps = JobBuilder::new("test").exec_source("program", sh(&script));
    let may_run = Duration::from_secs(6);
    let (runtime, spec) = world.task(steps.discard("drop")).await;
    let job = spec.graph.job_id.parse().expect("an id");
    let start = Clock::Boottime.now();
    runtime.may_run_until(job, start.after(may_run * 5 / 6));
    let task = runtime.start(spec);
    let pids = pids(&said, 2).await;
    // Said again, it goes on.
    runtime.may_run_until(job, start.after(may_run));
    let ended = tokio::time::timeout(BOUND, task.ended()).await;
    let ended = ended.expect("it takes no minute");
    assert!(matches!(ended, TaskStatus::Failed { .. }), "{ended:?}");
    assert!(Clock::Boottime.now().since(start) >= may_run);
    assert!(!pids.into_iter().any(is_alive), "with all that it started");
}

/// On a host that delegates control groups a program runs in one; on any other its task says why it can't be held.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_is_held_to_its_cores_by_a_control_group_or_its_task_says_why_not() {
    let mut world = World::new();
    world.control_groups = ControlGroups::claim(None);
    let mut program = sh("cat /proc/self/cgroup");
    program.limits.cpu_millis = Some(500);
    let steps = JobBuilder::new("test").exec_source("source", program);
    match world.control_groups.clone() {
        Ok(_) => {
            let lines = world.lines(steps).await;
            let is_own = |line: &String| line.starts_with("0::") && line.contains("-program-");
            assert!(lines.iter().any(is_own), "{lines:?}");
        }
        Err(reason) => {
            let cause = world.cause(steps.discard("out")).await;
            for part in [
                "`cpu` can't be held on host",
                &reason,
                "process.control-groups",
            ] {
                assert!(cause.contains(part), "{cause}");
            }
        }
    }
}
