//! The record `checkpoints/<job>` and the manifests that it names: what is durable, and the one write in flight.
//!
//! There is no decided copy. A write is made from the durable record and everything that is decided at that moment;
//! if the store refuses it, nothing is undone, and the next write is made in the same way.
//!
//! Invariants:
//! - One write is in flight.
//! - `durable` is what the store has, as far as this term knows.
//! - `floor` and `next` never fall.
//! - The number of the origin is below all numbers that this job gave out, so each number has one manifest.
//! - After a write of unknown outcome nothing is written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tanist_gateway::manifests;
use tanist_proto::v1 as pb;

use super::effect::RestoredFrom;
use super::objects::{manifest_object, named_by_region, state_size};
use super::options::Topology;
use super::unreadable::{Unreadable, unfit, unfit_origin};
use crate::core::faults::{Fault, is_planted};

/// Number of subsumed checkpoints that a record names. The objects of older ones are found by a listing. They can be
/// many: a region whose number is in flight for long holds the floor, and with it the removal, for thousands of
/// checkpoints of other regions.
pub(super) const NAMED_SUBSUMED: usize = 16;

/// A manifest that a write makes the newest one.
#[derive(Debug, Clone)]
pub(super) struct Completion {
    pub(super) manifest: Arc<pb::CheckpointManifest>,
    /// Regions with a new snapshot, and its number, in order.
    pub(super) regions: Vec<(usize, u64)>,
    /// Regions among them that have durably finished, in order.
    pub(super) finished: Vec<usize>,
    /// For people; 0: unknown.
    pub(super) triggered_at_ms: u64,
}

/// What a write changes.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) next: u64,
    pub(super) floor: u64,
    /// The manifest that becomes the newest one, and where it is; `None`: there is no new one.
    pub(super) completion: Option<(Completion, pb::StoredManifest)>,
    pub(super) requests: Vec<pb::SavepointRequest>,
    /// Number of completed checkpoints that are kept.
    pub(super) retained: usize,
    /// Up to this number everything is committed.
    pub(super) committed_up_to: u64,
    /// Subsumed checkpoints without objects.
    pub(super) removed: BTreeSet<u64>,
    /// Whether the origin leaves the record: no region is restored from it any more.
    pub(super) drops_origin: bool,
    pub(super) retention: pb::CheckpointRetention,
}

/// A write in flight.
#[derive(Debug, Clone)]
pub(super) struct Write {
    pub(super) number: u64,
    pub(super) record: Arc<pb::JobCheckpoints>,
    /// The manifest that becomes the newest one; `None`: there is no new one.
    pub(super) completion: Option<Completion>,
    pub(super) committed_up_to: u64,
    /// The object of the origin's manifest, if nothing names it once this is durable.
    pub(super) left: Option<String>,
    /// The newest subsumed checkpoint that leaves the record before all of its objects are removed; `None`: none does.
    pub(super) forgotten: Option<u64>,
}

impl Write {
    /// The object that holds the manifest of what it completes.
    pub(super) fn manifest_object(&self) -> Option<&str> {
        let completed = self.record.retained.last();
        let completed = completed.filter(|_| self.completion.is_some())?;
        manifest_object(completed.manifest.as_ref())
    }
}

/// The record and its manifests; see the module.
#[derive(Debug)]
pub(super) struct CheckpointRecord {
    epoch: u64,
    durable: Arc<pb::JobCheckpoints>,
    /// The manifests of `retained`, `removing` and `origin`, by number. A missing one of `removing` is left out.
    manifests: BTreeMap<u64, Arc<pb::CheckpointManifest>>,
    /// The objects that the newest manifest names, by region.
    objects: Vec<BTreeSet<String>>,
    writing: Option<Write>,
    /// Number of the last write of this JobMaster; 0: there was none.
    last_write: u64,
    /// Whether the outcome of a write is unknown: nothing is written any more.
    is_over: bool,
}

/// The objects that hold manifests of a record, which [`super::CheckpointCore::new`] needs.
pub fn manifest_objects(record: &pb::JobCheckpoints) -> Vec<String> {
    let objects = stored_manifests(record).filter_map(|(_, _, stored)| manifest_object(stored));
    objects.map(str::to_owned).collect()
}

/// By region, the number of the snapshot in the newest manifest of a record, or of the origin that takes its place; 0:
/// there is none. Empty if there is no manifest: then each region begins from the origin, if there is one. Empty, too,
/// if the manifest can't be read: then no [`super::CheckpointCore`] can be built, and nothing is deployed.
pub fn newest_numbers(
    record: &pb::JobCheckpoints,
    objects: &BTreeMap<String, Vec<u8>>,
) -> Vec<u64> {
    let stored = record.retained.last().and_then(|it| it.manifest.as_ref());
    let bytes = match stored.and_then(|stored| stored.place.as_ref()) {
        Some(pb::stored_manifest::Place::Inline(bytes)) => Some(bytes),
        Some(pb::stored_manifest::Place::Object(object)) => objects.get(&object.name),
        None => None,
    };
    let manifest = bytes.and_then(|bytes| tanist_proto::manifest::decode(bytes).ok());
    let regions = manifest.map_or_else(Vec::new, |manifest| manifest.regions);
    let origin = record.origin.as_ref().map_or(0, |origin| origin.number);
    let number = |region: pb::RegionSnapshot| match region.kind() {
        pb::RegionSnapshotKind::Taken => region.number,
        pb::RegionSnapshotKind::FromOrigin => origin,
        pb::RegionSnapshotKind::Unspecified | pb::RegionSnapshotKind::FromStart => 0,
    };
    regions.into_iter().map(number).collect()
}

/// The places of a record that hold a manifest. A restart needs all but those of `Removing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Retained,
    Removing,
    Origin,
}

/// All manifests of a record, with their numbers.
fn stored_manifests(
    record: &pb::JobCheckpoints,
) -> impl Iterator<Item = (Holder, u64, Option<&pb::StoredManifest>)> {
    let retained = record.retained.iter();
    let retained = retained.map(|it| (Holder::Retained, it.number, it.manifest.as_ref()));
    let removing = record.removing.iter();
    let removing = removing.map(|it| (Holder::Removing, it.number, it.manifest.as_ref()));
    let origin = record.origin.iter();
    let origin = origin.map(|it| (Holder::Origin, it.number, it.manifest.as_ref()));
    retained.chain(removing).chain(origin)
}

impl CheckpointRecord {
    /// The record that a JobMaster begins with. `objects` are the contents of [`manifest_objects`], as far as they
    /// exist.
    pub(super) fn new(
        durable: Arc<pb::JobCheckpoints>,
        epoch: u64,
        objects: &BTreeMap<String, Vec<u8>>,
        topology: &Topology,
    ) -> Result<CheckpointRecord, Unreadable> {
        if let Some(origin) = &durable.origin
            && let Some(reason) = unfit_origin(&durable, origin)
        {
            let number = origin.number;
            return Err(Unreadable::Unfit { number, reason });
        }
        let mut manifests = BTreeMap::new();
        for (holder, number, stored) in stored_manifests(&durable) {
            let is_needed = holder != Holder::Removing;
            let place = stored.and_then(|stored| stored.place.as_ref());
            let bytes = match place {
                Some(pb::stored_manifest::Place::Inline(bytes)) => Some(bytes),
                Some(pb::stored_manifest::Place::Object(object)) => objects.get(&object.name),
                None => None,
            };
            let decoded = bytes.map(|bytes| tanist_proto::manifest::decode(bytes));
            match decoded {
                Some(Ok(manifest)) if holder == Holder::Origin => {
                    if manifest.number != number {
                        let reason = format!("it is of checkpoint {}", manifest.number);
                        return Err(Unreadable::Unfit { number, reason });
                    }
                    manifests.insert(number, Arc::new(manifest));
                }
                Some(Ok(manifest)) => {
                    let is_newest = durable
                        .retained
                        .last()
                        .is_some_and(|it| it.number == number);
                    let unfit = unfit(&durable, topology, (number, &manifest), is_newest);
                    if let Some(reason) = unfit.filter(|_| is_needed) {
                        return Err(Unreadable::Unfit { number, reason });
                    }
                    manifests.insert(number, Arc::new(manifest));
                }
                Some(Err(error)) if is_needed => {
                    return Err(Unreadable::Manifest { number, error });
                }
                None if is_needed => {
                    let object = manifest_object(stored).unwrap_or_default().to_owned();
                    return Err(Unreadable::Missing { number, object });
                }
                // A subsumed manifest that is missing or damaged: its removal has begun. A listing finds the objects
                // that are left.
                Some(Err(_)) | None => {}
            }
        }
        let mut record = CheckpointRecord {
            epoch,
            durable,
            manifests,
            objects: Vec::new(),
            writing: None,
            last_write: 0,
            is_over: false,
        };
        record.index_objects();
        Ok(record)
    }

    /// The durable record.
    pub(super) fn durable(&self) -> &pb::JobCheckpoints {
        &self.durable
    }

    /// Whether the outcome of a write is unknown: another term exists.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// The write in flight.
    pub(super) fn writing(&self) -> Option<&Write> {
        self.writing.as_ref()
    }

    /// Whether the write in flight has a snapshot of a region.
    pub(super) fn is_writing(&self, region: usize) -> bool {
        let completion = self.writing.as_ref().and_then(|it| it.completion.as_ref());
        completion.is_some_and(|it| it.regions.binary_search_by_key(&region, |it| it.0).is_ok())
    }

    /// The newest completed checkpoint.
    pub(super) fn newest(&self) -> Option<&pb::CompletedCheckpoint> {
        self.durable.retained.last()
    }

    /// The manifest of a checkpoint of the record.
    pub(super) fn manifest(&self, number: u64) -> Option<&Arc<pb::CheckpointManifest>> {
        self.manifests.get(&number)
    }

    /// The manifest of the newest completed checkpoint.
    pub(super) fn newest_manifest(&self) -> Option<&Arc<pb::CheckpointManifest>> {
        self.manifest(self.newest()?.number)
    }

    /// The newest durable snapshot of a region.
    pub(super) fn snapshot(&self, region: usize) -> Option<&pb::RegionSnapshot> {
        let snapshot = self.newest_manifest()?.regions.get(region)?;
        (snapshot.kind() == pb::RegionSnapshotKind::Taken).then_some(snapshot)
    }

    /// The number of a region's newest durable snapshot; 0: it has none.
    pub(super) fn newest_number(&self, region: usize) -> u64 {
        self.snapshot(region).map_or(0, |snapshot| snapshot.number)
    }

    /// The manifest of the job's origin.
    pub(super) fn origin(&self) -> Option<(&pb::CheckpointOrigin, &pb::CheckpointManifest)> {
        let origin = self.durable.origin.as_ref()?;
        Some((origin, self.manifest(origin.number)?))
    }

    /// The number of the checkpoint that a region is restored from: of its newest durable snapshot, or of the origin;
    /// 0: it begins from the start.
    pub(super) fn restored_number(&self, region: usize) -> u64 {
        let origin = self.durable.origin.as_ref().map_or(0, |it| it.number);
        self.snapshot(region)
            .map_or(origin, |snapshot| snapshot.number)
    }

    /// What a region is restored from.
    pub(super) fn restored_from(&self, region: usize) -> RestoredFrom {
        let number = match is_planted(Fault::LastButOneRestored) {
            false => self.newest_number(region),
            true => {
                let before = self.durable.retained.iter().rev().nth(1);
                let manifest = before.and_then(|before| self.manifest(before.number));
                let snapshot = manifest.and_then(|manifest| manifest.regions.get(region));
                snapshot.map_or(0, |snapshot| snapshot.number)
            }
        };
        match number {
            0 if self.durable.origin.is_some() => RestoredFrom::Origin,
            0 => RestoredFrom::Start,
            number => RestoredFrom::Snapshot(number),
        }
    }

    /// All objects that a retained manifest names. Those of an origin are in a directory of the user.
    pub(super) fn named(&self) -> BTreeSet<&str> {
        let retained = self.durable.retained.iter();
        let manifests = retained.filter_map(|it| self.manifest(it.number));
        let is_new = |manifest: &pb::CheckpointManifest, region: &pb::RegionSnapshot| {
            region.number == manifest.number || !is_planted(Fault::CarriedOverObjectDeleted)
        };
        let regions = manifests.flat_map(|manifest| {
            let regions = manifest.regions.iter();
            regions.filter(move |region| is_new(manifest, region))
        });
        regions.flat_map(named_by_region).collect()
    }

    /// The objects that hold manifests of the durable record, or of the one that is being written.
    pub(super) fn manifest_objects(&self) -> BTreeSet<&str> {
        let writing = self.writing.iter().map(|write| &*write.record);
        let records = writing.chain([&*self.durable]);
        let manifests = records.flat_map(|record| {
            let retained = record.retained.iter().map(|it| it.manifest.as_ref());
            let removing = record.removing.iter().map(|it| it.manifest.as_ref());
            let origin = record.origin.iter().map(|it| it.manifest.as_ref());
            retained.chain(removing).chain(origin)
        });
        manifests.filter_map(manifest_object).collect()
    }

    /// Whether the newest snapshot of a region names an object.
    pub(super) fn names(&self, region: usize, object: &str) -> bool {
        let named = self.objects.get(region);
        named.is_some_and(|named| named.contains(object))
    }

    /// Begins a write. To be called while none is in flight.
    pub(super) fn begin_write(&mut self, change: Change) -> Write {
        let mut record = (*self.durable).clone();
        record.next = record.next.max(change.next);
        record.floor = record.floor.max(change.floor);
        // Before checkpoints are subsumed: requests say which ones have to stay (`pinned`).
        record.requests = change.requests;
        record.set_retention(change.retention);
        record
            .removing
            .retain(|it| !change.removed.contains(&it.number));
        for completed in &mut record.retained {
            completed.committed |= completed.number <= change.committed_up_to;
        }
        let completion = change.completion.map(|(completion, stored)| {
            let manifest = &completion.manifest;
            record.retained.push(pb::CompletedCheckpoint {
                number: manifest.number,
                manifest: Some(stored),
                epoch: self.epoch,
                size: state_size(manifest),
                committed: manifest.uncommitted.is_empty(),
                triggered_at_ms: completion.triggered_at_ms,
            });
            let pinned = pinned(&record);
            manifests::subsume(&mut record, change.retained.max(1), &pinned);
            completion
        });
        let excess = record.removing.len().saturating_sub(NAMED_SUBSUMED);
        let forgotten = record.removing.drain(..excess).next_back();
        let left = match change.drops_origin {
            true => drop_origin(&mut record),
            false => None,
        };
        self.last_write += 1;
        let write = Write {
            number: self.last_write,
            record: Arc::new(record),
            completion,
            committed_up_to: change.committed_up_to,
            left,
            forgotten: forgotten.map(|it| it.number),
        };
        self.writing = Some(write.clone());
        write
    }

    /// Notes that a write is durable. None: it is not the one in flight.
    pub(super) fn confirm(&mut self, number: u64) -> Option<Write> {
        let write = self.writing.take_if(|write| write.number == number)?;
        self.durable = write.record.clone();
        if let Some(completion) = &write.completion {
            let manifest = &completion.manifest;
            self.manifests.insert(manifest.number, manifest.clone());
        }
        let kept: BTreeSet<u64> = stored_manifests(&self.durable).map(|it| it.1).collect();
        self.manifests.retain(|number, _| kept.contains(number));
        if write.completion.is_some() {
            self.index_objects();
        }
        Some(write)
    }

    fn index_objects(&mut self) {
        let newest = self.newest_manifest().cloned();
        let regions = newest.iter().flat_map(|newest| &newest.regions);
        let names = regions.map(|region| named_by_region(region).map(str::to_owned).collect());
        self.objects = names.collect();
    }

    /// Notes that a write is definitely not durable. None: it is not the one in flight.
    pub(super) fn refuse(&mut self, number: u64) -> Option<Write> {
        self.writing.take_if(|write| write.number == number)
    }

    /// Notes that the outcome of a write can't be known.
    pub(super) fn end_term(&mut self, number: u64) {
        self.is_over |= self.writing.as_ref().is_some_and(|it| it.number == number);
    }

    /// The record that belongs to the job's result: only what `is_kept` remains retained, and all else is garbage.
    pub(super) fn with_result(&self, is_kept: bool, committed_up_to: u64) -> pb::JobCheckpoints {
        let mut record = manifests::ended((*self.durable).clone(), is_kept);
        for kept in &mut record.retained {
            // Otherwise its output was given up.
            kept.committed |= kept.number <= committed_up_to;
        }
        record
    }
}

/// Removes the origin. Returns the object that holds its manifest, the only object of the origin that belongs to the
/// job.
fn drop_origin(record: &mut pb::JobCheckpoints) -> Option<String> {
    let origin = record.origin.take()?;
    manifest_object(origin.manifest.as_ref()).map(str::to_owned)
}

/// The checkpoints from which savepoints are copied.
fn pinned(record: &pb::JobCheckpoints) -> BTreeSet<u64> {
    let is_copied = |request: &&pb::SavepointRequest| {
        request.progress() == pb::SavepointProgress::Copying && !is_planted(Fault::PinnedSubsumed)
    };
    let copied = record.requests.iter().filter(is_copied);
    copied.map(|it| it.number).collect()
}
