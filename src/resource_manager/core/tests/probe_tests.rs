//! A TaskExecutor whose connections end is asked soon, and not all the time.

use std::time::Duration;

use super::idle_tests::{World, slots};
use crate::core::slot_manager::Turn;
use crate::core::{Effect, Event};

/// Waits for the next heartbeat.
fn next_heartbeat(world: &mut World) -> Turn {
    loop {
        world.now = world.core.next_deadline().expect("it beats").max(world.now);
        world.core.handle(world.now, Event::TimePassed);
        let effects = world.core.take_effects();
        let sent = effects.into_iter().find_map(|effect| match effect {
            Effect::Heartbeat { asked_at, .. } => Some(asked_at),
            _ => None,
        });
        if let Some(asked_at) = sent {
            return asked_at;
        }
    }
}

/// Ends a connection, and waits for the next heartbeat, which is answered. Returns how long that took.
fn end_and_answer(world: &mut World) -> Duration {
    let start = world.now;
    let ended = Event::ConnectionEnded(Some("tm:1".into()));
    world.core.handle(world.now, ended);
    let asked_at = next_heartbeat(world);
    world.answers(asked_at, slots(false, 1), 0);
    world.now - start
}

#[test]
fn a_connection_that_ends_after_each_call_is_asked_ever_more_rarely() {
    let mut world = World::start();
    world.core.take_effects();
    let delays: Vec<Duration> = (0..10).map(|_| end_and_answer(&mut world)).collect();
    let milliseconds: Vec<u128> = delays.iter().map(Duration::as_millis).collect();
    assert_eq!(
        milliseconds,
        [
            100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000
        ]
    );
    // After a heartbeat that no end of a connection caused, as early as at first.
    next_heartbeat(&mut world);
    assert_eq!(end_and_answer(&mut world).as_millis(), 100);
}
