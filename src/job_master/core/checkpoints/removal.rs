//! The removal of garbage. This object owns which removal runs, which objects are known to be left over, and which
//! subsumed checkpoints have no objects any more.
//!
//! Garbage is every object that is numbered below the durable `floor` and that no retained manifest names. It stays
//! garbage, so a removal that a deposed leader makes late harms nothing. A subsumed checkpoint leaves the record when
//! each of its objects is removed or named by a retained manifest, so that none may become garbage later. Or it leaves
//! when the record names too many: then a listing finds its objects, once the floor is above them.

use std::collections::BTreeSet;

use tanist_proto::v1 as pb;

use super::Effect;
use super::objects::{manifest_object, named_by, named_by_subtask, number_of, number_of_manifest};
use super::options::RETRY_MS;
use super::output::Output;
use super::record::CheckpointRecord;
use crate::core::faults::{Fault, is_planted};

/// Number of objects that one removal has at most, unless they are of one checkpoint.
const OBJECTS_A_REMOVAL: usize = 1_000;

#[derive(Debug)]
struct Running {
    removal: u64,
    /// The subsumed checkpoint whose objects they are; `None`: they are leftovers.
    subsumed: Option<u64>,
    objects: Vec<String>,
}

/// The removals of one JobMaster; see the module.
#[derive(Debug)]
pub(super) struct Removal {
    running: Option<Running>,
    /// Number of the last removal of this JobMaster; 0: there was none.
    last: u64,
    /// No removal begins before this, since one has failed; 0: none has.
    retry_at_ms: u64,
    /// Subsumed checkpoints without objects, until the record forgets them.
    removed: BTreeSet<u64>,
    /// Objects that no subsumed manifest names, such as those of aborted numbers.
    leftovers: BTreeSet<String>,
    /// Whether something may have become garbage since the last look.
    has_changed: bool,
    listing_interval_ms: u64,
    /// When the job's directory is listed next.
    list_at_ms: u64,
    /// Objects numbered below this may exist that neither the record nor this JobMaster knows. The directory is listed
    /// after each write that raises the floor, until the floor has reached this number. `None`: there are none.
    unknown_below: Option<u64>,
    /// The durable floor.
    floor: u64,
}

/// What may be removed, by the durable record.
struct Garbage<'a> {
    floor: u64,
    named: BTreeSet<&'a str>,
    manifests: BTreeSet<&'a str>,
}

impl Garbage<'_> {
    fn of(record: &CheckpointRecord) -> Garbage<'_> {
        let writing = record.writing();
        let writing = writing.filter(|_| is_planted(Fault::DeletionBeforeFloor));
        Garbage {
            floor: writing.map_or(record.durable().floor, |write| write.record.floor),
            named: record.named(),
            manifests: record.manifest_objects(),
        }
    }

    /// Whether an object is garbage. The manifest that is being put is not: its number is not below the floor.
    fn has(&self, object: &str) -> bool {
        if let Some(number) = number_of_manifest(object) {
            return number < self.floor && !self.manifests.contains(object);
        }
        number_of(object).is_some_and(|number| number < self.floor) && !self.named.contains(object)
    }

    /// Whether an object may become garbage later, and no retained manifest names it.
    fn may_have(&self, object: &str) -> bool {
        number_of(object).is_some_and(|number| number >= self.floor) && !self.named.contains(object)
    }
}

impl Removal {
    /// No removal runs. The job's directory is listed at once, and again when the floor has risen: an earlier JobMaster
    /// may have left objects that are not below the floor yet.
    pub(super) fn new(
        record: &pb::JobCheckpoints,
        listing_interval_ms: u64,
        now_ms: u64,
    ) -> Removal {
        Removal {
            running: None,
            last: 0,
            retry_at_ms: 0,
            removed: BTreeSet::new(),
            leftovers: BTreeSet::new(),
            has_changed: true,
            listing_interval_ms: listing_interval_ms.max(1),
            list_at_ms: now_ms,
            unknown_below: (record.floor < record.next).then_some(record.next),
            floor: record.floor,
        }
    }

    /// Subsumed checkpoints without objects.
    pub(super) fn removed(&self) -> &BTreeSet<u64> {
        &self.removed
    }

    /// Objects that a snapshot names which no manifest will have.
    pub(super) fn leave<'a>(&mut self, snapshots: impl Iterator<Item = &'a pb::SubtaskSnapshot>) {
        let objects = snapshots.flat_map(named_by_subtask);
        self.has_changed = true;
        self.leftovers.extend(objects.map(str::to_owned));
    }

    /// Removes an object that holds a manifest, which no record names.
    pub(super) fn leave_manifest(&mut self, object: String, out: &mut Output) {
        self.last += 1;
        // At once: nothing names it, and nothing ever will. No one waits for the answer, since it is not `running`.
        out.push(Effect::Remove {
            removal: self.last,
            objects: vec![object],
        });
    }

    /// The objects in the job's directory.
    pub(super) fn listed(&mut self, objects: Vec<String>, record: &CheckpointRecord) {
        let garbage = Garbage::of(record);
        let found = objects.into_iter().filter(|object| garbage.has(object));
        self.has_changed = true;
        self.leftovers.extend(found);
    }

    /// The directory could not be listed.
    pub(super) fn not_listed(&mut self, now_ms: u64) {
        self.list_at_ms = now_ms.saturating_add(RETRY_MS);
    }

    /// A removal is done.
    pub(super) fn finish(&mut self, removal: u64) {
        if let Some(running) = self.running.take_if(|it| it.removal == removal) {
            self.has_changed = true;
            self.removed.extend(running.subsumed);
            for object in &running.objects {
                self.leftovers.remove(object);
            }
        }
    }

    /// A removal is not done.
    pub(super) fn fail(&mut self, removal: u64, now_ms: u64) {
        if self.running.take_if(|it| it.removal == removal).is_some() {
            self.has_changed = true;
            self.retry_at_ms = now_ms.saturating_add(RETRY_MS);
        }
    }

    /// A write is durable: checkpoints that have left the record need no removal, and more objects may be garbage.
    /// `forgotten`: the newest subsumed checkpoint that has left the record before all of its objects were removed.
    pub(super) fn record_changed(&mut self, record: &pb::JobCheckpoints, forgotten: Option<u64>) {
        self.has_changed = true;
        self.unknown_below = self.unknown_below.max(forgotten.map(|number| number + 1));
        if let Some(below) = self.unknown_below
            && record.floor > self.floor
        {
            self.list_at_ms = 0;
            self.unknown_below = (record.floor < below).then_some(below);
        }
        self.floor = record.floor;
        let removing: BTreeSet<u64> = record.removing.iter().map(|it| it.number).collect();
        self.removed.retain(|number| removing.contains(number));
    }

    /// When something is due. None: nothing is, before another event.
    pub(super) fn due_ms(&self, now_ms: u64) -> Option<u64> {
        let retry = (self.retry_at_ms > now_ms).then_some(self.retry_at_ms);
        retry.into_iter().chain([self.list_at_ms]).min()
    }

    /// Begins a removal or a listing, if there is anything to do. `is_settled`: no region is awaited.
    pub(super) fn begin(
        &mut self,
        record: &CheckpointRecord,
        is_settled: bool,
        now_ms: u64,
        out: &mut Output,
    ) {
        if self.running.is_some() || now_ms < self.retry_at_ms {
            return;
        }
        // Most events change nothing here, and the cost of a look grows with the manifests.
        if std::mem::take(&mut self.has_changed) && self.remove_any(record, out) {
            return;
        }
        // Only when all regions are settled: before that, the floor is the former leader's, and numbers that it left in
        // flight may still be adopted.
        if is_settled && self.list_at_ms <= now_ms {
            self.list_at_ms = now_ms.saturating_add(self.listing_interval_ms);
            out.push(Effect::List);
        }
    }

    /// Begins the removal of what is garbage, if there is any. Returns whether it does.
    fn remove_any(&mut self, record: &CheckpointRecord, out: &mut Output) -> bool {
        let garbage = Garbage::of(record);
        for subsumed in &record.durable().removing {
            if self.removed.contains(&subsumed.number) {
                continue;
            }
            let manifest = record.manifest(subsumed.number);
            let objects: BTreeSet<&str> =
                manifest.into_iter().flat_map(|it| named_by(it)).collect();
            if objects.iter().any(|object| garbage.may_have(object)) {
                continue;
            }
            let of_state = objects.into_iter().filter(|object| garbage.has(object));
            // The manifest last: until then it says what to remove.
            let all = of_state.chain(manifest_object(subsumed.manifest.as_ref()));
            let all: Vec<String> = all.map(str::to_owned).collect();
            if !all.is_empty() {
                self.run(all, Some(subsumed.number), out);
                return true;
            }
            self.removed.insert(subsumed.number);
        }
        self.leftovers
            .retain(|object| garbage.has(object) || garbage.may_have(object));
        let left = self.leftovers.iter().filter(|object| garbage.has(object));
        let left: Vec<String> = left.take(OBJECTS_A_REMOVAL).cloned().collect();
        if !left.is_empty() {
            self.run(left, None, out);
            return true;
        }
        false
    }

    fn run(&mut self, objects: Vec<String>, subsumed: Option<u64>, out: &mut Output) {
        self.last += 1;
        out.push(Effect::Remove {
            removal: self.last,
            objects: objects.clone(),
        });
        self.running = Some(Running {
            removal: self.last,
            subsumed,
            objects,
        });
    }
}
