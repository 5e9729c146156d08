//! Maps the configuration to the options of a term's components and of the detector. Nothing is decided here.

use std::sync::Arc;
use std::time::Duration;

use tanist_config::{
    Attempts, CheckpointOptions, CheckpointRetention, CleanupOptions, ClusterOptions,
    FailoverStrategyType, FailureThreshold, LoadBalanceMode, RestartStrategyOptions, WorkerDriver,
};
use tanist_dispatcher::{Cleaner, DispatcherOptions, SinkCleaner};
use tanist_ha::blob::BlobStore;
use tanist_ha::clock::millis;
use tanist_ha::detector::DetectorOptions;
use tanist_job_master::{
    CheckpointDefaults, FailoverStrategy, JobMasterOptions, RestartStrategy, StopFirst,
};
use tanist_proto::v1 as pb;
use tanist_resource_manager as resource_manager;
use tanist_resource_manager::Balance;

/// Interval between two removals of expired results: a quarter of the retention, within these bounds.
const FASTEST_EXPIRATION: Duration = Duration::from_secs(1);
const SLOWEST_EXPIRATION: Duration = Duration::from_secs(30);

/// Maximum size of a record that is stored inline, in bytes.
pub(super) fn inline_threshold(options: &ClusterOptions) -> usize {
    options.ha.inline_threshold.as_usize()
}

/// Maximum size of a compressed graph that is split over store keys, in bytes.
pub(super) fn max_graph_size(options: &ClusterOptions) -> usize {
    options.ha.max_graph_size.as_usize()
}

/// Memory limit for descriptions of ended jobs, in bytes.
pub(super) fn description_cache(options: &ClusterOptions) -> usize {
    options.jobmanager.description_cache.as_usize()
}

/// Maximum size of a graph within a message, in bytes.
pub(super) fn inline_deployment_threshold(options: &ClusterOptions) -> usize {
    options.rpc.inline_deployment_threshold.as_usize()
}

pub(super) fn detector(options: &ClusterOptions) -> DetectorOptions {
    let detector = &options.ha.detector;
    DetectorOptions {
        heartbeat_interval: detector.heartbeat_interval,
        silence_timeout: detector.silence_timeout,
        inquiry_timeout: detector.inquiry_timeout,
    }
}

pub(super) fn dispatcher(options: &ClusterOptions) -> DispatcherOptions {
    DispatcherOptions {
        result_retention: options.jobmanager.result_expiration,
        max_described: usize::try_from(options.jobmanager.max_described.get())
            .unwrap_or(usize::MAX),
        max_uploaded: options.jobmanager.max_artifacts.bytes(),
        expiration_interval: (options.jobmanager.result_expiration / 4)
            .clamp(FASTEST_EXPIRATION, SLOWEST_EXPIRATION),
        ..DispatcherOptions::default()
    }
}

pub(super) fn resource_manager(options: &ClusterOptions) -> resource_manager::Options {
    resource_manager::Options {
        heartbeat_interval: options.heartbeat.interval,
        heartbeat_timeout: options.heartbeat.timeout,
        rpc_failure_threshold: failure_threshold(options),
        rpc_timeout: options.rpc.ask_timeout,
        job_timeout: options.resources.job_timeout,
        start_up_time: options.resources.start_up_time,
        balance: match options.resources.load_balance {
            LoadBalanceMode::None => Balance::None,
            LoadBalanceMode::Slots => Balance::Slots,
        },
        reservation_delay: options.resources.reservation_delay,
        ..resource_manager::Options::default()
    }
}

/// Longer than any wait, and short enough that no clock overflows.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

pub(super) fn job_master(options: &ClusterOptions) -> JobMasterOptions {
    let defaults = JobMasterOptions::default();
    JobMasterOptions {
        heartbeat_interval: options.heartbeat.interval,
        heartbeat_timeout: options.heartbeat.timeout,
        rpc_failure_threshold: failure_threshold(options).unwrap_or(0),
        rpc_ask_timeout: options.rpc.ask_timeout,
        inline_deployment_threshold: inline_deployment_threshold(options),
        max_message_size: options.rpc.max_message_size.as_usize(),
        slot_request_timeout: options.resources.slot_request_timeout,
        max_slots: bound_of_slots(options),
        slot_idle_timeout: options.resources.slot_idle_timeout,
        task_cancellation_timeout: options.jobs.task_cancellation_timeout.unwrap_or(NEVER),
        stop_first: StopFirst {
            timeout: options.taskmanager.isolation_timeout,
            cancellation: options.taskmanager.isolation_cancellation_timeout,
        },
        restart_strategy: restart_strategy(&options.restart_strategy),
        checkpoints: checkpoints(&options.checkpoints, options.ha.blob_orphan_grace),
        savepoint_dir: options
            .checkpoints
            .savepoint_dir
            .as_ref()
            .map(ToString::to_string),
        failover_strategy: match options.failover_strategy {
            FailoverStrategyType::Region => FailoverStrategy::Region,
            FailoverStrategyType::Full => FailoverStrategy::Full,
        },
        exception_history_size: usize::try_from(options.exception_history_size.get())
            .unwrap_or(usize::MAX),
        ..defaults
    }
}

/// The maximum number of slots of the driver, if there is one and it is below the default of that option.
fn bound_of_slots(options: &ClusterOptions) -> Option<u32> {
    let workers = &options.resources.workers;
    match workers.driver {
        WorkerDriver::Standalone => None,
        WorkerDriver::LocalProcess => Some(workers.max_slots).filter(|max| *max < MANY_SLOTS),
    }
}

/// The default of `slotmanager.number-of-slots.max`.
const MANY_SLOTS: u32 = 2_147_483_647;

/// Cleans up after jobs; `options` set the retries.
pub(super) fn cleaner(
    options: &CleanupOptions,
    sinks: Arc<dyn SinkCleaner>,
    blobs: Option<Arc<BlobStore>>,
) -> Cleaner {
    Cleaner {
        sinks,
        blobs,
        initial_backoff: options.initial_backoff,
        max_backoff: options.max_backoff,
        attempts: match options.attempts {
            Attempts::AtMost(attempts) => Some(attempts),
            Attempts::Infinite => None,
        },
    }
}

fn failure_threshold(options: &ClusterOptions) -> Option<u32> {
    match options.heartbeat.rpc_failure_threshold {
        FailureThreshold::After(calls) => Some(calls.get()),
        FailureThreshold::Never => None,
    }
}

/// `orphan_grace`: time between two listings of the directory of a job's checkpoints.
fn checkpoints(options: &CheckpointOptions, orphan_grace: Duration) -> CheckpointDefaults {
    CheckpointDefaults {
        interval_ms: options.interval.map_or(0, millis),
        min_pause_ms: millis(options.min_pause),
        timeout_ms: millis(options.timeout),
        tolerable_failures: options.tolerable_failures,
        retained: options.retained.get(),
        listing_interval_ms: millis(orphan_grace),
        retention: match options.retention {
            CheckpointRetention::DeleteOnCancellation => {
                pb::CheckpointRetention::DeleteOnCancellation
            }
            CheckpointRetention::RetainOnCancellation => {
                pb::CheckpointRetention::RetainOnCancellation
            }
        },
    }
}

fn restart_strategy(options: &RestartStrategyOptions) -> RestartStrategy {
    match options {
        RestartStrategyOptions::None => RestartStrategy::None,
        RestartStrategyOptions::FixedDelay { attempts, delay } => RestartStrategy::FixedDelay {
            attempts: *attempts,
            delay_ms: millis(*delay),
        },
        RestartStrategyOptions::FailureRate {
            max_failures_per_interval,
            interval,
            delay,
        } => RestartStrategy::FailureRate {
            max_failures: max_failures_per_interval.get(),
            interval_ms: millis(*interval),
            delay_ms: millis(*delay),
        },
        RestartStrategyOptions::ExponentialDelay {
            initial_backoff,
            max_backoff,
            backoff_multiplier,
            reset_backoff_threshold,
            jitter_factor,
            attempts_before_reset,
        } => RestartStrategy::ExponentialDelay {
            initial_ms: millis(*initial_backoff),
            max_ms: millis(*max_backoff),
            multiplier: *backoff_multiplier,
            reset_ms: millis(*reset_backoff_threshold),
            jitter: *jitter_factor,
            attempts: match attempts_before_reset {
                Attempts::AtMost(attempts) => Some(*attempts),
                Attempts::Infinite => None,
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use tanist_config::{Configuration, LoadOptions};
    use tanist_dispatcher::HiddenOutput;
    use tanist_proto::id::JobId;

    use super::*;

    /// Cleans nothing.
    #[derive(Debug)]
    struct NoSinks;

    #[async_trait]
    impl SinkCleaner for NoSinks {
        async fn clean(&self, _: &str, _: JobId, _: &str, _: &HiddenOutput) -> Result<(), String> {
            Ok(())
        }
    }

    fn options(values: &[(&str, &str)]) -> ClusterOptions {
        let load = values.iter();
        let load = load.fold(LoadOptions::default(), |load, (key, value)| {
            load.with(key, value)
        });
        let configuration = Configuration::load(load).expect("valid");
        configuration.options().clone()
    }

    #[test]
    fn no_time_for_cancellations_is_never_and_not_the_default() {
        let options = options(&[("task.cancellation.timeout", "0")]);
        assert_eq!(job_master(&options).task_cancellation_timeout, NEVER);
    }

    #[test]
    fn tries_of_a_cleanup_are_as_configured() {
        let key = "cleanup-strategy.exponential-delay.attempts";
        let options = options(&[(key, "3")]);
        let cleaner = cleaner(&options.cleanup, Arc::new(NoSinks), None);
        assert_eq!(cleaner.attempts, Some(3));
    }
}
