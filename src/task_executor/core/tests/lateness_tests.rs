//! What a process that stood still credits its cancelled tasks with.

use std::time::Duration;

use tanist_gateway::GatewayError;
use tanist_ha::clock::Uptime;

use super::core_tests::Step;
use super::core_world::World;
use crate::core::lateness::Lateness;
use crate::core::*;
use crate::{Fatal, Options};

const SECOND: Duration = Duration::from_secs(1);

fn timed_out(world: &mut World) -> bool {
    let effects = world.core.take_effects();
    let timed_out =
        |effect: &Effect| matches!(effect, Effect::Fatal(Fatal::CancellationTimedOut(_)));
    effects.iter().any(timed_out)
}

#[test]
fn a_standstill_counts_from_the_first_missed_deadline_though_another_event_is_handled_first() {
    let mut world = World::running();
    let at = Moment::default();
    let register = |at| Step::Register { at, succeeds: true };
    // Job 2, whose first report is in flight.
    let (sender, slot, job, allocation) = (1, 1, 2, 2);
    let request = Step::RequestSlot {
        sender,
        slot,
        job,
        allocation,
    };
    let submit = Step::Submit {
        sender: 0,
        job,
        subtask: 0,
        generation: 1,
        allocation,
    };
    for step in [request, register(Some(2)), submit] {
        world.step(&step).expect("it holds");
    }
    let run = |world: &World, job| {
        let known = world.core.jobs.get(JobId::from_bits(job));
        known.expect("it is known").connection().run()
    };
    let cancel = Step::Cancel {
        sender: 1,
        job: 1,
        subtask: 0,
        generation: 1,
    };
    world.step(&cancel).expect("it holds");
    let cancelled = world.now;
    let failed = |world: &World, job| Event::ExecutionsReported {
        job: JobId::from_bits(job),
        run: run(world, job),
        answer: Err(GatewayError::NotYet("a test says so".to_owned())),
    };
    // The report of job 2 fails, and is due again soon.
    let event = failed(&world, 2);
    world.core.handle(cancelled, event);
    world.core.after_event(cancelled, at, 0);
    let retry_at = world.core.arm_deadline(cancelled, at);
    assert_eq!(retry_at, Some(cancelled + Options::default().retry_delay));
    // The process stands still. The first event after that sends the report of job 2.
    let now = cancelled + 40 * SECOND;
    world.core.woke_up(now);
    world.core.handle(now, Event::RegistrationSeen(0));
    world.core.after_event(now, at, 0);
    world.core.arm_deadline(now, at);
    world.core.woke_up(now);
    world.core.handle(now, Event::DeadlineReached);
    world.core.after_event(now, at, 0);
    world.core.arm_deadline(now, at);
    // The task has the time in which the process ran.
    let timeout = Options::default().task_cancellation_timeout;
    let late = 40 * SECOND - Options::default().retry_delay;
    let reached = |world: &mut World, at: Uptime| {
        world.core.handle(at, Event::DeadlineReached);
        timed_out(world)
    };
    let overdue_at = cancelled + timeout + late;
    assert!(!reached(&mut world, overdue_at - Duration::from_millis(1)));
    assert!(reached(&mut world, overdue_at));
}

#[test]
fn no_time_counts_twice() {
    let start = Uptime::START;
    let mut lateness = Lateness::new(start);
    lateness.arm(start, Some(start + SECOND));
    let now = start + 41 * SECOND;
    assert_eq!(lateness.take(now, 30 * SECOND), Some(40 * SECOND));
    // It is armed again before the missed deadline is handled.
    lateness.arm(now, Some(start + SECOND));
    assert_eq!(lateness.take(now + SECOND, 30 * SECOND), None);
    assert_eq!(
        lateness.take(now + 30 * SECOND, 30 * SECOND),
        Some(30 * SECOND)
    );
}

#[test]
fn short_delays_add_up_only_while_a_deadline_is_missed() {
    let start = Uptime::START;
    let mut lateness = Lateness::new(start);
    lateness.arm(start, Some(start));
    assert_eq!(lateness.take(start + SECOND, 2 * SECOND), None);
    lateness.arm(start + SECOND, Some(start));
    assert_eq!(
        lateness.take(start + 2 * SECOND, 2 * SECOND),
        Some(2 * SECOND)
    );
    lateness.arm(start + 2 * SECOND, Some(start));
    assert_eq!(lateness.take(start + 3 * SECOND, 2 * SECOND), None);
    lateness.arm(start + 3 * SECOND, Some(start + 4 * SECOND));
    assert_eq!(lateness.take(start + 5 * SECOND, 2 * SECOND), None);
}

#[test]
fn a_standstill_within_a_turn_counts_though_the_turn_removes_the_missed_deadline() {
    let start = Uptime::START;
    let mut lateness = Lateness::new(start);
    lateness.arm(start, Some(start + 2 * SECOND));
    assert_eq!(lateness.take(start + SECOND, 30 * SECOND), None);
    let now = start + 42 * SECOND;
    assert_eq!(lateness.take(now, 30 * SECOND), Some(40 * SECOND));
    lateness.arm(now, None);
    assert_eq!(lateness.take(now + 40 * SECOND, 30 * SECOND), None);
}
