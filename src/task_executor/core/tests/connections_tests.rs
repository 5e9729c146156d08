//! When connections begin and end, and what follows from that.

use tanist_ha::clock::Uptime;
use tanist_proto::v1 as pb;

use super::core_tests::Step;
use super::core_world::{World, leaders_sender, scope};
use crate::core::*;

/// The targets at which attempts to register begin.
fn registrations(world: &mut World) -> Vec<Target> {
    let effects = world.core.take_effects().into_iter();
    let begun = effects.filter_map(|effect| match effect {
        Effect::Register { target, .. } => Some(target),
        _ => None,
    });
    begun.collect()
}

fn announcement(epoch: u64, job_incarnation: u64) -> pb::AnnounceLeaderRequest {
    let replaced = pb::JobScope {
        job_incarnation,
        ..scope(1).expect("a scope")
    };
    pb::AnnounceLeaderRequest {
        sender: Some(leaders_sender(epoch)),
        leader_rpc_address: format!("jm{epoch}:1"),
        process: "jm".to_owned(),
        jobs: vec![replaced],
    }
}

#[test]
fn a_stopping_task_executor_does_not_register_again() {
    let mut world = World::running();
    let now = Uptime::START;
    world.core.handle(now, Event::Stopped);
    let disconnect = pb::DisconnectJobMasterRequest {
        sender: world.sender(0),
        job: scope(1),
        cause: "lost".to_owned(),
        job_ended: false,
    };
    let answer = world.core.disconnect_job_master(now, &disconnect);
    answer.expect("is registered");
    let disconnect = pb::DisconnectResourceManagerRequest {
        sender: world.sender(1),
        cause: "lost".to_owned(),
    };
    let answer = world.core.disconnect_resource_manager(now, &disconnect);
    answer.expect("is registered");
    let answer = world.core.announce_leader(now, &announcement(1, 2));
    answer.expect("of this term");
    world.core.after_event(now, Moment::default(), 0);
    assert_eq!(registrations(&mut world), []);
    let messages = world.core.disconnect_messages("stopped");
    assert!(messages.resource_manager.is_some());
    assert_eq!(messages.job_masters.len(), 1);
}

#[test]
fn the_attempts_to_register_end_when_the_task_executor_stops() {
    let mut world = World::new();
    let lead = Step::Lead { epoch: 1 };
    world.step(&lead).expect("it holds");
    let run = world.core.resource_manager.run();
    let prepared = world.core.prepare_resource_manager(run);
    prepared.expect("it registers");
    world.core.handle(Uptime::START, Event::Stopped);
    let prepared = world.core.prepare_resource_manager(run);
    assert!(prepared.is_err(), "{prepared:?}");
    let effects = world.core.take_effects();
    let stops = |effect: &Effect| matches!(effect, Effect::StopRegistering(_));
    assert!(effects.iter().any(stops), "{effects:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_term_the_store_contradicts_is_dropped_and_no_slot_expires_until_another_one_is_followed()
 {
    let mut world = World::running();
    let (sender, slot, job, allocation) = (1, 1, 1, 2);
    let request = Step::RequestSlot {
        sender,
        slot,
        job,
        allocation,
    };
    world.step(&request).expect("it holds");
    assert!(world.core.slots.next_deadline().is_some());
    // The leader of term 2 calls while the store is silent.
    world.believe(2).await;
    let answer = world.core.announce_leader(world.now, &announcement(2, 1));
    answer.expect("it is believed");
    assert!(!world.core.term_changed(&world.proof()), "it is believed");
    let at = world.at();
    world.core.after_event(world.now, at, 0);
    let targets = [
        Target::ResourceManager,
        Target::JobMaster(JobId::from_bits(1)),
    ];
    assert_eq!(registrations(&mut world), targets);
    let run = world.core.resource_manager.run();
    let prepared = world.core.prepare_resource_manager(run);
    let sender = prepared.expect("it registers").sender.expect("a sender");
    // The store answers that it has no such term.
    world.contradict();
    let proof = world.proof();
    assert!(world.core.term_changed(&proof));
    world.core.after_event(world.now, at, 0);
    let effects = world.core.take_effects().into_iter();
    let stopped: Vec<Target> = effects
        .filter_map(|effect| match effect {
            Effect::StopRegistering(target) => Some(target),
            _ => None,
        })
        .collect();
    assert_eq!(stopped, targets);
    assert_eq!(world.core.slots.next_deadline(), None);
    assert!(world.core.prepare_resource_manager(run).is_err());
    let heartbeat = pb::HeartbeatFromResourceManagerRequest {
        sender: Some(pb::Sender {
            registration: sender.registration,
            ..leaders_sender(2)
        }),
        ..pb::HeartbeatFromResourceManagerRequest::default()
    };
    let answer = world
        .core
        .heartbeat_from_resource_manager(world.now, &heartbeat, 0);
    assert!(answer.is_err(), "its term was contradicted: {answer:?}");
    // Reported once.
    assert!(!world.core.term_changed(&proof));
    // The leader of the store is followed, and its term is older than the contradicted one.
    world.epoch = 1;
    world.step(&Step::Lead { epoch: 1 }).expect("it holds");
    for at in [None, Some(1)] {
        let succeeds = true;
        world
            .step(&Step::Register { at, succeeds })
            .expect("it holds");
    }
    assert!(world.core.slots.next_deadline().is_some());
}

#[test]
fn a_job_that_is_added_again_takes_no_answer_from_before() {
    let mut world = World::running();
    let run = |world: &World| {
        let known = world.core.jobs.get(JobId::from_bits(1));
        known.map(|known| known.connection().run())
    };
    let earlier = run(&world);
    let (sender, job, ended) = (0, 1, true);
    let disconnect = Step::Disconnect { sender, job, ended };
    for step in [disconnect, Step::End { which: 0 }] {
        world.step(&step).expect("it holds");
    }
    assert_eq!(run(&world), None, "it is forgotten");
    let request = Step::RequestSlot {
        sender: 1,
        slot: 0,
        job,
        allocation: 2,
    };
    world.step(&request).expect("it holds");
    assert!(run(&world) > earlier, "{:?}", run(&world));
}
