//! Which jobs would fit into the cluster if no other job held slots. Pure, a part of [`super::slot_manager`].
//!
//! The answer changes only with the [`Capacity`] or with the job's own requirements and slots, so that it need not be
//! computed for each job again and again: `unfulfillable.rs` remembers it.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::id::JobId;
use tanist_proto::resources::{ResourceProfile, WorkerResourceSpec};

use super::packing::Room;
use super::requirements::{JobRequirements, Requirements, count};
use super::shortages::ShortJobs;
use super::slots::Slots;
use super::workers::{Startable, places};

/// What the room for jobs depends on: equal capacity means equal room.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Capacity {
    /// Version of the set of registered TaskExecutors.
    of_workers: u64,
    departed: Vec<WorkerResourceSpec>,
    startable: Option<Startable>,
}

impl Capacity {
    /// `departed`: TaskExecutors that may come back; `startable`: those that a driver could start.
    pub(super) fn new(
        slots: &Slots,
        departed: Vec<WorkerResourceSpec>,
        startable: Option<&Startable>,
    ) -> Capacity {
        Capacity {
            of_workers: slots.capacity_version(),
            departed,
            startable: startable.cloned(),
        }
    }

    /// Those of these jobs that lack slots and whose whole minimum would fit, if no other job held slots, into
    /// the registered TaskExecutors, those that may come back, and those that a driver could start. Slots that
    /// a job has on drained TaskExecutors need no room.
    pub(super) fn with_room(
        &self,
        jobs: impl Iterator<Item = JobId>,
        slots: &Slots,
        requirements: &Requirements,
        short_jobs: &ShortJobs,
    ) -> BTreeSet<JobId> {
        let open = slots.open_workers();
        let there = open.map(|(_, it)| it.spec()).chain(&self.departed);
        // Computed only if needed.
        let rooms = LazyCell::new(|| -> Vec<_> {
            let rooms = there.map(|spec| (None, Room::of(spec)));
            rooms.collect()
        });
        let startable = self.startable.as_ref();
        let fits =
            |profiles: &[ResourceProfile]| places(rooms.clone(), startable, profiles).is_some();
        // Largest number of default slots known to fit, and smallest number known not to fit.
        let (mut most, mut too_many) = (0, u32::MAX);
        let mut known: BTreeMap<Vec<ResourceProfile>, bool> = BTreeMap::new();
        let mut has_room = |job: JobId, required: &JobRequirements| {
            let minimum = requirements.minimum_elsewhere(job, slots);
            if required.states_profiles() {
                let fits = || fits(&minimum);
                return *known.entry(minimum.clone()).or_insert_with(fits);
            }
            let number = count(minimum.len());
            if number > most && number < too_many {
                match fits(&minimum) {
                    true => most = number,
                    false => too_many = number,
                }
            }
            number <= most
        };
        let with_room = jobs.filter(|job| {
            let required = requirements.get(*job);
            let required = required.filter(|_| short_jobs.missing(*job) > 0);
            required.is_some_and(|required| has_room(*job, required))
        });
        with_room.collect()
    }
}
