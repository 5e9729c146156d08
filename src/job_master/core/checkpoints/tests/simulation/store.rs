//! The store with its fence, and the blob store: what writes and requests of leaders do there, each checked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tanist_proto::v1 as pb;

use super::super::super::{Effect, Event};
use super::invariants::{
    Checked, k1_newest_snapshot_is_restored, k3_snapshot_is_of_one_attempt,
    k4_generation_is_present, k4_region_has_not_failed, k5_named_objects_exist,
    k7_records_are_committed_once, k8_snapshot_is_a_consistent_cut,
    k13_few_subsumed_checkpoints_are_named, k15_floor_never_falls,
};
use super::world::{Outside, Placement, StoreWrite, StoredRegion, World, resource_id};

impl World {
    pub(super) fn decode(
        &self,
        stored: Option<&pb::StoredManifest>,
    ) -> Option<pb::CheckpointManifest> {
        let bytes = match stored?.place.as_ref()? {
            pb::stored_manifest::Place::Inline(bytes) => bytes,
            pb::stored_manifest::Place::Object(object) => self.manifests.get(&object.name)?,
        };
        tanist_proto::manifest::decode(bytes).ok()
    }

    /// The manifests of completed checkpoints of the durable record.
    pub(super) fn retained_manifests(&self) -> Vec<Arc<pb::CheckpointManifest>> {
        let retained = self.record.retained.iter();
        let decoded = retained.filter_map(|it| self.decode(it.manifest.as_ref()));
        decoded.map(Arc::new).collect()
    }

    /// What a region is restored from: its newest durable snapshot, or that of the origin.
    pub(super) fn restore_point(&self, region: usize) -> (u64, Option<pb::RegionSnapshot>) {
        match (self.newest_snapshot(region), &self.record.origin) {
            ((0, _), Some(origin)) => {
                let manifest = self.decode(origin.manifest.as_ref());
                let snapshot = manifest.and_then(|it| it.regions.get(region).cloned());
                (origin.number, snapshot)
            }
            (newest, _) => newest,
        }
    }

    /// The number of a region's newest durable snapshot, and the snapshot.
    pub(super) fn newest_snapshot(&self, region: usize) -> (u64, Option<pb::RegionSnapshot>) {
        let newest = self.record.retained.last();
        let manifest = newest.and_then(|it| self.decode(it.manifest.as_ref()));
        let snapshot = manifest.and_then(|it| it.regions.get(region).cloned());
        let taken = snapshot.filter(|it| it.kind() == pb::RegionSnapshotKind::Taken);
        (taken.as_ref().map_or(0, |it| it.number), taken)
    }

    /// The region snapshots that a record has and the store has not.
    pub(super) fn new_snapshots(
        &self,
        record: &pb::JobCheckpoints,
    ) -> Vec<(usize, pb::RegionSnapshot)> {
        let newest = record.retained.last();
        let is_new = |it: &&pb::CompletedCheckpoint| {
            self.record
                .retained
                .iter()
                .all(|known| known.number != it.number)
        };
        let manifest = newest
            .filter(is_new)
            .and_then(|it| self.decode(it.manifest.as_ref()));
        let regions = manifest.into_iter().flat_map(|it| it.regions).enumerate();
        let taken = regions.filter(|(_, it)| it.kind() == pb::RegionSnapshotKind::Taken);
        taken
            .filter(|(region, it)| it.number != self.newest_snapshot(*region).0)
            .collect()
    }

    pub(super) fn check_write(&self, leader: usize, record: &pb::JobCheckpoints) -> Checked {
        let at = &self.leaders[leader];
        if at.epoch != self.epoch {
            return Ok(());
        }
        for (region, snapshot) in self.new_snapshots(record) {
            if self.is_end_decided {
                return Err("K4: a snapshot is written after the end was decided".to_owned());
            }
            let runs = !matches!(
                at.placements[region],
                Placement::Waiting | Placement::Placing
            );
            k4_region_has_not_failed(region, runs)?;
            let tasks = &self.regions[region];
            k3_snapshot_is_of_one_attempt(&snapshot, (tasks, &self.tasks), &self.true_ends)?;
        }
        Ok(())
    }

    /// The store takes the next write of a leader.
    pub(super) fn apply_write(&mut self, leader: usize) -> Checked {
        let Some(write) = self.leaders[leader].writes.pop_front() else {
            return Ok(());
        };
        if self.leaders[leader].epoch != self.epoch {
            self.reached.fenced += 1;
            if let StoreWrite::Checkpoints { write, .. } = write {
                self.leaders[leader]
                    .answers
                    .push_back(Event::WriteUnknown { write });
            }
            return Ok(());
        }
        match write {
            StoreWrite::Checkpoints { write, .. }
                if std::mem::take(&mut self.refuses_next_write) =>
            {
                let reason = "too large".to_owned();
                let refused = Event::WriteRefused { write, reason };
                self.leaders[leader].answers.push_back(refused);
                Ok(())
            }
            StoreWrite::Checkpoints { write, record } => {
                self.apply_record(&record, leader)?;
                self.leaders[leader]
                    .answers
                    .push_back(Event::Written { write });
                Ok(())
            }
            StoreWrite::Place {
                region,
                generation,
                restored,
                places,
            } => {
                k1_newest_snapshot_is_restored(restored, self.restore_point(region).0)?;
                self.stored[region] = StoredRegion {
                    generation,
                    places: places.clone(),
                    ends: BTreeMap::new(),
                };
                let place = |(task, te): &(usize, usize)| (*task, resource_id(*te));
                self.leaders[leader].answers.push_back(Event::RegionPlaced {
                    region,
                    generation,
                    places: places.iter().map(place).collect(),
                });
                Ok(())
            }
            StoreWrite::End {
                region,
                generation,
                task,
                end,
            } => {
                let stored = &mut self.stored[region];
                if stored.generation == generation {
                    stored.ends.insert(task, end);
                    if stored.ends.len() == self.regions[region].len() {
                        let ends = stored.ends.clone().into_iter().collect();
                        let finished = Event::RegionFinished {
                            region,
                            generation,
                            ends,
                        };
                        self.leaders[leader].answers.push_back(finished);
                    }
                }
                for execution in &mut self.executions {
                    let is_it = (execution.task, execution.generation) == (task, generation);
                    execution.is_end_recorded |= is_it;
                }
                Ok(())
            }
        }
    }

    pub(super) fn apply_record(
        &mut self,
        record: &Arc<pb::JobCheckpoints>,
        leader: usize,
    ) -> Checked {
        k15_floor_never_falls(self.record.floor, record.floor)?;
        k13_few_subsumed_checkpoints_are_named(record.removing.len())?;
        self.check_requests(record)?;
        let new = self.new_snapshots(record);
        for (region, snapshot) in &new {
            k4_generation_is_present(snapshot.generation, self.stored[*region].generation)?;
            let tasks = &self.regions[*region];
            k3_snapshot_is_of_one_attempt(snapshot, (tasks, &self.tasks), &self.true_ends)?;
            let sources = self.sources_of(*region);
            let last = tasks.iter().take(sources).map(|task| {
                let end = self.last_positions.get(&(*task, snapshot.generation));
                end.copied().unwrap_or_default()
            });
            k8_snapshot_is_a_consistent_cut(snapshot, sources, &last.collect::<Vec<_>>())?;
            let ended = snapshot.subtasks.iter().filter(|it| it.ended).count();
            self.reached.partly_ended += u64::from(ended > 0 && ended < tasks.len());
            let base = self.leaders[leader].base;
            self.reached.adopted += u64::from(snapshot.number < base);
        }
        let highest =
            |record: &pb::JobCheckpoints| record.retained.last().map_or(0, |it| it.number);
        if highest(record) < highest(&self.record) {
            return Err("K2: the newest checkpoint has a lower number than before".to_owned());
        }
        self.record = record.clone();
        let manifests = self.retained_manifests();
        if let Some(newest) = manifests.last() {
            for part in &newest.uncommitted {
                let part = (part.uid.clone(), part.kind.clone());
                if self.listed_parts.insert(part.clone()) {
                    self.uncommitted_parts.insert(part, newest.number);
                }
            }
            let numbers: BTreeSet<u64> = newest.regions.iter().map(|it| it.number).collect();
            self.reached.mixed += u64::from(!new.is_empty() && numbers.len() > 1);
        }
        k5_named_objects_exist(manifests.iter().map(|it| &**it), &self.objects)?;
        self.check_stop()
    }

    /// The world does what a leader asked.
    pub(super) fn do_outside(&mut self, index: usize, fails: bool) -> Checked {
        let Outside { leader, effect } = self.outside.swap_remove(index);
        let answer = match effect {
            Effect::Commit {
                number,
                committables,
            } => {
                for part in &committables {
                    k7_records_are_committed_once(&mut self.committed_records, part)?;
                    let part = (part.uid.clone(), part.kind.clone());
                    self.uncommitted_parts.remove(&part);
                }
                self.reached.committed += committables.len() as u64;
                match fails {
                    true => Event::CommitFailed { number },
                    false => Event::Committed { number },
                }
            }
            Effect::Remove { removal, objects } => {
                let count = if fails {
                    objects.len() / 2
                } else {
                    objects.len()
                };
                for object in &objects[..count] {
                    self.objects.remove(object);
                    self.manifests.remove(object);
                }
                self.reached.removed += count as u64;
                let manifests = self.retained_manifests();
                let is_complete = manifests.len() == self.record.retained.len();
                if !is_complete {
                    return Err("K5: the manifest of a retained checkpoint was removed".to_owned());
                }
                k5_named_objects_exist(manifests.iter().map(|it| &**it), &self.objects)?;
                match fails {
                    true => Event::RemovalFailed { removal },
                    false => Event::Removed { removal },
                }
            }
            Effect::PutManifest { number, bytes } => match fails {
                true => Event::ManifestNotPut("the blob store is away".to_owned()),
                false => {
                    self.reached.put += 1;
                    let name = format!("manifest-{number}-{:016x}", self.random.next());
                    let length = bytes.len() as u64;
                    self.manifests.insert(name.clone(), bytes);
                    Event::ManifestPut(pb::ManifestObject { name, length })
                }
            },
            Effect::CopySavepoint { .. } => self.copy(&effect, fails)?,
            Effect::List => Event::Listed(self.objects.iter().cloned().collect()),
            other => unreachable!("{other:?} is done at once"),
        };
        self.leaders[leader].answers.push_back(answer);
        Ok(())
    }
}
