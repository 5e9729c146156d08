//! Checkpoints in the simulation: the core of the job's checkpoints beside that of the JobMaster, joined as the actor
//! joins them, and executions that read, align barriers, save their state, show output and are restored.
//!
//! The executions are those of the simulation of the checkpoints alone, and so are the invariants K1 to K15. What is
//! judged here in addition: that both cores together keep the two rules of the checkpoints' core, whatever order of
//! placements, failures, adoptions and ends the JobMaster decides; what a deployment restores; that a job ends with all
//! of its output committed once, although its result, its record and its checkpoints are separate writes.

mod cases;
mod effects;
mod savepoints;
mod store;
mod streams;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tanist_ha::election::Epoch;
use tanist_model::MAX_REGIONS;
use tanist_proto::v1 as pb;

use self::savepoints::Savepoints;
use super::task_manager::TaskKey;
use super::world::World;
use crate::core::checkpoints::tests::simulation::execution::{Element, Execution};
use crate::core::checkpoints::tests::simulation::invariants::{
    Checked, k14_only_this_region_is_touched,
};
use crate::core::checkpoints::tests::simulation::random::Random;
use crate::core::checkpoints::{
    CheckpointCore, Effect, Event, Options, Task, TaskReport, manifest_objects, newest_numbers,
    stop_request, stops_with, take_batch,
};
use crate::core::execution_graph::ExecutionGraph;
use crate::core::{self, Connection, RestorePoints};

/// Timeout in milliseconds after which a TaskExecutor without a JobMaster declines what its tasks block for.
const ALONE_MS: u64 = 1_000;

/// Asserts that an invariant holds.
fn assert_holds(checked: Checked) {
    if let Err(broken) = checked {
        panic!("{broken}");
    }
}

/// An execution of a task, and where it runs.
#[derive(Debug)]
struct Stream {
    key: TaskKey,
    incarnation: u32,
    execution: Execution,
    /// The listing of files with which it was deployed.
    listing: u64,
}

/// Number of times that each wanted situation occurred.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reached {
    completed: u64,
    aborted: u64,
    /// A number of an earlier term became durable.
    adopted: u64,
    /// A task was restored from a snapshot, and one from a snapshot in which it had ended.
    restored: u64,
    restored_ended: u64,
    committed: u64,
    removed: u64,
    /// A placement waited for a write of the checkpoints.
    held: u64,
    /// A job has finished with all of its output, and one has ended otherwise.
    finished: u64,
    not_finished: u64,
    /// A region with a task that has declined, or a write that was refused.
    declined: u64,
    refused: u64,
    /// A savepoint was copied, a job has stopped with one, and a paused source went on.
    copied: u64,
    stopped: u64,
    resumed: u64,
    /// A region has left a drained TaskManager, and a job whose sources were told to end has finished.
    moved: u64,
    drained: u64,
}

impl Reached {
    fn add(&mut self, other: &Reached) {
        self.completed += other.completed;
        self.aborted += other.aborted;
        self.adopted += other.adopted;
        self.restored += other.restored;
        self.restored_ended += other.restored_ended;
        self.committed += other.committed;
        self.removed += other.removed;
        self.held += other.held;
        self.finished += other.finished;
        self.not_finished += other.not_finished;
        self.declined += other.declined;
        self.refused += other.refused;
        self.copied += other.copied;
        self.stopped += other.stopped;
        self.resumed += other.resumed;
        self.moved += other.moved;
        self.drained += other.drained;
    }

    /// The situations without which a run proves little.
    fn wanted(&self) -> [u64; 12] {
        [
            self.completed,
            self.aborted,
            self.adopted,
            self.restored,
            self.restored_ended,
            self.committed,
            self.removed,
            self.held,
            self.finished,
            self.not_finished,
            self.declined,
            self.refused,
        ]
    }
}

/// The checkpoints of the job; see the module.
#[derive(Debug)]
pub(super) struct Checkpoints {
    random: Random,
    options: Options,
    /// Number of records of each source.
    records: u64,
    /// Whether writes of tasks and of the store fail.
    fails: bool,
    /// Bytes that each snapshot has more.
    padding: usize,
    tasks: Vec<Task>,
    regions: Vec<Vec<usize>>,
    core: Option<CheckpointCore>,
    points: Arc<RestorePoints>,
    /// What the cores have to tell each other.
    news: VecDeque<Event>,
    answers: VecDeque<core::Event>,
    is_settling: bool,
    /// `next` in the record that the term began with.
    base: u64,
    /// The durable record.
    record: Arc<pb::JobCheckpoints>,
    write: Option<(u64, Arc<pb::JobCheckpoints>)>,
    was_refused: bool,
    /// A commit has failed in this term, or a write was refused, so that a cancellation may give output up.
    has_failed: bool,
    objects: BTreeSet<String>,
    manifests: BTreeMap<String, Vec<u8>>,
    /// What terms have asked of the blob store and of committers, with their epochs.
    outside: Vec<(u64, Effect)>,
    /// What TaskManagers tell a term.
    told: Vec<(u64, Event)>,
    /// What TaskManagers report with each registration.
    registrations: BTreeMap<Connection, Vec<TaskReport>>,
    streams: Vec<Stream>,
    /// Elements for executions that have not begun, as (number of the source, element), by task and generation.
    early: BTreeMap<(usize, u64), Vec<(usize, Element)>>,
    /// When each TaskManager lost its JobMaster.
    alone_since_ms: BTreeMap<usize, u64>,
    /// The epoch of each number.
    given: BTreeMap<u64, usize>,
    /// The highest number of each execution that ended.
    true_ends: BTreeMap<(usize, u64), u64>,
    /// The records of each source that ended.
    last_positions: BTreeMap<(usize, u64), u64>,
    /// The generation of each snapshot that was durable, by region and number.
    generations: BTreeMap<(usize, u64), u64>,
    /// The listing of files with which each execution was deployed.
    deployed_listings: BTreeMap<(usize, u64), u64>,
    /// The listing of files with which each task took a number up.
    listings: BTreeMap<(usize, u64), u64>,
    listed_parts: BTreeSet<(String, String)>,
    uncommitted_parts: BTreeMap<(String, String), u64>,
    committed_records: BTreeMap<(String, String), String>,
    /// Why numbers were aborted.
    aborts: Vec<String>,
    savepoints: Savepoints,
    reached: Reached,
}

impl World {
    /// The job takes checkpoints.
    pub(super) fn with_checkpoints(mut self, seed: u64) -> World {
        let mut random = Random::new(seed);
        let built = ExecutionGraph::build(&self.graph, MAX_REGIONS).expect("valid");
        let tasks = built.tasks().iter().enumerate().map(|(task, at)| Task {
            vertex_id: built.vertex_of(task).id.to_string(),
            subtask: at.subtask,
            region: at.region,
            is_source: built.is_source(task),
        });
        let regions = built.regions().iter().map(|region| region.tasks.clone());
        let options = Options {
            interval_ms: random.between(100, 800),
            min_pause_ms: random.between(0, 200),
            timeout_ms: random.between(2_000, 8_000),
            tolerable_failures: random.one_in(6).then_some(2),
            retained: 1 + random.below(3),
            retention: pb::CheckpointRetention::DeleteOnCancellation,
            has_blob_store: true,
            listing_interval_ms: 5_000,
        };
        self.checkpoints = Some(Box::new(Checkpoints {
            records: 4 + random.next() % 60,
            padding: if random.one_in(8) { 6_000 } else { 0 },
            options,
            fails: true,
            tasks: tasks.collect(),
            regions: regions.collect(),
            core: None,
            points: Arc::default(),
            news: VecDeque::new(),
            answers: VecDeque::new(),
            is_settling: false,
            base: 0,
            record: Arc::new(pb::JobCheckpoints {
                job_id: self.graph.job_id.clone(),
                ..pb::JobCheckpoints::default()
            }),
            write: None,
            was_refused: false,
            has_failed: false,
            objects: BTreeSet::new(),
            manifests: BTreeMap::new(),
            outside: Vec::new(),
            told: Vec::new(),
            registrations: BTreeMap::new(),
            streams: Vec::new(),
            early: BTreeMap::new(),
            alone_since_ms: BTreeMap::new(),
            given: BTreeMap::new(),
            true_ends: BTreeMap::new(),
            last_positions: BTreeMap::new(),
            generations: BTreeMap::new(),
            deployed_listings: BTreeMap::new(),
            listings: BTreeMap::new(),
            listed_parts: BTreeSet::new(),
            uncommitted_parts: BTreeMap::new(),
            committed_records: BTreeMap::new(),
            aborts: Vec::new(),
            savepoints: Savepoints::new(Random::new(seed)),
            reached: Reached::default(),
            random,
        }));
        self.begin_term();
        self
    }

    /// A term ends: its write was taken or was not, and the next term reads the record. Returns what regions are
    /// restored from.
    pub(super) fn recover_points(&mut self) -> Option<Arc<RestorePoints>> {
        let at = self.checkpoints.as_mut()?;
        if at.random.one_in(2) {
            self.apply_checkpoints();
        }
        let at = self.checkpoints.as_mut()?;
        at.core = None;
        at.write = None;
        at.was_refused = false;
        at.has_failed = false;
        at.news.clear();
        at.answers.clear();
        at.is_settling = false;
        Some(Arc::new(RestorePoints {
            numbers: newest_numbers(&at.record, &at.contents()),
            held: BTreeSet::new(),
            has_uncommitted: true,
            stops_with: stops_with(&at.record).map(str::to_owned),
            stop_request: stop_request(&at.record).map(str::to_owned),
        }))
    }

    /// The core of the checkpoints of a term, beside that of its JobMaster.
    pub(super) fn begin_checkpoints(&mut self) {
        let (Some(at), Some(core)) = (&mut self.checkpoints, &self.core) else {
            return;
        };
        let built = CheckpointCore::new(
            (at.options.clone(), core.checkpoint_topology(&self.graph)),
            at.record.clone(),
            &at.contents(),
            core.checkpoint_start(),
            Epoch::new(self.epoch),
            self.now_ms,
        );
        at.core = Some(built.expect("all manifests of the record exist"));
        at.points = Arc::default();
        at.base = at.record.next.max(1);
        self.tell_checkpoints(Event::TimePassed);
        self.settle_checkpoints();
    }

    /// Adds an event for the checkpoints.
    fn tell_checkpoints(&mut self, event: Event) {
        if let Some(at) = &mut self.checkpoints {
            at.news.push_back(event);
        }
    }

    /// Takes the news of a step of the JobMaster's core. `event`: what it has handled.
    pub(super) fn take_news(&mut self, event: &core::Event) {
        let (Some(at), Some(core)) = (&mut self.checkpoints, &mut self.core) else {
            return;
        };
        if let core::Event::Registered { connection, .. } = event {
            let reports = at.registrations.get(connection).cloned();
            at.news.push_back(Event::Registered {
                connection: connection.clone(),
                takes_checkpoints: true,
                reports: reports.unwrap_or_default(),
            });
        }
        at.news.extend(core.take_news());
        if let core::Event::TaskManagerLost { connection, .. } = event {
            at.news.push_back(Event::Disconnected {
                connection: connection.clone(),
            });
        }
        if matches!(event, core::Event::TimePassed) {
            at.news.push_back(Event::TimePassed);
        }
    }

    /// Passes on all that the cores have to tell each other.
    pub(super) fn settle_checkpoints(&mut self) {
        let Some(at) = &mut self.checkpoints else {
            return;
        };
        if std::mem::replace(&mut at.is_settling, true) {
            return;
        }
        while let Some(at) = &mut self.checkpoints {
            if !at.news.is_empty() {
                let news = take_batch(&mut at.news);
                self.drive_checkpoints(news);
            } else if let Some(event) = at.answers.pop_front() {
                self.hear(event);
            } else {
                at.is_settling = false;
                break;
            }
        }
    }

    fn drive_checkpoints(&mut self, news: Vec<Event>) {
        if self.result.is_some() {
            return;
        }
        if news.iter().any(|it| matches!(it, Event::TimePassed)) {
            self.note_alone();
        }
        let now_ms = self.now_ms;
        let Some(at) = &mut self.checkpoints else {
            return;
        };
        let Some(core) = &mut at.core else {
            return;
        };
        let is_awaited = news
            .iter()
            .any(|event| matches!(event, Event::RegionFinished { .. }));
        let failed: Option<Vec<usize>> = news.iter().map(failed_region).collect();
        let effects = core.handle(now_ms, news);
        let points = core.points();
        at.reached.held += u64::from(!points.held.is_empty());
        let changed = points != *at.points;
        if changed {
            at.points = Arc::new(points);
        }
        if let Some([failed]) = failed.as_deref() {
            let touched = effects.iter().filter_map(|effect| match effect {
                Effect::Abort { executions, .. } => Some(executions.region),
                Effect::Aborted { region, .. } | Effect::FailRegion { region, .. } => Some(*region),
                _ => None,
            });
            let touched: Vec<usize> = touched.collect();
            assert_holds(k14_only_this_region_is_touched(*failed, &touched));
        }
        for effect in effects {
            self.run_checkpoint_effect(effect);
        }
        if let Some(at) = &mut self.checkpoints
            && (changed || is_awaited)
        {
            let changed = core::Event::CheckpointsChanged(at.points.clone());
            at.answers.push_back(changed);
        }
    }

    /// A TaskManager was given up.
    pub(super) fn disconnect_checkpoints(&mut self, connection: Connection) {
        self.tell_checkpoints(Event::Disconnected { connection });
    }

    /// Whether output that checkpoints name could not be committed, so that the job may be cancelled until it is.
    pub(super) fn has_failed_to_commit_checkpoint(&self) -> bool {
        self.checkpoints.as_ref().is_some_and(|at| at.has_failed)
    }

    /// Whether the next attempt of a region goes on from a snapshot.
    pub(super) fn has_snapshot(&self, region: usize) -> bool {
        let at = self.checkpoints.as_ref();
        at.is_some_and(|at| at.newest_snapshot(region).0 > 0)
    }
}

fn failed_region(event: &Event) -> Option<usize> {
    match event {
        Event::RegionFailed { region } => Some(*region),
        _ => None,
    }
}

impl Checkpoints {
    /// Number of messages from TaskManagers in flight.
    pub(super) fn told_count(&self) -> usize {
        self.told.len()
    }

    /// The messages after these are lost.
    pub(super) fn forget_told_after(&mut self, count: usize) {
        self.told.truncate(count);
    }

    /// The manifests that are objects, as far as they exist.
    fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let names = manifest_objects(&self.record).into_iter();
        let found = names.filter_map(|name| {
            let bytes = self.manifests.get(&name)?.clone();
            Some((name, bytes))
        });
        found.collect()
    }

    fn sources_of(&self, region: usize) -> usize {
        let tasks = self.regions[region].iter();
        tasks.filter(|task| self.tasks[**task].is_source).count()
    }

    fn task(&self, (vertex_id, subtask): (&str, u32)) -> usize {
        let mut tasks = self.tasks.iter();
        let found = tasks.position(|it| it.vertex_id == vertex_id && it.subtask == subtask);
        found.expect("a task of the graph")
    }
}
