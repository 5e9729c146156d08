//! Completes checkpoints: builds the manifest, puts it into the blob store if it is large, and makes the one write.
//! Owns the manifest that is being put.
//!
//! Invariants:
//! - One manifest is put or written at a time.
//! - No write has a snapshot of a region that has failed since, or of a job whose end is decided.
//! - A write raises `floor` at most to the newest number that was given out, and not above the floor that a number in
//!   flight was triggered with.
//! - No manifest is built before the output that the newest one lists is committed. So each output is listed in one
//!   manifest and has one mark.

use std::collections::BTreeSet;
use std::sync::Arc;

use prost::Message as _;
use tanist_gateway::manifests;
use tanist_proto::v1 as pb;

use super::Effect;
use super::commits::Commits;
use super::numbers::Numbers;
use super::options::{Options, RETRY_MS};
use super::output::Output;
use super::record::{Change, CheckpointRecord, Completion};
use super::regions::{Phase, Regions};
use super::removal::Removal;
use super::savepoints::Savepoints;
use crate::core::faults::{Fault, is_planted};

/// The manifest that is being put; see the module.
#[derive(Debug, Default)]
pub(super) struct ManifestPut {
    putting: Option<Completion>,
    /// No completion begins before this, since something has failed; 0: nothing has.
    retry_at_ms: u64,
}

impl ManifestPut {
    /// Whether a manifest is being put.
    pub(super) fn is_running(&self) -> bool {
        self.putting.is_some()
    }

    /// The manifest was put, or could not be. Returns it.
    pub(super) fn finish(&mut self) -> Option<Completion> {
        self.putting.take()
    }

    /// Something failed: the next completion waits for [`RETRY_MS`].
    pub(super) fn hold(&mut self, now_ms: u64) {
        self.retry_at_ms = now_ms.saturating_add(RETRY_MS);
    }

    /// When something that failed is tried again.
    pub(super) fn retry_at_ms(&self) -> u64 {
        self.retry_at_ms
    }
}

/// A manifest is too large to be kept anywhere.
#[derive(Debug)]
pub(super) struct TooLarge {
    /// The largest of the new snapshots.
    pub(super) region: usize,
    /// Why.
    pub(super) reason: String,
}

/// Borrows what a completion needs.
pub(super) struct Completing<'a> {
    pub(super) job_id: &'a str,
    pub(super) options: &'a Options,
    pub(super) regions: &'a Regions,
    pub(super) record: &'a mut CheckpointRecord,
    pub(super) numbers: &'a mut Numbers,
    pub(super) commits: &'a Commits,
    pub(super) removal: &'a Removal,
    pub(super) savepoints: &'a Savepoints,
    pub(super) put: &'a mut ManifestPut,
    pub(super) coordinators: &'a [pb::CoordinatorState],
    pub(super) out: &'a mut Output,
}

impl Completing<'_> {
    /// Regions whose number in flight is complete.
    pub(super) fn complete(&self) -> Vec<usize> {
        self.regions.complete().collect()
    }

    /// Builds a manifest with new snapshots of the regions `complete` and the ends of the regions `finished`, and
    /// writes or puts it. Reserves numbers instead, if one is needed and none is left. The error: the manifest is too
    /// large to be kept anywhere, and its largest region.
    pub(super) fn build(&mut self, complete: &[usize], finished: &[usize]) -> Result<(), TooLarge> {
        let newest = self.record.newest().map_or(0, |newest| newest.number);
        let in_flight = |region: &usize| Some(self.regions.get(*region).attempt()?.number());
        let highest = complete.iter().filter_map(in_flight).max();
        // A manifest takes the highest number that it has. If that is the number of a manifest already (a region was
        // slower than the others), or if the end of a region is in it, it takes a number of its own.
        let highest = highest.filter(|highest| finished.is_empty() && *highest > newest);
        let number = match highest {
            Some(number) => number,
            None => match self.numbers.take() {
                Some(number) => number,
                None => {
                    self.write_alone();
                    return Ok(());
                }
            },
        };
        let mut completion = self.completion(number, complete, finished);
        let mut bytes = tanist_proto::manifest::encode(&completion.manifest);
        let limit = match self.options.has_blob_store {
            true => manifests::INLINE,
            false => manifests::INLINE_ALONE,
        };
        // Without a blob store the record has to take the end of a region, however large: the last output of the region
        // becomes visible with this manifest alone. Only the bytes of ends may exceed the limit: snapshots of other
        // regions are left out if there are ends, and wait for the next manifest.
        let must_be_kept = !self.options.has_blob_store && !finished.is_empty();
        if must_be_kept && bytes.len() > limit && !complete.is_empty() {
            completion = self.completion(number, &[], finished);
            bytes = tanist_proto::manifest::encode(&completion.manifest);
        }
        if bytes.len() <= limit || must_be_kept {
            let place = pb::stored_manifest::Place::Inline(bytes);
            self.write(Some((
                completion,
                pb::StoredManifest { place: Some(place) },
            )));
            return Ok(());
        }
        if !self.options.has_blob_store {
            return Err(self.too_large(&completion, complete, limit));
        }
        self.put.putting = Some(completion);
        self.out.push(Effect::PutManifest { number, bytes });
        Ok(())
    }

    fn too_large(&self, completion: &Completion, complete: &[usize], limit: usize) -> TooLarge {
        let bytes = |region: &usize| completion.manifest.regions[*region].encoded_len();
        let region = complete.iter().copied().max_by_key(bytes);
        let region = region.unwrap_or_default();
        let vertices = self.regions.topology().vertices_of(region).join(", ");
        let reason = format!(
            "the state of {vertices} has {} bytes, and without a blob store that outlives the host a checkpoint of \
             all regions has {limit} at most: set high-availability.storageDir",
            bytes(&region)
        );
        TooLarge { region, reason }
    }

    /// Whether all snapshots of a built manifest may still be written.
    pub(super) fn is_valid(&self, completion: &Completion) -> bool {
        let is_there = |(region, number): &(usize, u64)| {
            let at = self.regions.get(*region);
            let attempt = at.attempt().filter(|attempt| attempt.is_complete());
            let generation = completion.manifest.regions[*region].generation;
            let has_finished = completion.finished.binary_search(region).is_ok()
                && at.phase() == Phase::Finished
                && at.generation() == generation;
            has_finished || attempt.is_some_and(|it| it.number() == *number)
        };
        completion.regions.iter().all(is_there) || is_planted(Fault::SnapshotAfterFailure)
    }

    /// Writes a manifest that was put.
    pub(super) fn write_put(&mut self, completion: Completion, object: pb::ManifestObject) {
        let place = pb::stored_manifest::Place::Object(object);
        self.write(Some((
            completion,
            pb::StoredManifest { place: Some(place) },
        )));
    }

    /// Makes a write without a manifest: it reserves numbers, and records changed requests for savepoints.
    pub(super) fn write_alone(&mut self) {
        self.write(None);
    }

    fn write(&mut self, completion: Option<(Completion, pb::StoredManifest)>) {
        let written = completion
            .iter()
            .flat_map(|(completion, _)| &completion.regions);
        let written: BTreeSet<usize> = written.map(|(region, _)| *region).collect();
        if is_planted(Fault::CommitBeforeWrite)
            && let Some((completion, _)) = &completion
        {
            self.out.push(Effect::Commit {
                number: completion.manifest.number,
                committables: completion.manifest.uncommitted.clone(),
            });
        }
        let newest = match &completion {
            Some((completion, _)) => Some(&completion.manifest),
            None => self.record.newest_manifest(),
        };
        let durable = &self.record.durable().requests;
        let next = self.numbers.next();
        let newest = newest.map(|newest| &**newest);
        let change = Change {
            requests: self.savepoints.requests(durable, next, newest),
            next: self.numbers.to_reserve(),
            floor: self.floor(&written),
            drops_origin: completion
                .as_ref()
                .is_some_and(|it| self.needs_no_origin(&it.0)),
            completion,
            retained: self.options.retained,
            retention: self.options.retention,
            committed_up_to: self.commits.done(),
            removed: self.removal.removed().clone(),
        };
        let write = self.record.begin_write(change);
        self.out.push(Effect::Write {
            write: write.number,
            record: write.record,
        });
    }

    /// The floor of a write that has new snapshots of some regions.
    fn floor(&self, written: &BTreeSet<usize>) -> u64 {
        let durable = self.record.durable().floor;
        if !self.regions.are_all_settled() {
            return durable;
        }
        let others = self.regions.attempts();
        let others = others.filter(|(region, _)| !written.contains(region));
        let bound = others.map(|(_, attempt)| attempt.floor()).min();
        let newest = self.numbers.newest();
        durable.max(newest.min(bound.unwrap_or(u64::MAX)))
    }

    fn completion(&self, number: u64, complete: &[usize], finished: &[usize]) -> Completion {
        let before = self.record.newest_manifest();
        let mut regions = Vec::new();
        let mut snapshots = Vec::new();
        for (region, at) in self.regions.iter() {
            let attempt = at
                .attempt()
                .filter(|_| complete.binary_search(&region).is_ok());
            let taken = match attempt {
                Some(attempt) => Some(attempt.number()),
                None => finished.binary_search(&region).is_ok().then_some(number),
            };
            let Some(taken) = taken else {
                let carried_over = before.and_then(|before| before.regions.get(region));
                snapshots.push(
                    carried_over
                        .cloned()
                        .unwrap_or_else(|| self.without_snapshot(region)),
                );
                continue;
            };
            regions.push((region, taken));
            let subtasks = self.regions.topology().tasks_of(region).iter();
            let subtasks = subtasks.map(|task| {
                let saved = attempt.and_then(|attempt| attempt.snapshot(*task));
                saved.map_or_else(|| self.ended(*task), |saved| (**saved).clone())
            });
            snapshots.push(pb::RegionSnapshot {
                kind: pb::RegionSnapshotKind::Taken.into(),
                number: taken,
                generation: at.generation(),
                subtasks: subtasks.collect(),
            });
        }
        let manifest = pb::CheckpointManifest {
            job_id: self.job_id.to_owned(),
            number,
            layout: self.record.durable().layout,
            uncommitted: self.uncommitted(&snapshots, &regions),
            regions: snapshots,
            coordinators: self.coordinators.to_vec(),
            steps: self.regions.topology().steps().to_vec(),
        };
        Completion {
            manifest: Arc::new(manifest),
            triggered_at_ms: self.triggered_at_ms(&regions),
            regions,
            finished: finished.to_vec(),
        }
    }

    /// When the first of these numbers was triggered; 0: all of these regions have finished.
    fn triggered_at_ms(&self, regions: &[(usize, u64)]) -> u64 {
        let attempts = regions.iter().map(|(region, _)| self.regions.get(*region));
        let began = attempts.filter_map(|at| Some(at.attempt()?.began_ms()));
        began.min().unwrap_or_default()
    }

    fn without_snapshot(&self, region: usize) -> pb::RegionSnapshot {
        let takes_part = self.regions.topology().not_checkpointed(region).is_none();
        let kind = match self.record.durable().origin {
            Some(_) if takes_part => pb::RegionSnapshotKind::FromOrigin,
            Some(_) | None => pb::RegionSnapshotKind::FromStart,
        };
        pb::RegionSnapshot {
            kind: kind.into(),
            ..pb::RegionSnapshot::default()
        }
    }

    fn ended(&self, task: usize) -> pb::SubtaskSnapshot {
        let at = self.regions.topology().task(task).cloned();
        let region = at.as_ref().map(|at| self.regions.get(at.region));
        let end = region.and_then(|region| region.end(task));
        pb::SubtaskSnapshot {
            vertex_id: at
                .as_ref()
                .map_or_else(String::new, |at| at.vertex_id.clone()),
            subtask: at.map_or(0, |at| at.subtask),
            ended: true,
            committables: end.map_or_else(Vec::new, |end| end.committables.clone()),
            output: end.map_or_else(Vec::new, |end| end.output.clone()),
            ..pb::SubtaskSnapshot::default()
        }
    }

    /// The output to commit: what new snapshots list and the former snapshots of their regions did not (the end of a
    /// task repeats what it listed before). The output of earlier checkpoints is committed.
    fn uncommitted(
        &self,
        snapshots: &[pb::RegionSnapshot],
        new: &[(usize, u64)],
    ) -> Vec<pb::CheckpointCommittable> {
        let mut uncommitted = Vec::new();
        let key =
            |it: &pb::CheckpointCommittable| (it.uid.clone(), it.kind.clone(), it.content.clone());
        let mut known = BTreeSet::new();
        for (region, _) in new {
            let former = self.record.snapshot(*region).into_iter();
            let former = former.flat_map(|it| &it.subtasks);
            known.extend(former.flat_map(|it| &it.committables).map(key));
            let named = snapshots[*region]
                .subtasks
                .iter()
                .flat_map(|it| &it.committables);
            for committable in named {
                if known.insert(key(committable)) {
                    uncommitted.push(committable.clone());
                }
            }
        }
        uncommitted
    }

    /// Whether no region of a manifest is restored from the origin.
    fn needs_no_origin(&self, completion: &Completion) -> bool {
        let mut regions = completion.manifest.regions.iter().enumerate();
        regions.all(|(region, snapshot)| {
            let takes_part = self.regions.topology().not_checkpointed(region).is_none();
            snapshot.kind() == pb::RegionSnapshotKind::Taken || !takes_part
        })
    }
}
