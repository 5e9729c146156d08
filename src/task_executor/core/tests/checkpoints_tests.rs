//! What a TaskExecutor's core does for checkpoints, rule by rule.

use std::sync::Arc;
use std::time::Duration;

use tanist_dataflow::{CheckpointProgress, CheckpointStatus};
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::Uptime;
use tanist_ha::election::ClusterIncarnation;
use tanist_proto::id::{AllocationId, JobId};
use tanist_proto::v1 as pb;
use tanist_proto::v1::CheckpointProgress as Pb;
use tanist_proto::v1::trigger_answer::Answer;

use super::core_tests::Step as WorldStep;
use super::core_world::{World, scope};
use crate::core::checkpoints::{Checkpoints, SnapshotPlace, Step};
use crate::core::executions::{ExecutionKey, Executions};
use crate::core::job::Beginning;
use crate::core::messages::execution_key;
use crate::core::{Effect, Event, TaskKey, TriggeredSource};
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
        paused: false,
        times: pb::CheckpointTimes::default(),
    }
}

fn from_checkpoint(number: u64) -> Beginning {
    Beginning {
        place: SnapshotPlace {
            cluster: ClusterIncarnation::new("c1"),
            storage: String::new(),
        },
        restored_from: number,
        takes_checkpoints: true,
    }
}

/// One execution, restored from checkpoint 3.
fn restored() -> (Checkpoints, ExecutionKey) {
    let mut checkpoints = Checkpoints::default();
    let key = execution(2);
    checkpoints.admit(key, from_checkpoint(3));
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
    checkpoints.written(&key, 4, Ok((Arc::default(), String::new())));
    assert_eq!(states(&checkpoints), [(5, Pb::Writing)]);
    checkpoints.written(&key, 5, Ok((Arc::default(), String::new())));
    assert_eq!(states(&checkpoints), [(5, Pb::Acknowledged)]);
    checkpoints.update(&key, saved(6, 4_097), true);
    checkpoints.written(&key, 6, Err("the disk is full".to_owned()));
    assert_eq!(states(&checkpoints), [(6, Pb::Declined)]);
    assert_eq!(checkpoints.reports()[0].reason, "the disk is full");
}

#[test]
fn state_that_is_encoded_counts_as_being_written_until_it_is_saved_or_its_task_ends() {
    let (mut checkpoints, key) = restored();
    let encoding = |number| with(number, CheckpointProgress::Encoding);
    checkpoints.update(&key, encoding(4), true);
    assert_eq!(states(&checkpoints), [(4, Pb::Writing)]);
    assert!(checkpoints.is_due(&key));
    let step = checkpoints.update(&key, saved(4, 4_097), true);
    assert!(matches!(step, Step::Write { number: 4, .. }), "{step:?}");
    checkpoints.update(&key, encoding(5), true);
    assert_eq!(checkpoints.abort(&key, 5), Step::Nothing);
    checkpoints.update(&key, saved(5, 10), true);
    assert_eq!(states(&checkpoints), [(5, Pb::Aborted)]);
    checkpoints.update(&key, encoding(6), true);
    checkpoints.end(&key, false);
    assert_eq!(states(&checkpoints), [(6, Pb::Declined)]);
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
    checkpoints.written(&key, 6, Ok((Arc::default(), String::new())));
    assert_eq!(states(&checkpoints), [(7, Pb::Blocked)]);
}

#[test]
fn an_abort_is_final_for_its_number() {
    let (mut checkpoints, key) = restored();
    checkpoints.update(&key, saved(4, 5_000), true);
    assert_eq!(checkpoints.abort(&key, 4), Step::Drop);
    assert_eq!(checkpoints.update(&key, saved(4, 10), true), Step::Nothing);
    checkpoints.written(&key, 4, Ok((Arc::default(), String::new())));
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
    checkpoints.admit(execution(3), from_checkpoint(0));
    assert_eq!(states(&checkpoints), [(0, Pb::Unheard)]);
    assert!(!checkpoints.is_due(&key));
}

#[test]
fn a_task_that_took_no_part_is_reported_once_it_hears_of_a_number() {
    let (mut checkpoints, key) = (Checkpoints::default(), execution(2));
    let begins = Beginning {
        takes_checkpoints: false,
        ..from_checkpoint(0)
    };
    checkpoints.admit(key, begins);
    let ended = CheckpointStatus {
        input_ended: true,
        ..with(0, CheckpointProgress::Unheard)
    };
    checkpoints.update(&key, ended, true);
    assert_eq!(states(&checkpoints), []);
    assert!(!checkpoints.is_due(&key));
    // A later leader takes checkpoints of its region.
    checkpoints.update(&key, saved(5, 10), true);
    assert_eq!(states(&checkpoints), [(5, Pb::Acknowledged)]);
    assert!(checkpoints.is_due(&key));
    assert!(checkpoints.full_report()[0].input_ended);
}

#[test]
fn nothing_of_a_cancelled_task_is_kept_once_it_has_ended() {
    let (mut checkpoints, key) = restored();
    checkpoints.update(&key, saved(4, 10), true);
    checkpoints.forget_up_to(key);
    assert_eq!(states(&checkpoints), [(4, Pb::Acknowledged)]);
    // The JobMaster does not know it yet.
    assert_eq!(checkpoints.end(&key, false), 4);
    assert_eq!(checkpoints.full_report().len(), 1);
    checkpoints.finish_report(1, None);
    assert!(checkpoints.full_report().is_empty());
}

#[test]
fn what_ends_after_its_write_began_is_acknowledged_all_the_same() {
    let (mut checkpoints, key) = restored();
    checkpoints.update(&key, saved(4, 5_000), true);
    assert_eq!(checkpoints.end(&key, true), 4);
    checkpoints.written(&key, 4, Ok((Arc::default(), String::new())));
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

/// Executions of this number of subtasks, each of which has acknowledged checkpoint 4 with output of this size.
fn acknowledged(subtasks: u32, size: usize) -> (Checkpoints, Vec<ExecutionKey>) {
    let mut checkpoints = Checkpoints::default();
    let keys = (0..subtasks).map(|subtask| execution_key(VERTEX, subtask, 2));
    let keys: Vec<_> = keys.map(|key| key.expect("an execution")).collect();
    for key in &keys {
        checkpoints.admit(*key, from_checkpoint(3));
        checkpoints.update(key, with_output(4, size), true);
    }
    (checkpoints, keys)
}

fn with_output(number: u64, size: usize) -> CheckpointStatus {
    let snapshot = pb::SubtaskSnapshot {
        committables: vec![pb::CheckpointCommittable {
            content: vec![1; size],
            ..pb::CheckpointCommittable::default()
        }],
        ..pb::SubtaskSnapshot::default()
    };
    with(number, CheckpointProgress::Saved(Arc::new(snapshot)))
}

#[test]
fn a_registration_has_what_fits_and_the_other_acknowledgements_follow() {
    let (mut checkpoints, keys) = acknowledged(5, 100_000);
    checkpoints.end(&keys[4], true);
    let heartbeat = checkpoints.reports();
    assert_eq!(
        heartbeat.len(),
        2,
        "what the JobMaster knows stays as it is"
    );
    let reports = checkpoints.full_report();
    let bytes: usize = reports.iter().map(prost::Message::encoded_len).sum();
    assert!(bytes < 300_000, "{bytes}");
    let of = |progress: Pb| {
        let reports = reports.iter().filter(move |it| it.progress() == progress);
        let subtasks = reports.map(|it| it.execution.as_ref().map_or(9, |id| id.subtask));
        subtasks.collect::<Vec<_>>()
    };
    // The one that has ended comes first: without its acknowledgement the number would not be adopted.
    assert_eq!(of(Pb::Acknowledged), [4, 0]);
    assert_eq!(of(Pb::Writing), [1, 2, 3]);
    assert!(reports.iter().all(|it| it.highest == 4));
    let due = keys.iter().filter(|key| checkpoints.is_due(key));
    assert_eq!(due.map(|key| key.subtask).collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn what_no_message_can_take_is_declined_and_a_reason_is_cut() {
    let (mut checkpoints, keys) = acknowledged(1, 600_000);
    assert_eq!(states(&checkpoints), [(4, Pb::Declined)]);
    let reason = checkpoints.reports()[0].reason.clone();
    assert!(reason.contains("names 1 pieces of output"), "{reason}");
    let long = "\u{e4}".repeat(3_000);
    checkpoints.update(&keys[0], with(5, CheckpointProgress::Declined(long)), true);
    assert_eq!(checkpoints.reports()[0].reason.len(), 1_024);
    // Also once its objects are written.
    checkpoints.update(&keys[0], saved(6, 5_000), true);
    let CheckpointProgress::Saved(large) = with_output(6, 600_000).progress else {
        unreachable!("it is saved");
    };
    checkpoints.written(&keys[0], 6, Ok((large, String::new())));
    assert_eq!(states(&checkpoints), [(6, Pb::Declined)]);
}

#[test]
fn a_pause_is_reported_and_so_is_its_end_also_behind_a_number_that_is_decided() {
    let (mut checkpoints, key) = restored();
    let paused = CheckpointStatus {
        paused: true,
        ..saved(4, 10)
    };
    checkpoints.update(&key, paused.clone(), true);
    let report = checkpoints.full_report().remove(0);
    assert!(report.paused && report.progress() == Pb::Acknowledged);
    // No leader, no change: the next one reads it in the registration.
    checkpoints.reset();
    assert!(checkpoints.full_report()[0].paused);
    checkpoints.abort(&key, 4);
    checkpoints.update(&key, saved(4, 10), true);
    assert!(checkpoints.is_due(&key));
    let report = checkpoints.full_report().remove(0);
    assert!(!report.paused && report.progress() == Pb::Aborted);
    checkpoints.update(&key, paused, true);
    checkpoints.end(&key, false);
    assert!(!checkpoints.reports()[0].paused);
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
) -> GatewayResult<Vec<TriggeredSource>> {
    let request = pb::TriggerCheckpointRequest {
        sender: world.sender(sender),
        job: scope(1),
        barrier: Some(pb::CheckpointBarrier {
            number: 4,
            newest: 3,
            floor: 2,
            savepoint: true,
            pause: true,
        }),
        sources: vec![execution(generation).message()],
    };
    let (now, request_id) = (world.now, 7);
    world.core.trigger_checkpoint(now, &request, request_id)?;
    let effects = world.core.take_effects();
    let triggered = effects.into_iter().find_map(|effect| match effect {
        Effect::TriggerCheckpoint {
            request_id: 7,
            barrier,
            sources,
        } => Some((barrier, sources)),
        _ => None,
    });
    let (barrier, sources) = triggered.expect("an effect");
    assert_eq!((barrier.number, barrier.newest, barrier.floor), (4, 3, 2));
    assert!(barrier.savepoint && barrier.pause);
    Ok(sources)
}

fn only(sources: GatewayResult<Vec<TriggeredSource>>) -> TriggeredSource {
    let mut sources = sources.expect("it is admitted");
    assert_eq!(sources.len(), 1);
    sources.remove(0)
}

fn ended() -> TriggeredSource {
    TriggeredSource::Answered(Answer::SourceEnded(pb::Ack {}))
}

#[tokio::test(start_paused = true)]
async fn a_trigger_reaches_the_running_task_of_the_present_job_master_only() {
    let mut world = World::running();
    let running = task(&world);
    assert_eq!(
        only(trigger(&mut world, 0, 1)),
        TriggeredSource::Runs(running)
    );
    let unknown = only(trigger(&mut world, 0, 2));
    assert!(
        matches!(unknown, TriggeredSource::Answered(Answer::Refused(_))),
        "{unknown:?}"
    );
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
    assert_eq!(only(trigger(&mut world, 0, 1)), ended());
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

#[test]
fn state_that_cannot_be_read_is_reported_once_until_the_task_starts() {
    let (mut executions, key, now) = (Executions::default(), execution(1), Uptime::START);
    let admitted = executions.admit(key, AllocationId::from_bits(1), now);
    admitted.expect("it is the first");
    executions.take_changed();
    executions.note_unread_state(&key, "not mounted".to_owned());
    let told = |executions: &mut Executions| {
        let reports = executions.take_changed().1.into_iter();
        let told = reports.map(|report| report.unread_state);
        told.collect::<Vec<_>>()
    };
    assert_eq!(told(&mut executions), ["not mounted"]);
    executions.note_unread_state(&key, "not mounted".to_owned());
    assert!(told(&mut executions).is_empty(), "it is no news");
    let full = executions.report(&|_| None);
    assert_eq!(full[0].unread_state, "not mounted", "a new leader hears it");
    executions.update(&key, TaskStatus::Initializing, None, now);
    executions.note_unread_state(&key, "too late".to_owned());
    assert_eq!(told(&mut executions), [""]);
}

#[test]
fn what_a_task_says_is_in_each_of_its_reports_also_after_its_end() {
    let (mut executions, key, now) = (Executions::default(), execution(1), Uptime::START);
    let admitted = executions.admit(key, AllocationId::from_bits(1), now);
    admitted.expect("it is the first");
    executions.take_changed();
    executions.set_notices(&key, vec!["lost".to_owned()]);
    let (_, reports) = executions.take_changed();
    assert_eq!(reports[0].notices, ["lost"]);
    executions.update(&key, TaskStatus::finished(Vec::new()), None, now);
    let (_, reports) = executions.take_changed();
    assert_eq!(reports[0].notices, ["lost"]);
    let full = executions.report(&|_| None);
    assert_eq!(full[0].notices, ["lost"], "a new leader hears it");
}

/// The calls with reports among effects: the run, the number of each, its reports.
fn calls(effects: &[Effect]) -> Vec<(u64, u64, Vec<pb::CheckpointReport>)> {
    let calls = effects.iter().filter_map(|effect| match effect {
        Effect::ReportCheckpoints { to, call, request } => {
            Some((to.run, *call, request.reports.clone()))
        }
        _ => None,
    });
    calls.collect()
}

#[tokio::test(start_paused = true)]
async fn reports_are_sent_in_calls_of_limited_size() {
    let mut world = World::running();
    let mut tasks = vec![task(&world)];
    for subtask in 1..30 {
        let submit = WorldStep::Submit {
            sender: 0,
            job: 1,
            subtask,
            generation: 1,
            allocation: 1,
        };
        world.step(&submit).expect("it holds");
        tasks.push(world.running.last().expect("it runs").0);
    }
    for task in &tasks {
        let status = with_output(4, 100_000);
        let changed = Event::CheckpointChanged {
            task: *task,
            status,
        };
        world.core.handle(world.now, changed);
    }
    let (mut sent, mut waiting) = (Vec::new(), calls(&effects(&mut world)));
    assert_eq!(waiting.len(), 4, "a few at a time");
    while let Some((run, call, reports)) = waiting.pop() {
        assert!((1..=2).contains(&reports.len()), "{}", reports.len());
        sent.extend(reports.into_iter().map(|it| it.execution));
        let answered = Event::CheckpointsReported {
            job: JobId::from_bits(1),
            run,
            call,
            answer: Ok(pb::ReportCheckpointsResponse {}),
        };
        world.core.handle(world.now, answered);
        waiting.extend(calls(&effects(&mut world)));
    }
    let expected = tasks.iter().map(|task| Some(task.execution.message()));
    assert_eq!(sent.len(), tasks.len());
    assert!(expected.into_iter().all(|it| sent.contains(&it)));
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
