//! What the subtasks of a checkpoint have acknowledged, for people: when, how much, and how long it took them. Owned by
//! `history.rs`, one for each checkpoint that is shown. Decides nothing: the core counts acknowledgements by itself.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::pieces::pieces;
use tanist_proto::v1 as pb;

use crate::core::checkpoints::CheckpointCore;

/// The acknowledgements of one checkpoint; see the module.
#[derive(Debug, Default)]
pub(super) struct Acknowledgements {
    regions: BTreeSet<usize>,
    /// Regions whose snapshots it has, once it is complete. Others may still work on the number.
    completed: BTreeSet<usize>,
    subtasks: BTreeMap<usize, Acknowledged>,
    /// Durations that were reported before the acknowledgement of their subtask.
    times: BTreeMap<usize, pb::CheckpointTimes>,
    written: u64,
}

#[derive(Debug)]
struct Acknowledged {
    at_ms: u64,
    size: u64,
    written: u64,
    times: Option<pb::CheckpointTimes>,
}

impl Acknowledgements {
    /// A region takes part. Acknowledgements of its subtasks that an earlier JobMaster received are added.
    pub(super) fn add_region(
        &mut self,
        region: usize,
        number: u64,
        core: &CheckpointCore,
        now_ms: u64,
    ) {
        if !self.regions.insert(region) {
            return;
        }
        for (task, _, snapshot) in core.subtasks_of(region) {
            if let Some(snapshot) = snapshot {
                self.add(task, number, snapshot, now_ms);
            }
        }
    }

    /// A subtask has acknowledged the number. The first time counts.
    pub(super) fn add(
        &mut self,
        task: usize,
        number: u64,
        snapshot: &pb::SubtaskSnapshot,
        at_ms: u64,
    ) {
        if self.subtasks.contains_key(&task) {
            return;
        }
        let of_number = format!("{number}-");
        let (mut size, mut written) = (0, 0);
        for piece in pieces(snapshot) {
            size += piece.size();
            let is_new = |object: &str| object.starts_with(&of_number);
            if piece.object().is_none_or(is_new) {
                written += piece.size();
            }
        }
        self.written += written;
        let acknowledged = Acknowledged {
            at_ms,
            size,
            written,
            times: self.times.remove(&task),
        };
        self.subtasks.insert(task, acknowledged);
    }

    /// Notes how long a subtask took. Its acknowledgement follows, or was counted.
    pub(super) fn note_times(&mut self, task: usize, times: pb::CheckpointTimes) {
        match self.subtasks.get_mut(&task) {
            Some(known) => known.times = Some(times),
            None => {
                self.times.insert(task, times);
            }
        }
    }

    /// Number of the subtasks that are kept.
    pub(super) fn len(&self) -> usize {
        self.subtasks.len()
    }

    /// Number of bytes that were written for the checkpoint, as far as that is known.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Forgets the subtasks, so that only the regions are left.
    pub(super) fn forget_subtasks(&mut self) {
        self.subtasks.clear();
        self.times.clear();
    }

    /// The checkpoint is complete with new snapshots of these regions. Each of their subtasks has acknowledged it, or
    /// had ended before; what those of other regions acknowledged is not in it.
    pub(super) fn complete(&mut self, regions: &[usize], core: &CheckpointCore) {
        self.completed.extend(regions);
        self.regions.extend(regions);
        let others = self.regions.difference(&self.completed);
        let tasks = others.flat_map(|region| core.subtasks_of(*region));
        for (task, ..) in tasks {
            self.subtasks.remove(&task);
        }
    }

    /// Number of the subtasks of its regions, and of those that are in it if it is complete.
    pub(super) fn counts(&self, core: &CheckpointCore) -> (u32, u32) {
        let count = |regions: &BTreeSet<usize>| {
            let tasks = regions.iter().map(|it| core.subtasks_of(*it).count());
            u32::try_from(tasks.sum::<usize>()).unwrap_or(u32::MAX)
        };
        (count(&self.regions), count(&self.completed))
    }

    /// By vertex.
    pub(super) fn vertices(
        &self,
        core: &CheckpointCore,
    ) -> impl Iterator<Item = pb::VertexCheckpoint> {
        let mut vertices: BTreeMap<&str, pb::VertexCheckpoint> = BTreeMap::new();
        let subtasks = self.regions.iter().flat_map(|region| {
            let is_in = self.completed.contains(region);
            core.subtasks_of(*region).map(move |it| (is_in, it))
        });
        for (is_in, (number, task, _)) in subtasks {
            let vertex = vertices.entry(&task.vertex_id).or_default();
            vertex.subtasks += 1;
            let known = self.subtasks.get(&number);
            vertex.acknowledged_subtasks += u32::from(is_in || known.is_some());
            let acknowledged = known.map(|known| pb::SubtaskAcknowledgement {
                subtask: task.subtask,
                at_ms: known.at_ms,
                size: known.size,
                written: known.written,
                times: known.times,
            });
            vertex.acknowledgements.extend(acknowledged);
        }
        vertices.into_iter().map(|(vertex_id, mut vertex)| {
            vertex.acknowledgements.sort_by_key(|it| it.subtask);
            let vertex_id = vertex_id.to_owned();
            pb::VertexCheckpoint {
                vertex_id,
                ..vertex
            }
        })
    }
}
