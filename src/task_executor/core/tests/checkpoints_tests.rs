//! What a TaskExecutor's core does for checkpoints, rule by rule.

use std::sync::Arc;
use std::time::Duration;

use tanist_dataflow::{CheckpointProgress, CheckpointStatus};
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::election::ClusterIncarnation;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::CheckpointProgress as Pb;
use tanist_proto::v1::trigger_answer::Answer;

use super::core_tests::Step as WorldStep;
use super::core_world::{World, scope};
use crate::core::checkpoints::{Checkpoints, Step};
use crate::core::executions::ExecutionKey;
use crate::core::messages::execution_key;
use crate::core::{Effect, Event, TaskKey};
use crate::launcher::TaskStatus;
use crate::tests::testing::VERTEX;

fn execution(generation: u64) -> ExecutionKey {
    execution_key(VERTEX, 0, generation).expect("an execution")
}

fn saved(number: u64, size: usize) -> CheckpointStatus {
    let segment = pb::StateSegment {
        content: vec![1; size],
        ..pb::StateSegment::default()
    };
    let snapshot = pb::SubtaskSnapshot {
        segments: vec![segment],
        ..pb::SubtaskSnapshot::default()
    };
    with(number, CheckpointProgress::Saved(Arc::new(snapshot)))
}

fn with(number: u64, progress: CheckpointProgress) -> CheckpointStatus {
    CheckpointStatus {
        highest: number,
        progress,
        input_ended: false,
    }
}

/// One execution, restored from checkpoint 3.
fn restored() -> (Checkpoints, ExecutionKey) {
    let mut checkpoints = Checkpoints::default();
    let key = execution(2);
    checkpoints.admit(key, ClusterIncarnation::new("c1"), 3);
    (checkpoints, key)
}

fn states(checkpoints: &Checkpoints) -> Vec<(u64, Pb)> {
    let reports = checkpoints.reports().into_iter();
    reports.map(|it| (it.highest, it.progress())).collect()
}

#[test]
fn a_restored_task_knows_its_checkpoint_and_nothing_has_to_be_told() {
    let (checkpoints, key) = restored();
    assert_eq!(states(&checkpoints), [(3, Pb::Unheard)]);
    assert!(!checkpoints.is_due(&key));
}

#[test]
fn small_state_is_acknowledged_at_once_and_large_state_once_it_is_written() {
    let (mut checkpoints, key) = restored();
    assert_eq!(
        checkpoints.update(&key, saved(4, 4_096), true),
        Step::Nothing
    );
    assert_eq!(states(&checkpoints), [(4, Pb::Acknowledged)]);
    assert!(checkpoints.is_due(&key));
    let step = checkpoints.update(&key, saved(5, 4_097), true);
    assert!(matches!(step, Step::Write { number: 5, .. }), "{step:?}");
    assert_eq!(states(&checkpoints), [(5, Pb::Writing)]);
    // The result of another number says nothing.
    checkpoints.written(&key, 4, Ok(pb::SubtaskSnapshot::default()));
    assert_eq!(states(&checkpoints), [(5, Pb::Writing)]);
    checkpoints.written(&key, 5, Ok(pb::SubtaskSnapshot::default()));
    assert_eq!(states(&checkpoints), [(5, Pb::Acknowledged)]);
    checkpoints.update(&key, saved(6, 4_097), true);
    checkpoints.written(&key, 6, Err("the disk is full".to_owned()));
    assert_eq!(states(&checkpoints), [(6, Pb::Declined)]);
    assert_eq!(checkpoints.reports()[0].reason, "the disk is full");
}

#[test]
fn without_a_place_state_stays_in_the_report_unless_no_record_can_take_it() {
    let (mut checkpoints, key) = restored();
    checkpoints.update(&key, saved(4, 65_536), false);
    assert_eq!(states(&checkpoints), [(4, Pb::Acknowledged)]);
    checkpoints.update(&key, saved(5, 65_537), false);
    assert_eq!(states(&checkpoints), [(5, Pb::Declined)]);
    let reason = &checkpoints.reports()[0].reason;
    assert!(reason.contains("high-availability.storageDir"), "{reason}");
}

#[test]
fn an_older_number_never_replaces_a_newer_one_and_a_newer_one_drops_what_is_written() {
    let (mut checkpoints, key) = restored();
    checkpoints.update(&key, saved(5, 10), true);
    for late in [
        saved(4, 10),
        with(5, CheckpointProgress::Blocked),
        saved(5, 5_000),
    ] {
        assert_eq!(checkpoints.update(&key, late, true), Step::Nothing);
        assert_eq!(states(&checkpoints), [(5, Pb::Acknowledged)]);
    }
    checkpoints.update(&key, saved(6, 5_000), true);
    let next = with(7, CheckpointProgress::Blocked);
    assert_eq!(checkpoints.update(&key, next, true), Step::Drop);
    checkpoints.written(&key, 6, Ok(pb::SubtaskSnapshot::default()));
    assert_eq!(states(&checkpoints), [(7, Pb::Blocked)]);
}

#[test]
fn an_abort_is_final_for_its_number() {
    let (mut checkpoints, key) = restored();
    checkpoints.update(&key, saved(4, 5_000), true);
    assert_eq!(checkpoints.abort(&key, 4), Step::Drop);
    assert_eq!(checkpoints.update(&key, saved(4, 10), true), Step::Nothing);
    checkpoints.written(&key, 4, Ok(pb::SubtaskSnapshot::default()));
    assert_eq!(states(&checkpoints), [(4, Pb::Aborted)]);
    // It has not heard of it before.
    checkpoints.abort(&key, 6);
    assert_eq!(states(&checkpoints), [(6, Pb::Aborted)]);
    checkpoints.update(&key, saved(7, 10), true);
    checkpoints.abort(&key, 6);
    assert_eq!(states(&checkpoints), [(7, Pb::Acknowledged)]);
}

#[test]
fn a_report_outlives_its_task_until_a_younger_generation_begins() {
    let (mut checkpoints, key) = restored();
    checkpoints.update(&key, saved(4, 10), true);
    assert_eq!(checkpoints.end(&key, true), 4);
    assert!(checkpoints.has_finished(&key));
    // It ended before it heard of this one.
    checkpoints.abort(&key, 5);
    assert_eq!(states(&checkpoints), [(4, Pb::Acknowledged)]);
    checkpoints.admit(execution(3), ClusterIncarnation::new("c1"), 0);
    assert_eq!(states(&checkpoints), [(0, Pb::Unheard)]);
    assert!(!checkpoints.is_due(&key));
}

#[test]
fn what_ends_after_its_write_began_is_acknowledged_all_the_same() {
    let (mut checkpoints, key) = restored();
    checkpoints.update(&key, saved(4, 5_000), true);
    assert_eq!(checkpoints.end(&key, true), 4);
    checkpoints.written(&key, 4, Ok(pb::SubtaskSnapshot::default()));
    assert_eq!(states(&checkpoints), [(4, Pb::Acknowledged)]);
    assert!(checkpoints.is_due(&key));
}

#[test]
fn the_end_of_the_input_is_reported_once() {
    let (mut checkpoints, key) = restored();
    let ended = CheckpointStatus {
        input_ended: true,
        ..with(3, CheckpointProgress::Unheard)
    };
    checkpoints.update(&key, ended.clone(), true);
    assert!(checkpoints.is_due(&key));
    let report = checkpoints.full_report().remove(0);
    assert!(report.input_ended);
    checkpoints.update(&key, ended, true);
    assert!(!checkpoints.is_due(&key));
}

fn task(world: &World) -> TaskKey {
    world.running[0].0
}

/// Follows up an event, and returns the effects.
fn effects(world: &mut World) -> Vec<Effect> {
    world.core.after_event(world.now, world.at(), 0);
    world.core.take_effects()
}

fn change(world: &mut World, status: CheckpointStatus) -> Vec<Effect> {
    let task = task(world);
    let changed = Event::CheckpointChanged { task, status };
    world.core.handle(world.now, changed);
    effects(world)
}

fn trigger(
    world: &mut World,
    sender: usize,
    generation: u64,
) -> GatewayResult<Vec<pb::TriggerAnswer>> {
    let request = pb::TriggerCheckpointRequest {
        sender: world.sender(sender),
        job: scope(1),
        barrier: Some(pb::CheckpointBarrier {
            number: 4,
            newest: 3,
            floor: 2,
            ..pb::CheckpointBarrier::default()
        }),
        sources: vec![execution(generation).message()],
    };
    let inject = |_: &TaskKey, barrier: pb::CheckpointBarrier| {
        assert_eq!((barrier.number, barrier.newest, barrier.floor), (4, 3, 2));
        Some(Answer::Injected(pb::Ack {}))
    };
    let now = world.now;
    let answer = world.core.trigger_checkpoint(now, &request, &inject);
    answer.map(|answer| answer.answers)
}

fn only(answer: GatewayResult<Vec<pb::TriggerAnswer>>) -> Answer {
    let mut answers = answer.expect("it is admitted");
    assert_eq!(answers.len(), 1);
    answers.remove(0).answer.expect("an answer")
}

#[tokio::test(start_paused = true)]
async fn a_trigger_reaches_the_running_task_of_the_present_job_master_only() {
    let mut world = World::running();
    assert_eq!(
        only(trigger(&mut world, 0, 1)),
        Answer::Injected(pb::Ack {})
    );
    let unknown = only(trigger(&mut world, 0, 2));
    assert!(matches!(unknown, Answer::Refused(_)), "{unknown:?}");
    // The ResourceManager is not the JobMaster.
    let refused = trigger(&mut world, 1, 1).expect_err("another sender");
    assert!(
        matches!(refused, GatewayError::Outdated { .. }),
        "{refused}"
    );
    let (task, committables) = (task(&world), Vec::new());
    let changed = Event::TaskChanged {
        task,
        status: TaskStatus::finished(committables),
        metrics: None,
    };
    world.core.handle(world.now, changed);
    assert_eq!(
        only(trigger(&mut world, 0, 1)),
        Answer::SourceEnded(pb::Ack {})
    );
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_task_names_the_highest_checkpoint_that_it_knew() {
    let mut world = World::running();
    change(&mut world, saved(4, 10));
    let changed = Event::TaskChanged {
        task: task(&world),
        status: TaskStatus::Canceled,
        metrics: None,
    };
    world.core.handle(world.now, changed);
    let job = world.core.jobs.get(JobId::from_bits(1)).expect("known");
    let reports = job.executions().report(&|_| None);
    assert_eq!(reports[0].highest_checkpoint, 4);
}

#[tokio::test(start_paused = true)]
async fn a_failed_report_is_sent_again_as_it_is_then() {
    let mut world = World::running();
    let first = change(&mut world, saved(4, 10));
    let call = |effects: &[Effect]| {
        let calls = effects.iter().filter_map(|effect| match effect {
            Effect::ReportCheckpoints { to, call, request } => {
                Some((to.run, *call, request.reports[0].highest))
            }
            _ => None,
        });
        calls.collect::<Vec<_>>()
    };
    let [(run, first, 4)] = call(&first)[..] else {
        panic!("it is not reported: {first:?}");
    };
    let (job, failure) = (JobId::from_bits(1), GatewayError::NotYet("busy".to_owned()));
    let failed = Event::CheckpointsReported {
        job,
        run,
        call: first,
        answer: Err(failure),
    };
    world.core.handle(world.now, failed);
    assert_eq!(call(&effects(&mut world)), []);
    assert_eq!(call(&change(&mut world, saved(5, 10))), [], "not yet");
    world.now += crate::Options::default().retry_delay;
    let again = call(&effects(&mut world));
    assert!(matches!(again[..], [(_, _, 5)]), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_blocks_declines_after_a_second_without_job_master() {
    let mut world = World::running();
    let is_declining = |effects: &[Effect]| {
        let mut effects = effects.iter();
        effects.any(|effect| matches!(effect, Effect::DeclineBlocked(_)))
    };
    let blocked = |number| with(number, CheckpointProgress::Blocked);
    assert!(!is_declining(&change(&mut world, blocked(4))));
    world.now += Duration::from_millis(999);
    assert!(!is_declining(&effects(&mut world)), "there is a JobMaster");
    world.step(&WorldStep::NobodyLeads).expect("it holds");
    let began = world.now;
    let due = world.core.next_deadline(world.now, world.at());
    assert!(due.is_some_and(|due| due <= began + Duration::from_secs(1)));
    world.now += Duration::from_millis(999);
    assert!(!is_declining(&effects(&mut world)));
    world.now += Duration::from_millis(1);
    assert!(is_declining(&effects(&mut world)));
    assert!(!is_declining(&effects(&mut world)), "once is enough");
    // One that blocks later declines at once.
    assert!(is_declining(&change(&mut world, blocked(5))));
    world.step(&WorldStep::Lead { epoch: 1 }).expect("it holds");
    assert!(!is_declining(&change(&mut world, blocked(6))));
}
