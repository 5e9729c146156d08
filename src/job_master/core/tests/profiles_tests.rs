//! Jobs that state resources, and vertices that share slots: which slots are requested and accepted, and
//! where tasks are placed.

use std::sync::Arc;

use tanist_gateway::{SubmissionNumber, Unfulfillable};
use tanist_model::restart;
use tanist_proto::id::AllocationId;
use tanist_proto::resources::{CpuCores, ResourceProfile, Resources};
use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobStatus};

use super::recovered::{Recovered, id, location, placed, report, slot, two_regions};
use super::testing::{graph_of, submitted};
use crate::core::{Connection, Effect, Event, Needs, Registration};

fn cores(number: u32) -> Resources {
    Resources {
        cpu: CpuCores::whole(number),
        ..Resources::ZERO
    }
}

/// Two vertices in one region, each with two subtasks in a group of its own. Their slots need one and two
/// cores.
fn with_resources() -> pb::JobGraph {
    let mut graph = graph_of(&[("a", 2), ("b", 2)], &[(0, 1)]);
    for (number, vertex) in (1..).zip(&mut graph.vertices) {
        vertex.slot_sharing_group = vertex.name.clone();
        vertex.resources = Some((&cores(number)).into());
    }
    graph
}

/// `tm9` offers slots: (number, cores).
fn offer(job: &mut Recovered, slots: &[(u32, u32)]) {
    job.registrations += 1;
    let slots = slots.iter().map(|&(number, has)| pb::SlotOffer {
        allocation_id: slot(number).to_string(),
        slot: number,
        profile: Some((&cores(has)).into()),
    });
    let slots = slots.collect();
    job.hear(Event::Registered {
        connection: Connection {
            task_manager: id("tm9"),
            registration: Registration::new(job.registrations),
        },
        location: location("tm9", "1"),
        executions: vec![],
        slots,
        outputs: vec![],
    });
}

fn declared(job: &Recovered) -> Vec<Needs> {
    let needs = |effect: &Effect| match effect {
        Effect::Declare(needs) => Some((**needs).clone()),
        _ => None,
    };
    job.effects.iter().filter_map(needs).collect()
}

/// The deployed tasks: (vertex, subtask, generation, allocation).
fn deployed_into(job: &Recovered) -> Vec<(String, u32, u64, AllocationId)> {
    let mut deployed = Vec::new();
    for effect in &job.effects {
        if let Effect::Deploy { tasks, .. } = effect {
            deployed.extend(tasks.iter().map(|task| {
                let allocation = task.allocation_id.parse().expect("an allocation");
                (
                    task.vertex_id.clone(),
                    task.subtask,
                    task.generation,
                    allocation,
                )
            }));
        }
    }
    deployed.sort();
    deployed
}

#[test]
fn slots_are_asked_for_by_profile_and_only_these_are_used() {
    let graph = with_resources();
    let mut job = Recovered::new(&graph, submitted(&graph));
    let slots: Vec<_> = [(cores(1).into(), 2), (cores(2).into(), 2)].into();
    let (at_once, held) = (slots.clone(), Default::default());
    assert_eq!(
        declared(&job),
        [Needs {
            slots,
            at_once,
            held,
            submission: SubmissionNumber::default(),
            is_bounded: true,
        }]
    );
    offer(&mut job, &[(0, 1), (1, 2), (2, 2), (3, 2), (4, 4)]);
    assert!(
        job.deployed().is_empty(),
        "there are enough, but not of one core"
    );
    let blocked_reasons = job.core.blocked_reasons();
    let text = &blocked_reasons[0].text;
    assert!(
        text.contains("1 of 4 slots are missing (1 of 1 cores"),
        "{text}"
    );
    assert_eq!(
        (
            blocked_reasons[0].slots_needed,
            blocked_reasons[0].slots_missing
        ),
        (4, 1)
    );
    offer(&mut job, &[(0, 1), (1, 2), (2, 2), (3, 2), (4, 4), (5, 1)]);
    let into: Vec<AllocationId> = deployed_into(&job).into_iter().map(|it| it.3).collect();
    assert_eq!(into, [slot(0), slot(5), slot(1), slot(2)]);
    // Surplus slots are given back, for each kind separately.
    job.pass(1);
    job.pass(6_000);
    let mut freed: Vec<AllocationId> = Vec::new();
    for effect in &job.effects {
        if let Effect::FreeSlots { allocations, .. } = effect {
            freed.extend(allocations);
        }
    }
    freed.sort();
    assert_eq!(freed, [slot(3), slot(4)]);
}

#[test]
fn a_profile_that_no_task_manager_can_give_fails_at_once_and_names_the_largest() {
    let graph = with_resources();
    let mut job = Recovered::new(&graph, submitted(&graph));
    let verdict = |profile: Resources| Unfulfillable {
        profile: profile.into(),
        largest: cores(1),
    };
    job.hear(Event::Unfulfillable(Some(Box::new(verdict(cores(7))))));
    job.pass(1_000);
    assert_eq!(job.core.details().failures, [], "that is none of its slots");
    job.hear(Event::Unfulfillable(Some(Box::new(verdict(cores(2))))));
    let details = job.core.details();
    let cause = &details.failures.last().expect("it failed").cause;
    for part in ["a slot of 2 cores", "the largest there is has 1 cores"] {
        assert!(cause.contains(part), "{cause}");
    }
    assert!(
        job.stored.fatal_cause.contains(cause.as_str()),
        "{}",
        job.stored.fatal_cause
    );
}

#[test]
fn adopted_slots_are_stated_by_their_profiles() {
    let mut graph = two_regions();
    for vertex in &mut graph.vertices {
        vertex.resources = Some((&cores(1)).into());
    }
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    for (number, name) in ["tm0", "tm1"].into_iter().enumerate() {
        let subtask = u32::try_from(number).expect("small");
        let both = [1, 2].map(|vertex| report(vertex, subtask, 1, S::Running));
        job.register(name, "1", both.to_vec());
    }
    // Both vertices share slots: a slot has the resources of both.
    let both = ResourceProfile::from(cores(2));
    let held = [
        (id("tm0"), vec![both.clone()]),
        (id("tm1"), vec![both.clone()]),
    ];
    let held = Arc::new(held.into());
    let slots = vec![(both, 2)];
    let needs = Needs {
        at_once: slots.clone(),
        slots,
        held,
        submission: SubmissionNumber::default(),
        is_bounded: true,
    };
    assert_eq!(declared(&job), [needs]);
}

#[test]
fn co_located_subtasks_share_their_slot_also_after_an_adoption_and_a_restart() {
    let mut graph = two_regions();
    for vertex in &mut graph.vertices {
        vertex.co_location_group = "pairs".to_owned();
    }
    let delay = std::time::Duration::from_millis(10);
    graph.options = Some(pb::JobOptions {
        restart_strategy: Some(restart::fixed_delay(9, delay)),
        ..pb::JobOptions::default()
    });
    let mut job = Recovered::new(&graph, placed(&graph, 1));
    for (number, name) in ["tm0", "tm1"].into_iter().enumerate() {
        let subtask = u32::try_from(number).expect("small");
        let both = [1, 2].map(|vertex| report(vertex, subtask, 1, S::Running));
        job.register(name, "1", both.to_vec());
    }
    assert_eq!(job.core.status(), JobStatus::Running);
    // There are other slots, on an idle TaskManager.
    offer(&mut job, &[(7, 1), (8, 1)]);
    let failed = pb::ExecutionReport {
        cause: "broken".to_owned(),
        ..report(1, 0, 1, S::Failed)
    };
    job.reports("tm0", vec![failed]);
    job.reports("tm1", vec![report(1, 1, 1, S::Canceled)]);
    job.pass(10);
    let vertex = format!("{:032x}", 1);
    let expected = [0, 1].map(|subtask| (vertex.clone(), subtask, 2, slot(subtask)));
    assert_eq!(deployed_into(&job), expected, "beside those that went on");
    // The other task fails too, and the TaskManager of one is gone: both pairs move together.
    let lost = job.connection("tm1");
    let cause = "it is gone".to_owned();
    job.hear(Event::TaskManagerLost {
        connection: lost,
        cause,
    });
    for vertex in [1, 2] {
        let generation = if vertex == 1 { 2 } else { 1 };
        job.reports("tm0", vec![report(vertex, 0, generation, S::Canceled)]);
    }
    job.effects.clear();
    job.pass(1_000);
    let deployed = deployed_into(&job);
    assert_eq!(deployed.len(), 4, "{deployed:?}");
    for subtask in 0..2 {
        let of_pair = deployed.iter().filter(|it| it.1 == subtask);
        let slots: Vec<AllocationId> = of_pair.map(|it| it.3).collect();
        assert_eq!((slots.len(), slots[0]), (2, slots[1]), "{deployed:?}");
    }
}
