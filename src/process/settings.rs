//! Maps the configuration to the options of components. Nothing is decided here.

use std::sync::Arc;
use std::time::Duration;

use tanist_ha::blob::BlobStore;
use tanist_ha::clock::millis;
use tanist_ha::detector::DetectorOptions;
use tanist_proto::resources::{Resources, WorkerResourceSpec};

use super::control_groups::{self, Claimed};
use super::peers::PeersSetup;
use super::taskmanager::HostResources;
use crate::config::{
    Attempts, CleanupOptions, ClusterOptions, Configuration, FailoverStrategyType,
    FailureThreshold, LoadBalanceMode, RestartStrategyOptions, Umask, WorkerDriver, find,
};
use crate::dispatcher::{Cleaner, DispatcherOptions, SinkCleaner};
use crate::gateway::registration::RegistrationOptions;
use crate::job_master::{FailoverStrategy, JobMasterOptions, RestartStrategy, StopFirst};
use crate::net::DetachedListener;
use crate::resource_manager::Balance;
use crate::resource_manager::drivers::local_process::{
    LocalProcessDriver, LocalProcessOptions, WorkerGroups,
};
use crate::resource_manager::workers::{ResourceManagerDriver, WorkersOptions};
use crate::rpc::RpcOptions;
use crate::{resource_manager, task_executor, umask};

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

pub(super) fn rpc(options: &ClusterOptions) -> RpcOptions {
    RpcOptions {
        ask_timeout: options.rpc.ask_timeout,
        max_message_size: options.rpc.max_message_size.as_usize(),
        // Another connection, with a heartbeat on it, exists long before the last heartbeat of this one counts
        // as lost.
        silence_timeout: options.heartbeat.timeout / 4,
        ..RpcOptions::default()
    }
}

/// How a process takes part among its peers, which it serves on `listener`.
pub(super) fn peers(options: &ClusterOptions, listener: DetachedListener) -> PeersSetup {
    let detector = &options.ha.detector;
    PeersSetup {
        listener: Arc::new(listener),
        cluster_id: options.ha.cluster_id.to_string(),
        options: DetectorOptions {
            beat_interval: detector.beat_interval,
            silence_timeout: detector.silence_timeout,
            ask_timeout: detector.ask_timeout,
        },
        transfer_timeout: options.ha.transfer_timeout,
        stall_timeout: options.ha.stall_timeout,
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

/// The limits of the TaskManagers that a driver starts.
pub(super) fn workers(options: &ClusterOptions) -> WorkersOptions {
    let of = &options.resources.workers;
    WorkersOptions {
        spec: worker_spec(options),
        largest: Some(HostResources::own().largest_worker(options)),
        min_slots: of.min_slots,
        max_slots: of.max_slots,
        redundant_workers: of.redundant,
        idle_timeout: of.idle_timeout,
        registration_timeout: of.registration_timeout,
        max_failure_rate: of.max_failure_rate,
        retry_interval: of.retry_interval,
    }
}

/// The resources of a TaskManager that is started on this host.
fn worker_spec(options: &ClusterOptions) -> WorkerResourceSpec {
    let host = HostResources::own();
    host.worker(options).unwrap_or_else(|error| {
        // Each one that is started reports this itself, and ends.
        tracing::error!(%error, "TaskManagers can't be started with this configuration");
        WorkerResourceSpec::new(Resources::ZERO, options.taskmanager.slots.get())
    })
}

/// The driver that starts TaskManagers with the configuration of this process; `None` unless one is configured.
pub(super) fn driver(configuration: &Configuration) -> Option<Arc<dyn ResourceManagerDriver>> {
    let workers = &configuration.resources().workers;
    match workers.driver {
        WorkerDriver::Standalone => None,
        WorkerDriver::LocalProcess => {
            let program = std::env::current_exe().unwrap_or_default();
            let name = program.file_name().unwrap_or("tanist".as_ref());
            let options = LocalProcessOptions {
                name: name.to_string_lossy().into_owned(),
                environment: environment_of_workers(configuration),
                usual: worker_spec(configuration.options()),
                memory: configuration.taskmanager().memory.clone(),
                external_resources: configuration.taskmanager().external_resources.clone(),
                groups: match control_groups::claim(&configuration.process().control_groups) {
                    Claimed::In(groups) => WorkerGroups::In(groups),
                    Claimed::None(_) => WorkerGroups::None,
                    Claimed::Refused(reason) => WorkerGroups::Refused(reason),
                },
                log_dir: workers.log_dir.clone(),
                stop_timeout: configuration.process().shutdown_timeout,
            };
            Some(Arc::new(LocalProcessDriver::new(options)))
        }
    }
}

/// A worker inherits the umask of this process's own files, and has to be given the umask of job output.
fn environment_of_workers(configuration: &Configuration) -> Vec<(String, String)> {
    let mut environment = configuration.environment();
    let umask = umask::of_output().map(Umask::of);
    let set = configuration.process().output_umask;
    if let Some(umask) = umask.filter(|_| set.is_none()) {
        let spec = find("process.output-umask");
        let variable = spec.map(|spec| (spec.environment_variable(), umask.to_string()));
        environment.extend(variable);
    }
    environment
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
        slot_request_timeout: options.resources.slot_request_timeout,
        max_slots: bound_of_slots(options),
        slot_idle_timeout: options.resources.slot_idle_timeout,
        task_cancellation_timeout: options.jobs.task_cancellation_timeout.unwrap_or(NEVER),
        stop_first: StopFirst {
            timeout: options.taskmanager.isolation_timeout,
            cancellation: options.taskmanager.isolation_cancellation_timeout,
        },
        restart_strategy: restart_strategy(&options.restart_strategy),
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

pub(super) fn task_executor(options: &ClusterOptions) -> task_executor::Options {
    let defaults = task_executor::Options::default();
    task_executor::Options {
        registration: RegistrationOptions {
            initial_timeout: options.registration.initial_timeout,
            max_timeout: options.registration.max_timeout,
            error_delay: options.registration.error_delay,
            refused_delay: options.registration.refused_delay,
        },
        heartbeat_timeout: options.heartbeat.timeout,
        rpc_timeout: options.rpc.ask_timeout,
        slot_timeout: options.taskmanager.slot_timeout,
        registration_timeout: options.taskmanager.registration_timeout,
        job_manager_failover_timeout: options.taskmanager.failover_timeout,
        task_cancellation_timeout: options.jobs.task_cancellation_timeout.unwrap_or(NEVER),
        task_cancellation_interval: options.jobs.task_cancellation_interval.unwrap_or(NEVER),
        ..defaults
    }
}

fn failure_threshold(options: &ClusterOptions) -> Option<u32> {
    match options.heartbeat.rpc_failure_threshold {
        FailureThreshold::After(calls) => Some(calls.get()),
        FailureThreshold::Never => None,
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
    use super::super::sinks::Sinks;
    use super::*;
    use crate::config::LoadOptions;

    #[test]
    fn no_time_for_cancellations_is_never_and_not_the_default() {
        let load = LoadOptions::default()
            .with("task.cancellation.timeout", "0")
            .with("task.cancellation.interval", "0");
        let configuration = Configuration::load(load).expect("valid");
        let options = configuration.options();
        let of_worker = task_executor(options);
        let (timeout, interval) = (
            of_worker.task_cancellation_timeout,
            of_worker.task_cancellation_interval,
        );
        assert_eq!((timeout, interval), (NEVER, NEVER));
        assert_eq!(job_master(options).task_cancellation_timeout, NEVER);
    }

    #[test]
    fn tries_of_a_cleanup_and_the_registration_timeout_are_as_configured() {
        let load = LoadOptions::default()
            .with("cleanup-strategy.exponential-delay.attempts", "3")
            .with("taskmanager.registration.timeout", "7 s");
        let configuration = Configuration::load(load).expect("valid");
        let options = configuration.options();
        let cleaner = cleaner(&options.cleanup, Sinks::files().cleaner, None);
        assert_eq!(cleaner.attempts, Some(3));
        let timeout = task_executor(options).registration_timeout;
        assert_eq!(timeout, Duration::from_secs(7));
    }
}
