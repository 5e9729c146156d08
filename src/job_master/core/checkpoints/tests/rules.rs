//! Single rules of the core, each in the shortest order of events that needs it. The job has a source on `te0` and a
//! sink on `te1`, both in one region.

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_ha::election::Epoch;
use tanist_proto::v1 as pb;

use super::super::{
    CheckpointCore, Effect, Event, Options, RegionStart, Task, TaskEnd, TaskProgress, TaskReport,
    Topology, TriggerAnswer,
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
    fn new(record: pb::JobCheckpoints, starts: Vec<RegionStart>) -> Bench {
        let core = CheckpointCore::new(
            (options(), topology(starts.len())),
            Arc::new(record),
            &BTreeMap::new(),
            starts,
            Epoch::new(2),
            0,
        );
        Bench {
            core: core.expect("the record is readable"),
            now_ms: 0,
        }
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
    bench.finish_task(3, end(0, "a", 50_000));
    bench.acknowledge(SOURCE, number, 1);
    // The round lasts until the other region gives its number up.
    bench.acknowledge(SINK, number, 50_000);
    let effects = bench.hear(finished(1));
    let (_, manifest) = written(&effects).expect("the end is written");
    let manifest = manifest.expect("it stands in the record");
    let kinds: Vec<_> = manifest.regions.iter().map(|it| it.kind()).collect();
    let expected = [
        pb::RegionSnapshotKind::FromStart,
        pb::RegionSnapshotKind::Taken,
    ];
    assert_eq!(kinds, expected);
}

fn finished(region: usize) -> Event {
    Event::RegionFinished {
        region,
        generation: GENERATION,
    }
}
