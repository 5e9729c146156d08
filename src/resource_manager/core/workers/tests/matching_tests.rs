//! Planning and slot matching together: slots that planning considers sufficient are found by matching.

use proptest::prelude::*;
use tanist_ha::clock::Uptime;
use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::resources::{CpuCores, ResourceProfile, Resources, WorkerResourceSpec};

use crate::core::packing::Room;
use crate::core::slot_manager::{
    ReportedSlot, RequestOutcome, SlotHolder, SlotManager, SlotsReport, SlotsVersion,
};
use crate::core::workers::Shortages;
use crate::core::workers::planning::{Bounds, Plan, Situation, plan};
use crate::tests::scripted::{declared, id};

/// Cores and units of memory.
type Amounts = (u32, u64);

fn resources((cores, memory): Amounts) -> Resources {
    Resources {
        cpu: CpuCores::whole(cores),
        task_memory: memory,
        ..Resources::ZERO
    }
}

fn job(number: usize) -> JobId {
    JobId::from_bits(number as u128 + 1)
}

/// A TaskManager: its resources, its default slots, and the resources in use.
#[derive(Debug, Clone)]
struct TaskManager {
    total: Amounts,
    slots: u32,
    taken: Amounts,
}

impl TaskManager {
    fn spec(&self) -> WorkerResourceSpec {
        WorkerResourceSpec::new(resources(self.total), self.slots)
    }

    fn report(&self) -> SlotsReport {
        let free = (0..self.slots).map(|number| ReportedSlot {
            number,
            holder: None,
            profile: ResourceProfile::Unknown,
        });
        let taken = ReportedSlot {
            number: self.slots,
            holder: Some(SlotHolder {
                job: JobId::from_bits(1 << 64),
                allocation: AllocationId::from_bits(1),
            }),
            profile: resources(self.taken).into(),
        };
        SlotsReport {
            slots: free.chain([taken]).collect(),
            version: SlotsVersion(1),
            are_all: true,
        }
    }
}

/// A cluster and its jobs, each with the slots that it needs.
#[derive(Debug, Clone)]
struct Cluster {
    task_managers: Vec<TaskManager>,
    jobs: Vec<Vec<(ResourceProfile, u32)>>,
}

impl Cluster {
    fn ids(&self) -> impl Iterator<Item = (ResourceId, &TaskManager)> {
        let all = self.task_managers.iter().enumerate();
        all.map(|(number, it)| (format!("tm-{number}").parse().expect("an id"), it))
    }

    /// Its slots after matching until nothing more is assigned.
    fn matched(&self) -> SlotManager {
        let mut slots = SlotManager::new(1);
        for (id, it) in self.ids() {
            slots.put_worker(&id, it.spec(), it.report());
        }
        for (number, profiles) in self.jobs.iter().enumerate() {
            let profiles = profiles.iter().cloned();
            slots.declare(declared(
                job(number),
                id(1),
                profiles.map(|(profile, count)| (profile, count, count)),
            ));
        }
        loop {
            let requests = slots.match_slots(Uptime::START);
            if requests.is_empty() {
                return slots;
            }
            for it in requests {
                let (allocated, version) = (RequestOutcome::Allocated, SlotsVersion(2));
                slots.answered(&it.worker, it.slot, it.holder, &allocated, version);
            }
        }
    }

    /// The plan for workers that could be started up to a maximum.
    fn plan(&self, slots: &mut SlotManager, spec: WorkerResourceSpec, more: u32) -> Plan {
        let registered = self.ids().map(|(id, it)| {
            let room = Room {
                free: slots.slot_counts(&id).1,
                left: slots.left(&id),
                share: it.spec().default_slot(),
            };
            (id, room)
        });
        let registered = registered.collect();
        let total = self.task_managers.iter().map(|it| it.slots).sum();
        let situation = Situation {
            shortages: Shortages {
                needed: slots.shortages_by_job(),
                ..Shortages::default()
            },
            registered,
            total,
            ..Situation::default()
        };
        let bounds = Bounds {
            spec,
            largest: None,
            min: 0,
            max: total + more,
            redundant: 0,
        };
        plan(&situation, &bounds)
    }
}

fn clusters() -> impl Strategy<Value = Cluster> {
    let task_manager = ((2..7_u32, 2..7_u64), 1..5_u32).prop_flat_map(|(total, slots)| {
        let taken = (0..=total.0, 0..=total.1);
        taken.prop_map(move |taken| TaskManager {
            total,
            slots,
            taken,
        })
    });
    let profile = prop_oneof![
        4 => (1..5_u32, 0..4_u64).prop_map(|it| resources(it).into()),
        1 => Just(ResourceProfile::Unknown),
    ];
    let job = prop::collection::vec((profile, 1..4_u32), 1..4);
    let task_managers = prop::collection::vec(task_manager, 1..5);
    let jobs = prop::collection::vec(job, 1..4);
    (task_managers, jobs).prop_map(|(task_managers, jobs)| Cluster {
        task_managers,
        jobs,
    })
}

proptest! {
    /// Nothing is started, and no waiting job could be served with more workers.
    #[test]
    fn no_job_waits_for_what_is_thought_to_be_there(cluster in clusters(), more in 0..9_u32) {
        let mut slots = cluster.matched();
        let spec = WorkerResourceSpec::new(resources((4, 4)), 2);
        let plan = cluster.plan(&mut slots, spec, more);
        if plan.start == 0 && plan.kinds.is_empty() {
            for (job, lacking) in slots.shortages_by_job() {
                let is_told = plan.capped.contains(&job) || plan.too_large.contains(&job);
                prop_assert!(is_told, "{job} lacks {lacking:?}: {plan:?}");
            }
        }
    }
}

#[test]
fn a_job_that_fits_only_where_least_is_left_is_served() {
    let of_four = |taken| TaskManager {
        total: (4, 0),
        slots: 4,
        taken: (taken, 0),
    };
    let cores = |count| ResourceProfile::from(resources((count, 0)));
    // Each of the two holds one of the largest slot: only on the second one is room for the two others beside it.
    let cluster = Cluster {
        task_managers: vec![of_four(0), of_four(1)],
        jobs: vec![vec![(cores(3), 1), (cores(2), 2)]],
    };
    let mut slots = cluster.matched();
    assert!(slots.shortages().is_empty(), "{:?}", slots.shortages());
    let plan = cluster.plan(&mut slots, of_four(0).spec(), 100);
    assert_eq!(plan, Plan::default());
}
