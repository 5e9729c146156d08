//! Planning in default slots compared with a simple count, and examples with stated profiles.

use proptest::prelude::*;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::resources::{CpuCores, ResourceProfile, Resources, WorkerResourceSpec};

use crate::core::packing::Room;
use crate::core::workers::planning::{Bounds, Shortages, Situation, plan, releasable};

fn job(number: usize) -> JobId {
    JobId::from_bits(number as u128)
}

fn id(number: usize) -> ResourceId {
    format!("worker-{number}").parse().expect("an id")
}

fn slots(count: u32) -> Vec<ResourceProfile> {
    vec![ResourceProfile::Unknown; count as usize]
}

fn needed(needed: Vec<(JobId, Vec<ResourceProfile>)>) -> Shortages {
    Shortages {
        needed,
        ..Shortages::default()
    }
}

fn cores(count: u32) -> Resources {
    Resources {
        cpu: CpuCores::whole(count),
        ..Resources::ZERO
    }
}

/// One core for each slot.
fn spec(slots: u32) -> WorkerResourceSpec {
    WorkerResourceSpec::new(cores(slots), slots)
}

fn with_free(each: u32, free: u32) -> Room {
    let left = cores(free);
    Room {
        free,
        left,
        ..Room::of(&spec(each))
    }
}

fn bounds() -> impl Strategy<Value = Bounds> {
    (1..4_u32, 0..12_u32, 0..40_u32, 0..4_u32).prop_map(|(each, min, max, redundant)| Bounds {
        spec: spec(each),
        largest: None,
        min,
        max,
        redundant: redundant * each,
    })
}

/// Jobs that lack default slots, and workers with some free slots.
fn situation(each: u32) -> impl Strategy<Value = Situation> {
    let lacking = proptest::collection::vec(1..9_u32, 0..5);
    let free = proptest::collection::vec(0..=each, 0..5);
    (lacking, free, 0..4_u32).prop_map(move |(lacking, free, pending)| {
        let registered = free.iter().enumerate();
        let registered = registered.map(|(number, free)| (id(number), with_free(each, *free)));
        let lacking = lacking.into_iter().enumerate();
        Situation {
            total: (u32::try_from(free.len()).expect("few") + pending) * each,
            registered: registered.collect(),
            shortages: needed(
                lacking
                    .map(|(number, count)| (job(number), slots(count)))
                    .collect(),
            ),
            pending,
            pending_kinds: Vec::new(),
        }
    })
}

fn both() -> impl Strategy<Value = (Situation, Bounds)> {
    bounds().prop_flat_map(|bounds| (situation(bounds.spec.slots()), Just(bounds)))
}

fn free_of(situation: &Situation) -> u32 {
    situation.registered.iter().map(|(_, room)| room.free).sum()
}

/// The same in default slots, one worker after the other, until no rule requires one more.
fn one_by_one(situation: &Situation, bounds: &Bounds) -> (u32, Vec<JobId>) {
    let each = bounds.spec.slots();
    let mut spare = free_of(situation) + situation.pending * each;
    let (mut total, mut started, mut capped) = (situation.total, 0, Vec::new());
    for (job, lacking) in &situation.shortages.needed {
        let lacking = u32::try_from(lacking.len()).expect("few");
        let before = (spare, total, started);
        while spare < lacking && total + each <= bounds.max {
            (spare, total, started) = (spare + each, total + each, started + 1);
        }
        if spare < lacking {
            capped.push(*job);
            (spare, total, started) = before;
        } else {
            spare -= lacking;
        }
    }
    while (total < bounds.min || spare < bounds.redundant) && total + each <= bounds.max {
        (spare, total, started) = (spare + each, total + each, started + 1);
    }
    (started, capped)
}

/// The idle workers of a situation: those that are wholly free.
fn idle_of(situation: &Situation, bounds: &Bounds) -> Vec<(ResourceId, u32)> {
    let each = bounds.spec.slots();
    let idle = situation
        .registered
        .iter()
        .filter(|(_, room)| room.free == each);
    idle.map(|(id, _)| (id.clone(), each)).collect()
}

proptest! {
    #[test]
    fn it_starts_what_one_would_who_counts_on_the_fingers((situation, bounds) in both()) {
        let plan = plan(&situation, &bounds);
        let (started, capped) = one_by_one(&situation, &bounds);
        prop_assert_eq!(plan.start, started);
        prop_assert_eq!(&plan.capped, &capped);
        prop_assert!(plan.too_large.is_empty());
        let total = situation.total + plan.start * bounds.spec.slots();
        prop_assert!(plan.start == 0 || total <= bounds.max);
    }

    #[test]
    fn what_goes_is_neither_reserved_nor_part_of_the_minimum((situation, bounds) in both()) {
        let before = plan(&situation, &bounds);
        let idle = idle_of(&situation, &bounds);
        let going = releasable(&idle, situation.total, &before, &bounds);
        let gone = u32::try_from(going.len()).expect("few") * bounds.spec.slots();
        let mut after = situation.clone();
        after.registered.retain(|(id, _)| !going.contains(id));
        after.total -= gone;
        prop_assert!(gone == 0 || after.total >= bounds.min);
        // Every job that was served still is, and nothing is started again for that.
        after.shortages.needed.retain(|(job, _)| !before.capped.contains(job));
        let again = plan(&after, &bounds);
        prop_assert!(again.start <= before.start && again.capped.is_empty(), "{:?}", again);
    }
}

#[test]
fn a_job_that_the_maximum_keeps_from_running_starts_nothing_and_lets_the_next_one_pass() {
    let situation = Situation {
        shortages: needed(vec![(job(1), slots(9)), (job(2), slots(2))]),
        registered: Vec::new(),
        pending: 1,
        pending_kinds: Vec::new(),
        total: 5,
    };
    let bounds = Bounds {
        spec: spec(1),
        largest: None,
        min: 0,
        max: 8,
        redundant: 0,
    };
    let plan = plan(&situation, &bounds);
    assert_eq!((plan.start, plan.capped), (1, vec![job(1)]));
}

#[test]
fn profiles_are_cut_out_of_what_is_left_and_of_whole_workers_only() {
    let (one, three, five) = (cores(1).into(), cores(3).into(), cores(5).into());
    let situation = |lacking: Vec<ResourceProfile>| Situation {
        shortages: needed(vec![(job(1), lacking)]),
        // Four cores are left, but nowhere three.
        registered: vec![(id(1), with_free(4, 2)), (id(2), with_free(4, 2))],
        pending: 0,
        pending_kinds: Vec::new(),
        total: 8,
    };
    let bounds = Bounds {
        spec: spec(4),
        largest: None,
        min: 0,
        max: 100,
        redundant: 0,
    };
    let start = |lacking| plan(&situation(lacking), &bounds);
    let ResourceProfile::Of(_) = one else {
        panic!("amounts");
    };
    let of = |profile: &ResourceProfile, count| vec![profile.clone(); count];
    assert_eq!(start(of(&one, 4)).start, 0);
    assert_eq!(start(of(&one, 4)).reserved.len(), 2);
    assert_eq!(start(of(&three, 1)).start, 1);
    assert_eq!(start(of(&three, 3)).start, 3, "two don't fit into one");
    let mixed = [of(&three, 2), of(&one, 3)].concat();
    assert_eq!(start(mixed).start, 2, "the small ones fit beside them");
    let too_large = start(of(&five, 1));
    assert_eq!((too_large.start, too_large.too_large), (0, vec![job(1)]));
}

#[test]
fn what_jobs_could_use_comes_after_what_they_need_as_far_as_it_goes() {
    let situation = Situation {
        shortages: Shortages {
            needed: vec![(job(1), slots(1)), (job(2), slots(2)), (job(3), slots(20))],
            useful: vec![(job(1), slots(4)), (job(2), slots(9)), (job(3), slots(1))],
            kept: None,
        },
        ..Situation::default()
    };
    let bounds = Bounds {
        spec: spec(2),
        largest: None,
        min: 0,
        max: 10,
        redundant: 0,
    };
    let planned = plan(&situation, &bounds);
    assert_eq!((planned.start, planned.spare), (5, 0));
    assert_eq!(planned.capped, [job(3)]);
    let few = Situation {
        shortages: Shortages {
            useful: vec![(job(1), slots(3))],
            ..Shortages::default()
        },
        pending: 1,
        total: 2,
        ..Situation::default()
    };
    assert_eq!(plan(&few, &bounds).start, 1, "one is on its way");
}

/// Four slots of a core each, on a host of 16 cores.
fn on_a_host_of_16() -> Bounds {
    Bounds {
        spec: spec(4),
        largest: Some(cores(16)),
        min: 0,
        max: 100,
        redundant: 0,
    }
}

#[test]
fn for_a_slot_that_no_usual_worker_has_one_of_a_fitting_kind_is_started() {
    let bounds = on_a_host_of_16();
    let situation = |lacking: Vec<ResourceProfile>| Situation {
        shortages: needed(vec![(job(1), lacking)]),
        ..Situation::default()
    };
    let (three, five, twenty) = (cores(3), cores(5), cores(20));
    let kind = WorkerResourceSpec::new(five.clone(), 1);
    let mixed = vec![five.clone().into(), five.clone().into(), three.into()];
    let planned = plan(&situation(mixed.clone()), &bounds);
    assert_eq!(planned.start, 1, "for the small one");
    assert_eq!(planned.kinds, [kind.clone(), kind.clone()]);
    // They are expected, and nothing more is started for the same need.
    let expected = Situation {
        pending: 1,
        pending_kinds: planned.kinds,
        total: 6,
        ..situation(mixed.clone())
    };
    let planned = plan(&expected, &bounds);
    assert_eq!((planned.start, planned.kinds.len()), (0, 0));
    let too_large = plan(&situation(vec![twenty.into()]), &bounds);
    assert_eq!(too_large.too_large, [job(1)]);
    // The maximum holds for all kinds together, and a job is served as a whole or not at all.
    let capped = Bounds { max: 5, ..bounds };
    let planned = plan(&situation(mixed), &capped);
    assert_eq!((planned.start, planned.kinds.len()), (0, 0));
    assert_eq!(planned.capped, [job(1)]);
}

#[test]
fn a_kind_has_what_its_slot_asks_for_and_the_usual_of_what_that_leaves_open() {
    let usual = Resources {
        cpu: CpuCores::whole(2),
        task_memory: 100,
        network_memory: 10,
        ..Resources::ZERO
    };
    let bounds = Bounds {
        spec: WorkerResourceSpec::new(usual, 2),
        largest: Some(Resources {
            cpu: CpuCores::whole(8),
            task_memory: 1_000,
            network_memory: 1_000,
            managed_memory: 1_000,
            ..Resources::ZERO
        }),
        ..on_a_host_of_16()
    };
    let wanted = |task_memory| {
        ResourceProfile::Of(Resources {
            task_memory,
            ..Resources::ZERO
        })
    };
    let kind = bounds.kind_for(&wanted(500)).expect("the host has it");
    assert_eq!(kind.slots(), 1);
    assert_eq!(kind.total().cpu, CpuCores::whole(2));
    assert_eq!(
        (kind.total().task_memory, kind.total().network_memory),
        (500, 10)
    );
    assert_eq!(
        bounds.kind_for(&wanted(995)),
        None,
        "not with the network's"
    );
    assert_eq!(bounds.kind_for(&wanted(100)).as_ref(), Some(&bounds.spec));
}

#[test]
fn what_is_kept_for_a_job_is_no_room_for_those_behind_it_and_is_not_let_go() {
    let both = [id(1), id(2)].map(|id| (id, with_free(1, 2)));
    let kept = (job(2), [id(1)].into());
    let situation = Situation {
        shortages: Shortages {
            needed: vec![(job(1), slots(1)), (job(2), slots(9)), (job(3), slots(3))],
            useful: vec![(job(1), slots(1))],
            kept: Some(kept),
        },
        registered: both.to_vec(),
        total: 4,
        ..Situation::default()
    };
    let bounds = Bounds {
        spec: spec(2),
        largest: None,
        min: 0,
        max: 6,
        redundant: 0,
    };
    let plan = plan(&situation, &bounds);
    assert_eq!(plan.capped, [job(2)]);
    assert_eq!(
        plan.start, 1,
        "the one that is left there is not for the third"
    );
    assert!(plan.reserved.contains(&id(1)));
}
