//! Restart strategies of a job: creating, checking and describing them. The JobMaster decides on restarts.

use std::time::Duration;

use tanist_ha::clock::millis;
use tanist_proto::v1;
use v1::restart_strategy::Strategy;

/// No restart: the job fails at its first failure.
pub fn none() -> v1::RestartStrategy {
    v1::RestartStrategy {
        strategy: Some(Strategy::None(v1::NoRestart {})),
    }
}

/// At most `attempts` restarts, each `delay` after the failure.
pub fn fixed_delay(attempts: u32, delay: Duration) -> v1::RestartStrategy {
    let strategy = v1::FixedDelayRestart {
        attempts,
        delay_ms: millis(delay),
    };
    v1::RestartStrategy {
        strategy: Some(Strategy::FixedDelay(strategy)),
    }
}

/// Restarts unless there were more than `max_failures_per_interval` failures within `interval`.
pub fn failure_rate(
    max_failures_per_interval: u32,
    interval: Duration,
    delay: Duration,
) -> v1::RestartStrategy {
    let strategy = v1::FailureRateRestart {
        max_failures_per_interval,
        interval_ms: millis(interval),
        delay_ms: millis(delay),
    };
    v1::RestartStrategy {
        strategy: Some(Strategy::FailureRate(strategy)),
    }
}

/// Restarts with delays that grow from failure to failure.
pub fn exponential_delay(strategy: v1::ExponentialDelayRestart) -> v1::RestartStrategy {
    v1::RestartStrategy {
        strategy: Some(Strategy::ExponentialDelay(strategy)),
    }
}

/// The exponential delay with its defaults: 100 ms to 1 min, factor 1.5, reset after 1 h, jitter 0.1, unlimited
/// attempts.
pub fn default_exponential_delay() -> v1::ExponentialDelayRestart {
    v1::ExponentialDelayRestart {
        initial_backoff_ms: 100,
        max_backoff_ms: 60_000,
        backoff_multiplier: 1.5,
        reset_backoff_threshold_ms: 3_600_000,
        jitter_factor: 0.1,
        attempts_before_reset_backoff: 0,
    }
}

/// Returns the problems of a strategy, with the names of its fields in a job file.
pub fn problems(strategy: &v1::RestartStrategy) -> Vec<String> {
    let mut problems = Vec::new();
    match &strategy.strategy {
        None => problems.push("the restart strategy is of no known type".to_owned()),
        Some(Strategy::None(_)) => {}
        Some(Strategy::FixedDelay(fixed)) => {
            if fixed.attempts == 0 {
                problems.push("`attempts` is 0: write at least 1, or `type: none`".into());
            }
        }
        Some(Strategy::FailureRate(rate)) => {
            if rate.max_failures_per_interval == 0 {
                problems.push(
                    "`max-failures-per-interval` is 0: write at least 1, or `type: none`".into(),
                );
            }
            if rate.interval_ms == 0 {
                problems.push("`failure-rate-interval` is 0: write a time such as `1 min`".into());
            }
        }
        Some(Strategy::ExponentialDelay(delay)) => {
            if delay.initial_backoff_ms == 0 {
                problems.push("`initial-backoff` is 0: write a time such as `1 s`".into());
            }
            if delay.max_backoff_ms < delay.initial_backoff_ms {
                problems.push(
                    "`max-backoff` is less than `initial-backoff`: write a longer time".into(),
                );
            }
            if !(delay.backoff_multiplier.is_finite() && delay.backoff_multiplier >= 1.0) {
                problems.push(format!(
                    "`backoff-multiplier` is {}: write a number of at least 1.0",
                    delay.backoff_multiplier
                ));
            }
            if !(0.0..=1.0).contains(&delay.jitter_factor) {
                problems.push(format!(
                    "`jitter-factor` is {}: write a number from 0.0 to 1.0",
                    delay.jitter_factor
                ));
            }
        }
    }
    problems
}

/// Describes the strategy in a few words.
pub fn describe(strategy: &v1::RestartStrategy) -> String {
    match &strategy.strategy {
        None => "unknown".into(),
        Some(Strategy::None(_)) => "none".into(),
        Some(Strategy::FixedDelay(fixed)) => {
            format!(
                "fixed-delay, {} attempts, delay {} ms",
                fixed.attempts, fixed.delay_ms
            )
        }
        Some(Strategy::FailureRate(rate)) => format!(
            "failure-rate, {} failures in {} ms, delay {} ms",
            rate.max_failures_per_interval, rate.interval_ms, rate.delay_ms
        ),
        Some(Strategy::ExponentialDelay(delay)) => format!(
            "exponential-delay, {} ms to {} ms by {}",
            delay.initial_backoff_ms, delay.max_backoff_ms, delay.backoff_multiplier
        ),
    }
}
