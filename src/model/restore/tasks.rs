//! The snapshot of each task of a graph, put together from what the steps saved in another one.
//!
//! A task is ended if each of its steps had ended and so are all tasks that it reads from. Otherwise a source that had
//! read everything gets a position that says so, since one without a position begins from the start. Key groups of a
//! subtask that had ended stay without entries: their results are emitted, and no record of them can follow.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use tanist_proto::segments::counts_for;
use tanist_proto::v1::{
    JobGraph, JobVertex, Operator, OperatorState, SourcePosition, StateRedistribution,
    StateSegment, SubtaskSnapshot,
};

use super::planted::{Fault, is_planted};
use super::saved::{Part, Saved, SavedStep};
use super::shares::{DividedStates, Rule, Shares};
use crate::OperatorSpec;
use crate::job_graph::shown;
use crate::operators::Redistribution;
use crate::topology::{self, key_groups};

/// A step of the graph that saved something in the other one.
struct Claimed<'m, 's> {
    saved: &'s SavedStep<'m>,
    spec: OperatorSpec,
    /// The description of its keyed state in the graph.
    keyed: String,
    /// As messages name it.
    name: String,
    /// In the graph.
    parallelism: u32,
    /// The snapshots of subtasks that had not ended, and of those that had.
    parts: Shares<'m>,
    ends: Shares<'m>,
    /// Empty if the parallelism is the same: then the states are in `parts`.
    states: DividedStates<'m>,
    /// Names of its keyed states.
    keyed_names: BTreeSet<&'m str>,
}

/// How a step begins in one task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// From the start.
    Start,
    /// It had ended, and does nothing.
    Ended,
    /// With what was saved.
    Saved,
}

/// The tasks of a graph, and all problems.
pub(super) fn redistribute(
    saved: &Saved<'_>,
    graph: &JobGraph,
) -> Result<Vec<SubtaskSnapshot>, Vec<String>> {
    let mut problems = Vec::new();
    let mut vertices: Vec<Vec<Option<Claimed<'_, '_>>>> = Vec::new();
    for vertex in &graph.vertices {
        let operators = vertex.operators.iter();
        let claimed = operators.map(|it| claim(saved, vertex, it, &mut problems));
        vertices.push(claimed.collect());
    }
    // Whether each subtask of the vertices so far has ended. These include all that a vertex reads from, because a
    // graph is in topological order.
    let mut ended: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
    let mut tasks = Vec::new();
    for (vertex, steps) in graph.vertices.iter().zip(&vertices) {
        let mut of_vertex = Vec::new();
        for subtask in 0..vertex.parallelism {
            let has_ended = steps.iter().all(|step| {
                let begin = step.as_ref().map(|step| step.begin(subtask));
                begin == Some(Begin::Ended)
            }) && sources_have_ended(graph, vertex, subtask, &ended);
            let mut task = SubtaskSnapshot {
                vertex_id: vertex.id.clone(),
                subtask,
                ended: has_ended,
                from_start: reads_from_start(vertex, steps, subtask),
                ..SubtaskSnapshot::default()
            };
            for step in steps.iter().flatten() {
                step.add_to(&mut task);
                if !has_ended && step.begin(subtask) == Begin::Ended && step.saved.has_output() {
                    problems.push(format!(
                        "step {} has output of subtasks that had ended which is not visible yet, and here they have \
                         not ended: keep what comes before it",
                        step.name
                    ));
                }
            }
            of_vertex.push(has_ended);
            tasks.push(task);
        }
        ended.insert(&vertex.id, of_vertex);
    }
    problems.sort();
    problems.dedup();
    match problems.is_empty() {
        true => Ok(tasks),
        false => Err(problems),
    }
}

/// Steps of the manifest with state that no step of the graph has.
pub(super) fn unclaimed<'m>(saved: &Saved<'m>, graph: &JobGraph) -> Vec<&'m str> {
    let operators = graph.vertices.iter().flat_map(|it| &it.operators);
    let claimed: BTreeSet<&str> = operators.map(topology::uid).collect();
    let steps = saved.steps.iter();
    let unclaimed = steps.filter(|(uid, step)| !claimed.contains(**uid) && step.has_state());
    unclaimed.map(|(uid, _)| *uid).collect()
}

/// Whether a subtask has a source of which nothing was saved.
fn reads_from_start(vertex: &JobVertex, steps: &[Option<Claimed<'_, '_>>], subtask: u32) -> bool {
    match steps.first() {
        Some(Some(claimed)) => claimed.spec.is_source() && claimed.begin(subtask) == Begin::Start,
        Some(None) => {
            let spec = vertex
                .operators
                .first()
                .map(|it| OperatorSpec::from_json(&it.spec));
            spec.is_some_and(|spec| spec.is_ok_and(|spec| spec.is_source()))
        }
        None => false,
    }
}

/// Whether all tasks that write to this one have ended.
fn sources_have_ended(
    graph: &JobGraph,
    vertex: &JobVertex,
    subtask: u32,
    ended: &BTreeMap<&str, Vec<bool>>,
) -> bool {
    let mut edges = graph.edges.iter().filter(|edge| edge.target == vertex.id);
    edges.all(|edge| {
        let feeding = topology::feeding_subtasks(graph, edge, subtask);
        let of_source = ended.get(&*edge.source);
        of_source.is_some_and(|of_source| {
            let mut sources = feeding.map(|it| usize::try_from(it).unwrap_or(usize::MAX));
            sources.all(|it| of_source.get(it).copied().unwrap_or(false))
        })
    })
}

/// Whether a state says how it is divided, and not its step.
pub(super) fn divides_itself(state: &OperatorState) -> bool {
    state.redistribution() != StateRedistribution::Unspecified
}

/// Finds what a step saved, and checks that it can take it.
fn claim<'m, 's>(
    saved: &'s Saved<'m>,
    vertex: &JobVertex,
    operator: &Operator,
    problems: &mut Vec<String>,
) -> Option<Claimed<'m, 's>> {
    let saved = saved.steps.get(topology::uid(operator))?;
    let name = shown(&operator.name);
    let spec = match OperatorSpec::from_json(&operator.spec) {
        Ok(spec) => spec,
        Err(error) => {
            problems.push(format!(
                "step {name}: its specification is not known: {error}"
            ));
            return None;
        }
    };
    let parallelism = vertex.parallelism;
    let is_redistributed = saved.step.parallelism != parallelism;
    let rule = match is_redistributed {
        true => Rule::Redistributed(spec.redistribution()),
        false => Rule::Kept,
    };
    let ends = match is_redistributed {
        true => Rule::Redistributed(Redistribution::List),
        false => Rule::Kept,
    };
    let states = match is_redistributed {
        true => DividedStates::of(saved, parallelism),
        false => DividedStates::default(),
    };
    let keyed = saved.saved().flat_map(|(_, it)| saved.keyed(it));
    let claimed = Claimed {
        saved,
        keyed: super::keyed_state(operator),
        spec,
        name,
        parallelism,
        parts: Shares::of(saved.saved().map(|(_, it)| it), parallelism, rule),
        ends: Shares::of(saved.ended(), parallelism, ends),
        states,
        keyed_names: keyed.map(|it| &*it.name).collect(),
    };
    problems.extend(claimed.problems(vertex.max_parallelism));
    Some(claimed)
}

impl Claimed<'_, '_> {
    fn is_redistributed(&self) -> bool {
        self.saved.step.parallelism != self.parallelism
    }

    fn problems(&self, max_parallelism: u32) -> Vec<String> {
        let (saved, name, mut problems) = (self.saved, &self.name, Vec::new());
        let (step, kind) = (saved.step, self.spec.kind());
        let had_ended = self.spec.is_source() && saved.ended().next().is_some();
        if (saved.has_state() || had_ended) && step.kind != kind {
            problems.push(format!(
                "step {name} is `{kind}`, and its state is that of `{}`: give it another uid, and leave that state behind",
                step.kind
            ));
        }
        let (here, there) = (&self.keyed, &step.keyed);
        let are_known = !here.is_empty() && !there.is_empty();
        if step.kind == kind && saved.has_keyed() && are_known && here != there {
            problems.push(format!(
                "the state of step {name} is `{there}`, and here the step is `{here}`: give it another uid, and leave that state behind"
            ));
        }
        if saved.has_keyed() && step.max_parallelism != max_parallelism {
            problems.push(format!(
                "step {name} has maximum parallelism {max_parallelism}, and its state has {there}: keys stay in the key groups \
                 of the state: set `max-parallelism: {there}` in the job file",
                there = step.max_parallelism
            ));
        }
        if saved.saved().any(|(_, it)| !it.channels.is_empty()) {
            problems.push(format!(
                "the state of step {name} has batches of its channels, which another job can't take up"
            ));
        }
        if !self.is_redistributed() {
            return problems;
        }
        let (here, there) = (self.parallelism, step.parallelism);
        // Ordered: the first reason is reported.
        let why = if saved.has_starts() && !saved.all_start() {
            Some("is missing for some of its subtasks, which had saved nothing yet")
        } else if self.spec.redistribution() == Redistribution::SameParallelism
            && saved.has_undivided()
        {
            Some("can't be divided among another number of subtasks")
        } else if saved.has_output() && !saved.all_ended() {
            Some("has output of subtasks that had ended which is not visible yet")
        } else {
            None
        };
        problems.extend(why.map(|why| {
            format!("step {name} has parallelism {here}, and its state, of parallelism {there}, {why}: keep {there}")
        }));
        problems
    }

    /// How it begins in this task.
    fn begin(&self, subtask: u32) -> Begin {
        if !self.is_redistributed() {
            return match self.saved.part(subtask) {
                Some(Part::Ended(_)) => Begin::Ended,
                Some(Part::Saved(_)) => Begin::Saved,
                None => Begin::Start,
            };
        }
        if self.saved.all_start() {
            Begin::Start
        } else if self.saved.all_ended() {
            Begin::Ended
        } else {
            Begin::Saved
        }
    }

    /// Adds what the step has in this task.
    fn add_to(&self, task: &mut SubtaskSnapshot) {
        if task.ended {
            for (_, ended) in self.ends.of_subtask(task.subtask) {
                if self.saved.is_last {
                    task.output.extend(ended.output.iter().cloned());
                }
            }
            return;
        }
        match self.begin(task.subtask) {
            Begin::Start => {}
            Begin::Ended => {
                if self.spec.is_source() {
                    task.positions.push(SourcePosition {
                        uid: self.saved.step.uid.clone(),
                        ended: true,
                        ..SourcePosition::default()
                    });
                }
            }
            Begin::Saved => self.add_saved(task),
        }
    }

    fn add_saved(&self, task: &mut SubtaskSnapshot) {
        let uid = &self.saved.step.uid;
        for (is_own, saved) in self.parts.of_subtask(task.subtask) {
            let positions = saved.positions.iter().filter(|it| it.uid == *uid);
            task.positions.extend(positions.map(|it| SourcePosition {
                // The coordinator counts the requests of another parallelism from the start.
                request: if self.is_redistributed() {
                    0
                } else {
                    it.request
                },
                ..it.clone()
            }));
            let states = saved.operators.iter().filter(|it| it.uid == *uid);
            let states = states.filter(|it| !self.is_redistributed() || !divides_itself(it));
            task.operators.extend(states.cloned());
            let segments = saved.segments.iter();
            let unkeyed = segments.filter(|it| it.uid == *uid && it.end_key_group == 0);
            task.segments.extend(unkeyed.cloned());
            // Each file belongs to one task, also if all tasks get the part.
            if is_own && self.saved.is_last {
                task.files.extend(saved.files.iter().cloned());
            }
        }
        task.operators.extend(self.states.of_subtask(task.subtask));
        self.add_keyed(task);
    }

    /// Adds the segments that count for key groups of this subtask, subtask by subtask of the manifest, in the order in
    /// which each has them. For a state of which such a subtask saved no segment, an empty one is added: it had no
    /// entries.
    fn add_keyed(&self, task: &mut SubtaskSnapshot) {
        let (saved, step) = (self.saved, self.saved.step);
        let names = &self.keyed_names;
        if names.is_empty() {
            return;
        }
        let max = step.max_parallelism;
        let own = key_groups(task.subtask, self.parallelism, max);
        let lost = u32::from(is_planted(Fault::KeyGroupLost));
        let meet = |groups: &Range<u32>| groups.start + lost < own.end && own.start < groups.end;
        for subtask in 0..step.parallelism {
            // The segments of that subtask count for no other groups: `Saved::of` has checked that.
            let groups = key_groups(subtask, step.parallelism, max);
            if !meet(&groups) {
                continue;
            }
            let mut missing = names.clone();
            if let Some(Part::Saved(part)) = saved.part(subtask) {
                for segment in saved.keyed(part) {
                    missing.remove(&*segment.name);
                    if counts_for(segment, own.clone()) {
                        task.segments.push(segment.clone());
                    }
                }
            }
            task.segments
                .extend(missing.into_iter().map(|name| StateSegment {
                    uid: step.uid.clone(),
                    name: name.to_owned(),
                    first_key_group: groups.start,
                    end_key_group: groups.end,
                    ..StateSegment::default()
                }));
        }
    }
}
