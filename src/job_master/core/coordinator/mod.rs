//! Operator coordinators: the half of an operator that runs in the JobMaster. Each is prepared once for each
//! generation of a region and answers requests of its subtasks. See `docs/adr/0023`.
//!
//! An operator whose subtasks are in different regions has one coordinator for all of them. Its preparation
//! is valid as long as any region is placed that was placed with it (`docs/adr/0024`). Answers given to a
//! subtask stay assigned to it: its next execution asks from the first request on and gets the same answers.
//!
//! Pure: directories are read outside ([`crate::coordinator_preparation`]). A coordinator's decision is a change of
//! [`pb::CoordinatorState`], which is part of the job's record. `preparation.rs` records the prepared states with the
//! placement, `requests.rs` decides on requests and answers them from the durable record. Invariants: the answer to a
//! request's number never changes within a generation, and only the next number makes a new one.
//!
//! To add another operator's coordinator, add a [`Kind`], a case of the state, and a case of the answer.

pub(super) mod file_splits;
mod preparation;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tanist_model::{file_source, files};
use tanist_proto::v1 as pb;
use tanist_proto::v1::ask_coordinator_response::Answer;
use tanist_proto::v1::coordinator_state::State;

use super::execution_graph::ExecutionGraph;

pub(crate) use self::file_splits::{MOST_PATH_BYTES, cut};

/// An operator that has a coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coordinated {
    /// Its vertex.
    pub vertex_id: String,
    /// Its name.
    pub operator: String,
    /// Number of subtasks, all of which send requests.
    pub parallelism: u32,
    /// The kind of its coordinator.
    pub kind: Kind,
}

/// The kind of a coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Assigns parts of files to subtasks.
    FileSplits {
        /// Paths or globs.
        paths: Vec<String>,
        /// Maximum total length of the names of all files, in bytes.
        most_path_bytes: usize,
    },
}

/// Why a coordinator could not be prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unprepared {
    /// The cause, for users.
    pub cause: String,
    /// Whether every other attempt would fail the same way.
    pub is_unrecoverable: bool,
}

/// The result of deciding on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// A new answer was decided.
    Decided,
    /// The request already had its answer.
    AsBefore,
    /// Invalid: the requests before it were never made.
    OutOfTurn,
}

/// Decides on the request with this number.
pub(super) fn take(state: &mut State, subtask: u32, number: u64) -> Taken {
    match state {
        State::FileSplits(splits) => file_splits::take(splits, subtask, number),
    }
}

/// The answer to the request with this number, if one was decided.
fn answer(state: &State, subtask: u32, number: u64) -> Option<Answer> {
    match state {
        State::FileSplits(splits) => file_splits::answer(splits, subtask, number),
    }
}

/// The operators of a graph that have a coordinator.
fn coordinated(graph: &pb::JobGraph) -> Vec<Coordinated> {
    let of_vertex = |vertex: &pb::JobVertex| {
        let (vertex_id, parallelism) = (vertex.id.clone(), vertex.parallelism);
        let operators = vertex.operators.iter().filter_map(move |operator| {
            let kind = Kind::FileSplits {
                paths: file_source(&operator.spec)?.paths,
                most_path_bytes: MOST_PATH_BYTES,
            };
            Some(Coordinated {
                vertex_id: vertex_id.clone(),
                operator: operator.name.clone(),
                parallelism,
                kind,
            })
        });
        operators.collect::<Vec<_>>()
    };
    let mut all: Vec<Coordinated> = graph.vertices.iter().flat_map(of_vertex).collect();
    let share = MOST_PATH_BYTES / all.len().max(1);
    for it in &mut all {
        let Kind::FileSplits {
            most_path_bytes, ..
        } = &mut it.kind;
        *most_path_bytes = share;
    }
    all
}

/// Progress of the preparation of a group.
#[derive(Debug, Clone)]
enum Preparation {
    /// Requested, for the operators that have no coordinator in the record.
    Requested {
        generation: u64,
        operators: Arc<[Coordinated]>,
    },
    /// Done. The states are recorded with the placement.
    Ready {
        generation: u64,
        states: Vec<pb::CoordinatorState>,
    },
}

/// (task, name of the operator, number of the request).
type RequestKey = (usize, String, u64);

/// A pending request.
#[derive(Debug)]
struct Pending {
    token: u64,
    generation: u64,
}

/// A group of operators that have regions in common. Their coordinators are prepared together: one look at the files
/// ([`files::Look`]) for all of them.
#[derive(Debug)]
struct Group {
    operators: Arc<[Coordinated]>,
    /// All vertices in the regions.
    vertices: BTreeSet<usize>,
    /// Sorted.
    regions: Vec<usize>,
    /// Whether one of the regions may run again without the others after all have durably finished. Then the record
    /// keeps the coordinators until the job ends.
    may_run_again_in_part: bool,
    /// The regions in which a task failed by itself since the last preparation.
    failed: BTreeSet<usize>,
    /// A region has failed twice with this preparation, which may be outdated: with the next restart all regions of the
    /// group begin with another one.
    is_doubted: bool,
}

impl Group {
    /// Whether a preparation for this generation of the group is the first, i.e. before any of the regions has run. The
    /// generation of a group is the sum of its regions' generations, each at least 1, so the first one is their number.
    fn look_of(&self, generation: u64) -> files::Look {
        match usize::try_from(generation) {
            Ok(generation) if generation <= self.regions.len() => files::Look::First,
            Ok(_) | Err(_) => files::Look::Later,
        }
    }
}

/// Whether one of these regions may run again without the others after all have durably finished. Its output
/// may be lost while another region waits for it. Or its input is produced again for another reader, and then
/// this region reads it again (`docs/adr/0011`, point 4). Over a forward edge only one subtask is affected.
/// No other durably finished region runs again.
fn may_run_again_in_part(execution: &ExecutionGraph, regions: &BTreeSet<usize>) -> bool {
    let is_at_blocking_edge = |region: &usize| {
        let mut tasks = execution.region(*region).tasks.iter();
        tasks.any(|task| execution.is_at_blocking_edge(execution.task(*task).vertex))
    };
    regions.len() > 1 && regions.iter().any(is_at_blocking_edge)
}

/// The coordinators of a job. Most jobs have none.
#[derive(Debug)]
pub(super) struct Coordinators {
    of_job: Option<Box<Coordination>>,
}

/// All coordinators of a job, in groups.
#[derive(Debug)]
struct Coordination {
    groups: Vec<Group>,
    /// By group.
    preparations: BTreeMap<usize, Preparation>,
    /// Pending requests. Keyed by number, too, so that a late copy does not replace the next request.
    pending: BTreeMap<RequestKey, Pending>,
    /// Pending requests to examine even without a write: they are new, or the execution that sent them may be
    /// gone.
    open: BTreeSet<RequestKey>,
    /// Whether the job has ended, so that no request is accepted.
    is_closed: bool,
    /// Whether the decided record has decisions that neither the write in flight nor the last one contains.
    has_decided: bool,
}

impl Coordinators {
    /// The coordinators of a graph. Sets the group number of each region.
    pub(super) fn of(graph: &pb::JobGraph, execution: &mut ExecutionGraph) -> Coordinators {
        let mut found: Vec<(Vec<Coordinated>, BTreeSet<usize>)> = Vec::new();
        for it in coordinated(graph) {
            let Some(task) = execution.find(&it.vertex_id, 0) else {
                continue;
            };
            let regions: Vec<usize> = execution.regions_of(execution.task(task).vertex).collect();
            // Vertices that share one region share all, under any region rule.
            let mut known = regions.iter();
            let known = known.find_map(|region| execution.region(*region).coordinator_group);
            let number = known.unwrap_or_else(|| {
                found.push(Default::default());
                found.len() - 1
            });
            for region in &regions {
                execution.set_coordinator_group(*region, number);
            }
            found[number].0.push(it);
            found[number].1.extend(regions);
        }
        if found.is_empty() {
            return Coordinators { of_job: None };
        }
        execution.recount();
        let vertices_of = |region: &usize| {
            let tasks = execution.region(*region).tasks.iter();
            tasks.map(|task| execution.task(*task).vertex)
        };
        let groups = found.into_iter().map(|(operators, regions)| Group {
            operators: operators.into(),
            vertices: regions.iter().flat_map(vertices_of).collect(),
            may_run_again_in_part: may_run_again_in_part(execution, &regions),
            regions: regions.into_iter().collect(),
            failed: BTreeSet::new(),
            is_doubted: false,
        });
        let coordination = Coordination {
            groups: groups.collect(),
            preparations: BTreeMap::new(),
            pending: BTreeMap::new(),
            open: BTreeSet::new(),
            is_closed: false,
            has_decided: false,
        };
        Coordinators {
            of_job: Some(Box::new(coordination)),
        }
    }
}

impl Coordination {
    /// The group that a coordinator's state belongs to.
    fn group_of_state(execution: &ExecutionGraph, state: &pb::CoordinatorState) -> Option<usize> {
        let task = execution.find(&state.vertex_id, 0)?;
        execution
            .region(execution.task(task).region)
            .coordinator_group
    }

    /// The operators of a group that have no coordinator in a record. A job that was started with the state of another
    /// one has those of some.
    fn missing(&self, record: &pb::JobState, group: usize) -> Vec<&Coordinated> {
        let states = &record.coordinators;
        let is_missing = |it: &&Coordinated| {
            let mut states = states.iter();
            !states.any(|state| state.vertex_id == it.vertex_id && state.operator == it.operator)
        };
        self.groups[group]
            .operators
            .iter()
            .filter(is_missing)
            .collect()
    }

    /// The generation of a group: the sum of its regions' generations.
    fn generation(&self, record: &pb::JobState, group: usize) -> u64 {
        let regions = self.groups[group].regions.iter();
        let generations = regions.map(|region| record.regions[*region].generation.max(1));
        generations.fold(0, u64::saturating_add)
    }

    /// The index in the record of the coordinator that answers this execution of a task.
    fn find(
        &self,
        record: &pb::JobState,
        execution: &ExecutionGraph,
        (task, generation): (usize, u64),
        operator: &str,
    ) -> Option<usize> {
        let at = execution.task(task);
        let group = execution.region(at.region).coordinator_group?;
        // In a group of several regions, one may have been placed later than the first.
        let is_apart = self.groups[group].regions.len() == 1;
        record.coordinators.iter().position(|it| {
            (!is_apart || it.generation == generation)
                && it.operator == operator
                && execution.find(&it.vertex_id, 0) == Some(execution.vertices()[at.vertex].first)
        })
    }
}
