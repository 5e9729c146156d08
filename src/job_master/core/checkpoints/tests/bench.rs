//! A core for single rules, without a world. Region R of the job has the source 2R on TaskExecutor `te<2R>`, and the
//! sink 2R + 1 on `te<2R + 1>`.

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_ha::election::Epoch;
use tanist_proto::v1 as pb;

use super::super::{
    CheckpointCore, Effect, Event, JobStart, Options, RegionStart, Task, TaskEnd, TaskProgress,
    TaskReport, Topology, TriggerAnswer, Unreadable,
};
use crate::core::{Connection, Registration};

pub(super) const SOURCE: usize = 0;
pub(super) const SINK: usize = 1;
pub(super) const GENERATION: u64 = 1;

pub(super) fn connection(task: usize) -> Connection {
    Connection {
        task_manager: format!("te{task}").parse().expect("a resource id"),
        registration: Registration::new(1),
    }
}

pub(super) fn options() -> Options {
    Options {
        interval_ms: 100,
        min_pause_ms: 0,
        timeout_ms: 60_000,
        tolerable_failures: None,
        retained: 1,
        retention: pb::CheckpointRetention::DeleteOnCancellation,
        has_blob_store: false,
        listing_interval_ms: 1_000_000,
    }
}

/// One region a source and a sink.
pub(super) fn topology(regions: usize) -> Topology {
    let task = |number: usize| Task {
        vertex_id: format!("t{number}"),
        subtask: 0,
        region: number / 2,
        is_source: number.is_multiple_of(2),
    };
    Topology::new((0..2 * regions).map(task).collect(), BTreeMap::new())
}

pub(super) fn record() -> pb::JobCheckpoints {
    pb::JobCheckpoints {
        job_id: "job".to_owned(),
        next: 10,
        floor: 1,
        ..pb::JobCheckpoints::default()
    }
}

pub(super) fn placed(region: usize, ends: Vec<(usize, TaskEnd)>) -> RegionStart {
    let tasks = [2 * region, 2 * region + 1];
    RegionStart::Placed {
        generation: GENERATION,
        places: tasks.map(|it| (it, connection(it).task_manager)).to_vec(),
        ends,
    }
}

pub(super) fn report(task: usize, highest: u64, progress: TaskProgress) -> TaskReport {
    TaskReport {
        task,
        generation: GENERATION,
        highest,
        progress,
        is_paused: false,
        has_input_ended: false,
    }
}

pub(super) fn saved(task: usize, size: usize) -> Arc<pb::SubtaskSnapshot> {
    Arc::new(pb::SubtaskSnapshot {
        vertex_id: format!("t{task}"),
        operators: vec![pb::OperatorState {
            content: vec![7; size],
            ..pb::OperatorState::default()
        }],
        ..pb::SubtaskSnapshot::default()
    })
}

pub(super) fn end(highest: u64, part: &str, size: usize) -> TaskEnd {
    let committable = pb::CheckpointCommittable {
        uid: "sink".to_owned(),
        kind: part.to_owned(),
        content: vec![7; size],
    };
    TaskEnd {
        highest,
        committables: vec![committable],
        output: Vec::new(),
    }
}

/// A core, and the clock.
pub(super) struct Bench {
    pub(super) core: CheckpointCore,
    pub(super) now_ms: u64,
}

impl Bench {
    pub(super) fn new(record: pb::JobCheckpoints, regions: Vec<RegionStart>) -> Bench {
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

    pub(super) fn core(
        record: pb::JobCheckpoints,
        start: JobStart,
    ) -> Result<CheckpointCore, Unreadable> {
        Bench::core_with(record, &BTreeMap::new(), start)
    }

    pub(super) fn core_with(
        record: pb::JobCheckpoints,
        objects: &BTreeMap<String, Vec<u8>>,
        start: JobStart,
    ) -> Result<CheckpointCore, Unreadable> {
        CheckpointCore::new(
            (options(), topology(start.regions.len())),
            Arc::new(record),
            objects,
            start,
            Epoch::new(2),
            0,
        )
    }

    /// A core of one region that runs, in a job that began at `began_ms`.
    pub(super) fn begun_at(record: pb::JobCheckpoints, began_ms: u64, now_ms: u64) -> Bench {
        let start = JobStart {
            began_ms,
            regions: vec![placed(0, vec![])],
            ..JobStart::default()
        };
        let setup = (options(), topology(1));
        let (objects, epoch) = (BTreeMap::new(), Epoch::new(3));
        let core = CheckpointCore::new(setup, Arc::new(record), &objects, start, epoch, now_ms);
        Bench {
            core: core.expect("the record is readable"),
            now_ms,
        }
    }

    /// The region is adopted, and time passes until it has a number. Returns the time.
    pub(super) fn first_round_ms(&mut self) -> u64 {
        let mut effects = self.register(SOURCE, vec![]);
        effects.extend(self.register(SINK, vec![]));
        effects.extend(self.hear(Event::RegionAdopted { region: 0 }));
        effects.extend(self.hear(Event::RegionRunning {
            region: 0,
            generation: GENERATION,
        }));
        for _ in 0..1_000 {
            if let Some((write, _)) = written(&effects) {
                self.hear(Event::Written { write });
            }
            if self.core.in_flight(0).is_some() {
                return self.now_ms;
            }
            effects = self.pass(1);
        }
        panic!("no round has begun");
    }

    /// A core whose regions have all begun, with a number in flight at each. Returns that number.
    pub(super) fn with_number(regions: usize) -> (Bench, u64) {
        let starts = (0..regions).map(|region| placed(region, vec![])).collect();
        let mut bench = Bench::new(record(), starts);
        let number = bench.run_regions(regions);
        (bench, number)
    }

    /// All regions are adopted and run, and a number is in flight at each. Returns that number.
    pub(super) fn run_regions(&mut self, regions: usize) -> u64 {
        self.adopt_regions(regions);
        self.next_number()
    }

    /// All regions are adopted and run.
    pub(super) fn adopt_regions(&mut self, regions: usize) {
        for task in 0..2 * regions {
            self.register(task, vec![]);
        }
        for region in 0..regions {
            self.hear(Event::RegionAdopted { region });
            self.hear(Event::RegionRunning {
                region,
                generation: GENERATION,
            });
        }
    }

    pub(super) fn hear(&mut self, event: Event) -> Vec<Effect> {
        self.core.handle(self.now_ms, [event])
    }

    pub(super) fn register(&mut self, task: usize, reports: Vec<TaskReport>) -> Vec<Effect> {
        self.hear(Event::Registered {
            connection: connection(task),
            takes_checkpoints: true,
            reports,
        })
    }

    /// A TaskExecutor registers again, in a version that takes checkpoints or none.
    pub(super) fn register_again(
        &mut self,
        task: usize,
        registration: u64,
        takes_checkpoints: bool,
    ) -> Vec<Effect> {
        let registration = Registration::new(registration);
        self.hear(Event::Registered {
            connection: Connection {
                registration,
                ..connection(task)
            },
            takes_checkpoints,
            reports: vec![],
        })
    }

    /// Time passes, without effects that matter.
    pub(super) fn pass(&mut self, ms: u64) -> Vec<Effect> {
        self.now_ms += ms;
        self.hear(Event::TimePassed)
    }

    /// The next round begins. Returns its number.
    pub(super) fn next_number(&mut self) -> u64 {
        let effects = self.pass(100);
        let effects = match written(&effects) {
            Some((write, _)) => self.hear(Event::Written { write }),
            None => effects,
        };
        let numbers = effects.iter().filter_map(|effect| match effect {
            Effect::Trigger { barrier, .. } => Some(barrier.number),
            _ => None,
        });
        numbers.max().expect("a round begins")
    }

    pub(super) fn answer_trigger(&mut self, task: usize, number: u64) -> Vec<Effect> {
        self.hear(Event::TriggerAnswered {
            connection: connection(task),
            region: task / 2,
            number,
            answers: vec![(task, TriggerAnswer::Injected)],
        })
    }

    pub(super) fn acknowledge(&mut self, task: usize, number: u64, size: usize) -> Vec<Effect> {
        self.hear(Event::Acknowledged {
            connection: connection(task),
            task,
            generation: GENERATION,
            number,
            snapshot: saved(task, size),
        })
    }

    pub(super) fn finish_task(&mut self, task: usize, end: TaskEnd) -> Vec<Effect> {
        self.hear(Event::TaskEnded {
            connection: connection(task),
            task,
            generation: GENERATION,
            end,
        })
    }
}

/// The write among effects, and its newest manifest.
pub(super) fn written(effects: &[Effect]) -> Option<(u64, Option<pb::CheckpointManifest>)> {
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

pub(super) fn aborts(effects: &[Effect]) -> Vec<u64> {
    let numbers = effects.iter().filter_map(|effect| match effect {
        Effect::Abort { number, .. } => Some(*number),
        _ => None,
    });
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.dedup();
    numbers
}

/// The durable end of a region, with this size of its last output.
pub(super) fn finished(region: usize, size: usize) -> Event {
    Event::RegionFinished {
        region,
        generation: GENERATION,
        ends: vec![
            (2 * region, TaskEnd::default()),
            (2 * region + 1, end(0, "a", size)),
        ],
    }
}
