//! Single rules of the core, each in the shortest order of events that needs it. The job has a source on `te0` and a
//! sink on `te1`, both in one region.

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_ha::election::Epoch;
use tanist_proto::v1 as pb;

use super::super::{
    CheckpointCore, Effect, Event, JobStart, Options, RegionStart, RestoredFrom, Task, TaskEnd,
    TaskProgress, TaskReport, Topology, TriggerAnswer, Unreadable,
};
use crate::core::{Connection, Registration};

const SOURCE: usize = 0;
const SINK: usize = 1;
const GENERATION: u64 = 1;

fn connection(task: usize) -> Connection {
    Connection {
        task_manager: format!("te{task}").parse().expect("a resource id"),
        registration: Registration::new(1),
    }
}

fn options() -> Options {
    Options {
        interval_ms: 100,
        min_pause_ms: 0,
        timeout_ms: 60_000,
        tolerable_failures: None,
        retained: 1,
        has_blob_store: false,
        listing_interval_ms: 1_000_000,
    }
}

/// One region a source and a sink.
fn topology(regions: usize) -> Topology {
    let task = |number: usize| Task {
        vertex_id: format!("t{number}"),
        subtask: 0,
        region: number / 2,
        is_source: number.is_multiple_of(2),
    };
    Topology::new((0..2 * regions).map(task).collect(), BTreeMap::new())
}

fn record() -> pb::JobCheckpoints {
    pb::JobCheckpoints {
        job_id: "job".to_owned(),
        next: 10,
        floor: 1,
        ..pb::JobCheckpoints::default()
    }
}

fn placed(region: usize, ends: Vec<(usize, TaskEnd)>) -> RegionStart {
    let tasks = [2 * region, 2 * region + 1];
    RegionStart::Placed {
        generation: GENERATION,
        places: tasks.map(|it| (it, connection(it).task_manager)).to_vec(),
        ends,
    }
}

fn report(task: usize, highest: u64, progress: TaskProgress) -> TaskReport {
    TaskReport {
        task,
        generation: GENERATION,
        highest,
        progress,
        is_paused: false,
        has_input_ended: false,
    }
}

fn saved(task: usize, size: usize) -> Arc<pb::SubtaskSnapshot> {
    Arc::new(pb::SubtaskSnapshot {
        vertex_id: format!("t{task}"),
        operators: vec![pb::OperatorState {
            content: vec![7; size],
            ..pb::OperatorState::default()
        }],
        ..pb::SubtaskSnapshot::default()
    })
}

fn end(highest: u64, part: &str, size: usize) -> TaskEnd {
    let committable = pb::CheckpointCommittable {
        uid: "sink".to_owned(),
        kind: part.to_owned(),
        content: vec![7; size],
    };
    TaskEnd {
        highest,
        committables: vec![committable],
    }
}

/// A core, and the clock.
struct Bench {
    core: CheckpointCore,
    now_ms: u64,
}

impl Bench {
    fn new(record: pb::JobCheckpoints, regions: Vec<RegionStart>) -> Bench {
        let start = JobStart {
            regions,
            ..JobStart::default()
        };
        let core = Bench::core(record, start);
        Bench {
            core: core.expect("the record is readable"),
            now_ms: 0,
        }
    }

    fn core(record: pb::JobCheckpoints, start: JobStart) -> Result<CheckpointCore, Unreadable> {
        CheckpointCore::new(
            (options(), topology(start.regions.len())),
            Arc::new(record),
            &BTreeMap::new(),
            start,
            Epoch::new(2),
            0,
        )
    }

    /// A core whose regions have all begun, with a number in flight at each. Returns that number.
    fn with_number(regions: usize) -> (Bench, u64) {
        let starts = (0..regions).map(|region| placed(region, vec![])).collect();
        let mut bench = Bench::new(record(), starts);
        for task in 0..2 * regions {
            bench.register(task, vec![]);
        }
        for region in 0..regions {
            bench.hear(Event::RegionAdopted { region });
            bench.hear(Event::RegionRunning {
                region,
                generation: GENERATION,
            });
        }
        let number = bench.next_number();
        (bench, number)
    }

    fn hear(&mut self, event: Event) -> Vec<Effect> {
        self.core.handle(self.now_ms, event)
    }

    fn register(&mut self, task: usize, reports: Vec<TaskReport>) -> Vec<Effect> {
        self.hear(Event::Registered {
            connection: connection(task),
            takes_checkpoints: true,
            reports,
        })
    }

    /// Time passes, without effects that matter.
    fn pass(&mut self, ms: u64) -> Vec<Effect> {
        self.now_ms += ms;
        self.hear(Event::TimePassed)
    }

    /// The next round begins. Returns its number.
    fn next_number(&mut self) -> u64 {
        let effects = self.pass(100);
        let effects = match written(&effects) {
            Some((write, _)) => self.hear(Event::Written { write }),
            None => effects,
        };
        let numbers = effects.iter().filter_map(|effect| match effect {
            Effect::Trigger { number, .. } => Some(*number),
            _ => None,
        });
        numbers.max().expect("a round begins")
    }

    fn answer_trigger(&mut self, task: usize, number: u64) -> Vec<Effect> {
        self.hear(Event::TriggerAnswered {
            connection: connection(task),
            region: task / 2,
            number,
            answers: vec![(task, TriggerAnswer::Injected)],
        })
    }

    fn acknowledge(&mut self, task: usize, number: u64, size: usize) -> Vec<Effect> {
        self.hear(Event::Acknowledged {
            connection: connection(task),
            task,
            generation: GENERATION,
            number,
            snapshot: saved(task, size),
        })
    }

    fn finish_task(&mut self, task: usize, end: TaskEnd) -> Vec<Effect> {
        self.hear(Event::TaskEnded {
            connection: connection(task),
            task,
            generation: GENERATION,
            end,
        })
    }
}

/// The write among effects, and its newest manifest.
fn written(effects: &[Effect]) -> Option<(u64, Option<pb::CheckpointManifest>)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Write { write, record } => {
            let newest = record.retained.last().and_then(|it| it.manifest.clone());
            let manifest = newest.and_then(|stored| match stored.place {
                Some(pb::stored_manifest::Place::Inline(bytes)) => {
                    tanist_proto::manifest::decode(&bytes).ok()
                }
                _ => None,
            });
            Some((*write, manifest))
        }
        _ => None,
    })
}

fn aborts(effects: &[Effect]) -> Vec<u64> {
    let numbers = effects.iter().filter_map(|effect| match effect {
        Effect::Abort { number, .. } => Some(*number),
        _ => None,
    });
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.dedup();
    numbers
}

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

/// The durable end of a region, with this size of its last output.
fn finished(region: usize, size: usize) -> Event {
    Event::RegionFinished {
        region,
        generation: GENERATION,
        ends: vec![
            (2 * region, TaskEnd::default()),
            (2 * region + 1, end(0, "a", size)),
        ],
    }
}

fn stored(manifest: &pb::CheckpointManifest) -> Option<pb::StoredManifest> {
    let bytes = tanist_proto::manifest::encode(manifest);
    let place = Some(pb::stored_manifest::Place::Inline(bytes));
    Some(pb::StoredManifest { place })
}

fn taken(number: u64, object: &str) -> pb::RegionSnapshot {
    let segment = pb::StateSegment {
        object: object.to_owned(),
        ..pb::StateSegment::default()
    };
    pb::RegionSnapshot {
        kind: pb::RegionSnapshotKind::Taken.into(),
        number,
        generation: GENERATION,
        subtasks: vec![
            pb::SubtaskSnapshot {
                segments: vec![segment],
                ..pb::SubtaskSnapshot::default()
            },
            pb::SubtaskSnapshot::default(),
        ],
    }
}

fn manifest(number: u64, region: pb::RegionSnapshot) -> pb::CheckpointManifest {
    pb::CheckpointManifest {
        job_id: "job".to_owned(),
        number,
        regions: vec![region],
        ..pb::CheckpointManifest::default()
    }
}

fn retaining(manifest: &pb::CheckpointManifest) -> pb::JobCheckpoints {
    pb::JobCheckpoints {
        retained: vec![pb::CompletedCheckpoint {
            number: 7,
            manifest: stored(manifest),
            committed: true,
            ..pb::CompletedCheckpoint::default()
        }],
        ..record()
    }
}

fn waiting() -> Vec<RegionStart> {
    vec![RegionStart::Waiting { generation: 1 }]
}

#[test]
fn an_origin_with_the_number_of_a_retained_checkpoint_is_not_taken_for_it() {
    let mut record = retaining(&manifest(7, taken(6, "6-1-a")));
    let mut origin = manifest(7, taken(3, "3-1-b"));
    origin.job_id = "another".to_owned();
    record.origin = Some(pb::CheckpointOrigin {
        number: 7,
        manifest: stored(&origin),
        owned: true,
        ..pb::CheckpointOrigin::default()
    });
    record.floor = 9;
    let mut bench = Bench::new(record, waiting());
    let restored = bench.core.restored_from(0);
    assert_eq!(restored, Some(RestoredFrom::Snapshot(6)));
    // Both name their objects.
    bench.pass(1);
    let objects = ["6-1-a", "3-1-b", "2-1-c"].map(str::to_owned).to_vec();
    let effects = bench.hear(Event::Listed(objects));
    let removed = effects.iter().find_map(|effect| match effect {
        Effect::Remove { objects, .. } => Some(objects.clone()),
        _ => None,
    });
    assert_eq!(removed, Some(vec!["2-1-c".to_owned()]));
}

#[test]
fn an_intact_manifest_that_does_not_fit_is_an_error() {
    let fit = manifest(7, taken(6, "6-1-a"));
    let change = |change: &dyn Fn(&mut pb::CheckpointManifest)| {
        let mut manifest = fit.clone();
        change(&mut manifest);
        let start = JobStart {
            regions: waiting(),
            ..JobStart::default()
        };
        Bench::core(retaining(&manifest), start).err()
    };
    let of_kind = |kind: pb::RegionSnapshotKind| {
        change(&|it| {
            it.regions[0] = pb::RegionSnapshot {
                kind: kind.into(),
                ..pb::RegionSnapshot::default()
            }
        })
    };
    assert_eq!(change(&|_| {}), None);
    assert_eq!(of_kind(pb::RegionSnapshotKind::FromStart), None);
    let unfit = [
        change(&|it| it.job_id = "another".to_owned()),
        change(&|it| it.number = 6),
        change(&|it| it.layout = 1),
        change(&|it| it.regions.clear()),
        change(&|it| it.regions.push(taken(6, "6-1-b"))),
        change(&|it| it.regions[0].number = 0),
        change(&|it| it.regions[0].number = 8),
        of_kind(pb::RegionSnapshotKind::Unspecified),
        of_kind(pb::RegionSnapshotKind::FromOrigin),
    ];
    for (case, error) in unfit.iter().enumerate() {
        let is_unfit = matches!(error, Some(Unreadable::Unfit { number: 7, .. }));
        assert!(is_unfit, "case {case}: {error:?}");
    }
}

#[test]
fn a_manifest_after_a_takeover_has_the_state_of_coordinators_and_none_is_built_after_the_end() {
    let finished = || {
        let ends = [SOURCE, SINK].map(|it| (it, end(0, "a", 1))).to_vec();
        let generation = GENERATION;
        vec![RegionStart::Finished { generation, ends }]
    };
    let first_write = |is_end_decided: bool| {
        let start = JobStart {
            regions: finished(),
            coordinators: vec![pb::CoordinatorState::default()],
            is_end_decided,
        };
        let core = Bench::core(record(), start).expect("the record is readable");
        let mut bench = Bench { core, now_ms: 0 };
        // It reserves numbers first.
        let effects = bench.pass(100);
        let (write, none) = written(&effects)?;
        assert_eq!(none, None);
        written(&bench.hear(Event::Written { write }))
    };
    let (_, manifest) = first_write(false).expect("the end of the region is written");
    assert_eq!(manifest.map(|it| it.coordinators.len()), Some(1));
    assert_eq!(first_write(true), None);
}

#[test]
fn the_end_of_a_region_has_the_output_of_ends_that_were_not_heard() {
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
