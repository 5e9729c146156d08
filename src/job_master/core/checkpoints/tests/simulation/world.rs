//! The simulated world: a store with fenced writes, an object store, leaders, TaskExecutors with executions, and
//! messages between them that are late, repeated and out of order. Each effect of a leader is checked.
//!
//! Leaders that are deposed go on until they die. Tasks that are given up go on until they are cancelled. What a leader
//! asked of the blob store is done at any later time, also after its term.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tanist_ha::election::Epoch;
use tanist_proto::v1 as pb;

use super::super::super::{
    CheckpointCore, Effect, Event, JobStart, Options, RegionStart, RestoredFrom, Task, TaskEnd,
    Topology, manifest_objects,
};
use super::execution::Execution;
use super::invariants::{
    Checked, ensure, k2_number_is_new, k5_number_is_not_below_the_floor,
    k6_only_durable_output_is_committed, k14_only_this_region_is_touched,
    k15_deleted_objects_are_garbage,
};
use super::random::Random;
use crate::core::{Connection, Registration};

/// How often each wanted situation occurred.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reached {
    pub(super) completed: u64,
    pub(super) aborted: u64,
    /// A number of an earlier leader became durable.
    pub(super) adopted: u64,
    /// A region was restored from a snapshot.
    pub(super) restored: u64,
    /// A snapshot has an ended subtask, and others that run.
    pub(super) partly_ended: u64,
    /// A manifest has snapshots of different numbers.
    pub(super) mixed: u64,
    /// A manifest was put into the blob store.
    pub(super) put: u64,
    /// An acknowledgement did not count.
    pub(super) refused: u64,
    /// Objects were removed.
    pub(super) removed: u64,
    /// Parts were committed.
    pub(super) committed: u64,
    /// A write of a deposed leader was refused.
    pub(super) fenced: u64,
    /// All regions finished, and all of their output was committed.
    pub(super) finished: u64,
    /// A checkpoint was copied for a savepoint.
    pub(super) copied: u64,
    /// A job stopped with a savepoint.
    pub(super) stopped: u64,
    /// A paused source went on.
    pub(super) resumed: u64,
    /// A region was restored from the origin.
    pub(super) from_origin: u64,
    /// A TaskExecutor of an older version registered.
    pub(super) older: u64,
}

impl Reached {
    pub(super) fn add(&mut self, other: &Reached) {
        self.completed += other.completed;
        self.aborted += other.aborted;
        self.adopted += other.adopted;
        self.restored += other.restored;
        self.partly_ended += other.partly_ended;
        self.mixed += other.mixed;
        self.put += other.put;
        self.refused += other.refused;
        self.removed += other.removed;
        self.committed += other.committed;
        self.fenced += other.fenced;
        self.finished += other.finished;
        self.copied += other.copied;
        self.stopped += other.stopped;
        self.resumed += other.resumed;
        self.from_origin += other.from_origin;
        self.older += other.older;
    }

    /// The situations without which a run proves little.
    pub(super) fn wanted(&self) -> [u64; 17] {
        [
            self.completed,
            self.aborted,
            self.adopted,
            self.restored,
            self.partly_ended,
            self.mixed,
            self.put,
            self.refused,
            self.removed,
            self.committed,
            self.fenced,
            self.finished,
            self.copied,
            self.stopped,
            self.resumed,
            self.from_origin,
            self.older,
        ]
    }
}

/// A region in the record `states/<job>`.
#[derive(Debug, Clone, Default)]
pub(super) struct StoredRegion {
    pub(super) generation: u64,
    pub(super) places: Vec<(usize, usize)>,
    pub(super) ends: BTreeMap<usize, TaskEnd>,
}

/// What a write changes in the store.
#[derive(Debug, Clone)]
pub(super) enum StoreWrite {
    Checkpoints {
        write: u64,
        record: Arc<pb::JobCheckpoints>,
    },
    Place {
        region: usize,
        generation: u64,
        restored: u64,
        places: Vec<(usize, usize)>,
    },
    End {
        region: usize,
        generation: u64,
        task: usize,
        end: TaskEnd,
    },
}

/// Where a region stands for its leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placement {
    Awaited,
    Waiting,
    Placing,
    Placed { runs: bool },
    Finished,
}

#[derive(Debug)]
pub(super) struct Leader {
    pub(super) epoch: u64,
    pub(super) core: CheckpointCore,
    pub(super) is_dead: bool,
    /// `next` in the record that it began with.
    pub(super) base: u64,
    pub(super) placements: Vec<Placement>,
    pub(super) generations: Vec<u64>,
    pub(super) writes: VecDeque<StoreWrite>,
    pub(super) answers: VecDeque<Event>,
    /// Ends that it was told and that are being written.
    pub(super) ends: BTreeSet<(usize, u64)>,
    /// Messages that it handles with the next event.
    pub(super) held: Vec<Event>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct TaskExecutor {
    pub(super) leader: Option<usize>,
    pub(super) registration: u64,
    pub(super) epoch: u64,
    pub(super) lost_ms: u64,
    /// Messages to it do not arrive at present.
    pub(super) is_deaf: bool,
    /// Its messages do not arrive at present.
    pub(super) is_mute: bool,
    /// It is of an older version, which takes no checkpoints.
    pub(super) takes_none: bool,
}

/// A message in flight.
#[derive(Debug, Clone)]
pub(super) enum Message {
    /// To a TaskExecutor, from a leader.
    Call {
        leader: usize,
        te: usize,
        registration: u64,
        effect: Effect,
    },
    /// To a leader.
    Tell { leader: usize, event: Event },
}

/// Something that a leader asked of the world outside of the record.
#[derive(Debug, Clone)]
pub(super) struct Outside {
    pub(super) leader: usize,
    pub(super) effect: Effect,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) random: Random,
    /// For savepoints and origins, so that cases without them are the same.
    pub(super) extra: Random,
    /// For TaskExecutors of an older version.
    pub(super) versions: Random,
    /// Whether leaders handle messages in batches, and which: another sequence.
    pub(super) batches: Random,
    pub(super) has_batches: bool,
    /// Whether TaskExecutors of an older version register.
    pub(super) has_older: bool,
    pub(super) now_ms: u64,
    pub(super) tasks: Vec<Task>,
    pub(super) regions: Vec<Vec<usize>>,
    pub(super) options: Options,
    /// Bytes that each snapshot has more.
    pub(super) padding: usize,
    /// Records of each source.
    pub(super) records: u64,
    pub(super) epoch: u64,
    pub(super) stored: Vec<StoredRegion>,
    pub(super) record: Arc<pb::JobCheckpoints>,
    pub(super) objects: BTreeSet<String>,
    pub(super) manifests: BTreeMap<String, Vec<u8>>,
    pub(super) leaders: Vec<Leader>,
    pub(super) tes: Vec<TaskExecutor>,
    pub(super) executions: Vec<Execution>,
    pub(super) messages: Vec<Message>,
    pub(super) outside: Vec<Outside>,
    pub(super) given: BTreeMap<u64, usize>,
    /// Regions at which each number was in flight.
    pub(super) given_to: BTreeSet<(u64, usize)>,
    pub(super) true_ends: BTreeMap<(usize, u64), u64>,
    pub(super) last_positions: BTreeMap<(usize, u64), u64>,
    pub(super) listed_parts: BTreeSet<(String, String)>,
    pub(super) committed_records: BTreeMap<(String, String), String>,
    pub(super) refuses_next_write: bool,
    pub(super) is_end_decided: bool,
    /// Copies of checkpoints take longer than anything else.
    pub(super) copies_slowly: bool,
    /// Number of requests for savepoints.
    pub(super) asked: u64,
    /// Requests that were acknowledged.
    pub(super) acknowledged: BTreeSet<String>,
    /// Parts that a durable manifest lists and that are not committed, with its number.
    pub(super) uncommitted_parts: BTreeMap<(String, String), u64>,
    /// Where sources begin, by the origin.
    pub(super) origin_positions: BTreeMap<usize, u64>,
    pub(super) reached: Reached,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let mut tasks = Vec::new();
        for region in 0..1 + random.below(3) {
            let sources = 1 + random.below(2);
            let sinks = random.below(3);
            for number in 0..sources + sinks {
                tasks.push(Task {
                    vertex_id: format!("t{}", tasks.len()),
                    subtask: 0,
                    region,
                    is_source: number < sources,
                });
            }
        }
        let count = tasks.last().map_or(0, |task| task.region + 1);
        let of = |region: usize| {
            let numbers = 0..tasks.len();
            let tasks: &Vec<Task> = &tasks;
            numbers
                .filter(move |it| tasks[*it].region == region)
                .collect()
        };
        let regions: Vec<Vec<usize>> = (0..count).map(of).collect();
        let options = Options {
            interval_ms: random.between(100, 800),
            min_pause_ms: random.between(0, 200),
            timeout_ms: random.between(1_000, 4_000),
            tolerable_failures: random.one_in(3).then_some(2),
            retained: 1 + random.below(3),
            retention: pb::CheckpointRetention::DeleteOnCancellation,
            has_blob_store: true,
            listing_interval_ms: 5_000,
        };
        World {
            now_ms: 1,
            padding: if random.one_in(8) { 6_000 } else { 0 },
            records: if random.one_in(2) {
                4 + random.next() % 40
            } else {
                40 + random.next() % 300
            },
            epoch: 0,
            stored: vec![StoredRegion::default(); count],
            record: Arc::new(pb::JobCheckpoints {
                job_id: "job".to_owned(),
                ..pb::JobCheckpoints::default()
            }),
            objects: BTreeSet::new(),
            manifests: BTreeMap::new(),
            leaders: Vec::new(),
            tes: vec![TaskExecutor::default(); 1 + random.below(3)],
            executions: Vec::new(),
            messages: Vec::new(),
            outside: Vec::new(),
            given: BTreeMap::new(),
            given_to: BTreeSet::new(),
            true_ends: BTreeMap::new(),
            last_positions: BTreeMap::new(),
            listed_parts: BTreeSet::new(),
            committed_records: BTreeMap::new(),
            refuses_next_write: false,
            is_end_decided: false,
            copies_slowly: false,
            asked: 0,
            acknowledged: BTreeSet::new(),
            uncommitted_parts: BTreeMap::new(),
            origin_positions: BTreeMap::new(),
            extra: Random::new(seed ^ 0x5a5a_0000_0000),
            versions: Random::new(seed ^ 0x3c3c_0000_0000),
            has_batches: seed % 2 == 1,
            batches: Random::new(seed ^ 0x1e1e_0000_0000),
            has_older: false,
            reached: Reached::default(),
            random,
            tasks,
            regions,
            options,
        }
    }

    pub(super) fn sources_of(&self, region: usize) -> usize {
        let tasks = self.regions[region].iter();
        tasks.filter(|task| self.tasks[**task].is_source).count()
    }

    /// Another process takes over: it deposes the former leader, and reads the records in its own epoch.
    pub(super) fn take_over(&mut self) {
        self.epoch += 1;
        let starts: Vec<RegionStart> = (0..self.regions.len())
            .map(|it| self.start_of(it))
            .collect();
        let placement = |start: &RegionStart| match start {
            RegionStart::Waiting { .. } => Placement::Waiting,
            RegionStart::Placed { .. } => Placement::Awaited,
            RegionStart::Finished { .. } => Placement::Finished,
        };
        let placements = starts.iter().map(placement).collect();
        let names = manifest_objects(&self.record);
        let contents = names.into_iter().filter_map(|name| {
            let bytes = self.manifests.get(&name)?.clone();
            Some((name, bytes))
        });
        let contents: BTreeMap<String, Vec<u8>> = contents.collect();
        let topology = Topology::new(self.tasks.clone(), BTreeMap::new());
        let core = CheckpointCore::new(
            (self.options.clone(), topology),
            self.record.clone(),
            &contents,
            JobStart {
                regions: starts,
                is_end_decided: self.is_end_decided,
                ..JobStart::default()
            },
            Epoch::new(self.epoch),
            self.now_ms,
        );
        self.leaders.push(Leader {
            epoch: self.epoch,
            core: core.expect("all manifests of the record exist"),
            is_dead: false,
            base: self.record.next.max(1),
            placements,
            generations: self.stored.iter().map(|it| it.generation).collect(),
            writes: VecDeque::new(),
            answers: VecDeque::new(),
            ends: BTreeSet::new(),
            held: Vec::new(),
        });
    }

    fn start_of(&self, region: usize) -> RegionStart {
        let stored = &self.stored[region];
        let generation = stored.generation;
        let ends: Vec<_> = stored
            .ends
            .iter()
            .map(|(task, end)| (*task, end.clone()))
            .collect();
        let places = stored.places.iter();
        let places = places.map(|(task, te)| (*task, resource_id(*te))).collect();
        match (generation, ends.len() == self.regions[region].len()) {
            (0, _) => RegionStart::Waiting { generation },
            (_, true) => RegionStart::Finished { generation, ends },
            (_, false) => RegionStart::Placed {
                generation,
                places,
                ends,
            },
        }
    }

    pub(super) fn present(&self) -> usize {
        self.leaders.len() - 1
    }

    pub(super) fn connection(&self, te: usize) -> Connection {
        Connection {
            task_manager: resource_id(te),
            registration: Registration::new(self.tes[te].registration),
        }
    }

    /// A message arrives at a leader, which may handle it with what arrives next.
    pub(super) fn receive(&mut self, leader: usize, event: Event) -> Checked {
        if self.has_batches && self.batches.one_in(2) {
            self.leaders[leader].held.push(event);
            return Ok(());
        }
        self.hear(leader, event).map(|_| ())
    }

    /// A leader hears of an event, and its effects are checked and begin.
    pub(super) fn hear(&mut self, leader: usize, event: Event) -> Result<Vec<Effect>, String> {
        if self.leaders[leader].is_dead {
            return Ok(vec![]);
        }
        let at = &mut self.leaders[leader];
        let held = std::mem::take(&mut at.held).into_iter();
        let effects = at.core.handle(self.now_ms, held.chain([event]));
        for effect in &effects {
            self.run(leader, effect.clone())?;
        }
        Ok(effects)
    }

    fn run(&mut self, leader: usize, effect: Effect) -> Checked {
        match &effect {
            Effect::Trigger {
                connection,
                sources,
                barrier,
            } => {
                let (region, number) = (sources.region, barrier.number);
                k5_number_is_not_below_the_floor(number, barrier.floor)?;
                if number >= self.leaders[leader].base {
                    k2_number_is_new(&self.given, number, leader)?;
                    self.given.insert(number, leader);
                    if self.given_to.insert((number, region)) {
                        self.check_versions(leader, region)?;
                    }
                }
                self.call(leader, &connection.clone(), effect);
            }
            Effect::Abort { connection, .. } => self.call(leader, &connection.clone(), effect),
            Effect::AnswerAcknowledgement {
                connection, answer, ..
            } => {
                self.reached.refused += u64::from(answer.is_err());
                self.call(leader, &connection.clone(), effect);
            }
            Effect::Write { write, record } => {
                self.check_write(leader, record)?;
                let (write, record) = (*write, record.clone());
                let writes = &mut self.leaders[leader].writes;
                writes.push_back(StoreWrite::Checkpoints { write, record });
            }
            Effect::Commit { committables, .. } => {
                k6_only_durable_output_is_committed(committables, &self.listed_parts)?;
                self.outside.push(Outside { leader, effect });
            }
            Effect::Remove { objects, .. } => {
                let manifests = self.retained_manifests();
                let manifests = manifests.iter().map(|it| &**it);
                k15_deleted_objects_are_garbage(objects, manifests, self.record.floor)?;
                self.outside.push(Outside { leader, effect });
            }
            Effect::PutManifest { .. } | Effect::List => {
                self.outside.push(Outside { leader, effect });
            }
            Effect::FailRegion { region, .. } => self.fail_region(leader, *region)?,
            Effect::Completed { .. } => self.reached.completed += 1,
            Effect::Aborted { .. } => {
                let is_present = leader == self.present();
                self.reached.aborted += u64::from(is_present);
            }
            Effect::AnswerSavepoint { trigger_id, answer } => {
                self.check_answer(trigger_id, answer)?;
            }
            Effect::CopySavepoint { number, .. } => {
                self.check_copy(*number)?;
                self.outside.push(Outside { leader, effect });
            }
            Effect::DiscardCopy { trigger_id, .. } => self.check_discard(trigger_id)?,
            Effect::ForgetCommits { .. } => {}
        }
        Ok(())
    }

    /// A region with a task on a TaskExecutor that takes no checkpoints takes no number.
    fn check_versions(&self, leader: usize, region: usize) -> Checked {
        let stored = &self.stored[region];
        let ended = &stored.ends;
        let mut places = stored
            .places
            .iter()
            .filter(|(task, _)| !ended.contains_key(task));
        let takes_none = |(_, te): &(usize, usize)| {
            let at = &self.tes[*te];
            at.takes_none && at.leader == Some(leader)
        };
        let is_its_own = self.leaders[leader].generations[region] == stored.generation;
        let without = places.find(|place| is_its_own && takes_none(place));
        ensure(without.is_none(), || {
            format!("region {region} takes a number, and {without:?} takes none")
        })
    }

    fn call(&mut self, leader: usize, connection: &Connection, effect: Effect) {
        let te = te_of(connection);
        self.messages.push(Message::Call {
            leader,
            te,
            registration: connection.registration.get(),
            effect,
        });
    }

    /// A leader gives a region up.
    pub(super) fn fail_region(&mut self, leader: usize, region: usize) -> Checked {
        let placement = self.leaders[leader].placements[region];
        if matches!(placement, Placement::Awaited | Placement::Placed { .. }) {
            self.leaders[leader].placements[region] = Placement::Waiting;
            let effects = self.hear(leader, Event::RegionFailed { region })?;
            let touched = effects.iter().filter_map(|effect| match effect {
                Effect::Abort { executions, .. } => Some(executions.region),
                Effect::Aborted { region, .. } | Effect::FailRegion { region, .. } => Some(*region),
                _ => None,
            });
            let touched: Vec<usize> = touched.collect();
            k14_only_this_region_is_touched(region, &touched)?;
        }
        Ok(())
    }

    /// What a leader restores a region from, as it says. None: it has to wait.
    pub(super) fn restored_from(&self, leader: usize, region: usize) -> Option<u64> {
        match self.leaders[leader].core.restored_from(region)? {
            RestoredFrom::Snapshot(number) => Some(number),
            RestoredFrom::Origin => Some(self.leaders[leader].core.points().numbers[region]),
            RestoredFrom::Start => Some(0),
        }
    }
}

pub(super) fn resource_id(te: usize) -> tanist_proto::id::ResourceId {
    format!("te{te}").parse().expect("a resource id")
}

pub(super) fn te_of(connection: &Connection) -> usize {
    let number = connection.task_manager.as_str().trim_start_matches("te");
    number.parse().expect("a number")
}
