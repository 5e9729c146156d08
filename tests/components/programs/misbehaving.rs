//! Programs that ignore requests to end, or that attack their supervisor: no process of them is left, and
//! the cause says what killed them.

use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tanist_chaos::process::is_alive;
use tanist_chaos::wait_for;
use tanist_compile::JobBuilder;
use tanist_dataflow::TaskStatus;
use tanist_model::ExecSpec;
use tanist_telemetry::control_group::ControlGroups;

use super::ends::pids;
use super::{BOUND, World, numbers, sh};

async fn check_gone(pids: &[i32]) {
    wait_for("the processes to be gone", BOUND, async || {
        let alive: Vec<&i32> = pids.iter().filter(|pid| is_alive(**pid)).collect();
        if alive.is_empty() {
            Ok(())
        } else {
            Err(format!("{alive:?}"))
        }
    })
    .await
    .expect("they were killed");
}

/// A program with a child, and a grandchild in its own session; all ignore requests to end.
fn stubborn_family(pids: &str) -> ExecSpec {
    let script = format!(
        "trap '' TERM\n\
         (trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ >> {pids}; exec sleep 1000' &) \n\
         sh -c 'trap \"\" TERM; echo $$ >> {pids}; exec sleep 1001' &\n\
         echo $$ >> {pids}\n\
         while :; do sleep 1002; done"
    );
    ExecSpec {
        grace_ms: 50,
        ..sh(&script)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_task_counts_as_ended_when_its_programs_are_gone() {
    let world = World::new();
    let file = world.file("pids");
    let task = world
        .start(numbers(1_000_000).exec_sink("it", stubborn_family(&file)))
        .await;
    let pids = pids(&file, 3).await;
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    task.cancel();
    assert_eq!(task.ended().await, TaskStatus::Canceled);
    assert!(pids.iter().all(|pid| !is_alive(*pid)), "{pids:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_program_whose_process_ends_within_its_grace() {
    let world = Arc::new(World::new());
    let file = world.file("pids");
    let patient = ExecSpec {
        grace_ms: 60_000,
        ..stubborn_family(&file)
    };
    let source = JobBuilder::new("test").exec_source("it", patient);
    let process = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("threads");
    let starting = Arc::clone(&world);
    let starting = process.spawn(async move { starting.start(source.discard("out")).await });
    let task = starting.await.expect("it starts");
    let pids = pids(&file, 3).await;
    task.cancel();
    process.shutdown_background();
    check_gone(&pids).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_supervisor_takes_its_program_along() {
    let world = World::new();
    let file = world.file("pids");
    // In the supervisor's session: without a control group, a process in another session is not found.
    let script = format!(
        "sh -c 'echo $$ >> {file}; exec sleep 1000' & echo $$ >> {file}; echo $PPID >> {file}.parent; wait"
    );
    let source = JobBuilder::new("test").exec_source("it", sh(&script));
    let task = world.start(source.discard("out")).await;
    let pids_of_two = pids(&file, 2).await;
    let supervisor = pids(&format!("{file}.parent"), 1).await[0];
    let supervisor = Pid::from_raw(supervisor).expect("it is positive");
    kill_process(supervisor, Signal::KILL).expect("it lives");
    let TaskStatus::Failed { cause, .. } = task.ended().await else {
        panic!("its program is gone");
    };
    assert!(
        cause.contains("supervisor ended without a report"),
        "{cause}"
    );
    check_gone(&pids_of_two).await;
}

/// On a host that delegates control groups; on any other host the process is not found.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_supervisor_takes_along_what_left_its_session_if_that_is_in_a_control_group() {
    let mut world = World::new();
    world.control_groups = ControlGroups::claim(None);
    if let Err(reason) = &world.control_groups {
        assert!(reason.contains("control group"), "{reason}");
        return;
    }
    let file = world.file("pids");
    let mut program = sh(&format!(
        "setsid sh -c 'echo $$ >> {file}; exec sleep 1000' &\n\
         until [ -s {file} ]; do sleep 0.01; done\n\
         kill -KILL $PPID; wait"
    ));
    program.limits.processes = Some(4096);
    let source = JobBuilder::new("test").exec_source("it", program);
    let cause = world.cause(source.discard("out")).await;
    assert!(
        cause.contains("supervisor ended without a report"),
        "{cause}"
    );
    let pids = pids(&file, 1).await;
    assert!(pids.iter().all(|pid| !is_alive(*pid)), "{pids:?}");
}

/// Cancels a task and waits until it has ended.
async fn is_cancelled(task: tanist_dataflow::RunningTask) {
    task.cancel();
    let ended = tokio::time::timeout(BOUND, task.ended()).await;
    assert_eq!(ended.expect("it takes no minute"), TaskStatus::Canceled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_stops_its_supervisor_is_cancelled_like_any_other() {
    let world = World::new();
    let (file, goodbye) = (world.file("pids"), world.file("goodbye"));
    let script = format!(
        "trap 'echo $$ > {goodbye}; exit 0' TERM\nkill -STOP $PPID\necho $$ >> {file}\n\
         while :; do sleep 0.05; done"
    );
    let source = JobBuilder::new("test").exec_source("it", sh(&script));
    let task = world.start(source.discard("out")).await;
    let program = pids(&file, 1).await;
    is_cancelled(task).await;
    assert_eq!(pids(&goodbye, 1).await, program, "it could end in peace");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_stops_its_supervisor_again_is_killed_with_all_that_it_started() {
    let world = World::new();
    let file = world.file("pids");
    let script = format!(
        "trap 'kill -STOP $PPID' TERM\n\
         echo $PPID >> {file}\n\
         setsid sh -c 'trap \"\" TERM; echo $$ >> {file}; exec sleep 1000' &\n\
         echo $$ >> {file}\n\
         while :; do sleep 0.05; done"
    );
    let spec = ExecSpec {
        grace_ms: 1_000,
        ..sh(&script)
    };
    let source = JobBuilder::new("test").exec_source("it", spec);
    let task = world.start(source.discard("out")).await;
    let pids = pids(&file, 3).await;
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    is_cancelled(task).await;
    assert!(pids.iter().all(|pid| !is_alive(*pid)), "{pids:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_does_not_end_in_its_grace_is_said_to_have_been_killed_for_that() {
    let world = World::new();
    let file = world.file("pids");
    let spec = stubborn_family(&file);
    let source = JobBuilder::new("test").exec_source("it", spec);
    let task = world.start(source.discard("out")).await;
    pids(&file, 3).await;
    task.stop();
    let ended = tokio::time::timeout(BOUND, task.ended()).await;
    let TaskStatus::Failed { cause, .. } = ended.expect("it takes no minute") else {
        panic!("it was killed");
    };
    let expected =
        "killed by Tanist: it had not ended when its `grace` of 50 ms after SIGTERM was over";
    assert!(cause.contains(expected), "{cause}");
}

/// Its task has to have ended by then, or it ends the whole process.
#[tokio::test(flavor = "multi_thread")]
async fn the_grace_of_a_program_is_over_before_the_time_that_its_task_has_to_end() {
    let world = World {
        cancellation_timeout: Some(Duration::from_secs(2)),
        ..World::new()
    };
    let file = world.file("pids");
    let spec = ExecSpec {
        grace_ms: 60_000,
        ..stubborn_family(&file)
    };
    let source = JobBuilder::new("test").exec_source("it", spec);
    let task = world.start(source.discard("out")).await;
    pids(&file, 3).await;
    task.stop();
    let ended = tokio::time::timeout(BOUND / 2, task.ended()).await;
    let TaskStatus::Failed { cause, .. } = ended.expect("it takes half a minute at most") else {
        panic!("it was killed");
    };
    assert!(cause.contains("`grace` of 1 s"), "{cause}");
}
