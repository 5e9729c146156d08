//! Ends a term that makes no progress: a recovery that has stalled, a main runtime or an actor that is not scheduled.
//!
//! It runs on the election's runtime, so that it notices a blocked main runtime. Such a process would keep its
//! lease and its heartbeats forever, and no other process would have reason to depose it. The watchdog
//! announces the stall in the heartbeats, so that the next term's record names it, and resigns. Of a time in which
//! the watchdog itself did not run, at most one and a half intervals count: a host that was suspended has not stalled.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tanist_ha::clock::Moment;
use tanist_ha::detector::{Phase, Progress};
use tanist_ha::election::{Epoch, LeaderElection, Leadership};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::{error, info, warn};

use super::reports::Reports;
use super::scheduling_probe;

/// The part that has stalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stall {
    Runtime,
    Recovery(Progress),
    Dispatcher,
    ResourceManager,
}

/// Time since a value last changed, in the watchdog's own ticks.
#[derive(Debug)]
struct StallTimer<T> {
    last: Option<T>,
    lasted: Duration,
}

impl<T: PartialEq> StallTimer<T> {
    fn new() -> StallTimer<T> {
        StallTimer {
            last: None,
            lasted: Duration::ZERO,
        }
    }

    fn observe(&mut self, elapsed: Duration, now: Option<T>) -> Duration {
        if now.is_none() || now != self.last {
            self.last = now;
            self.lasted = Duration::ZERO;
        } else {
            self.lasted += elapsed;
        }
        self.lasted
    }
}

/// The state that the watchdog observes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Observation {
    /// The term that it leads according to the store.
    leads: Option<Epoch>,
    progress: Progress,
    steps: u64,
    runtime: Option<Instant>,
    dispatcher: Option<Instant>,
    resource_manager: Option<Instant>,
}

/// The decisions. Pure.
#[derive(Debug)]
struct Core {
    bound: Duration,
    interval: Duration,
    last_tick: Option<Moment>,
    runtime: StallTimer<Instant>,
    recovery: StallTimer<(Epoch, Progress, u64)>,
    dispatcher: StallTimer<(Epoch, Instant)>,
    resource_manager: StallTimer<(Epoch, Instant)>,
}

impl Core {
    fn new(bound: Duration, interval: Duration) -> Core {
        Core {
            bound,
            interval,
            last_tick: None,
            runtime: StallTimer::new(),
            recovery: StallTimer::new(),
            dispatcher: StallTimer::new(),
            resource_manager: StallTimer::new(),
        }
    }

    /// The part that has made no progress for `bound`, among those that count at present.
    fn tick(&mut self, now: Moment, seen: Observation) -> Option<Stall> {
        let before = self.last_tick.replace(now);
        let elapsed = before.map_or(Duration::ZERO, |before| now.since(before));
        let elapsed = elapsed.min(self.interval * 3 / 2);
        let in_term = |scheduled: Option<Instant>| Some((seen.leads?, scheduled?));
        let recovers = seen.progress.phase != Phase::Leading;
        let recovery = seen.leads.filter(|_| recovers);
        let recovery = recovery.map(|epoch| (epoch, seen.progress, seen.steps));
        // The runtime first: if it has stalled, everything on it has.
        let stalls = [
            (self.runtime.observe(elapsed, seen.runtime), Stall::Runtime),
            (
                self.recovery.observe(elapsed, recovery),
                Stall::Recovery(seen.progress),
            ),
            (
                self.dispatcher.observe(elapsed, in_term(seen.dispatcher)),
                Stall::Dispatcher,
            ),
            (
                self.resource_manager
                    .observe(elapsed, in_term(seen.resource_manager)),
                Stall::ResourceManager,
            ),
        ];
        let stalled = stalls.into_iter().find(|(lasted, _)| *lasted >= self.bound);
        stalled.map(|(_, stall)| stall)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Watchdog {
    pub election: LeaderElection,
    pub reports: Arc<Reports>,
    pub stall_timeout: Duration,
    /// Time between the announcement and the resignation.
    pub notice: Duration,
}

impl Watchdog {
    /// Watches until dropped.
    pub(super) async fn run(self) {
        let interval = scheduling_probe::interval_for(self.stall_timeout);
        let clock = self.election.clock();
        let mut core = Core::new(self.stall_timeout, interval);
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let seen = self.observe();
            let stall = core.tick(clock.now(), seen);
            let is_stalled = stall == Some(Stall::Runtime);
            let was_stalled = self.reports.is_stalled.swap(is_stalled, Ordering::Relaxed);
            if was_stalled && !is_stalled {
                info!("the main runtime is scheduled again");
            }
            if let (Some(stall), Some(epoch)) = (stall, seen.leads) {
                self.end_term(stall, epoch).await;
            }
        }
    }

    fn observe(&self) -> Observation {
        let leads = match &*self.election.leadership().borrow() {
            Leadership::Granted(session) => Some(session.epoch()),
            // Without the store nothing makes progress either, but that is no fault of this process.
            Leadership::Suspended(_)
            | Leadership::Standby
            | Leadership::Over(_)
            | Leadership::Refused(_) => None,
        };
        let reports = &self.reports;
        Observation {
            leads,
            progress: *reports.progress.borrow(),
            steps: *reports.steps.borrow(),
            runtime: *reports.runtime.borrow(),
            dispatcher: *reports.dispatcher.borrow(),
            resource_manager: *reports.resource_manager.borrow(),
        }
    }

    async fn end_term(&self, stall: Stall, epoch: Epoch) {
        let stall_timeout = self.stall_timeout;
        match stall {
            Stall::Runtime => {
                error!(%epoch, ?stall_timeout, "the main runtime has stalled: resigning");
            }
            Stall::Dispatcher => {
                error!(%epoch, ?stall_timeout, "the Dispatcher has stalled: resigning");
            }
            Stall::ResourceManager => {
                error!(%epoch, ?stall_timeout, "the ResourceManager has stalled: resigning");
            }
            Stall::Recovery(Progress { done, total, .. }) => {
                warn!(%epoch, ?stall_timeout, done, total, "the recovery has stalled: resigning");
            }
        }
        self.reports.stalled_term.send_replace(Some(epoch));
        tokio::time::sleep(self.notice).await;
        self.election.resign().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_secs(8);
    const INTERVAL: Duration = Duration::from_secs(1);

    struct Scenario {
        core: Core,
        start: Instant,
        second: u64,
        seen: Observation,
    }

    impl Scenario {
        async fn recovering() -> Scenario {
            let start = Instant::now();
            let progress = Progress {
                phase: Phase::Recovering,
                done: 1,
                total: 9,
            };
            Scenario {
                core: Core::new(BOUND, INTERVAL),
                start,
                second: 0,
                seen: Observation {
                    leads: Some(Epoch::new(7)),
                    progress,
                    steps: 0,
                    runtime: Some(start),
                    dispatcher: None,
                    resource_manager: None,
                },
            }
        }

        fn scheduled(&self) -> Option<Instant> {
            Some(self.start + Duration::from_secs(self.second))
        }

        /// Advances by seconds, with `change` before each tick.
        fn pass(&mut self, seconds: u64, change: impl Fn(&mut Scenario)) -> Option<Stall> {
            let mut last = None;
            for _ in 0..seconds {
                self.second += 1;
                change(self);
                let now = Moment::default().after(Duration::from_secs(self.second));
                last = self.core.tick(now, self.seen);
            }
            last
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_recovery_that_moves_goes_on_for_as_long_as_it_takes() {
        let mut scenario = Scenario::recovering().await;
        let jobs = scenario.pass(100, |scenario| {
            scenario.seen.runtime = scenario.scheduled();
            scenario.seen.progress.done += u64::from(scenario.second % 7 == 0);
        });
        assert_eq!(jobs, None);
        let steps = scenario.pass(100, |scenario| {
            scenario.seen.runtime = scenario.scheduled();
            scenario.seen.steps += u64::from(scenario.second % 7 == 0);
        });
        assert_eq!(steps, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_recovery_that_stands_still_is_given_up_and_a_term_that_has_recovered_is_not() {
        let mut scenario = Scenario::recovering().await;
        let probe_actors = |scenario: &mut Scenario| scenario.seen.runtime = scenario.scheduled();
        assert_eq!(scenario.pass(8, probe_actors), None);
        let stall = Stall::Recovery(scenario.seen.progress);
        assert_eq!(scenario.pass(2, probe_actors), Some(stall));
        scenario.seen.progress.phase = Phase::Leading;
        assert_eq!(scenario.pass(100, probe_actors), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_that_is_suspended_or_new_has_its_time_before_it() {
        let mut scenario = Scenario::recovering().await;
        let probe_actors = |scenario: &mut Scenario| scenario.seen.runtime = scenario.scheduled();
        assert_eq!(scenario.pass(7, probe_actors), None);
        scenario.seen.leads = None;
        assert_eq!(scenario.pass(20, probe_actors), None);
        scenario.seen.leads = Some(Epoch::new(7));
        assert_eq!(scenario.pass(7, probe_actors), None);
        scenario.seen.leads = Some(Epoch::new(9));
        assert_eq!(scenario.pass(7, probe_actors), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_main_runtime_or_an_actor_that_is_not_scheduled_is_noticed() {
        let mut scenario = Scenario::recovering().await;
        scenario.seen.progress.phase = Phase::Leading;
        assert_eq!(scenario.pass(10, |_| {}), Some(Stall::Runtime));
        let stuck = |scenario: &mut Scenario| {
            scenario.seen.runtime = scenario.scheduled();
            scenario.seen.dispatcher = scenario.scheduled();
            scenario.seen.resource_manager = Some(scenario.start);
        };
        assert_eq!(scenario.pass(10, stuck), Some(Stall::ResourceManager));
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_watchdog_did_not_run_counts_little() {
        let mut scenario = Scenario::recovering().await;
        assert_eq!(scenario.pass(3, |_| {}), None);
        scenario.second += 3600;
        assert_eq!(scenario.pass(1, |_| {}), None);
    }
}
