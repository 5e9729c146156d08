//! A manifest by step: what each subtask of a step saved. Checks that the manifest can be taken apart at all.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::v1::{
    CheckpointManifest, ManifestStep, RegionSnapshot, RegionSnapshotKind, SubtaskSnapshot,
};

use crate::job_graph::shown;

/// What a subtask of a step saved.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part<'m> {
    /// Its region has no snapshot, or it is a source of which none has anything: it begins from the start.
    Start,
    /// It had read and emitted everything.
    Ended(&'m SubtaskSnapshot),
    Saved(&'m SubtaskSnapshot),
}

/// A step of the graph that the manifest was taken of.
#[derive(Debug)]
pub(super) struct SavedStep<'m> {
    pub(super) step: &'m ManifestStep,
    /// By subtask.
    pub(super) parts: Vec<Part<'m>>,
    /// It is the last of its vertex. Only that one can be a sink, so what a vertex has without naming a step is of it.
    pub(super) is_last: bool,
}

/// All steps of a manifest, by uid.
#[derive(Debug)]
pub(super) struct Saved<'m> {
    pub(super) steps: BTreeMap<&'m str, SavedStep<'m>>,
}

impl<'m> Saved<'m> {
    pub(super) fn of(manifest: &'m CheckpointManifest) -> Result<Saved<'m>, Vec<String>> {
        let is = |region: &RegionSnapshot, kind| region.kind() == kind;
        let mut regions = manifest.regions.iter();
        if regions.any(|region| is(region, RegionSnapshotKind::FromOrigin)) {
            let text =
                "the job that saved it had not yet saved all that it was started from itself";
            return Err(vec![text.to_owned()]);
        }
        let mut regions = manifest.regions.iter();
        let may_begin = regions.any(|region| is(region, RegionSnapshotKind::FromStart));
        let subtasks = manifest.regions.iter().flat_map(|region| &region.subtasks);
        let mut of_subtask: BTreeMap<(&str, u32), &SubtaskSnapshot> = BTreeMap::new();
        let mut problems = BTreeSet::new();
        for subtask in subtasks {
            let key = (&*subtask.vertex_id, subtask.subtask);
            if of_subtask.insert(key, subtask).is_some() {
                problems.insert(format!("subtask {} of {} is there twice", key.1, key.0));
            }
        }
        let mut steps: BTreeMap<&str, SavedStep<'_>> = BTreeMap::new();
        let mut last_of: BTreeMap<&str, &str> = BTreeMap::new();
        for step in &manifest.steps {
            // Only that one can be a source.
            let is_first = !last_of.contains_key(&*step.vertex_id);
            let parts = (0..step.parallelism).map(|subtask| {
                let found = of_subtask.get(&(&*step.vertex_id, subtask)).copied();
                match found {
                    Some(ended) if ended.ended => Part::Ended(ended),
                    Some(begun) if begun.from_start && is_first => Part::Start,
                    Some(saved) => Part::Saved(saved),
                    None => Part::Start,
                }
            });
            let saved = SavedStep {
                step,
                parts: parts.collect(),
                is_last: false,
            };
            let name = shown(&step.uid);
            let is_missing = |subtask: u32| !of_subtask.contains_key(&(&*step.vertex_id, subtask));
            if !may_begin && (0..step.parallelism).any(is_missing) {
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
        for (uid, vertex) in of_subtask.values().flat_map(|subtask| uids(subtask)) {
            if steps.get(uid).is_none_or(|it| it.step.vertex_id != vertex) {
                problems.insert(format!("it does not say which step {} is", shown(uid)));
            }
        }
        match problems.is_empty() {
            true => Ok(Saved { steps }),
            false => Err(problems.into_iter().collect()),
        }
    }
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
    /// The snapshots of subtasks that had not ended, with their numbers.
    pub(super) fn saved(&self) -> impl Iterator<Item = (u32, &'m SubtaskSnapshot)> {
        let numbered = (0_u32..).zip(&self.parts);
        numbered.filter_map(|(subtask, part)| match part {
            Part::Saved(saved) => Some((subtask, *saved)),
            Part::Start | Part::Ended(_) => None,
        })
    }

    /// The ends of subtasks.
    pub(super) fn ended(&self) -> impl Iterator<Item = &'m SubtaskSnapshot> {
        self.parts.iter().filter_map(|part| match part {
            Part::Ended(ended) => Some(*ended),
            Part::Start | Part::Saved(_) => None,
        })
    }

    pub(super) fn has_starts(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Start))
    }

    pub(super) fn all_start(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Start))
    }

    pub(super) fn all_ended(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Ended(_)))
    }

    /// Whether a segment is of this step and has keys.
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
        let uid = &self.step.uid;
        self.saved().any(|(_, saved)| {
            let mut segments = saved.segments.iter();
            saved.positions.iter().any(|it| it.uid == *uid)
                || saved.operators.iter().any(|it| it.uid == *uid)
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
