//! Single rules about numbers in flight, ends and commits, each in the shortest order of events that needs it.

use std::collections::VecDeque;

use tanist_proto::v1 as pb;

use super::super::{Effect, Event, TaskEnd, TaskProgress, TaskReport, take_batch};
use super::bench::{
    Bench, SINK, SOURCE, aborts, connection, end, finished, placed, record, report, saved, written,
};

#[test]
fn a_report_from_before_a_number_was_complete_aborts_nothing_once_it_is_durable() {
    let (mut bench, number) = Bench::with_number(1);
    bench.answer_trigger(SOURCE, number);
    bench.acknowledge(SOURCE, number, 1);
    let effects = bench.acknowledge(SINK, number, 1);
    let (write, _) = written(&effects).expect("it is complete");
    bench.hear(Event::Written { write });
    for progress in [TaskProgress::Writing, TaskProgress::Blocked] {
        let effects = bench.hear(Event::Reported {
            connection: connection(SINK),
            reports: vec![report(SINK, number, progress)],
        });
        assert_eq!(aborts(&effects), Vec::<u64>::new());
    }
    let effects = bench.hear(Event::Reported {
        connection: connection(SINK),
        reports: vec![report(SINK, number + 1, TaskProgress::Blocked)],
    });
    assert_eq!(aborts(&effects), [number + 1]);
}

#[test]
fn an_acknowledgement_of_all_sources_of_a_task_executor_answers_the_trigger() {
    let (mut bench, number) = Bench::with_number(1);
    bench.acknowledge(SOURCE, number, 1);
    assert_eq!(aborts(&bench.pass(1_500)), Vec::<u64>::new());
    assert_eq!(bench.core.in_flight(0), Some(number));
    // Without it the missing answer ends the number.
    let (mut bench, number) = Bench::with_number(1);
    assert_eq!(aborts(&bench.pass(1_500)), [number]);
}

#[test]
fn the_loss_of_an_ended_task_that_owes_its_acknowledgement_aborts_the_number() {
    let (mut bench, number) = Bench::with_number(1);
    bench.answer_trigger(SOURCE, number);
    bench.acknowledge(SOURCE, number, 1);
    bench.finish_task(SINK, end(number, "a", 1));
    bench.hear(Event::Disconnected {
        connection: connection(SINK),
    });
    let due_ms = bench.core.deadline_ms(bench.now_ms);
    assert!(due_ms <= bench.now_ms + 1_000, "{due_ms}");
    assert_eq!(aborts(&bench.pass(1_500)), [number]);
    assert_ne!(bench.core.in_flight(0), Some(number));
}

#[test]
fn a_number_that_a_durable_end_owes_is_not_adopted() {
    let settle = |reports: Vec<TaskReport>| {
        let starts = vec![placed(0, vec![(SINK, end(5, "a", 1))])];
        let mut bench = Bench::new(record(), starts);
        let acknowledged = TaskProgress::Acknowledged(saved(SOURCE, 1));
        bench.register(SOURCE, vec![report(SOURCE, 5, acknowledged)]);
        bench.register(SINK, reports);
        let effects = bench.hear(Event::RegionAdopted { region: 0 });
        (aborts(&effects), bench.core.in_flight(0))
    };
    assert_eq!(settle(vec![]), (vec![5], None));
    let acknowledged = TaskProgress::Acknowledged(saved(SINK, 1));
    let adopted = settle(vec![report(SINK, 5, acknowledged)]);
    assert_eq!(adopted, (vec![], Some(5)));
}

#[test]
fn a_report_that_an_acknowledgement_has_overtaken_does_not_replace_it() {
    let mut bench = Bench::new(record(), vec![placed(0, vec![])]);
    bench.register(SOURCE, vec![report(SOURCE, 5, TaskProgress::Writing)]);
    bench.acknowledge(SOURCE, 5, 1);
    for earlier in [
        report(SOURCE, 5, TaskProgress::Writing),
        report(SOURCE, 4, TaskProgress::Aborted),
    ] {
        bench.hear(Event::Reported {
            connection: connection(SOURCE),
            reports: vec![earlier],
        });
    }
    let acknowledged = TaskProgress::Acknowledged(saved(SINK, 1));
    bench.register(SINK, vec![report(SINK, 5, acknowledged)]);
    let effects = bench.hear(Event::RegionAdopted { region: 0 });
    let (_, manifest) = written(&effects).expect("all have acknowledged it");
    assert_eq!(manifest.map(|it| it.number), Some(5));
}

#[test]
fn a_number_below_the_end_of_a_task_is_not_adopted() {
    let starts = vec![placed(0, vec![(SINK, end(6, "a", 1))])];
    let mut bench = Bench::new(record(), starts);
    bench.register(SOURCE, vec![report(SOURCE, 5, TaskProgress::Writing)]);
    bench.register(SINK, vec![]);
    let effects = bench.hear(Event::RegionAdopted { region: 0 });
    assert_eq!(aborts(&effects), [5, 6]);
    assert_eq!(bench.core.in_flight(0), None);
}

#[test]
fn the_end_of_a_region_lifts_the_limit_of_manifests_for_its_own_bytes_alone() {
    let (mut bench, number) = Bench::with_number(2);
    bench.acknowledge(SOURCE, number, 1);
    // The round lasts until the other region gives its number up.
    bench.acknowledge(SINK, number, 50_000);
    let effects = bench.hear(finished(1, 50_000));
    let (_, manifest) = written(&effects).expect("the end is written");
    let manifest = manifest.expect("it stands in the record");
    let kinds: Vec<_> = manifest.regions.iter().map(|it| it.kind()).collect();
    let expected = [
        pb::RegionSnapshotKind::FromStart,
        pb::RegionSnapshotKind::Taken,
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn the_end_of_a_region_has_the_output_of_ends_whose_reports_were_lost() {
    let (mut bench, _) = Bench::with_number(1);
    let effects = bench.hear(finished(0, 3));
    let (_, manifest) = written(&effects).expect("the end is written");
    let uncommitted = manifest.map(|it| it.uncommitted).unwrap_or_default();
    assert_eq!(uncommitted, end(0, "a", 3).committables);
}

#[test]
fn no_manifest_is_built_before_what_the_newest_one_lists_is_committed() {
    let (mut bench, number) = Bench::with_number(2);
    for task in [0, 1] {
        bench.acknowledge(task, number, 1);
    }
    let (write, _) = written(&bench.hear(finished(1, 3))).expect("both regions are written");
    let effects = bench.hear(Event::Written { write });
    let commit = effects.iter().find_map(|effect| match effect {
        Effect::Commit { number, .. } => Some(*number),
        _ => None,
    });
    let committed = commit.expect("the end has output");
    let number = bench.next_number();
    bench.acknowledge(SOURCE, number, 1);
    let effects = bench.acknowledge(SINK, number, 1);
    assert_eq!(written(&effects), None);
    bench.hear(Event::CommitFailed { number: committed });
    assert_eq!(written(&bench.pass(50)), None);
    bench.pass(100);
    let effects = bench.hear(Event::Committed { number: committed });
    let (_, manifest) = written(&effects).expect("the next checkpoint is written");
    assert_eq!(manifest.map(|it| it.uncommitted), Some(vec![]));
}

#[test]
fn the_end_of_an_input_is_known_by_a_report_alone() {
    let (mut bench, number) = Bench::with_number(1);
    bench.answer_trigger(SOURCE, number);
    let mut ended = report(SINK, 0, TaskProgress::Unheard);
    ended.has_input_ended = true;
    bench.hear(Event::Reported {
        connection: connection(SINK),
        reports: vec![ended],
    });
    assert_eq!(bench.core.in_flight(0), Some(number));
    assert_eq!(aborts(&bench.pass(1_000)), [number]);
    assert_eq!(bench.core.in_flight(0), None);
}

#[test]
fn a_snapshot_keeps_what_an_ended_task_has_for_the_end_of_the_job() {
    let (mut bench, number) = Bench::with_number(1);
    let output = vec![pb::Committable {
        pending_path: "part-0.pending".to_owned(),
        final_path: "part-0".to_owned(),
    }];
    let end = TaskEnd {
        output: output.clone(),
        ..TaskEnd::default()
    };
    bench.finish_task(SINK, end);
    let (_, manifest) = written(&bench.acknowledge(SOURCE, number, 1)).expect("it is complete");
    let manifest = manifest.expect("it stands in the record");
    let ended = manifest.regions[0].subtasks.iter().find(|it| it.ended);
    assert_eq!(ended.expect("the sink has ended").output, output);
    assert!(manifest.uncommitted.is_empty(), "{manifest:?}");
}

#[test]
fn a_timeout_names_what_is_missing_where_and_the_key_to_set() {
    let timed_out = |reports: &[(usize, TaskProgress)]| {
        let (mut bench, number) = Bench::with_number(1);
        bench.answer_trigger(SOURCE, number);
        for (task, progress) in reports {
            bench.hear(Event::Reported {
                connection: connection(*task),
                reports: vec![report(*task, number, progress.clone())],
            });
        }
        let effects = bench.pass(60_000);
        let reasons = effects.into_iter().filter_map(|effect| match effect {
            Effect::Aborted { reason, .. } => Some(reason),
            _ => None,
        });
        reasons.collect::<Vec<_>>().join("; ")
    };
    let within = "it was not complete within 60000 ms (`timeout` of the job's `checkpoints`, or else execution.checkpointing.timeout)";
    let expected = format!(
        "{within}: t0 (1) on TaskManager te0 has not taken it up, t1 (1) on TaskManager te1 waits for barriers"
    );
    assert_eq!(timed_out(&[]), expected);
    let saved = (SOURCE, TaskProgress::Acknowledged(saved(SOURCE, 1)));
    let waits = format!("{within}: t1 (1) on TaskManager te1 waits for barriers");
    assert_eq!(timed_out(std::slice::from_ref(&saved)), waits);
    let blocked = (SINK, TaskProgress::Blocked);
    assert_eq!(timed_out(&[saved.clone(), blocked]), waits);
    let writing = (SINK, TaskProgress::Writing);
    let expected = format!("{within}: the state of t1 (1) is being written on TaskManager te1");
    assert_eq!(timed_out(&[saved, writing]), expected);
}

#[test]
fn an_abort_is_a_failure_unless_it_follows_from_the_end_of_the_region() {
    let aborts = |effects: Vec<Effect>| {
        let aborts = effects.into_iter().filter_map(|effect| match effect {
            Effect::Aborted { is_failure, .. } => Some(is_failure),
            _ => None,
        });
        aborts.collect::<Vec<_>>()
    };
    let (mut bench, _) = Bench::with_number(1);
    assert_eq!(aborts(bench.pass(60_000)), [true]);
    let (mut bench, _) = Bench::with_number(1);
    assert_eq!(
        aborts(bench.hear(Event::RegionFailed { region: 0 })),
        [false]
    );
}

/// The regions at which the next round begins.
fn regions_of_next_round(bench: &mut Bench) -> Vec<usize> {
    let effects = bench.pass(100);
    let effects = match written(&effects) {
        Some((write, _)) => bench.hear(Event::Written { write }),
        None => effects,
    };
    let regions = effects.iter().filter_map(|effect| match effect {
        Effect::Trigger { sources, .. } => Some(sources.region),
        _ => None,
    });
    regions.collect()
}

#[test]
fn a_region_on_a_task_manager_without_checkpoints_waits_for_another_registration() {
    let starts = vec![placed(0, vec![]), placed(1, vec![])];
    let mut bench = Bench::new(record(), starts);
    bench.adopt_regions(2);
    bench.register_again(SINK, 2, false);
    let reason = "TaskManager te1 takes no checkpoints".to_owned();
    assert_eq!(bench.core.skipped(), [(0, reason)]);
    assert_eq!(regions_of_next_round(&mut bench), [1]);
    assert_eq!(bench.core.in_flight(0), None);
    // A savepoint waits for it, and says so until its timeout.
    let effects = bench.hear(Event::SavepointRequested {
        request: pb::TriggerSavepointRequest {
            trigger_id: "a".to_owned(),
            directory: "/savepoints".to_owned(),
            ..pb::TriggerSavepointRequest::default()
        },
        at_ms: 0,
    });
    let (write, _) = written(&effects).expect("the request is written");
    bench.hear(Event::Written { write });
    let request = bench.core.durable().requests[0].clone();
    let why = "the region of t0, t1 has tasks on TaskManager te1, which takes no checkpoints";
    let said = bench.core.waits_for(&request);
    assert!(said.is_some_and(|said| said.contains(why)), "{request:?}");
    let effects = bench.pass(60_000);
    let failed = effects.iter().find_map(|effect| match effect {
        Effect::Write { record, .. } => record.requests.first(),
        _ => None,
    });
    let failed = failed.expect("the outcome is written");
    assert_eq!(failed.progress(), pb::SavepointProgress::Failed);
    assert!(failed.outcome.contains(why), "{}", failed.outcome);
    let (write, _) = written(&effects).expect("it is");
    bench.hear(Event::Written { write });
    // Its process is replaced by one of the present version.
    bench.register_again(SINK, 3, true);
    assert_eq!(bench.core.skipped(), []);
    assert!(regions_of_next_round(&mut bench).contains(&0));
}

/// When the first number is triggered by a leader that begins at `now_ms`, and knows of this checkpoint.
fn first_trigger(last_ms: Option<u64>, began_ms: u64, now_ms: u64) -> u64 {
    let mut before = record();
    if let Some(triggered_at_ms) = last_ms {
        let (mut bench, number) = Bench::with_number(1);
        bench.acknowledge(SOURCE, number, 1);
        let effects = bench.acknowledge(SINK, number, 1);
        let record = effects.iter().find_map(|effect| match effect {
            Effect::Write { record, .. } => Some(record),
            _ => None,
        });
        before = (**record.expect("it is complete")).clone();
        let newest = before.retained.last_mut().expect("it completes one");
        (newest.triggered_at_ms, newest.committed) = (triggered_at_ms, true);
    }
    let mut bench = Bench::begun_at(before, began_ms, now_ms);
    bench.first_round_ms()
}

#[test]
fn a_round_is_due_an_interval_after_the_last_one_of_any_leader() {
    // The interval is 100.
    assert_eq!(first_trigger(Some(10_000), 1, 10_040), 10_100);
    assert_eq!(first_trigger(Some(10_000), 1, 10_500), 10_500, "at once");
    assert_eq!(first_trigger(None, 10_000, 10_070), 10_100);
    assert_eq!(first_trigger(None, 10_000, 10_500), 10_500, "at once");
    // A clock that is ahead puts it off by one interval at most.
    assert_eq!(first_trigger(Some(99_000), 1, 10_000), 10_100);
}

#[test]
fn what_is_decided_in_the_step_that_ends_the_job_is_handled_with_the_end() {
    let failed = || Event::RegionFailed { region: 0 };
    let mut news = VecDeque::from([failed(), Event::EndDecided, failed()]);
    let batch = take_batch(&mut news);
    assert!(matches!(
        batch[..],
        [Event::RegionFailed { .. }, Event::EndDecided]
    ));
    assert_eq!(take_batch(&mut news).len(), 1);
    assert!(take_batch(&mut news).is_empty());
}
