//! A JobManager and TaskManagers in this process, for an application that ends with them. Other processes may
//! join: the store is the configured one.
//!
//! Invariants: once the end of the application is decided, `run` returns it, even if this process is asked to
//! end at the same time. A TaskManager that can't continue ends the process, as it does in a process of its
//! own. The application survives: another process continues it, or this one when it is started again.

use std::path::Path;
use std::time::Duration;

use tanist_config::Configuration;
use tanist_ha::failpoint::failpoint;
use tanist_process::{ApplicationSetup, JobManager, TaskManager, TaskManagerFailure};
use tanist_telemetry::ExitCode;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::output::{fail, warn};
use super::processes::run_jobmanager;

/// Timeout for the end of TaskManagers after the end of their cluster.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A cluster whose servers are bound.
#[derive(Debug)]
pub(super) struct HostedCluster {
    jobmanager: JobManager,
    taskmanagers: Vec<TaskManager>,
    configuration: Configuration,
}

/// How the cluster of this process ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HostedEnd {
    /// The application ended, or refused this cluster; any other events at the same time are ignored.
    Decided(ExitCode),
    /// The JobManager ended for another reason: it was asked to, or refused by the store.
    JobManager(ExitCode),
    /// A TaskManager could not continue. The application continues in another process, or when this one is
    /// started again.
    TaskManager(TaskManagerFailure),
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
            .map_err(|error| (error.exit_code(), error.to_string()))?;
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

    /// The same, but the process is killed if isolated tasks can't be stopped otherwise.
    pub(super) fn guarded(mut self) -> HostedCluster {
        let all = self.taskmanagers.into_iter();
        self.taskmanagers = all.map(TaskManager::guarded).collect();
        self
    }

    /// The REST address of the JobManager.
    pub(super) fn rest_address(&self) -> String {
        self.jobmanager.addresses()["rest"].clone()
    }

    /// Runs until the application has ended, a TaskManager of this process can't continue, or until `stop`;
    /// the last two end only this process's part of the cluster.
    pub(super) async fn run(self, stop: CancellationToken) -> HostedEnd {
        let stop_taskmanagers = CancellationToken::new();
        let mut taskmanagers = JoinSet::new();
        for taskmanager in self.taskmanagers {
            taskmanagers.spawn(Box::pin(taskmanager.run(stop_taskmanagers.clone())));
        }
        let stop = stop.child_token();
        let ending = self.jobmanager.ending();
        let decided = || ending.code().map(HostedEnd::Decided);
        let running = run_jobmanager(self.jobmanager, &self.configuration, stop.clone());
        let mut jobmanager = Box::pin(running);
        let end = tokio::select! {
            biased;
            code = &mut jobmanager => decided().unwrap_or(HostedEnd::JobManager(code)),
            failure = first_failure(&mut taskmanagers) => {
                fail(&failure);
                // The JobManager resigns, so that another one leads at once.
                stop.cancel();
                let bound = self.configuration.process().shutdown_timeout;
                if tokio::time::timeout(bound, jobmanager).await.is_err() {
                    warn("the JobManager takes too long to end: this process ends without waiting for it");
                }
                decided().unwrap_or(HostedEnd::TaskManager(failure))
            }
        };
        failpoint("hosted.jobmanager-ended").await;
        stop_taskmanagers.cancel();
        let ending = async { while taskmanagers.join_next().await.is_some() {} };
        if tokio::time::timeout(END_TIMEOUT, ending).await.is_err() {
            warn(
                "the TaskManagers take too long to end: this process ends without waiting for them",
            );
        }
        end
    }
}

/// Waits until one of these can't continue. Never completes if all end in order.
pub(super) async fn first_failure(
    taskmanagers: &mut JoinSet<Result<(), TaskManagerFailure>>,
) -> TaskManagerFailure {
    while let Some(ended) = taskmanagers.join_next().await {
        match ended {
            // It was drained. This is no reason for others to end.
            Ok(Ok(())) => {}
            Ok(Err(failure)) => return failure,
            Err(broken) => {
                return TaskManagerFailure {
                    taskmanager: "of this process".to_owned(),
                    code: ExitCode::Fatal,
                    cause: broken.to_string(),
                };
            }
        }
    }
    std::future::pending().await
}

/// Options whose defaults two clusters of one host can't share, with values that choose a free port.
pub(super) const FREE_PORTS: [(&str, &str); 4] = [
    ("jobmanager.rpc.port", "0"),
    ("rest.bind-port", "0"),
    ("taskmanager.rpc.port", "0"),
    ("taskmanager.data.port", "0"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use tanist_config::LoadOptions;

    /// The error of binding a cluster of two TaskManagers with these settings.
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
