//! The client as a program uses it: connects by configuration, submits jobs, and follows them until they end.
//!
//! Every call goes on over failovers: it finds whoever leads, for as long as `client.timeout`. A program that is started
//! again follows the same job: by [`ClusterClient::job`] if it kept the id, or by submitting the same job with the same id,
//! which takes effect once.

use std::sync::Arc;

use tanist_ha::election::{ElectionDriver, ProcessId};
use tanist_ha::retrieval;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::error::ClientError;
use super::finder::{FollowedLeader, LeaderFinder, StaticAddresses};
use super::job_client::JobClient;
use super::job_execution::{ExecuteError, JobExecution, JobExecutionResult};
use super::rest_client::{RestClient, RetryOptions};
use crate::config::Configuration;
use crate::job::{ChainingOptions, CompileOptions, JobFile, StreamGraph, artifact, compile};
use crate::process::ha;

/// A job that is to be submitted.
#[derive(Debug, Clone)]
pub struct Job {
    what: What,
    id: Option<JobId>,
    options: CompileOptions,
}

#[derive(Debug, Clone)]
enum What {
    Graph(Box<StreamGraph>),
    File(JobFile),
}

impl Job {
    /// A job file.
    pub fn file(file: JobFile) -> Job {
        Job::of(What::File(file))
    }

    fn of(what: What) -> Job {
        Job {
            what,
            id: None,
            options: CompileOptions::default(),
        }
    }

    /// The job's id: the same job with the same id is submitted once, however often it is executed.
    #[must_use]
    pub fn with_id(mut self, id: JobId) -> Job {
        self.id = Some(id);
        self
    }

    /// A parameter of a job file.
    #[must_use]
    pub fn with_parameter(mut self, name: impl Into<String>, value: impl Into<String>) -> Job {
        self.options.parameters.insert(name.into(), value.into());
        self
    }

    /// The parallelism of steps that name none; over that of the job itself.
    #[must_use]
    pub fn with_parallelism(mut self, parallelism: u32) -> Job {
        self.options.parallelism = Some(parallelism);
        self
    }

    fn compile(self, defaults: &Defaults) -> Result<pb::JobGraph, ExecuteError> {
        let options = CompileOptions {
            default_parallelism: defaults.parallelism,
            max_parallelism: defaults.max_parallelism,
            chaining: defaults.chaining,
            job_id: self.id.unwrap_or_else(JobId::random),
            ..self.options
        };
        let compiled = match &self.what {
            What::Graph(graph) => graph.compile(&options).map_err(Into::into),
            What::File(file) => compile(file, &options),
        };
        compiled.map_err(ExecuteError::InvalidJob)
    }
}

impl From<StreamGraph> for Job {
    fn from(graph: StreamGraph) -> Job {
        Job::of(What::Graph(Box::new(graph)))
    }
}

/// What the configuration says of jobs that don't say it.
#[derive(Debug, Clone)]
struct Defaults {
    parallelism: u32,
    max_parallelism: u32,
    chaining: ChainingOptions,
}

/// A client of one cluster. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ClusterClient {
    jobs: JobClient,
    defaults: Defaults,
    /// Follows the leader for as long as it is held.
    _store: Option<Arc<dyn ElectionDriver>>,
}

impl ClusterClient {
    /// A client that asks the configured REST server; without one, whom the store names as leader.
    pub async fn connect(configuration: &Configuration) -> Result<ClusterClient, ClientError> {
        ClusterClient::connect_to(configuration, &[]).await
    }

    /// A client that asks these JobManagers (`host:port` of their REST servers); without one, as
    /// [`ClusterClient::connect`].
    pub async fn connect_to(
        configuration: &Configuration,
        addresses: &[String],
    ) -> Result<ClusterClient, ClientError> {
        let client = configuration.client();
        if !addresses.is_empty() {
            let finder = StaticAddresses(addresses.to_vec());
            return Ok(ClusterClient::over(configuration, finder, None));
        }
        if let Some(rest) = &client.rest {
            let finder = StaticAddresses(vec![rest.to_string()]);
            return Ok(ClusterClient::over(configuration, finder, None));
        }
        let process = ProcessId::new(format!("client-{:016x}", rand::random::<u64>()));
        let opening = ha::observe(configuration.ha(), &process);
        let store = tokio::time::timeout(client.timeout, opening).await;
        let store = store.map_err(|_| ClientError::Unreachable {
            waited: client.timeout,
            last: "the store that is to say who leads can't be reached; `--address` asks a JobManager \
                   without it"
                .to_owned(),
        })?;
        let finder = FollowedLeader(retrieval::follow(store.observed()));
        Ok(ClusterClient::over(configuration, finder, Some(store)))
    }

    fn over(
        configuration: &Configuration,
        finder: impl LeaderFinder,
        store: Option<Arc<dyn ElectionDriver>>,
    ) -> ClusterClient {
        let (client, jobs) = (configuration.client(), configuration.jobs());
        let options = RetryOptions {
            timeout: client.timeout,
            retry_period: client.retry_period,
            ..RetryOptions::default()
        };
        ClusterClient {
            jobs: JobClient::new(RestClient::new(Arc::new(finder), options))
                .fetching_at_most(configuration.options().jobmanager.max_artifacts.bytes()),
            defaults: Defaults {
                parallelism: jobs.default_parallelism.get(),
                max_parallelism: jobs.max_parallelism.get(),
                chaining: ChainingOptions {
                    enabled: jobs.operator_chaining,
                },
            },
            _store: store,
        }
    }

    /// What can be asked of all its jobs.
    pub fn jobs(&self) -> &JobClient {
        &self.jobs
    }

    /// Submits a job and waits for its end. An error unless it FINISHED.
    pub async fn execute(&self, job: impl Into<Job>) -> Result<JobExecutionResult, ExecuteError> {
        self.execute_async(job).await?.finished().await
    }

    /// Submits a job. When this returns it is in the store, and survives everybody.
    pub async fn execute_async(&self, job: impl Into<Job>) -> Result<JobExecution, ExecuteError> {
        let job = job.into();
        let is_chosen = job.id.is_some();
        let graph = job.compile(&self.defaults)?;
        Ok(self.submit(&graph, is_chosen).await?)
    }

    /// Submits a graph that is compiled. `id_is_chosen`: the id is the same in every try of this job, also of another
    /// process, and means the same job.
    pub async fn submit(
        &self,
        graph: &pb::JobGraph,
        id_is_chosen: bool,
    ) -> Result<JobExecution, ClientError> {
        let token = token_of(graph, id_is_chosen);
        let submitted = self.jobs.submit_as(graph, &token).await?;
        Ok(JobExecution::new(
            self.clone(),
            submitted.job,
            submitted.repeated,
        ))
    }

    /// Follows a job that was submitted before.
    pub fn job(&self, id: JobId) -> JobExecution {
        JobExecution::new(self.clone(), id, true)
    }
}

/// The submission's token. Whoever chose the id means the same submission each time, also after this process was killed.
fn token_of(graph: &pb::JobGraph, chosen_id: bool) -> String {
    if !chosen_id {
        return format!("{:032x}", rand::random::<u128>());
    }
    let digest = artifact::digest(graph);
    let hex = digest.iter().take(16).map(|byte| format!("{byte:02x}"));
    hex.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(name: &str) -> pb::JobGraph {
        pb::JobGraph {
            job_id: JobId::from_bits(1).to_string(),
            name: name.to_owned(),
            ..pb::JobGraph::default()
        }
    }

    #[test]
    fn the_same_job_under_a_chosen_id_is_the_same_submission() {
        let token = token_of(&graph("a"), true);
        assert_eq!(token.len(), 32);
        assert_eq!(token, token_of(&graph("a"), true));
        assert_ne!(token, token_of(&graph("b"), true));
        assert_ne!(token_of(&graph("a"), false), token_of(&graph("a"), false));
    }
}
