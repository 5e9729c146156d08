//! Single rules about savepoints, each in the shortest order of events that needs it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_ha::election::Epoch;
use tanist_proto::v1 as pb;

use super::super::{CheckpointCore, Effect, Event, JobStart, Options, TaskProgress, Topology};
use super::bench::{
    Bench, GENERATION, SINK, SOURCE, aborts, connection, finished, options, placed, record, report,
    topology, written,
};
use crate::core::checkpoints::{RegionStart, stops_with};

const NEVER_MS: u64 = 1_000_000_000;

fn asked(trigger_id: &str, stop: bool) -> Event {
    Event::SavepointRequested {
        request: pb::TriggerSavepointRequest {
            job_id: "job".to_owned(),
            trigger_id: trigger_id.to_owned(),
            directory: "/savepoints".to_owned(),
            stop,
        },
        at_ms: 5,
    }
}

fn copied(trigger_id: &str, outcome: Result<&str, &str>) -> Event {
    Event::SavepointCopied {
        trigger_id: trigger_id.to_owned(),
        outcome: outcome.map(str::to_owned).map_err(str::to_owned),
    }
}

/// A core of regions that run, at a job that takes no checkpoint by itself.
fn bench(regions: usize, record: pb::JobCheckpoints) -> Bench {
    let starts = (0..regions).map(|region| placed(region, vec![])).collect();
    let options = Options {
        interval_ms: NEVER_MS,
        timeout_ms: 10_000,
        ..options()
    };
    let mut bench = with(options, topology(regions), record, starts);
    bench.adopt_regions(regions);
    bench
}

fn with(
    options: Options,
    topology: Topology,
    record: pb::JobCheckpoints,
    regions: Vec<RegionStart>,
) -> Bench {
    let start = JobStart {
        regions,
        ..JobStart::default()
    };
    let core = CheckpointCore::new(
        (options, topology),
        Arc::new(record),
        &BTreeMap::new(),
        start,
        Epoch::new(2),
        0,
    );
    Bench {
        core: core.expect("the record is readable"),
        now_ms: 0,
    }
}

/// A region that has failed is placed with its second generation.
fn place_again(bench: &mut Bench, region: usize) {
    let tasks = [2 * region, 2 * region + 1];
    let places = tasks.map(|task| (task, connection(task).task_manager));
    bench.hear(Event::RegionPlaced {
        region,
        generation: 2,
        places: places.to_vec(),
    });
}

/// Requests with id, number and progress.
fn requests(record: &pb::JobCheckpoints) -> Vec<(&str, u64, pb::SavepointProgress)> {
    let requests = record.requests.iter();
    let request = requests.map(|it| (it.trigger_id.as_str(), it.number, it.progress()));
    request.collect()
}

/// Effects, of which each write is durable at once, with all that follows.
fn durably(bench: &mut Bench, effects: Vec<Effect>) -> Vec<Effect> {
    let mut all = effects;
    let mut at = 0;
    while at < all.len() {
        if let Effect::Write { write, .. } = &all[at] {
            let write = *write;
            all.extend(bench.hear(Event::Written { write }));
        }
        at += 1;
    }
    all
}

fn hear(bench: &mut Bench, event: Event) -> Vec<Effect> {
    let effects = bench.hear(event);
    durably(bench, effects)
}

fn answers(effects: &[Effect]) -> Vec<(&str, bool)> {
    let answers = effects.iter().filter_map(|effect| match effect {
        Effect::AnswerSavepoint { trigger_id, answer } => {
            Some((trigger_id.as_str(), answer.is_ok()))
        }
        _ => None,
    });
    answers.collect()
}

fn refusal(effects: &[Effect]) -> &str {
    let refusal = effects.iter().find_map(|effect| match effect {
        Effect::AnswerSavepoint { answer, .. } => answer.as_ref().err(),
        _ => None,
    });
    refusal.expect("it is refused")
}

/// Triggers with region, number, whether it is for a savepoint and whether sources pause.
fn triggers(effects: &[Effect]) -> Vec<(usize, u64, bool, bool)> {
    let triggers = effects.iter().filter_map(|effect| match effect {
        Effect::Trigger {
            sources, barrier, ..
        } => Some((
            sources.region,
            barrier.number,
            barrier.is_savepoint,
            barrier.pauses,
        )),
        _ => None,
    });
    triggers.collect()
}

fn copies(effects: &[Effect]) -> Vec<(&str, u64)> {
    let copies = effects.iter().filter_map(|effect| match effect {
        Effect::CopySavepoint {
            trigger_id, number, ..
        } => Some((trigger_id.as_str(), *number)),
        _ => None,
    });
    copies.collect()
}

fn complete(bench: &mut Bench, region: usize, number: u64) -> Vec<Effect> {
    let mut all = Vec::new();
    for task in [2 * region, 2 * region + 1] {
        let effects = bench.acknowledge(task, number, 1);
        all.extend(durably(bench, effects));
    }
    all
}

#[test]
fn a_request_is_answered_once_it_is_durable_and_completes_without_an_interval() {
    let mut bench = bench(1, record());
    let effects = bench.hear(asked("a", false));
    assert_eq!(answers(&effects), []);
    let effects = durably(&mut bench, effects);
    assert_eq!(answers(&effects), [("a", true)]);
    assert_eq!(triggers(&effects), [(0, 10, true, false)]);
    let awaited = bench.core.waits_for(&bench.core.durable().requests[0]);
    let expected = "the region of t0, t1 has not completed it: t0 (1) on TaskManager te0 has not taken it up, \
                    t1 (1) on TaskManager te1 waits for barriers";
    assert_eq!(awaited.as_deref(), Some(expected));
    let effects = complete(&mut bench, 0, 10);
    assert_eq!(copies(&effects), [("a", 10)]);
    let copied_now = &bench.core.durable().requests[0];
    assert_eq!(bench.core.waits_for(copied_now), None);
    let copying = pb::SavepointProgress::Copying;
    assert_eq!(requests(bench.core.durable()), [("a", 10, copying)]);
    assert!(bench.core.points().has_uncommitted);
    hear(&mut bench, copied("a", Ok("/savepoints/x")));
    let durable = bench.core.durable();
    let completed = pb::SavepointProgress::Completed;
    assert_eq!(requests(durable), [("a", 10, completed)]);
    assert_eq!(durable.requests[0].outcome, "/savepoints/x");
    assert_eq!(stops_with(durable), None);
    assert!(!bench.core.points().has_uncommitted);
    // The same request, and no other checkpoint.
    let effects = hear(&mut bench, asked("a", false));
    assert_eq!(answers(&effects), [("a", true)]);
    assert_eq!(triggers(&bench.pass(5_000)), []);
    // A client that asks for a stop under this id is not told that the job stops.
    let effects = hear(&mut bench, asked("a", true));
    let refusal = refusal(&effects);
    assert!(refusal.contains("another request"), "{refusal}");
    assert!(refusal.contains("/savepoints"), "{refusal}");
}

#[test]
fn a_number_that_was_given_out_before_the_request_does_not_count() {
    let (mut bench, number) = Bench::with_number(1);
    let effects = hear(&mut bench, asked("a", false));
    assert_eq!(triggers(&effects), []);
    let effects = complete(&mut bench, 0, number);
    assert_eq!(copies(&effects), []);
    // At once, and not after the interval.
    assert_eq!(triggers(&effects), [(0, number + 1, true, false)]);
    assert_eq!(
        copies(&complete(&mut bench, 0, number + 1)),
        [("a", number + 1)]
    );
}

#[test]
fn a_request_is_refused_in_words() {
    let refused = |bench: &mut Bench, event: Event| {
        let effects = hear(bench, event);
        refusal(&effects).to_owned()
    };
    let reasons = BTreeMap::from([(0, "Sort is at a blocking edge".to_owned())]);
    let tasks = (0..2).map(|task| crate::core::checkpoints::Task {
        vertex_id: format!("t{task}"),
        subtask: 0,
        region: 0,
        is_source: task == 0,
    });
    let topology = Topology::new(tasks.collect(), reasons);
    let mut blocking = with(options(), topology, record(), vec![placed(0, vec![])]);
    let reason = refused(&mut blocking, asked("a", false));
    let expected = "no checkpoints are taken of t0, t1: Sort is at a blocking edge";
    assert_eq!(reason, expected);

    let mut stopping = bench(1, record());
    hear(&mut stopping, asked("a", true));
    let reason = refused(&mut stopping, asked("b", false));
    assert_eq!(
        reason,
        "the job stops with a savepoint, that of trigger id a"
    );
    assert_eq!(
        answers(&hear(&mut stopping, asked("a", true))),
        [("a", true)]
    );

    let mut many = bench(1, record());
    for number in 0..16 {
        let id = format!("id{number}");
        assert_eq!(answers(&hear(&mut many, asked(&id, false))), [(&*id, true)]);
    }
    let reason = refused(&mut many, asked("b", false));
    assert_eq!(reason, "16 savepoints of the job are being taken");

    let mut ended = bench(1, record());
    hear(&mut ended, finished(0, 1));
    let reason = refused(&mut ended, asked("a", false));
    assert_eq!(reason, "all tasks of the job have finished");

    let mut canceled = bench(1, record());
    canceled.hear(Event::EndDecided);
    assert_eq!(refused(&mut canceled, asked("a", false)), "the job ends");
}

#[test]
fn a_write_that_the_store_refuses_answers_its_requests() {
    let mut bench = bench(1, record());
    let (write, _) = written(&bench.hear(asked("a", false))).expect("it is written");
    // This one is in no write yet.
    assert_eq!(answers(&bench.hear(asked("b", false))), []);
    let reason = "too large".to_owned();
    let effects = bench.hear(Event::WriteRefused { write, reason });
    assert_eq!(answers(&effects), [("a", false)]);
    let effects = bench.pass(1_000);
    let effects = durably(&mut bench, effects);
    assert_eq!(answers(&effects), [("b", true)]);
}

#[test]
fn open_requests_fail_with_the_job_before_its_result() {
    let mut bench = bench(1, record());
    hear(&mut bench, asked("a", false));
    let effects = bench.hear(Event::EndDecided);
    assert!(bench.core.points().has_uncommitted);
    durably(&mut bench, effects);
    let durable = bench.core.durable();
    assert_eq!(requests(durable), [("a", 0, pb::SavepointProgress::Failed)]);
    assert_eq!(durable.requests[0].outcome, "the job ends");
    assert!(!bench.core.points().has_uncommitted);
}

#[test]
fn a_job_ends_although_the_store_refuses_to_say_that_a_request_failed() {
    let mut bench = bench(1, record());
    hear(&mut bench, asked("a", false));
    let (write, _) = written(&bench.hear(Event::EndDecided)).expect("it says so");
    let reason = "too large".to_owned();
    bench.hear(Event::WriteRefused { write, reason });
    assert!(bench.core.is_all_committed());
    let record = bench.core.record_with_result(false);
    assert_eq!(requests(&record), [("a", 0, pb::SavepointProgress::Failed)]);
}

#[test]
fn requests_fail_when_all_tasks_finish_and_a_copy_that_runs_is_waited_for() {
    let mut bench = bench(1, record());
    hear(&mut bench, asked("a", false));
    complete(&mut bench, 0, 10);
    hear(&mut bench, asked("b", false));
    let effects = hear(&mut bench, finished(0, 1));
    let commit = effects.iter().find_map(|effect| match effect {
        Effect::Commit { number, .. } => Some(*number),
        _ => None,
    });
    let number = commit.expect("the end has output");
    bench.hear(Event::Committed { number });
    let (copying, failed) = (
        pb::SavepointProgress::Copying,
        pb::SavepointProgress::Failed,
    );
    let expected = [("a", 10, copying), ("b", 0, failed)];
    assert_eq!(requests(bench.core.durable()), expected);
    // Its checkpoint stays beside the newest one.
    assert_eq!(bench.core.durable().retained.len(), 2);
    assert!(bench.core.points().has_uncommitted);
    hear(&mut bench, copied("a", Err("no space left")));
    assert_eq!(bench.core.durable().requests[0].outcome, "no space left");
    assert!(!bench.core.points().has_uncommitted);
}

#[test]
fn a_request_fails_after_its_timeout_and_says_what_is_missing() {
    let mut bench = bench(2, record());
    bench.hear(Event::RegionFailed { region: 1 });
    let effects = hear(&mut bench, asked("a", false));
    assert_eq!(triggers(&effects), [(0, 10, true, false)]);
    complete(&mut bench, 0, 10);
    let due_ms = bench.core.deadline_ms(bench.now_ms);
    assert!(due_ms <= 10_000, "{due_ms}");
    let effects = bench.pass(10_000);
    durably(&mut bench, effects);
    let durable = bench.core.durable();
    assert_eq!(requests(durable), [("a", 0, pb::SavepointProgress::Failed)]);
    assert_eq!(
        durable.requests[0].outcome,
        "its checkpoint was not complete within 10000 ms (`timeout` of the job's `checkpoints`, or else execution.checkpointing.timeout): the region of t2, t3 does not run"
    );
}

#[test]
fn a_region_that_has_finished_needs_no_snapshot_of_a_savepoint() {
    let mut bench = bench(2, record());
    hear(&mut bench, asked("a", false));
    complete(&mut bench, 0, 10);
    let effects = hear(&mut bench, finished(1, 0));
    let completed = effects.iter().find_map(|effect| match effect {
        Effect::Commit { number, .. } => Some(*number),
        _ => None,
    });
    // Its own output is committed first.
    let number = completed.expect("the end has output");
    assert_eq!(copies(&effects), []);
    assert_eq!(
        copies(&bench.hear(Event::Committed { number })),
        [("a", number)]
    );
}

#[test]
fn a_declined_number_is_forced_again_after_a_pause() {
    let mut bench = bench(1, record());
    hear(&mut bench, asked("a", false));
    let effects = hear(
        &mut bench,
        Event::Declined {
            connection: connection(SINK),
            task: SINK,
            generation: GENERATION,
            number: 10,
            reason: "it can't".to_owned(),
        },
    );
    assert_eq!(triggers(&effects), []);
    let due_ms = bench.core.deadline_ms(bench.now_ms);
    assert_eq!(due_ms, bench.now_ms + 1_000);
    assert_eq!(triggers(&bench.pass(1_000)), [(0, 11, true, false)]);
}

#[test]
fn the_next_job_master_copies_again_and_knows_the_outcome() {
    let mut first = bench(1, record());
    hear(&mut first, asked("a", true));
    complete(&mut first, 0, 10);
    let mut second = bench(1, first.core.durable().clone());
    assert_eq!(copies(&second.pass(0)), []);
    let mut third = with(options(), topology(1), first.core.durable().clone(), vec![]);
    let effects = third.pass(0);
    assert_eq!(copies(&effects), [("a", 10)]);
    assert_eq!(copies(&third.pass(0)), []);
    hear(&mut third, copied("a", Ok("/savepoints/x")));
    let expected = Some("/savepoints/x".to_owned());
    assert_eq!(third.core.points().stops_with, expected);
    let fourth = bench(1, third.core.durable().clone());
    assert_eq!(fourth.core.points().stops_with, expected);
}

#[test]
fn no_checkpoint_is_written_after_that_of_a_stop_and_regions_that_begin_again_pause() {
    let mut bench = bench(2, record());
    let effects = hear(&mut bench, asked("a", true));
    assert_eq!(
        triggers(&effects),
        [(0, 10, true, true), (1, 10, true, true)]
    );
    complete(&mut bench, 0, 10);
    let effects = complete(&mut bench, 1, 10);
    assert_eq!(copies(&effects), [("a", 10)]);
    bench.hear(Event::RegionFailed { region: 1 });
    place_again(&mut bench, 1);
    let effects = bench.hear(Event::RegionRunning {
        region: 1,
        generation: 2,
    });
    assert_eq!(triggers(&effects), [(1, 11, false, true)]);
    for task in [2, 3] {
        let effects = bench.hear(Event::Acknowledged {
            connection: connection(task),
            task,
            generation: 2,
            number: 11,
            snapshot: super::bench::saved(task, 1),
        });
        assert_eq!(written(&effects), None);
    }
    hear(&mut bench, finished(0, 1));
    assert_eq!(bench.core.durable().retained.len(), 1);
    // The copy fails: the job goes on.
    let effects = hear(&mut bench, copied("a", Err("no space left")));
    assert_eq!(aborts(&effects), [11]);
    let newest = bench.core.durable().retained.last();
    assert_eq!(newest.map(|it| it.number > 10), Some(true));
}

/// The last region may fail while the savepoint is copied, and finish before it hears that it has to pause.
#[test]
fn a_job_that_has_finished_while_it_stops_waits_for_no_further_manifest() {
    let mut bench = bench(1, record());
    hear(&mut bench, asked("a", true));
    complete(&mut bench, 0, 10);
    bench.hear(Event::RegionFailed { region: 0 });
    place_again(&mut bench, 0);
    let mut ended = finished(0, 2);
    if let Event::RegionFinished { generation, .. } = &mut ended {
        *generation = 2;
    }
    hear(&mut bench, ended);
    assert!(!bench.core.is_all_committed(), "it is being copied");
    hear(&mut bench, copied("a", Ok("/savepoints/a")));
    assert!(bench.core.is_all_committed());
}

/// A region may have a snapshot of the savepoint, and take a later number before the last one has its own.
#[test]
fn each_number_that_may_be_copied_is_for_the_savepoint() {
    let mut bench = bench(2, record());
    let effects = hear(&mut bench, asked("a", true));
    assert_eq!(
        triggers(&effects),
        [(0, 10, true, true), (1, 10, true, true)]
    );
    bench.hear(Event::RegionFailed { region: 1 });
    complete(&mut bench, 0, 10);
    bench.hear(Event::RegionFailed { region: 0 });
    place_again(&mut bench, 0);
    let effects = bench.hear(Event::RegionRunning {
        region: 0,
        generation: 2,
    });
    let triggered = triggers(&effects);
    assert!(
        matches!(triggered[..], [(0, _, true, true)]),
        "{triggered:?}"
    );
}

#[test]
fn sources_go_on_when_a_stop_has_failed() {
    let mut first = bench(1, record());
    hear(&mut first, asked("a", true));
    complete(&mut first, 0, 10);
    let effects = hear(&mut first, copied("a", Err("no space left")));
    assert_eq!(aborts(&effects), [10]);
    assert_eq!(first.core.points().stops_with, None);

    let paused = |number: u64| {
        let mut paused = report(SOURCE, number, TaskProgress::Unheard);
        paused.is_paused = true;
        vec![paused]
    };
    // No source was told it, and a report to a later JobMaster says so.
    let record = first.core.durable().clone();
    let start = || {
        with(
            options(),
            topology(1),
            record.clone(),
            vec![placed(0, vec![])],
        )
    };
    let mut second = start();
    second.register(SOURCE, paused(10));
    second.register(SINK, vec![]);
    let effects = second.hear(Event::RegionAdopted { region: 0 });
    assert_eq!(aborts(&effects), [10]);
    let mut third = start();
    third.adopt_regions(1);
    let reported = Event::Reported {
        connection: connection(SOURCE),
        reports: paused(10),
    };
    assert_eq!(aborts(&third.hear(reported)), [10]);
}

#[test]
fn a_new_job_master_goes_on_with_a_stop() {
    let mut first = bench(1, record());
    hear(&mut first, asked("a", true));
    complete(&mut first, 0, 10);
    let adopt = |is_paused: bool| {
        let starts = vec![placed(0, vec![])];
        let mut second = with(options(), topology(1), first.core.durable().clone(), starts);
        let mut of_source = report(SOURCE, 10, TaskProgress::Unheard);
        of_source.is_paused = is_paused;
        second.register(SOURCE, vec![of_source]);
        second.register(SINK, vec![]);
        let mut effects = second.hear(Event::RegionAdopted { region: 0 });
        let running = Event::RegionRunning {
            region: 0,
            generation: GENERATION,
        };
        effects.extend(hear(&mut second, running));
        (aborts(&effects), triggers(&effects))
    };
    assert_eq!(adopt(true), (vec![], vec![]));
    let (aborted, triggered) = adopt(false);
    assert_eq!(aborted, Vec::<u64>::new());
    assert_eq!(triggered.len(), 1);
    assert!(triggered[0].3, "{triggered:?}");
}

fn discards(effects: &[Effect]) -> Vec<&str> {
    let discards = effects.iter().filter_map(|effect| match effect {
        Effect::DiscardCopy { trigger_id, .. } => Some(trigger_id.as_str()),
        _ => None,
    });
    discards.collect()
}

#[test]
fn what_was_copied_is_discarded_once_the_failure_is_durable_and_by_each_leader() {
    let mut first = bench(1, record());
    hear(&mut first, asked("a", false));
    complete(&mut first, 0, 10);
    let effects = first.hear(copied("a", Err("no space left")));
    assert_eq!(discards(&effects), Vec::<&str>::new(), "not durable");
    // A leader that follows here goes on with the copy, and discards nothing.
    let copying = first.core.durable().clone();
    let mut second = with(options(), topology(1), copying, vec![]);
    let of_second = second.pass(0);
    let numbers = (copies(&of_second).len(), discards(&of_second).len());
    assert_eq!(numbers, (1, 0));

    let effects = durably(&mut first, effects);
    assert_eq!(discards(&effects), ["a"]);
    assert_eq!(discards(&first.pass(0)), Vec::<&str>::new(), "once");
    let failed = first.core.durable().clone();
    let mut third = with(options(), topology(1), failed, vec![]);
    let effects = third.pass(0);
    assert_eq!((copies(&effects).len(), discards(&effects)), (0, vec!["a"]));
}

/// An abort resumes the sources that pause behind its number, although they have reported the pause before.
#[test]
fn sources_that_a_takeover_resumes_are_paused_again_for_the_stop() {
    let mut first = bench(1, record());
    hear(&mut first, asked("a", true));
    // It has the snapshot of the savepoint, and only a later number pauses its sources.
    complete(&mut first, 0, 10);
    let record = first.core.durable().clone();
    let starts = vec![placed(0, vec![])];
    let mut second = with(options(), topology(1), record, starts);
    let mut of_source = report(SOURCE, 11, TaskProgress::Writing);
    of_source.is_paused = true;
    second.register(SOURCE, vec![of_source]);
    second.register(SINK, vec![report(SINK, 11, TaskProgress::Declined)]);
    let effects = second.hear(Event::RegionAdopted { region: 0 });
    assert_eq!(aborts(&effects), [11]);
    let running = Event::RegionRunning {
        region: 0,
        generation: GENERATION,
    };
    let triggered = triggers(&hear(&mut second, running));
    assert!(
        matches!(triggered[..], [(0, _, false, true)]),
        "{triggered:?}"
    );
}
