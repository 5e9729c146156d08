//! The end of tasks whose programs fail, are cancelled or are stopped, with the cause. Not here: programs
//! that work normally, and programs that ignore requests to end ([`super::misbehaving`]).

use std::fs;
use std::time::Duration;

use tanist_chaos::process::is_alive;
use tanist_chaos::wait_for;
use tanist_compile::JobBuilder;
use tanist_dataflow::TaskStatus;
use tanist_ha::clock::Clock;
use tanist_model::{ExecFormat, ExecSpec};

use super::{BOUND, World, numbers, sh};

/// The process ids that a script has written, one per line, once there is this number of them.
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
async fn a_program_that_leaves_input_in_the_pipe_fails_its_task() {
    for script in [
        "exit 0",
        "head -c 1 > /dev/null",
        "read line; exec <&-; sleep 0.2; echo done",
    ] {
        let told = "before it had read all its input";
        let between = numbers(1_000).exec("it", sh(script)).discard("out");
        let cause = World::new().cause(between).await;
        assert!(cause.contains(told), "{script}: {cause}");
        let sink = numbers(1_000).exec_sink("it", sh(script));
        let cause = World::new().cause(sink).await;
        assert!(cause.contains(told), "{script}: {cause}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ends_while_an_endless_stream_is_idle_fails_its_task_at_once() {
    let idle = JobBuilder::new("test").exec_source(
        "idle",
        ExecSpec {
            unbounded: true,
            ..sh("echo first; exec sleep 1000")
        },
    );
    let cause = World::new()
        .cause(idle.exec_sink("it", sh("read line")))
        .await;
    assert!(
        cause.contains("before it had read all its input"),
        "{cause}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_may_end_when_it_has_read_all_that_there_is() {
    for script in ["head -c 3000 > /dev/null", "cat > /dev/null"] {
        let source = sh("head -c 3000 /dev/zero | tr '\\0' '\\n'; sleep 0.3");
        let source = JobBuilder::new("test").exec_source("lines", source);
        let ended = World::new().run(source.exec_sink("it", sh(script))).await;
        assert!(matches!(ended, TaskStatus::Finished { .. }), "{ended:?}");
    }
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
async fn a_program_that_is_a_source_ends_in_peace_when_its_task_is_stopped() {
    let world = World::new();
    let script = "trap 'echo last; exit 0' TERM; echo first; while :; do sleep 0.05; done";
    let shell = "echo first; while :; do sleep 0.05; done";
    for (out, script, expected) in [
        ("out", script, &["first", "last"][..]),
        ("other", shell, &["first"][..]),
    ] {
        let steps = JobBuilder::new("test").exec_source("source", sh(script));
        let task = world.start(steps.file_sink("out", world.file(out))).await;
        // The line is in the pipe, or in transit to the sink.
        wait_for("the source to run", BOUND, async || {
            let running = *task.status().borrow() == TaskStatus::Running;
            if running { Ok(()) } else { Err("it does not") }
        })
        .await
        .expect("it does");
        task.stop();
        let ended = tokio::time::timeout(BOUND, task.ended()).await;
        let TaskStatus::Finished { output } = ended.expect("it ends") else {
            panic!("it did not finish: {:?}", task.ended().await);
        };
        let text = fs::read_to_string(&output.committables[0].pending_path).expect("written");
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
    // With a new limit it continues.
    runtime.may_run_until(job, start.after(may_run));
    let ended = tokio::time::timeout(BOUND, task.ended()).await;
    let ended = ended.expect("it takes no minute");
    assert!(matches!(ended, TaskStatus::Failed { .. }), "{ended:?}");
    assert!(Clock::Boottime.now().since(start) >= may_run);
    assert!(!pids.into_iter().any(is_alive), "with all that it started");
}
