//! Random runs of the world of [`super::model`], and what must hold once nothing fails any more.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::{Resources, WorkerResourceSpec};

use super::model::{EACH, RATE, RETRY, World};
use crate::core::workers::planning::{self, Bounds};
use crate::workers::WorkersOptions;

impl World {
    /// Nothing fails any more.
    fn heal(&mut self) {
        for _ in 0..100 {
            self.go_on_late();
            self.look_for_records();
            while !self.acts.is_empty() {
                self.act(false);
            }
            let processes = self.processes.len();
            (0..processes).for_each(|_| self.register(0));
            (0..processes).for_each(|_| self.leave());
            self.advance(Duration::from_secs(5));
        }
    }

    /// Checks what must hold then.
    fn check_healed(&self) {
        let capped: BTreeSet<JobId> = self.workers.plan.capped.iter().copied().collect();
        for (id, _) in self.lacking() {
            assert!(capped.contains(&id), "{id} waits forever: {self:#?}");
        }
        let processes: Vec<_> = self.processes.iter().collect();
        let records: Vec<_> = self.records.keys().collect();
        assert_eq!(processes, records, "{self:#?}");
        assert_eq!(processes.len(), self.registered.len(), "{self:#?}");
        let bounds = Bounds {
            largest: None,
            spec: self.options.spec.clone(),
            min: self.options.min_slots,
            max: self.options.max_slots,
            redundant: self.options.redundant_workers * EACH,
        };
        let views = self.views();
        let idle = views.iter().filter(|(_, view)| view.is_unused);
        let idle: Vec<(ResourceId, u32)> = idle.map(|(id, _)| (id.clone(), EACH)).collect();
        let total = views.values().map(|view| view.slots).sum();
        let surplus = planning::releasable(&idle, total, &self.workers.plan, &bounds);
        assert!(surplus.is_empty(), "{surplus:?} idle for ever: {self:#?}");
        assert!(
            total >= bounds.min.min(bounds.max / EACH * EACH),
            "{self:#?}"
        );
    }
}

fn options() -> impl Strategy<Value = WorkersOptions> {
    (0..5_u32, 4..24_u32, 0..2_u32).prop_map(|(min_slots, max_slots, redundant_workers)| {
        let spec = WorkerResourceSpec::new(Resources::ZERO, EACH);
        WorkersOptions {
            min_slots,
            max_slots,
            redundant_workers,
            registration_timeout: Duration::from_secs(60),
            max_failure_rate: RATE as f64,
            retry_interval: RETRY,
            ..WorkersOptions::of(spec)
        }
    })
}

proptest! {
    #[test]
    fn whatever_happens_needs_are_met_in_the_end_and_nothing_is_left_over(
        options in options(),
        steps in proptest::collection::vec((0..24_u8, 0..1000_usize), 0..120),
    ) {
        let mut world = World::new(options);
        for (kind, pick) in steps {
            world.step(kind, pick);
        }
        world.heal();
        world.check_healed();
        while !world.jobs.is_empty() {
            world.end_job(0);
        }
        world.heal();
        world.check_healed();
        if world.options.min_slots == 0 && world.options.redundant_workers == 0 {
            prop_assert!(world.processes.is_empty() && world.records.is_empty());
        }
    }
}
