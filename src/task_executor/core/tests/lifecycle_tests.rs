//! When a TaskExecutor accepts slots, and when it leaves.

use crate::Fatal;
use crate::core::Effect;
use crate::core::lifecycle::*;
use crate::core::output::Output;

/// Whether it leaves now.
fn leaves(lifecycle: &mut Lifecycle, is_unused: bool) -> bool {
    let mut output = Output::default();
    lifecycle.leave_if_drained(is_unused, &mut output);
    let effects = output.take_effects();
    matches!(effects[..], [Effect::Fatal(Fatal::Drained)])
}

fn drain(lifecycle: &mut Lifecycle, is_draining: bool, is_releasing: bool) {
    lifecycle.drain(is_draining, is_releasing, &mut Output::default());
}

#[test]
fn a_drained_task_executor_leaves_once_when_it_is_unused() {
    let mut lifecycle = Lifecycle::new();
    lifecycle.registered(false);
    assert!(!leaves(&mut lifecycle, true), "it is not drained");
    drain(&mut lifecycle, true, false);
    assert!(!leaves(&mut lifecycle, false), "it is in use");
    assert!(leaves(&mut lifecycle, true));
    assert!(!leaves(&mut lifecycle, true), "it has left");
}

#[test]
fn one_that_was_drained_before_it_registered_stays_until_it_is_released_or_was_open() {
    for (is_released, is_opened) in [(true, false), (false, true)] {
        let mut lifecycle = Lifecycle::new();
        lifecycle.registered(true);
        drain(&mut lifecycle, true, false);
        assert!(!leaves(&mut lifecycle, true));
        if is_opened {
            drain(&mut lifecycle, false, false);
        }
        drain(&mut lifecycle, true, is_released);
        assert!(leaves(&mut lifecycle, true));
    }
}

#[test]
fn only_a_heartbeat_ends_a_drain() {
    let mut lifecycle = Lifecycle::new();
    drain(&mut lifecycle, true, false);
    lifecycle.registered(false);
    assert!(lifecycle.is_draining());
    drain(&mut lifecycle, false, false);
    assert!(!lifecycle.is_draining());
}

#[test]
fn while_it_drains_only_slots_that_are_held_are_confirmed_and_none_once_it_stops() {
    let mut lifecycle = Lifecycle::new();
    assert_eq!(lifecycle.slot_refusal(false), None);
    drain(&mut lifecycle, true, false);
    assert!(lifecycle.slot_refusal(false).is_some());
    assert_eq!(lifecycle.slot_refusal(true), None);
    lifecycle.stop();
    assert!(lifecycle.slot_refusal(true).is_some());
    assert!(!leaves(&mut lifecycle, true), "it stops already");
}
