//! Handles times in which the ResourceManager's own process stood still: it was stopped, or its host gave it no
//! CPU time. Pure, a part of [`super::core`].
//!
//! A process that stood still has received nothing meanwhile, and messages to it may lie unread: that does not
//! mean that others are silent. No TaskExecutor is given up before it was asked once more. An own periodic tick
//! detects it, also while nothing else is due.

use tokio::time::Instant;

use super::core::Core;

impl Core {
    /// Extends all deadlines by the time for which this process stood still. To be called before any input is
    /// handled.
    pub fn credit_standstill(&mut self, now: Instant) {
        let late = now.saturating_duration_since(self.next_beat);
        if late < self.options.heartbeat_interval {
            return;
        }
        tracing::warn!(
            ?late,
            "this process stood still, extending the deadlines of TaskManagers"
        );
        for worker in self.workers.values_mut() {
            worker.last_heartbeat = (worker.last_heartbeat + late).min(now);
            worker.next_heartbeat = now;
        }
        self.job_masters.put_off(now, late);
        self.unfulfillable_jobs.put_off(late);
        if let Some(workers) = &mut self.workers_of_driver {
            workers.put_off(late);
        }
        self.next_beat = now + self.options.heartbeat_interval;
    }

    /// The same, called on time.
    pub(super) fn note_beat(&mut self, now: Instant) {
        self.credit_standstill(now);
        if self.next_beat <= now {
            self.next_beat = now + self.options.heartbeat_interval;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Options;
    use super::super::core::Effect;
    use super::super::idle_tests::{World, worker};
    use super::super::workers;
    use crate::gateway::registration::Answer;

    fn is_given_up(effects: &[Effect]) -> bool {
        let stop = Effect::Worker(workers::core::Effect::Stop(worker()));
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
}
