//! A JobManager and TaskManagers in this process, for an application that ends with them. Others may join: the store is the
//! configured one.

use std::path::Path;
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
    /// Binds everything on this host. Each TaskManager has a directory of its own in `directory`.
    pub(super) async fn bind(
        configuration: Configuration,
        application: ApplicationSetup,
        taskmanagers: u32,
        directory: &Path,
    ) -> Result<HostedCluster, (ExitCode, String)> {
        let jobmanager = JobManager::bind_for(&configuration, Some(application))
            .await
            .map_err(|error| (ExitCode::Port, error.to_string()))?;
        let mut bound = Vec::new();
        for number in 1..=taskmanagers {
            let own = directory.join(format!("tm-{number}"));
            let taskmanager = TaskManager::bind(&configuration, &own)
                .await
                .map_err(|error| (error.exit_code(), error.to_string()))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LoadOptions;

    /// Why a cluster of two TaskManagers with these settings can't be bound.
    async fn refused(settings: &[(&str, &str)]) -> (ExitCode, String) {
        let directory = tempfile::tempdir().expect("a directory");
        let store = directory.path().join("store");
        let mut load = LoadOptions::default();
        load = load.with("high-availability.embedded.dir", &store.to_string_lossy());
        for (key, value) in FREE_PORTS.iter().chain(settings) {
            load = load.with(key, value);
        }
        let configuration = Configuration::load(load).expect("it can be read");
        let setup = ApplicationSetup::new("none", |_| async { Ok(()) });
        let bound = HostedCluster::bind(configuration, setup, 2, directory.path()).await;
        bound.expect_err("it can't be bound")
    }

    #[tokio::test]
    async fn what_keeps_a_taskmanager_from_starting_has_the_code_of_its_cause() {
        let (code, said) = refused(&[("process.control-groups", "/nowhere")]).await;
        assert_eq!(code, ExitCode::Configuration, "{said}");
        assert!(said.contains("process.control-groups"), "{said}");

        let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let taken = taken.expect("a free port");
        let port = taken.local_addr().expect("it is bound").port().to_string();
        let (code, said) = refused(&[("taskmanager.data.port", port.as_str())]).await;
        assert_eq!(code, ExitCode::Port, "{said}");
    }
}
