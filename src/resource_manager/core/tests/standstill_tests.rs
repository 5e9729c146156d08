//! A ResourceManager that stood still gives up no TaskExecutor before it has asked once more.

use std::time::Duration;

use tanist_gateway::registration::Answer;

use super::idle_tests::{World, worker};
use crate::Options;
use crate::core::{Effect, workers};

fn is_given_up(effects: &[Effect]) -> bool {
    let stop = Effect::Worker(workers::Effect::RemoveRecord(worker()));
    let tells = |effect: &Effect| matches!(effect, Effect::Disconnect { .. });
    effects
        .iter()
        .any(|effect| *effect == stop || tells(effect))
}

/// Time until the worker is given up, if this process does not stand still again.
fn time_left(world: &mut World) -> Duration {
    let since = world.now;
    world.core.take_effects();
    while !is_given_up(&world.core.take_effects()) {
        world.now = world.core.next_deadline().expect("it beats");
        world.core.on_time(world.now);
    }
    world.now - since
}

#[test]
fn who_stood_still_asks_its_workers_before_it_gives_one_up() {
    let Options {
        heartbeat_timeout,
        heartbeat_interval,
        ..
    } = Options::default();
    let mut world = World::start();
    world.core.take_effects();
    world.now += 5 * heartbeat_timeout;
    world.core.on_time(world.now);
    let effects = world.core.take_effects();
    let is_asked = |effect: &Effect| matches!(effect, Effect::Heartbeat { .. });
    assert!(effects.iter().any(is_asked), "{effects:?}");
    assert!(!is_given_up(&effects), "{effects:?}");
    assert_eq!(
        time_left(&mut world),
        heartbeat_timeout - heartbeat_interval
    );
}

#[test]
fn a_registration_that_came_while_the_leader_stood_still_is_taken_when_it_is_read() {
    let mut world = World::start();
    world.now += 5 * Options::default().heartbeat_timeout;
    world.core.on_time(world.now);
    let answer = world.registers(2);
    assert!(matches!(answer, Ok(Answer::Success(_))), "{answer:?}");
}

#[test]
fn a_worker_that_has_not_registered_has_as_much_more_time() {
    let mut world = World::expecting();
    let timeout = World::options().registration_timeout;
    world.now += 2 * timeout;
    world.core.on_time(world.now);
    assert!(!is_given_up(&world.core.take_effects()));
    let left = time_left(&mut world);
    assert_eq!(left, timeout - Options::default().heartbeat_interval);
}
