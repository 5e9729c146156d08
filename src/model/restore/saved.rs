//! A manifest by step: what each subtask of a step saved. Checks that the manifest is consistent in itself.
//!
//! The manifest of a savepoint may have any content. Its numbers are checked before anything is allocated by them, so
//! that the memory for it is at most a multiple of its size.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tanist_proto::segments;
use tanist_proto::v1::{
    CheckpointManifest, ManifestStep, OperatorState, RegionSnapshotKind, SubtaskSnapshot,
};

use super::tasks::divides_itself;
use crate::job_graph::{MAX_PARALLELISM_LIMIT, MAX_STEPS, shown};
use crate::topology::key_groups;

/// What a subtask of a step saved.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part<'m> {
    /// It had read and emitted everything.
    Ended(&'m SubtaskSnapshot),
    /// It had not ended: its state and positions.
    Saved(&'m SubtaskSnapshot),
}

/// What the subtasks of a vertex saved. A subtask that is not here begins from the start: its region has no snapshot.
type Parts<'m> = BTreeMap<u32, Part<'m>>;

/// A step of the graph that the manifest was taken of.
#[derive(Debug)]
pub(super) struct SavedStep<'m> {
    pub(super) step: &'m ManifestStep,
    /// Those of its vertex, which its other steps share.
    parts: Rc<Parts<'m>>,
    /// It is the first step of its vertex. Only the first one can be a source.
    is_first: bool,
    /// It is the last step of its vertex. Only the last one can be a sink, so output and files of a subtask, which name
    /// no step, belong to it.
    pub(super) is_last: bool,
}

/// All steps of a manifest, by uid.
#[derive(Debug)]
pub(super) struct Saved<'m> {
    pub(super) steps: BTreeMap<&'m str, SavedStep<'m>>,
}

impl<'m> Saved<'m> {
    /// Sorts a manifest by step. The error lists all contradictions in it.
    pub(super) fn of(manifest: &'m CheckpointManifest) -> Result<Saved<'m>, Vec<String>> {
        let has_region =
            |kind: RegionSnapshotKind| manifest.regions.iter().any(|region| region.kind() == kind);
        if has_region(RegionSnapshotKind::FromOrigin) {
            let text =
                "the job that saved it had not yet saved all that it was started from itself";
            return Err(vec![text.to_owned()]);
        }
        let may_begin = has_region(RegionSnapshotKind::FromStart);
        // Before the numbers of the manifest are used below.
        if let Some(problem) = beyond_limits(manifest) {
            return Err(vec![problem]);
        }
        let subtasks = manifest.regions.iter().flat_map(|region| &region.subtasks);
        let mut of_vertices: BTreeMap<&str, Parts<'m>> = BTreeMap::new();
        let mut problems = BTreeSet::new();
        for subtask in subtasks {
            let part = match subtask.ended {
                true => Part::Ended(subtask),
                false => Part::Saved(subtask),
            };
            let of_vertex = of_vertices.entry(&subtask.vertex_id).or_default();
            if of_vertex.insert(subtask.subtask, part).is_some() {
                let (subtask, vertex) = (subtask.subtask, &subtask.vertex_id);
                problems.insert(format!("subtask {subtask} of {vertex} is there twice"));
            }
        }
        let of_vertices = of_vertices.into_iter();
        let of_vertices: BTreeMap<&str, Rc<Parts<'m>>> = of_vertices
            .map(|(vertex, parts)| (vertex, Rc::new(parts)))
            .collect();
        let mut steps: BTreeMap<&str, SavedStep<'_>> = BTreeMap::new();
        let mut last_of: BTreeMap<&str, &str> = BTreeMap::new();
        for step in &manifest.steps {
            let parts = of_vertices.get(&*step.vertex_id);
            let saved = SavedStep {
                step,
                parts: parts.map(Rc::clone).unwrap_or_default(),
                is_first: !last_of.contains_key(&*step.vertex_id),
                is_last: false,
            };
            let name = shown(&step.uid);
            if !may_begin && saved.is_any_missing() {
                problems.insert(format!("a subtask of {name} is missing"));
            }
            last_of.insert(&step.vertex_id, &step.uid);
            if steps.insert(&step.uid, saved).is_some() {
                problems.insert(format!("step {name} is there twice"));
            }
        }
        for uid in last_of.into_values() {
            if let Some(step) = steps.get_mut(uid) {
                step.is_last = true;
            }
        }
        let subtasks = manifest.regions.iter().flat_map(|region| &region.subtasks);
        for (uid, vertex) in subtasks.flat_map(uids) {
            if steps.get(uid).is_none_or(|it| it.step.vertex_id != vertex) {
                problems.insert(format!("it does not say which step {} is", shown(uid)));
            }
        }
        problems.extend(steps.values().filter_map(SavedStep::segment_problem));
        match problems.is_empty() {
            true => Ok(Saved { steps }),
            false => Err(problems.into_iter().collect()),
        }
    }
}

/// Why no job can have the numbers of a manifest.
fn beyond_limits(manifest: &CheckpointManifest) -> Option<String> {
    let steps = manifest.steps.len();
    if steps > MAX_STEPS {
        return Some(format!(
            "it has {steps} steps, and a job has at most {MAX_STEPS}"
        ));
    }
    manifest.steps.iter().find_map(|step| {
        let largest = step.parallelism.max(step.max_parallelism);
        (largest > MAX_PARALLELISM_LIMIT).then(|| {
            format!(
                "step {} has parallelism {largest}, and at most {MAX_PARALLELISM_LIMIT} is possible",
                shown(&step.uid)
            )
        })
    })
}

/// The steps whose state a subtask has, each with the vertex of the subtask.
fn uids(subtask: &SubtaskSnapshot) -> impl Iterator<Item = (&str, &str)> {
    let positions = subtask.positions.iter().map(|it| &*it.uid);
    let operators = subtask.operators.iter().map(|it| &*it.uid);
    let segments = subtask.segments.iter().map(|it| &*it.uid);
    let all = positions.chain(operators).chain(segments);
    all.map(|uid| (uid, &*subtask.vertex_id))
}

impl<'m> SavedStep<'m> {
    /// What a subtask saved. `None`: it begins from the start.
    pub(super) fn part(&self, subtask: u32) -> Option<Part<'m>> {
        let is_one = subtask < self.step.parallelism;
        let part = self.parts.get(&subtask).copied();
        part.filter(|part| is_one && !self.begins(*part))
    }

    fn parts(&self) -> impl Iterator<Item = (u32, Part<'m>)> {
        let parts = self.parts.range(..self.step.parallelism);
        let parts = parts.map(|(subtask, part)| (*subtask, *part));
        parts.filter(|(_, part)| !self.begins(*part))
    }

    /// Whether a subtask is a source that begins from the start: the job that saved it had begun from a checkpoint in
    /// which nothing was saved of it.
    fn begins(&self, part: Part<'_>) -> bool {
        self.is_first && matches!(part, Part::Saved(saved) if saved.from_start)
    }

    fn is_any_missing(&self) -> bool {
        let found = self.parts.range(..self.step.parallelism).count();
        u32::try_from(found) != Ok(self.step.parallelism)
    }

    /// The snapshots of subtasks that had not ended, with their numbers.
    pub(super) fn saved(&self) -> impl Iterator<Item = (u32, &'m SubtaskSnapshot)> {
        self.parts().filter_map(|(subtask, part)| match part {
            Part::Saved(saved) => Some((subtask, saved)),
            Part::Ended(_) => None,
        })
    }

    /// The ends of subtasks.
    pub(super) fn ended(&self) -> impl Iterator<Item = &'m SubtaskSnapshot> {
        self.parts().filter_map(|(_, part)| match part {
            Part::Ended(ended) => Some(ended),
            Part::Saved(_) => None,
        })
    }

    /// Whether a subtask begins from the start.
    pub(super) fn has_starts(&self) -> bool {
        u32::try_from(self.parts().count()) != Ok(self.step.parallelism)
    }

    pub(super) fn all_start(&self) -> bool {
        self.parts().next().is_none()
    }

    pub(super) fn all_ended(&self) -> bool {
        !self.has_starts() && self.saved().next().is_none()
    }

    /// Why a segment can't be of its subtask.
    fn segment_problem(&self) -> Option<String> {
        let step = self.step;
        self.saved().find_map(|(subtask, saved)| {
            let own = key_groups(subtask, step.parallelism, step.max_parallelism);
            let mut keyed = self.keyed(saved);
            let problem = keyed.find_map(|segment| {
                let problem = segments::problem(segment, 0..step.max_parallelism);
                problem.or_else(|| segments::beyond(segment, own.clone()))
            });
            problem.map(|problem| format!("subtask {subtask} of {}: {problem}", shown(&step.uid)))
        })
    }

    /// The segments of a subtask that belong to this step and have keys.
    pub(super) fn keyed(
        &self,
        subtask: &'m SubtaskSnapshot,
    ) -> impl Iterator<Item = &'m tanist_proto::v1::StateSegment> {
        let uid = &*self.step.uid;
        let segments = subtask.segments.iter();
        segments.filter(move |it| it.uid == uid && it.end_key_group > 0)
    }

    pub(super) fn has_keyed(&self) -> bool {
        self.saved()
            .any(|(_, saved)| self.keyed(saved).next().is_some())
    }

    /// Whether it saved a position, or state without keys.
    pub(super) fn has_unkeyed(&self) -> bool {
        self.has_unkeyed_of(|_| true)
    }

    /// Whether it saved a position, or state without keys, which is divided as the step declares it.
    pub(super) fn has_undivided(&self) -> bool {
        self.has_unkeyed_of(|state| !divides_itself(state))
    }

    fn has_unkeyed_of(&self, counts: impl Fn(&OperatorState) -> bool) -> bool {
        let uid = &self.step.uid;
        self.saved().any(|(_, saved)| {
            let mut segments = saved.segments.iter();
            let mut states = saved.operators.iter().filter(|it| it.uid == *uid);
            saved.positions.iter().any(|it| it.uid == *uid)
                || states.any(&counts)
                || segments.any(|it| it.uid == *uid && it.end_key_group == 0)
        })
    }

    /// Whether a subtask that had ended has output that is not visible yet.
    pub(super) fn has_output(&self) -> bool {
        self.is_last && self.ended().any(|ended| !ended.output.is_empty())
    }

    /// Whether something is lost without it.
    pub(super) fn has_state(&self) -> bool {
        self.has_keyed() || self.has_unkeyed() || self.has_output()
    }
}
