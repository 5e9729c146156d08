//! The checkpoints of the job as this core knows them, and the reports between the two cores.
//!
//! The checkpoints have a core and a record of their own ([`super::checkpoints`]). This core reports to them each
//! change of a region, in the order of its decisions: a change that a write makes is reported once the write is
//! durable, a failure at once. They report [`RestorePoints`], which [`Checkpointing`] owns here. Invariant: the actor
//! passes both on before it handles another event. So the restore points are out of date only within one step, in which
//! no region both fails and is placed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tanist_model::OperatorSpec;
use tanist_model::operators::StateUse;
use tanist_model::restore;
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::JobMasterCore;
use super::checkpoints::{Event, JobStart, RegionStart, Task, TaskEnd, Topology};
use super::execution_graph::{ExecutionGraph, RegionPhase};

/// The checkpoints that regions are restored from if they are placed at present, and whether the job may end.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestorePoints {
    /// By region: the number of its snapshot, or of the origin of the job; 0: it begins from the start.
    pub numbers: Vec<u64>,
    /// Regions that must not be placed: a write is under way that may change their number.
    pub held: BTreeSet<usize>,
    /// Whether the result of the job has to wait.
    pub has_uncommitted: bool,
    /// The path of the savepoint with which the job stops, once that is durably complete.
    pub stops_with: Option<String>,
    /// The trigger id of the request with which the job stops, unless that has failed.
    pub stop_request: Option<String>,
}

/// The checkpoints as this core knows them; see the module.
#[derive(Debug, Default)]
pub(super) struct Checkpointing {
    /// None: the job takes no checkpoints, and has none.
    points: Option<Arc<RestorePoints>>,
    /// Regions with a source that has no position: a restart loses the records that it has read since its snapshot.
    without_positions: BTreeSet<usize>,
    /// Regions that take no checkpoints, and why.
    not_checkpointed: BTreeMap<usize, String>,
    /// Whether the checkpoints know that the job ends without finishing.
    is_end_told: bool,
    /// A region has finished, and the checkpoints have not answered with their restore points yet. Until then the job
    /// must not end: the last output of the region may have to be committed.
    awaits_answer: bool,
}

impl Checkpointing {
    /// The checkpoints of a job when its JobMaster begins.
    pub(super) fn new(
        points: Option<Arc<RestorePoints>>,
        graph: &pb::JobGraph,
        execution: &ExecutionGraph,
    ) -> Checkpointing {
        let (without_positions, not_checkpointed) = match points {
            Some(_) => (
                without_positions(graph, execution),
                not_checkpointed(graph, execution),
            ),
            None => Default::default(),
        };
        Checkpointing {
            points,
            without_positions,
            not_checkpointed,
            is_end_told: false,
            awaits_answer: false,
        }
    }

    /// Whether the job takes checkpoints, or has some.
    pub(super) fn is_on(&self) -> bool {
        self.points.is_some()
    }

    /// Whether checkpoints of a region are taken.
    pub(super) fn takes_part(&self, region: usize) -> bool {
        self.is_on() && !self.not_checkpointed.contains_key(&region)
    }

    /// Takes the restore points that the checkpoints report.
    pub(super) fn set(&mut self, points: Arc<RestorePoints>) {
        self.awaits_answer = false;
        self.points = Some(points);
    }

    /// The number of the snapshot that a region is restored from; 0: it begins from the start.
    pub(super) fn restored_from(&self, region: usize) -> u64 {
        let number = self.points.as_ref().and_then(|it| it.numbers.get(region));
        number.copied().unwrap_or_default()
    }

    /// Whether the next generation of a region continues at the positions of its sources, so that it loses no input.
    pub(super) fn goes_on(&self, region: usize) -> bool {
        self.restored_from(region) > 0 && !self.without_positions.contains(&region)
    }

    /// Whether a region must not be placed at present.
    pub(super) fn holds(&self, region: usize) -> bool {
        let points = self.points.as_ref();
        points.is_some_and(|points| points.held.contains(&region))
    }

    /// Whether a write is under way after which output may have to be committed.
    pub(super) fn is_writing(&self) -> bool {
        let points = self.points.as_ref();
        points.is_some_and(|points| !points.held.is_empty())
    }

    /// Whether the next generation of a region may be restored from a snapshot, so that the decisions of its
    /// coordinators are kept.
    pub(super) fn may_go_on(&self, region: usize) -> bool {
        self.restored_from(region) > 0 || self.holds(region)
    }

    /// The path of the savepoint with which the job stops, once that is durably complete.
    pub(super) fn stops_with(&self) -> Option<&str> {
        self.points.as_ref()?.stops_with.as_deref()
    }

    /// The trigger id of the request with which the job stops, unless that has failed.
    pub(super) fn stop_request(&self) -> Option<&str> {
        self.points.as_ref()?.stop_request.as_deref()
    }

    /// Whether the result of the job has to wait for output that a checkpoint names.
    pub(super) fn has_uncommitted(&self) -> bool {
        let points = self.points.as_ref();
        self.awaits_answer || points.is_some_and(|points| points.has_uncommitted)
    }
}

impl JobMasterCore {
    /// Takes the news for the checkpoints. To be passed on before the next event.
    pub fn take_news(&mut self) -> Vec<Event> {
        self.out.take_news()
    }

    /// The tasks and regions of the job, and why some take no part in checkpoints.
    pub fn checkpoint_topology(&self, graph: &pb::JobGraph) -> Topology {
        let tasks = self
            .graph
            .tasks()
            .iter()
            .enumerate()
            .map(|(task, at)| Task {
                vertex_id: self.graph.vertices()[at.vertex].id.to_string(),
                subtask: at.subtask,
                region: at.region,
                is_source: self.graph.is_source(task),
            });
        let not_checkpointed = self.checkpointing.not_checkpointed.clone();
        Topology::new(tasks.collect(), not_checkpointed).with_steps(restore::steps(graph))
    }

    /// The state of the job when its JobMaster begins, for the checkpoints.
    pub fn checkpoint_start(&self) -> JobStart {
        let ends = self.durable_ends();
        let regions = self.graph.regions().iter().enumerate();
        let regions = regions.map(|(number, at)| {
            let generation = self.record.decided().regions[number].generation;
            let ends = ends.get(&number).cloned().unwrap_or_default();
            match at.phase {
                RegionPhase::Reconciling => RegionStart::Placed {
                    generation,
                    places: self.places(number),
                    ends,
                },
                RegionPhase::Deployed => RegionStart::Finished { generation, ends },
                RegionPhase::AwaitingInput
                | RegionPhase::Waiting { .. }
                | RegionPhase::Placed
                | RegionPhase::Stopping { .. } => RegionStart::Waiting { generation },
            }
        });
        JobStart {
            began_ms: self.record.decided().submitted_at_ms,
            regions: regions.collect(),
            coordinators: self.record.durable().coordinators.clone(),
            is_end_decided: self.record.is_stopping(),
        }
    }

    /// Where the tasks of a region are.
    fn places(&self, region: usize) -> Vec<(usize, ResourceId)> {
        let tasks = self.graph.region(region).tasks.iter();
        let places = tasks.filter_map(|task| {
            let place = self.graph.execution(*task).place.as_ref()?;
            Some((*task, place.task_manager.clone()))
        });
        places.collect()
    }

    /// The durable ends of finished tasks, by region.
    fn durable_ends(&self) -> BTreeMap<usize, Vec<(usize, TaskEnd)>> {
        let mut ends: BTreeMap<usize, Vec<(usize, TaskEnd)>> = BTreeMap::new();
        let durable = self.record.durable();
        for end in &durable.terminal {
            let Some(task) = self.graph.find(&end.vertex_id, end.subtask) else {
                continue;
            };
            let region = self.graph.task(task).region;
            let is_present = durable.regions[region].generation == end.generation;
            if is_present && end.state() == ExecutionState::Finished {
                let of_region = ends.entry(region).or_default();
                let output = (&*end.checkpoint_committables, &*end.committables);
                let end = task_end(end.highest_checkpoint, output.0, output.1);
                of_region.push((task, end));
            }
        }
        ends
    }

    /// Tells the checkpoints the changes that a write has made durable: decisions of coordinators, and finished
    /// regions.
    pub(super) fn tell_written(&mut self, ended: &[usize], before: &[pb::CoordinatorState]) {
        if !self.checkpointing.is_on() {
            return;
        }
        let coordinators = &self.record.durable().coordinators;
        if coordinators != before {
            let coordinators = coordinators.clone();
            self.out.tell(Event::CoordinatorsChanged(coordinators));
        }
        let regions = ended.iter().map(|task| self.graph.task(*task).region);
        let regions: BTreeSet<usize> = regions.collect();
        let has_finished = |region: &usize| {
            let mut tasks = self.graph.region(*region).tasks.iter();
            tasks.all(|task| self.record.has_durably_finished(*task))
        };
        let finished: Vec<usize> = regions.into_iter().filter(has_finished).collect();
        if finished.is_empty() {
            return;
        }
        let mut ends = self.durable_ends();
        for region in finished {
            let generation = self.record.durable_generation(region);
            let ends = ends.remove(&region).unwrap_or_default();
            // A manifest that is still to be written may have to list its last output.
            self.checkpointing.awaits_answer = true;
            self.out.tell(Event::RegionFinished {
                region,
                generation,
                ends,
            });
        }
    }

    /// Tells the checkpoints which regions run completely since the last call, and that the job ends.
    pub(super) fn notify_checkpoints(&mut self) {
        let running = self.graph.take_newly_running();
        if !self.checkpointing.is_on() {
            return;
        }
        for region in running {
            let tally = &self.graph.indexes().regions[region];
            let runs = tally.live > 0 && tally.running == tally.live;
            if runs && self.graph.region(region).phase == RegionPhase::Deployed {
                let generation = self.record.decided().regions[region].generation;
                self.out.tell(Event::RegionRunning { region, generation });
            }
        }
        if self.record.is_stopping()
            && !std::mem::replace(&mut self.checkpointing.is_end_told, true)
        {
            self.out.tell(Event::EndDecided);
        }
    }
}

/// The end of a task. `committables` become visible with the manifest of its region's end, `output` with the end of the
/// job; until then checkpoints keep it.
pub(super) fn task_end(
    highest: u64,
    committables: &[pb::CheckpointCommittable],
    output: &[pb::Committable],
) -> TaskEnd {
    TaskEnd {
        highest,
        committables: committables.to_vec(),
        output: output.to_vec(),
    }
}

/// The regions with a source that has no position.
fn without_positions(graph: &pb::JobGraph, execution: &ExecutionGraph) -> BTreeSet<usize> {
    let has_none = |operator: &pb::Operator| {
        let spec = OperatorSpec::from_json(&operator.spec);
        spec.map_or(true, |spec| {
            spec.is_source() && !spec.declaration().has_position()
        })
    };
    let vertices = graph.vertices.iter().enumerate();
    vertices
        .filter(|(_, vertex)| vertex.operators.iter().any(has_none))
        .flat_map(|(number, _)| execution.regions_of(number))
        .collect()
}

/// The regions that take no part in checkpoints, and why.
fn not_checkpointed(graph: &pb::JobGraph, execution: &ExecutionGraph) -> BTreeMap<usize, String> {
    let mut reasons = BTreeMap::new();
    for (number, vertex) in graph.vertices.iter().enumerate() {
        let reason = match execution.is_at_blocking_edge(number) {
            true => Some(format!(
                "{} is at a blocking edge: its result would be made again in another order",
                vertex.name
            )),
            false => vertex.operators.iter().find_map(not_saved),
        };
        if let Some(reason) = reason {
            for region in execution.regions_of(number) {
                reasons.entry(region).or_insert_with(|| reason.clone());
            }
        }
    }
    reasons
}

/// Why a checkpoint can't save an operator.
fn not_saved(operator: &pb::Operator) -> Option<String> {
    let why = match OperatorSpec::from_json(&operator.spec) {
        Ok(spec) => match spec.declaration().state() {
            StateUse::None | StateUse::Saved => return None,
            StateUse::NotSaved(why) => why.to_owned(),
        },
        Err(error) => format!("its specification can't be read: {error}"),
    };
    Some(format!("{}: {why}", operator.name))
}
