//! Resource limits of programs, and the messages when they exceed a limit or when limits can't be enforced.

use rustix::process::getuid;
use tanist_compile::JobBuilder;
use tanist_telemetry::control_group::ControlGroups;

use super::{World, sh};

/// On a host that delegates control groups a program runs in one; on any other host its task says why it has no limit.
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
                "`cpu` can't be enforced on host",
                &reason,
                "process.control-groups",
            ] {
                assert!(cause.contains(part), "{cause}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_takes_too_much_processor_time_is_said_to_have_done_so() {
    let burn = "while :; do :; done";
    for script in [
        burn.to_owned(),
        format!("trap '' XCPU; {burn}"),
        format!("sh -c '{burn}'; exit $?"),
    ] {
        let mut program = sh(&script);
        program.limits.cpu_time = Some(1);
        let source = JobBuilder::new("test").exec_source("it", program);
        let cause = World::new().cause(source.discard("out")).await;
        let told = "took more than the cpu-time of 1 s that its `limits` allow";
        assert!(cause.contains(told), "{script}: {cause}");
    }
}

/// The system does not limit the number of processes of root.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_is_held_to_its_processes_or_its_task_says_why_not() {
    let world = World::new();
    let mut program = sh("cat /proc/self/limits");
    program.limits.processes = Some(4096);
    let steps = JobBuilder::new("test").exec_source("source", program);
    if getuid().is_root() {
        let cause = world.cause(steps.discard("out")).await;
        for part in [
            "`processes` can't be enforced on host",
            "programs of root",
            "process.control-groups",
        ] {
            assert!(cause.contains(part), "{cause}");
        }
    } else {
        let lines = world.lines(steps).await;
        let is_held = |line: &String| line.starts_with("Max processes") && line.contains("4096");
        assert!(lines.iter().any(is_held), "{lines:?}");
    }
}
