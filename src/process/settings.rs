//! Maps the configuration to the options of the parts that a process adds to a term: servers, TaskExecutor, and the
//! driver of TaskManagers. Nothing is decided here.

use std::sync::Arc;
use std::time::Duration;

use tanist_config::{ClusterOptions, Configuration, Umask, WorkerDriver, find};
use tanist_gateway::registration::RegistrationOptions;
use tanist_ha::blob;
use tanist_leadership::{PeersSetup, WorkersSetup};
use tanist_net::DetachedListener;
use tanist_operators::umask;
use tanist_proto::resources::{Resources, WorkerResourceSpec};
use tanist_resource_manager::{LocalProcessDriver, LocalProcessOptions, WorkerGroups};
use tanist_resource_manager::{ResourceManagerDriver, WorkersOptions};
use tanist_rpc::{RpcOptions, TonicPeerServer, TonicPeers};
use tanist_task_executor as task_executor;

use super::control_groups::{self, Claimed};
use super::taskmanager::HostResources;

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
    let cluster_id = options.ha.cluster_id.as_str();
    PeersSetup {
        connector: Arc::new(TonicPeers::new(cluster_id)),
        server: Arc::new(TonicPeerServer::new(listener, cluster_id)),
    }
}

/// How the process starts TaskManagers; `None` unless a driver is configured.
pub(super) fn workers(configuration: &Configuration) -> Option<WorkersSetup> {
    Some(WorkersSetup {
        driver: driver(configuration)?,
        options: worker_limits(configuration.options()),
    })
}

/// The limits of the TaskManagers that a driver starts.
pub(super) fn worker_limits(options: &ClusterOptions) -> WorkersOptions {
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

/// The driver that starts TaskManagers with the configuration of this process.
fn driver(configuration: &Configuration) -> Option<Arc<dyn ResourceManagerDriver>> {
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
        checkpoints: checkpoint_place(options),
        ..defaults
    }
}

/// Where TaskManagers keep the objects of checkpoints: only where all hosts find them, and none is lost with a host.
fn checkpoint_place(options: &ClusterOptions) -> Option<task_executor::CheckpointPlace> {
    let places = options.ha.blob_places()?;
    let (blobs, option) = match places.checkpoints {
        Some(blobs) => (blobs, blob::options::CHECKPOINTS),
        None => (places.blobs, blob::options::BLOBS),
    };
    // The leader marks each place before it uses it.
    let is_marked = true;
    let place = task_executor::CheckpointPlace {
        blobs,
        option,
        is_marked,
    };
    place.blobs.shared.then_some(place)
}

#[cfg(test)]
mod tests {
    use tanist_config::LoadOptions;

    use super::*;

    #[test]
    fn no_time_for_cancellations_is_never_and_not_the_default() {
        let load = LoadOptions::default()
            .with("task.cancellation.timeout", "0")
            .with("task.cancellation.interval", "0");
        let configuration = Configuration::load(load).expect("valid");
        let of_worker = task_executor(configuration.options());
        let (timeout, interval) = (
            of_worker.task_cancellation_timeout,
            of_worker.task_cancellation_interval,
        );
        assert_eq!((timeout, interval), (NEVER, NEVER));
    }

    #[test]
    fn the_registration_timeout_is_as_configured() {
        let load = LoadOptions::default().with("taskmanager.registration.timeout", "7 s");
        let configuration = Configuration::load(load).expect("valid");
        let timeout = task_executor(configuration.options()).registration_timeout;
        assert_eq!(timeout, Duration::from_secs(7));
    }
}
