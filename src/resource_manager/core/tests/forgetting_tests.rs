//! What is forgotten of stopped workers and what is not: during a term any number of them come and go.

use std::sync::Arc;

use tanist_gateway::registration::Answer;
use tanist_gateway::{GatewayError, ResourceRequirements};
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;

use super::idle_tests::{self, World, slots};
use super::slot_manager_tests::{self, job, needs, with_workers};
use crate::core::Effect;
use crate::core::workers;
use crate::core::workers::WorkerEvent;
use crate::tests::scripted::registration;

#[test]
fn nothing_is_kept_of_a_worker_that_was_stopped_and_what_it_had_sent_is_rejected() {
    let World { mut core, now, .. } = World::start();
    let worker = idle_tests::worker();
    let late = || pb::RegisterTaskExecutorRequest {
        worker_of: "test".to_owned(),
        ..registration(5, 1, slots(false, 1))
    };
    core.worker_event(now, WorkerEvent::Ended(worker.clone(), "killed".to_owned()));
    let answer = core.register(now, late());
    assert!(
        matches!(answer, Ok(Answer::TooLow { highest: 1 })),
        "{answer:?}"
    );
    core.worker_event(now, WorkerEvent::Stopped(worker));
    for _ in 0..2 {
        assert!(!core.task_executors.knows_any_registration());
        assert!(!core.slots.knows_any_registered());
        let answer = core.register(now, late());
        assert!(matches!(answer, Ok(Answer::Rejection(_))), "{answer:?}");
    }
}

#[test]
fn a_worker_is_rejected_for_good_only_once_the_removal_of_its_record_is_durable() {
    let mut world = World::start();
    let worker = idle_tests::worker();
    let ended = WorkerEvent::Ended(worker.clone(), "killed".to_owned());
    world.core.worker_event(world.now, ended);
    for _ in 0..2 {
        let answer = world.registers(2);
        assert!(matches!(answer, Err(GatewayError::NotYet(_))), "{answer:?}");
    }
    let end = Effect::Worker(workers::Effect::Stop(worker.clone()));
    assert!(!world.core.take_effects().contains(&end));
    let removed = WorkerEvent::Removed(worker);
    world.core.worker_event(world.now, removed);
    assert!(world.core.take_effects().contains(&end));
    let answer = world.registers(2);
    assert!(matches!(answer, Ok(Answer::Rejection(_))), "{answer:?}");
}

#[test]
fn slots_that_a_job_says_it_holds_on_a_worker_that_was_stopped_are_not_believed() {
    let worker = slot_manager_tests::worker(0);
    let mut slots = with_workers(&[1]);
    let held = [(worker.clone(), vec![ResourceProfile::Any])];
    slots.declare(ResourceRequirements {
        held: Arc::new(held.into_iter().collect()),
        ..needs(job(1), 1, 1)
    });
    slots.remove_worker(&worker);
    slots.forget_worker(&worker);
    assert_eq!(slots.shortages()[&job(1)].missing, 1);
    slots.withdraw(job(1));
    slots.forget_worker(&worker);
    assert!(!slots.knows_any_registered());
}
