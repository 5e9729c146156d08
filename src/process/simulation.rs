//! Many TaskExecutors in one process, for benchmarks and tests of a control plane that is larger than one host
//! could run.
//!
//! To a JobManager each is a TaskManager: it is the real TaskExecutor with its own RPC server, connections and
//! registrations, and answers the leader's dial. The data plane is missing: tasks start at once and run
//! forever, process no record, and their exchange is not served anywhere. They share one watch of the store's
//! leader, and its reads, as if all were informed at the same moment.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tanist_config::{ClusterOptions, Configuration};
use tanist_gateway::fencing::{HighestEpoch, OwnStore};
use tanist_ha::clock::Clock;
use tanist_ha::election::ProcessId;
use tanist_net::Port;
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::v1 as pb;
use tanist_rpc::{RpcServer, Services, TonicConnector};
use tanist_task_executor::{
    IsolationGuard, RunningTask, TaskExecutor, TaskExecutorServices, TaskLauncher, TaskStart,
    TaskStatus, first_registration,
};
use tanist_telemetry::ExitCode;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::job_records::StoredJobRecords;
use super::taskmanager::{describe, exit_code, follow_store, until_it_ends};
use super::{StartError, listen, settings};

/// Running TaskExecutors. If dropped, they end without disconnect messages, as with the end of their processes.
#[derive(Debug)]
pub struct SimulatedTaskManagers {
    running: JoinSet<ExitCode>,
    tasks: TaskCounts,
    stop: CancellationToken,
}

/// Counts the tasks of all simulated TaskExecutors. Clones share the counts.
#[derive(Debug, Clone, Default)]
pub struct TaskCounts {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    started: AtomicU64,
    running: AtomicU64,
}

impl TaskCounts {
    /// Number of tasks that were ever started: shows restarts of any cause.
    pub fn started(&self) -> u64 {
        self.counts.started.load(Ordering::Relaxed)
    }

    /// Number of running tasks.
    pub fn running(&self) -> u64 {
        self.counts.running.load(Ordering::Relaxed)
    }
}

impl SimulatedTaskManagers {
    /// Starts `count` of them, as TaskManagers with this configuration would: with its slots, on its host, for
    /// the leader in its store.
    pub async fn start(
        configuration: &Configuration,
        count: usize,
    ) -> Result<SimulatedTaskManagers, StartError> {
        let options = Arc::new(configuration.options().clone());
        let process = ProcessId::new("simulated-task-managers");
        let store = follow_store(options.clone(), process);
        let mut simulated = SimulatedTaskManagers {
            running: JoinSet::new(),
            tasks: TaskCounts::default(),
            stop: CancellationToken::new(),
        };
        for index in 0..count {
            let id = format!("simulated-{index:05}");
            simulated.start_one(&options, id, store.clone()).await?;
        }
        Ok(simulated)
    }

    /// The counts of their tasks.
    pub fn tasks(&self) -> TaskCounts {
        self.tasks.clone()
    }

    /// Ends them without disconnect messages, as dropping does, and waits until they are gone.
    pub async fn kill(mut self) {
        self.running.shutdown().await;
    }

    /// Ends them in order: each stops its tasks and disconnects.
    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.running.join_next().await.is_some() {}
    }

    async fn start_one(
        &mut self,
        options: &Arc<ClusterOptions>,
        resource_id: String,
        store: OwnStore,
    ) -> Result<(), StartError> {
        let manager = &options.taskmanager;
        let key = "taskmanager.rpc.port";
        let ports = &manager.rpc_ports;
        let (what, host) = (("the RPC server", Port::Rpc), &manager.bind_host);
        let listener = listen::bind(what, key, host, ports, options.security).await?;
        let port = listener.local_addr().map_or(0, |address| address.port());
        let rpc_address = manager.host.with_port(port);
        let location = pb::TaskManagerLocation {
            resource_id,
            incarnation: format!("{:016x}", rand::random::<u64>()),
            // No task of theirs is ever asked for a record.
            data_address: rpc_address.clone(),
            rpc_address,
        };
        let services = TaskExecutorServices {
            description: describe(location, options)?,
            highest_epoch: HighestEpoch::default(),
            store,
            records: Arc::new(StoredJobRecords::of(options.ha.clone())),
            connector: Arc::new(TonicConnector::new(settings::rpc(options))),
            launcher: Arc::new(EndlessTasks(self.tasks.clone())),
            first_registration: first_registration(),
            guard: IsolationGuard::new(Clock::tokio()),
        };
        let executor = TaskExecutor::start(settings::task_executor(options), services);
        let service = Services::TaskManager(Arc::new(executor.handle()));
        // With one shared memory limit, TaskManagers would refuse each other's deployments.
        let server = RpcServer::new(listener, settings::rpc(options)).with_own_memory();
        let stop = self.stop.clone();
        self.running.spawn(async move {
            let never = CancellationToken::new();
            tokio::select! {
                ended = until_it_ends(executor, &stop) => match ended {
                    Ok(()) => ExitCode::Ended,
                    Err(cause) => exit_code(&cause),
                },
                _ended = server.serve(service, never) => ExitCode::Fatal,
            }
        });
        Ok(())
    }
}

/// Starts tasks that do nothing.
#[derive(Debug)]
struct EndlessTasks(TaskCounts);

impl TaskLauncher for EndlessTasks {
    fn start(&self, _task: TaskStart) -> Box<dyn RunningTask> {
        let counts = self.0.counts.clone();
        counts.started.fetch_add(1, Ordering::Relaxed);
        counts.running.fetch_add(1, Ordering::Relaxed);
        Box::new(EndlessTask {
            status: watch::Sender::new(TaskStatus::Running),
            counts,
        })
    }

    fn release_task(&self, _job: JobId, _vertex: JobVertexId, _subtask: u32, _up_to: Generation) {}

    fn release_job(&self, _job: JobId, _up_to: Generation) {}

    fn kept_outputs(&self) -> watch::Receiver<usize> {
        watch::channel(0).1
    }
}

/// Runs until it is canceled.
struct EndlessTask {
    status: watch::Sender<TaskStatus>,
    counts: Arc<Counts>,
}

impl RunningTask for EndlessTask {
    fn cancel(&self) {
        self.status.send_replace(TaskStatus::Canceled);
    }

    fn stop(&self) {}

    fn metrics(&self) -> pb::TaskMetrics {
        pb::TaskMetrics::default()
    }

    fn status(&self) -> watch::Receiver<TaskStatus> {
        self.status.subscribe()
    }
}

impl Drop for EndlessTask {
    fn drop(&mut self) {
        self.counts.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for EndlessTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EndlessTask")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tanist_chaos::wait::wait_for;

    use super::*;
    use crate::JobManager;
    use tanist_compile::{CompileOptions, JobBuilder};
    use tanist_config::LoadOptions;

    /// Timeout of each wait in the test.
    const BOUND: Duration = Duration::from_secs(60);

    #[tokio::test(flavor = "multi_thread")]
    async fn simulated_task_managers_register_and_run_what_is_deployed() {
        let directory = tempfile::tempdir().expect("a directory");
        let load = LoadOptions::default()
            .with("high-availability.type", "embedded")
            .with(
                "high-availability.embedded.dir",
                &directory.path().to_string_lossy(),
            )
            .with("jobmanager.rpc.address", "127.0.0.1")
            .with("jobmanager.rpc.port", "0")
            .with("rest.bind-port", "0")
            .with("taskmanager.host", "127.0.0.1")
            .with("taskmanager.numberOfTaskSlots", "2");
        let configuration = Configuration::load(load).expect("it is valid");
        let jobmanager = JobManager::bind(&configuration).await.expect("free ports");
        let view = jobmanager.view();
        let stop = CancellationToken::new();
        let leading = tokio::spawn(Box::pin(jobmanager.run(stop.clone())));
        let simulated = SimulatedTaskManagers::start(&configuration, 3);
        let simulated = simulated.await.expect("free ports");
        let tasks = simulated.tasks();

        let dispatcher = view.dispatcher(BOUND).await.expect("it leads");
        let job = JobBuilder::new("numbers")
            .parallelism(6)
            .datagen("numbers", Some(1), None, 1, 1)
            .discard("out");
        let graph = job.build().compile(&CompileOptions::default());
        let request = pb::SubmitJobRequest {
            graph: Some(graph.expect("a valid job")),
            submission_token: "once".to_owned(),
            ..pb::SubmitJobRequest::default()
        };
        dispatcher.submit_job(request).await.expect("it is taken");
        wait_for("all six slots to run a task", BOUND, async || {
            match tasks.running() {
                6 => Ok(()),
                running => Err(running),
            }
        })
        .await
        .expect("they do");

        simulated.stop().await;
        assert_eq!((tasks.started(), tasks.running()), (6, 0));
        stop.cancel();
        leading.await.expect("it ends in order");
    }
}
