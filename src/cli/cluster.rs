//! A JobManager and TaskManagers in this process, for an application that ends with them. Others may join: the store is the
//! configured one.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::output::say;
use super::processes::run_jobmanager;
use crate::config::Configuration;
use crate::process::{ApplicationSetup, JobManager, TaskManager};
use crate::telemetry::ExitCode;

/// How long TaskManagers may take to end once their cluster has.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Servers that are bound.
#[derive(Debug)]
pub(super) struct HostedCluster {
    jobmanager: JobManager,
    taskmanagers: Vec<TaskManager>,
    configuration: Configuration,
}

impl HostedCluster {
    /// Binds everything on this host.
    pub(super) async fn bind(
        configuration: Configuration,
        application: ApplicationSetup,
        taskmanagers: u32,
    ) -> Result<HostedCluster, (ExitCode, String)> {
        let jobmanager = JobManager::bind_for(&configuration, Some(application))
            .await
            .map_err(|error| (ExitCode::Port, error.to_string()))?;
        let mut bound = Vec::new();
        for _ in 0..taskmanagers {
            let taskmanager = TaskManager::bind(&configuration)
                .await
                .map_err(|error| (ExitCode::Port, error.to_string()))?;
            bound.push(taskmanager);
        }
        Ok(HostedCluster {
            jobmanager,
            taskmanagers: bound,
            configuration,
        })
    }

    /// Where the JobManager is reached over REST.
    pub(super) fn rest_address(&self) -> String {
        self.jobmanager.addresses()["rest"].clone()
    }

    /// Runs until the application has ended, or until `stop`, which ends this process's part of the cluster only.
    pub(super) async fn run(self, stop: CancellationToken) -> ExitCode {
        let stop_taskmanagers = CancellationToken::new();
        let mut taskmanagers = JoinSet::new();
        for taskmanager in self.taskmanagers {
            taskmanagers.spawn(Box::pin(taskmanager.run(stop_taskmanagers.clone())));
        }
        let code = Box::pin(run_jobmanager(self.jobmanager, &self.configuration, stop)).await;
        stop_taskmanagers.cancel();
        let ending = async { while taskmanagers.join_next().await.is_some() {} };
        if tokio::time::timeout(END_TIMEOUT, ending).await.is_err() {
            say("the TaskManagers take too long to end and are left to the end of this process");
        }
        code
    }
}

/// The keys whose values two clusters of one host can't share, with what takes any that is free.
pub(super) const FREE_PORTS: [(&str, &str); 4] = [
    ("jobmanager.rpc.port", "0"),
    ("rest.bind-port", "0"),
    ("taskmanager.rpc.port", "0"),
    ("taskmanager.data.port", "0"),
];
