//! The JobMaster's halves of operators: what they know, prepared once for each generation of a region, and what they decide
//! when a subtask asks. See `docs/adr/0023`.
//!
//! An operator whose subtasks are in regions of their own has one half for all of them: what was found out holds as long as any of
//! those regions is placed that was placed with it (`docs/adr/0024`). What a subtask was given stays its own: its next execution asks
//! from the first request on, and is given the same.
//!
//! Pure but for [`Kind::prepare`], which looks at files and runs beside the actor. What a coordinator decides is a change of
//! [`pb::CoordinatorState`], which is part of the job's record; [`asking`] makes those changes and answers from what is durable.
//! Invariants: the answer to a request's number never changes within a generation, and only the next number makes a new one.
//!
//! Another operator's coordinator is one more [`Kind`], one more case of the state, and one of the answer.

mod asking;
mod file_splits;
#[cfg(test)]
mod file_splits_tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tanist_proto::v1 as pb;
use tanist_proto::v1::ask_coordinator_response::Answer;
use tanist_proto::v1::coordinator_state::State;

use super::execution_graph::ExecutionGraph;
use crate::dataflow;
use crate::job::{OperatorSpec, coordinated_spec};

pub use self::file_splits::MOST_PATH_BYTES;

/// An operator that has a half here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coordinated {
    /// Its vertex.
    pub vertex_id: String,
    /// Its name.
    pub operator: String,
    /// How many subtasks ask.
    pub parallelism: u32,
    /// What it is asked for.
    pub kind: Kind,
}

/// What a coordinator is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Hands out parts of files.
    FileSplits {
        /// Paths or globs.
        paths: Vec<String>,
        /// How many bytes the names of all files may take.
        most_path_bytes: usize,
    },
}

impl Kind {
    /// Finds out what the coordinator has to know. Blocks.
    fn prepare(&self, parallelism: u32, look: dataflow::Look) -> Result<State, Unprepared> {
        match self {
            Kind::FileSplits {
                paths,
                most_path_bytes,
            } => {
                let splits = file_splits::prepare(paths, parallelism, *most_path_bytes, look);
                splits.map(State::FileSplits)
            }
        }
    }
}

/// Why it could not be found out what a coordinator has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unprepared {
    /// For people.
    pub cause: String,
    /// Whether every further attempt would end the same way.
    pub is_unrecoverable: bool,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// Something was decided.
    Decided,
    /// It has its answer already.
    AsBefore,
    /// The requests before it were never made.
    OutOfTurn,
}

/// Decides on the request with this number.
fn take(state: &mut State, subtask: u32, number: u64) -> Taken {
    match state {
        State::FileSplits(splits) => file_splits::take(splits, subtask, number),
    }
}

/// The answer to the request with this number, as far as one was decided.
fn answer(state: &State, subtask: u32, number: u64) -> Option<Answer> {
    match state {
        State::FileSplits(splits) => file_splits::answer(splits, subtask, number),
    }
}

/// Prepares all coordinators of a look. Blocks.
pub(super) fn prepare(
    operators: &[Coordinated],
    generation: u64,
    look: dataflow::Look,
) -> Result<Vec<pb::CoordinatorState>, Unprepared> {
    let prepared = operators.iter().map(|it| {
        let state = it.kind.prepare(it.parallelism, look);
        let state = state.map_err(|error| Unprepared {
            cause: format!("operator {:?}: {}", it.operator, error.cause),
            ..error
        })?;
        Ok(pb::CoordinatorState {
            vertex_id: it.vertex_id.clone(),
            operator: it.operator.clone(),
            generation,
            state: Some(state),
        })
    });
    prepared.collect()
}

/// The operators of a graph that have a half here.
fn coordinated(graph: &pb::JobGraph) -> Vec<Coordinated> {
    let of_vertex = |vertex: &pb::JobVertex| {
        let (vertex_id, parallelism) = (vertex.id.clone(), vertex.parallelism);
        let operators = vertex.operators.iter().filter_map(move |operator| {
            let kind = match coordinated_spec(&operator.spec)? {
                OperatorSpec::FileSource { paths, .. } => Kind::FileSplits {
                    paths,
                    most_path_bytes: MOST_PATH_BYTES,
                },
                _ => return None,
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

/// How far the preparation of what is found out together is.
#[derive(Debug, Clone)]
enum Preparation {
    /// Under way.
    Asked { generation: u64 },
    /// This goes into the record with the placement.
    Ready {
        generation: u64,
        states: Vec<pb::CoordinatorState>,
    },
}

/// A task, an operator of it, and the number of its request.
type Question = (usize, String, u64);

/// A request that is not answered.
#[derive(Debug, Clone)]
struct Asked {
    token: u64,
    generation: u64,
}

/// The operators of regions that have their subtasks in common: what these have to know is found out together.
#[derive(Debug)]
struct Look {
    operators: Arc<[Coordinated]>,
    /// Of all that is in the regions.
    vertices: BTreeSet<usize>,
    /// In order.
    regions: Vec<usize>,
    /// Whether one of the regions may run again without all of them, though all have durably finished.
    may_run_again_in_part: bool,
    /// The regions of which a task has failed by itself with what was found out last.
    failed: BTreeSet<usize>,
    /// One has failed twice: what was found out may not be so any more.
    is_doubted: bool,
}

impl Look {
    /// Whether the one of this generation is the first, in which none of the regions has run yet: each of them counts for one.
    fn present_look(&self, generation: u64) -> dataflow::Look {
        match usize::try_from(generation) {
            Ok(generation) if generation <= self.regions.len() => dataflow::Look::First,
            Ok(_) | Err(_) => dataflow::Look::Later,
        }
    }
}

/// Whether one of these regions may run again without all of them, though all have durably finished. What one has made may be lost while
/// somebody waits for it; and what one has read may be made again, for another reader that waits for it, so that this one reads it again
/// (`docs/adr/0011`, point 4). Over a forward edge that is one subtask's affair. Nothing else runs again that has durably finished.
fn may_run_again_in_part(execution: &ExecutionGraph, regions: &BTreeSet<usize>) -> bool {
    let is_at_blocking_edge = |region: &usize| {
        let mut tasks = execution.regions[*region].tasks.iter();
        tasks.any(|task| execution.is_at_blocking_edge(execution.tasks[*task].vertex))
    };
    regions.len() > 1 && regions.iter().any(is_at_blocking_edge)
}

/// All coordinators of a job.
#[derive(Debug)]
pub(super) struct Coordination {
    looks: Vec<Look>,
    /// By look.
    preparations: BTreeMap<usize, Preparation>,
    /// By task, operator and number. A copy that comes late does not take the place of the next one.
    asked: BTreeMap<Question, Asked>,
    /// Those of them that are to be looked at though nothing was written: they are new, or whoever asked may be gone.
    open: BTreeSet<Question>,
    /// Whether the record has decisions that the write under way, or the last one, has not.
    has_decided: bool,
}

impl Coordination {
    /// Those of a graph; none if it has none. The regions learn which look is theirs.
    pub(super) fn of(
        graph: &pb::JobGraph,
        execution: &mut ExecutionGraph,
    ) -> Option<Box<Coordination>> {
        let mut found: Vec<(Vec<Coordinated>, BTreeSet<usize>)> = Vec::new();
        for it in coordinated(graph) {
            let Some(task) = execution.find(&it.vertex_id, 0) else {
                continue;
            };
            let regions: Vec<usize> = execution.regions_of(execution.tasks[task].vertex).collect();
            // Vertices that have one region in common have all, by whatever rule.
            let mut known = regions.iter();
            let known = known.find_map(|region| execution.regions[*region].look);
            let number = known.unwrap_or_else(|| {
                found.push(Default::default());
                found.len() - 1
            });
            for region in &regions {
                execution.regions[*region].look = Some(number);
            }
            found[number].0.push(it);
            found[number].1.extend(regions);
        }
        if found.is_empty() {
            return None;
        }
        execution.recount();
        let vertices_of = |region: &usize| {
            let tasks = execution.regions[*region].tasks.iter();
            tasks.map(|task| execution.tasks[*task].vertex)
        };
        let looks = found.into_iter().map(|(operators, regions)| Look {
            operators: operators.into(),
            vertices: regions.iter().flat_map(vertices_of).collect(),
            may_run_again_in_part: may_run_again_in_part(execution, &regions),
            regions: regions.into_iter().collect(),
            failed: BTreeSet::new(),
            is_doubted: false,
        });
        Some(Box::new(Coordination {
            looks: looks.collect(),
            preparations: BTreeMap::new(),
            asked: BTreeMap::new(),
            open: BTreeSet::new(),
            has_decided: false,
        }))
    }

    /// The number of the look that a coordinator's state is of.
    fn look_of_state(execution: &ExecutionGraph, state: &pb::CoordinatorState) -> Option<usize> {
        let task = execution.find(&state.vertex_id, 0)?;
        execution.regions[execution.tasks[task].region].look
    }

    /// Whether a record has what a look found out.
    fn is_in(&self, record: &pb::JobState, execution: &ExecutionGraph, look: usize) -> bool {
        let mut states = record.coordinators.iter();
        states.any(|state| Coordination::look_of_state(execution, state) == Some(look))
    }

    /// The generation of a look, which grows with any of its regions'.
    fn generation(&self, record: &pb::JobState, look: usize) -> u64 {
        let regions = self.looks[look].regions.iter();
        let generations = regions.map(|region| record.regions[*region].generation.max(1));
        generations.fold(0, u64::saturating_add)
    }

    /// The place in a record of the coordinator that this execution of a task may ask.
    fn find(
        &self,
        record: &pb::JobState,
        execution: &ExecutionGraph,
        (task, generation): (usize, u64),
        operator: &str,
    ) -> Option<usize> {
        let at = &execution.tasks[task];
        let look = execution.regions[at.region].look?;
        // One of several regions may have been placed later than the first one that was placed with it.
        let is_apart = self.looks[look].regions.len() == 1;
        record.coordinators.iter().position(|it| {
            (!is_apart || it.generation == generation)
                && it.operator == operator
                && execution.find(&it.vertex_id, 0) == Some(execution.vertices[at.vertex].first)
        })
    }
}
