//! Restart strategies: whether and when a failed job is restarted. Pure: counters in, verdict out. State that
//! has to survive a change of the leader is in [`pb::RestartCounters`]; time and randomness are parameters.
//!
//! The strategies are those of Apache Flink, with its semantics: fixed-delay allows a total number of
//! restarts; failure-rate a number of failures per interval; exponential-delay grows the delay with each
//! attempt, resets after a quiet time, and counts failures during a pending restart as one attempt. All
//! failures of one event (a TaskManager with tasks of several regions is lost) count as one failure for each
//! strategy.

use tanist_proto::v1 as pb;

/// Maximum number of failure times in the record.
const REMEMBERED_FAILURES: usize = 1024;

/// A restart strategy. Times in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub enum RestartStrategy {
    /// The first failure ends the job.
    None,
    /// A number of restarts, each after the same delay.
    FixedDelay {
        /// Number of restarts in the life of the job.
        attempts: u32,
        /// Delay before each restart.
        delay_ms: u64,
    },
    /// Restarts while failures are rare enough.
    FailureRate {
        /// Number of failures allowed in the interval. One more ends the job.
        max_failures: u32,
        /// The interval.
        interval_ms: u64,
        /// Delay before each restart.
        delay_ms: u64,
    },
    /// Restarts after growing delays.
    ExponentialDelay {
        /// The first delay.
        initial_ms: u64,
        /// The longest delay.
        max_ms: u64,
        /// Factor by which the delay grows.
        multiplier: f64,
        /// Time without a failure after which the delay and the attempts are reset.
        reset_ms: u64,
        /// Fraction by which a delay varies, both ways.
        jitter: f64,
        /// Number of attempts until a reset; `None`: no limit.
        attempts: Option<u32>,
    },
}

impl Default for RestartStrategy {
    /// Exponential delay from 1 s to 1 min, without a limit.
    fn default() -> RestartStrategy {
        RestartStrategy::ExponentialDelay {
            initial_ms: 1_000,
            max_ms: 60_000,
            multiplier: 1.5,
            reset_ms: 3_600_000,
            jitter: 0.1,
            attempts: None,
        }
    }
}

impl RestartStrategy {
    /// The strategy that a graph names; `None` if it names none.
    pub fn from_proto(strategy: &pb::RestartStrategy) -> Option<RestartStrategy> {
        use pb::restart_strategy::Strategy;
        Some(match strategy.strategy.as_ref()? {
            Strategy::None(pb::NoRestart {}) => RestartStrategy::None,
            Strategy::FixedDelay(fixed) => RestartStrategy::FixedDelay {
                attempts: fixed.attempts,
                delay_ms: fixed.delay_ms,
            },
            Strategy::FailureRate(rate) => RestartStrategy::FailureRate {
                max_failures: rate.max_failures_per_interval,
                interval_ms: rate.interval_ms,
                delay_ms: rate.delay_ms,
            },
            Strategy::ExponentialDelay(delay) => RestartStrategy::ExponentialDelay {
                initial_ms: delay.initial_backoff_ms,
                max_ms: delay.max_backoff_ms,
                multiplier: delay.backoff_multiplier,
                reset_ms: delay.reset_backoff_threshold_ms,
                jitter: delay.jitter_factor,
                attempts: Some(delay.attempts_before_reset_backoff).filter(|limit| *limit > 0),
            },
        })
    }
}

/// The decision about a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Restart the failed regions at this time.
    Restart {
        /// Milliseconds since 1970.
        at_ms: u64,
    },
    /// The job fails for good.
    GiveUp {
        /// The reason that the strategy gives.
        reason: String,
    },
}

/// A strategy and its pending restart.
#[derive(Debug, Clone)]
pub(super) struct RestartBackoff {
    strategy: RestartStrategy,
    /// When the last restart was or is due. The record has it, too, until it is over.
    restart_at_ms: Option<u64>,
}

impl RestartBackoff {
    /// A backoff without a pending restart.
    pub(super) fn new(strategy: RestartStrategy) -> RestartBackoff {
        RestartBackoff {
            strategy,
            restart_at_ms: None,
        }
    }

    /// Takes over a restart that an earlier leader decided for this time.
    pub(super) fn resume(&mut self, restart_at_ms: u64) {
        self.restart_at_ms = self.restart_at_ms.max(Some(restart_at_ms));
    }

    /// Decides about a failure at `now_ms`, which it counts. `random` is drawn uniformly from 0 to 1.
    pub(super) fn count_failure(
        &mut self,
        counters: &mut pb::RestartCounters,
        now_ms: u64,
        random: f64,
    ) -> Verdict {
        let delay_ms = match &self.strategy {
            RestartStrategy::None => {
                return give_up("the restart strategy is none".to_owned());
            }
            RestartStrategy::FixedDelay { attempts, delay_ms } => {
                if counters.restarts >= *attempts {
                    return give_up(format!("all {attempts} restarts are used up"));
                }
                *delay_ms
            }
            RestartStrategy::FailureRate {
                max_failures,
                interval_ms,
                delay_ms,
            } => {
                counters
                    .failures_ms
                    .retain(|at| now_ms.saturating_sub(*at) < *interval_ms);
                if counters.failures_ms.len() >= as_count(*max_failures) {
                    return give_up(format!(
                        "more than {max_failures} failures in {interval_ms} ms"
                    ));
                }
                *delay_ms
            }
            RestartStrategy::ExponentialDelay {
                initial_ms,
                max_ms,
                multiplier,
                reset_ms,
                jitter,
                attempts,
            } => {
                if let Some(at_ms) = self.restart_at_ms.filter(|at_ms| now_ms < *at_ms) {
                    return Verdict::Restart { at_ms };
                }
                let quiet_since = self.restart_at_ms.or(counters.failures_ms.last().copied());
                if quiet_since.is_none_or(|since| now_ms.saturating_sub(since) >= *reset_ms) {
                    counters.failures_ms.clear();
                    counters.backoff_ms = *initial_ms;
                }
                if let Some(limit) =
                    attempts.filter(|limit| counters.failures_ms.len() >= as_count(*limit))
                {
                    return give_up(format!(
                        "{limit} restarts without a quiet time of {reset_ms} ms"
                    ));
                }
                let backoff_ms = counters
                    .backoff_ms
                    .clamp(*initial_ms, (*max_ms).max(*initial_ms));
                counters.backoff_ms =
                    scaled(backoff_ms, *multiplier).clamp(*initial_ms, *max_ms.max(initial_ms));
                scaled(backoff_ms, 1.0 + jitter * (2.0 * random - 1.0)).min(*max_ms)
            }
        };
        counters.restarts = counters.restarts.saturating_add(1);
        counters.failures_ms.push(now_ms);
        let surplus = counters
            .failures_ms
            .len()
            .saturating_sub(REMEMBERED_FAILURES);
        counters.failures_ms.drain(..surplus);
        let at_ms = now_ms.saturating_add(delay_ms);
        self.restart_at_ms = Some(at_ms);
        Verdict::Restart { at_ms }
    }
}

fn give_up(reason: String) -> Verdict {
    Verdict::GiveUp { reason }
}

fn as_count(limit: u32) -> usize {
    usize::try_from(limit)
        .unwrap_or(usize::MAX)
        .min(REMEMBERED_FAILURES)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "delays are far below 2^52 ms, and `as` saturates"
)]
fn scaled(ms: u64, factor: f64) -> u64 {
    (ms as f64 * factor).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exponential(attempts: Option<u32>) -> RestartBackoff {
        RestartBackoff::new(RestartStrategy::ExponentialDelay {
            initial_ms: 1_000,
            max_ms: 3_000,
            multiplier: 2.0,
            reset_ms: 60_000,
            jitter: 0.1,
            attempts,
        })
    }

    fn restart_delay(verdict: Verdict, now_ms: u64) -> u64 {
        match verdict {
            Verdict::Restart { at_ms } => at_ms - now_ms,
            Verdict::GiveUp { reason } => panic!("gave up: {reason}"),
        }
    }

    #[test]
    fn without_restarts_the_first_failure_ends_the_job() {
        let mut backoff = RestartBackoff::new(RestartStrategy::None);
        let verdict = backoff.count_failure(&mut pb::RestartCounters::default(), 0, 0.5);
        assert!(matches!(verdict, Verdict::GiveUp { .. }));
    }

    #[test]
    fn a_fixed_delay_restarts_as_often_as_it_says_even_across_leaders() {
        let strategy = RestartStrategy::FixedDelay {
            attempts: 2,
            delay_ms: 500,
        };
        let mut counters = pb::RestartCounters::default();
        let mut first = RestartBackoff::new(strategy.clone());
        assert_eq!(
            restart_delay(first.count_failure(&mut counters, 10, 0.5), 10),
            500
        );
        let mut second = RestartBackoff::new(strategy);
        assert_eq!(
            restart_delay(second.count_failure(&mut counters, 20, 0.5), 20),
            500
        );
        assert!(matches!(
            second.count_failure(&mut counters, 30, 0.5),
            Verdict::GiveUp { .. }
        ));
        assert_eq!(counters.restarts, 2);
    }

    #[test]
    fn a_failure_rate_forgets_failures_older_than_its_interval() {
        let mut backoff = RestartBackoff::new(RestartStrategy::FailureRate {
            max_failures: 1,
            interval_ms: 1_000,
            delay_ms: 1,
        });
        let mut counters = pb::RestartCounters::default();
        assert!(matches!(
            backoff.count_failure(&mut counters, 0, 0.5),
            Verdict::Restart { .. }
        ));
        assert!(matches!(
            backoff.count_failure(&mut counters, 1_000, 0.5),
            Verdict::Restart { .. }
        ));
        assert!(matches!(
            backoff.count_failure(&mut counters, 1_999, 0.5),
            Verdict::GiveUp { .. }
        ));
    }

    #[test]
    fn exponential_delays_grow_to_their_maximum_and_vary_by_the_jitter() {
        let mut counters = pb::RestartCounters::default();
        let mut backoff = exponential(None);
        assert_eq!(
            restart_delay(backoff.count_failure(&mut counters, 0, 1.0), 0),
            1_100
        );
        assert_eq!(
            restart_delay(backoff.count_failure(&mut counters, 2_000, 0.0), 2_000),
            1_800
        );
        assert_eq!(
            restart_delay(backoff.count_failure(&mut counters, 9_000, 0.5), 9_000),
            3_000
        );
        assert_eq!(
            restart_delay(backoff.count_failure(&mut counters, 19_000, 1.0), 19_000),
            3_000
        );
    }

    #[test]
    fn failures_while_a_restart_is_pending_are_one_attempt() {
        let mut counters = pb::RestartCounters::default();
        let mut backoff = exponential(Some(1));
        assert_eq!(
            backoff.count_failure(&mut counters, 0, 0.5),
            Verdict::Restart { at_ms: 1_000 }
        );
        assert_eq!(
            backoff.count_failure(&mut counters, 999, 0.5),
            Verdict::Restart { at_ms: 1_000 }
        );
        assert_eq!(counters.restarts, 1);
        assert!(matches!(
            backoff.count_failure(&mut counters, 1_000, 0.5),
            Verdict::GiveUp { .. }
        ));
    }

    #[test]
    fn a_quiet_time_resets_backoff_and_attempts() {
        let mut counters = pb::RestartCounters::default();
        let mut backoff = exponential(Some(1));
        assert_eq!(
            restart_delay(backoff.count_failure(&mut counters, 0, 0.5), 0),
            1_000
        );
        assert_eq!(
            restart_delay(backoff.count_failure(&mut counters, 61_000, 0.5), 61_000),
            1_000
        );
        assert_eq!(counters.restarts, 2);
    }

    #[test]
    fn the_backoff_goes_on_where_the_former_leader_left_it() {
        let mut counters = pb::RestartCounters::default();
        assert_eq!(
            restart_delay(exponential(None).count_failure(&mut counters, 0, 0.5), 0),
            1_000
        );
        assert_eq!(
            restart_delay(
                exponential(None).count_failure(&mut counters, 5_000, 0.5),
                5_000
            ),
            2_000
        );
    }
}
