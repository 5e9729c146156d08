//! The store and the blob store: what the record of the checkpoints says, checked whenever it changes.

use std::sync::Arc;

use tanist_proto::v1 as pb;

use super::{Checkpoints, assert_holds};
use crate::core::checkpoints::Event;
use crate::core::checkpoints::tests::simulation::invariants::{
    k1_newest_snapshot_is_restored, k3_snapshot_is_of_one_attempt, k4_generation_is_present,
    k4_region_has_not_failed, k5_named_objects_exist, k8_snapshot_is_a_consistent_cut,
    k13_few_subsumed_checkpoints_are_named, k15_floor_never_falls,
};
use crate::core::tests::simulation::world::World;
use crate::core::{self, CommitProgress};

impl Checkpoints {
    fn decode(&self, stored: Option<&pb::StoredManifest>) -> Option<pb::CheckpointManifest> {
        let bytes = match stored?.place.as_ref()? {
            pb::stored_manifest::Place::Inline(bytes) => bytes,
            pb::stored_manifest::Place::Object(object) => self.manifests.get(&object.name)?,
        };
        tanist_proto::manifest::decode(bytes).ok()
    }

    /// The manifests of completed checkpoints of the durable record.
    pub(super) fn retained_manifests(&self) -> Vec<pb::CheckpointManifest> {
        let retained = self.record.retained.iter();
        let decoded = retained.map(|it| self.decode(it.manifest.as_ref()));
        let decoded: Option<Vec<_>> = decoded.collect();
        decoded.expect("K5: the manifest of a retained checkpoint exists")
    }

    fn snapshot_of(
        &self,
        record: &pb::JobCheckpoints,
        region: usize,
    ) -> Option<pb::RegionSnapshot> {
        let manifest = self.decode(record.retained.last()?.manifest.as_ref())?;
        let snapshot = manifest.regions.get(region)?.clone();
        (snapshot.kind() == pb::RegionSnapshotKind::Taken).then_some(snapshot)
    }

    /// The number of a region's newest durable snapshot, and the snapshot.
    pub(super) fn newest_snapshot(&self, region: usize) -> (u64, Option<pb::RegionSnapshot>) {
        let taken = self.snapshot_of(&self.record, region);
        (taken.as_ref().map_or(0, |it| it.number), taken)
    }

    /// The region snapshots that a record has and the store has not.
    pub(super) fn new_snapshots(
        &self,
        record: &pb::JobCheckpoints,
    ) -> Vec<(usize, pb::RegionSnapshot)> {
        let regions = 0..self.regions.len();
        let new = regions.filter_map(|region| {
            let snapshot = self.snapshot_of(record, region)?;
            (snapshot.number != self.newest_snapshot(region).0).then_some((region, snapshot))
        });
        new.collect()
    }

    fn assert_named_objects_exist(&self) {
        let manifests = self.retained_manifests();
        assert_holds(k5_named_objects_exist(manifests.iter(), &self.objects));
    }

    /// Objects are removed, perhaps not all.
    pub(super) fn remove(&mut self, objects: &[String]) {
        for object in objects {
            self.objects.remove(object);
            self.manifests.remove(object);
        }
        self.reached.removed += objects.len() as u64;
        self.assert_named_objects_exist();
    }

    fn take_record(&mut self, record: Arc<pb::JobCheckpoints>, stored: &pb::JobState) {
        assert_holds(k15_floor_never_falls(self.record.floor, record.floor));
        self.assert_requests(&record);
        assert_holds(k13_few_subsumed_checkpoints_are_named(
            record.removing.len(),
        ));
        for (region, snapshot) in self.new_snapshots(&record) {
            // A generation that is recorded is placed later: what is being written by then may be of the one before.
            let placed = stored.regions.get(region).map_or(0, |it| {
                let is_placed = !it.placements.is_empty();
                it.generation.saturating_sub(u64::from(!is_placed))
            });
            assert_holds(k4_generation_is_present(snapshot.generation, placed));
            let tasks = (self.regions[region].as_slice(), self.tasks.as_slice());
            assert_holds(k3_snapshot_is_of_one_attempt(
                &snapshot,
                tasks,
                &self.true_ends,
            ));
            let sources = self.sources_of(region);
            let last = tasks.0.iter().take(sources).map(|task| {
                let end = self.last_positions.get(&(*task, snapshot.generation));
                end.copied().unwrap_or_default()
            });
            let last: Vec<u64> = last.collect();
            assert_holds(k8_snapshot_is_a_consistent_cut(&snapshot, sources, &last));
            self.reached.adopted += u64::from(snapshot.number < self.base);
            let generation = snapshot.generation;
            self.generations
                .insert((region, snapshot.number), generation);
        }
        let newest = |record: &pb::JobCheckpoints| record.retained.last().map_or(0, |it| it.number);
        assert!(
            newest(&record) >= newest(&self.record),
            "K2: the newest checkpoint has a lower number than before"
        );
        self.record = record;
        if let Some(newest) = self.retained_manifests().last() {
            for part in &newest.uncommitted {
                let part = (part.uid.clone(), part.kind.clone());
                if self.listed_parts.insert(part.clone()) {
                    self.uncommitted_parts.insert(part, newest.number);
                }
            }
        }
        self.assert_named_objects_exist();
    }
}

impl World {
    /// Checks a record of the checkpoints that is about to be written.
    pub(super) fn assert_may_be_written(&self, record: &pb::JobCheckpoints) {
        let (Some(at), Some(core)) = (&self.checkpoints, &self.core) else {
            return;
        };
        assert!(
            self.result.is_none(),
            "K6: nothing is written after the end"
        );
        assert!(at.write.is_none(), "one write is in flight");
        for (region, snapshot) in at.new_snapshots(record) {
            assert!(
                !core.is_to_end(),
                "K4: a snapshot is written after the end was decided"
            );
            let generation = core.record.decided().regions[region].generation;
            let runs = generation == snapshot.generation;
            assert_holds(k4_region_has_not_failed(region, runs));
        }
    }

    /// The store takes the write of the checkpoints. Returns the write.
    pub(super) fn apply_checkpoints(&mut self) -> Option<u64> {
        let at = self.checkpoints.as_mut()?;
        let (write, record) = at.write.take()?;
        at.take_record(record, &self.stored);
        Some(write)
    }

    /// The store takes the write of the checkpoints, or refuses it, and the term hears of it.
    pub(super) fn answer_checkpoints(&mut self, is_refused: bool) {
        let event = match is_refused {
            false => match self.apply_checkpoints() {
                Some(write) => Event::Written { write },
                None => return,
            },
            true => {
                let write = self.checkpoints.as_mut().and_then(|at| at.write.take());
                let Some((write, _)) = write else {
                    return;
                };
                let reason = "too large".to_owned();
                Event::WriteRefused { write, reason }
            }
        };
        if let Some(at) = &mut self.checkpoints
            && at.was_refused != is_refused
        {
            at.was_refused = is_refused;
            at.has_failed |= is_refused;
            at.reached.refused += u64::from(is_refused);
            let progress = match is_refused {
                true => CommitProgress::Unrecorded("too large".to_owned()),
                false => CommitProgress::Recorded,
            };
            let event = core::Event::CheckpointCommit(progress);
            at.answers.push_back(event);
        }
        self.tell_checkpoints(event);
        self.settle_checkpoints();
    }

    /// Asserts what placements of a written record restore.
    pub(in crate::core::tests::simulation) fn assert_restores_newest(&self, after: &pb::JobState) {
        let Some(at) = &self.checkpoints else {
            return;
        };
        for (region, placed) in after.regions.iter().enumerate() {
            let before = self.stored.regions.get(region);
            let was_placed = before.is_some_and(|before| {
                before.generation == placed.generation && !before.placements.is_empty()
            });
            if !placed.placements.is_empty() && !was_placed {
                let newest = at.newest_snapshot(region).0;
                assert_holds(k1_newest_snapshot_is_restored(placed.restored_from, newest));
            }
        }
    }

    /// The job has ended: what the checkpoints name is committed, and with a job that has finished all of its output.
    /// The record that goes with the result names what is retained, and leaves the rest to the cleanup.
    pub(in crate::core::tests::simulation) fn assert_ended(&mut self, result: &pb::JobResult) {
        // A write that is under way at the end may still be taken.
        if self
            .checkpoints
            .as_mut()
            .is_some_and(|at| at.random.one_in(2))
        {
            self.apply_checkpoints();
        }
        let Some(at) = &mut self.checkpoints else {
            return;
        };
        let has_finished = result.status() == pb::JobStatus::Finished;
        let core = at.core.as_ref().expect("the term goes on");
        let is_kept = result.status() == pb::JobStatus::Failed;
        let record = core.record_with_result(is_kept);
        assert_eq!(record.floor, record.next, "K13: the floor of the result");
        assert!(record.retained.len() <= usize::from(is_kept), "K13");
        let is_given_up = result.status() == pb::JobStatus::Canceled && at.has_failed;
        assert!(
            is_given_up || at.uncommitted_parts.is_empty(),
            "K6: the job has ended, and {:?} are not committed",
            at.uncommitted_parts
        );
        at.assert_outcomes(&record);
        at.reached.finished += u64::from(has_finished);
        at.reached.not_finished += u64::from(!has_finished);
        if has_finished && !self.stored.stopped_with.is_empty() {
            at.assert_stopped();
        } else if has_finished {
            at.assert_output_is_complete(&self.stored);
        }
    }
}
