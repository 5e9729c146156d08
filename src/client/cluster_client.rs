//! The client for programs: connects as configured, submits jobs, and follows them until they end.
//!
//! Every call continues over failovers: it finds the current leader, for up to `client.timeout`. A restarted
//! program follows the same job: by [`ClusterClient::job`] if it kept the id, or by submitting the same job
//! with the same id, which takes effect once. The client's configuration supplies defaults for jobs; they are
//! filled in when a job is compiled.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tanist_compile::{
    ChainingOptions, CompileOptions, JobFile, JobFileError, StreamGraph, compile,
};
use tanist_config::Configuration;
use tanist_ha::election::{ElectionDriver, ProcessId};
use tanist_ha::{retrieval, services};
use tanist_model::artifact;
use tanist_model::artifact::WORTH_AN_UPLOAD;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::watch;

use super::error::ClientError;
use super::finder::{FollowedLeader, LeaderFinder, StaticAddresses};
use super::job_client::JobClient;
use super::job_execution::{ExecuteError, JobExecution, JobExecutionResult};
use super::rest_client::{RestClient, RetryOptions};
use super::restore::Restore;

/// A job to be submitted. Relative paths that its steps read and write start at this process's working directory.
#[derive(Debug, Clone)]
pub struct Job {
    what: What,
    id: Option<JobId>,
    restore: Option<Restore>,
    options: CompileOptions,
}

#[derive(Debug, Clone)]
enum What {
    Graph(Box<StreamGraph>),
    File(JobFile),
}

impl Job {
    /// Creates a job from a job file.
    pub fn file(file: JobFile) -> Job {
        Job::of(What::File(file))
    }

    /// Reads the job file at this path; its artifacts are in the same directory. Blocks.
    pub fn read(path: impl AsRef<Path>) -> io::Result<Job> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)?;
        let directory = path.parent().map(Path::to_owned).unwrap_or_default();
        let file = JobFile::new(path.display().to_string(), text);
        Ok(Job::file(file).with_artifacts_from(directory))
    }

    fn of(what: What) -> Job {
        Job {
            what,
            id: None,
            restore: None,
            options: CompileOptions {
                upload_above: Some(WORTH_AN_UPLOAD),
                working_dir: std::env::current_dir().ok(),
                ..CompileOptions::default()
            },
        }
    }

    /// Sets the directory where relative paths of artifacts start. Without it a job has only artifacts with addresses.
    #[must_use]
    pub fn with_artifacts_from(mut self, directory: impl Into<PathBuf>) -> Job {
        self.options.artifact_dir = Some(directory.into());
        self
    }

    /// Puts its files into its graph, regardless of size: for a cluster without an upload service.
    pub fn with_all_files_in_its_graph(mut self) -> Job {
        self.options.upload_above = None;
        self
    }

    /// Sets the job's id: the same job with the same id is submitted once, even if it is executed repeatedly.
    #[must_use]
    pub fn with_id(mut self, id: JobId) -> Job {
        self.id = Some(id);
        self
    }

    /// Sets what the job begins from. Otherwise it begins as `execution.state-recovery.path` says.
    #[must_use]
    pub fn beginning_from(mut self, restore: Restore) -> Job {
        self.restore = Some(restore);
        self
    }

    /// Sets a parameter of a job file.
    #[must_use]
    pub fn with_parameter(mut self, name: impl Into<String>, value: impl Into<String>) -> Job {
        self.options.parameters.insert(name.into(), value.into());
        self
    }

    /// Sets the parallelism of steps that name none; overrides that of the job itself.
    #[must_use]
    pub fn with_parallelism(mut self, parallelism: u32) -> Job {
        self.options.parallelism = Some(parallelism);
        self
    }

    /// Checks and compiles the job, as [`ClusterClient::execute`] does. The error lists all problems. Blocks.
    pub fn compile(self, configuration: &Configuration) -> Result<pb::JobGraph, JobFileError> {
        self.compile_with(&Defaults::of(configuration))
    }

    fn compile_with(self, defaults: &Defaults) -> Result<pb::JobGraph, JobFileError> {
        let options = CompileOptions {
            default_parallelism: defaults.parallelism,
            max_parallelism: defaults.max_parallelism,
            chaining: defaults.chaining,
            job_id: self.id.unwrap_or_else(JobId::random),
            ..self.options
        };
        match &self.what {
            What::Graph(graph) => graph.compile(&options).map_err(Into::into),
            What::File(file) => compile(file, &options),
        }
    }
}

impl From<StreamGraph> for Job {
    fn from(graph: StreamGraph) -> Job {
        Job::of(What::Graph(Box::new(graph)))
    }
}

/// The configuration's defaults for jobs.
#[derive(Debug, Clone)]
struct Defaults {
    parallelism: u32,
    max_parallelism: u32,
    chaining: ChainingOptions,
    restore: Option<Restore>,
}

impl Defaults {
    fn of(configuration: &Configuration) -> Defaults {
        let jobs = configuration.jobs();
        Defaults {
            parallelism: jobs.default_parallelism.get(),
            max_parallelism: jobs.max_parallelism.get(),
            chaining: ChainingOptions {
                enabled: jobs.operator_chaining,
            },
            restore: Restore::configured(configuration),
        }
    }
}

/// A client of one cluster. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ClusterClient {
    jobs: JobClient,
    defaults: Defaults,
    /// Keeps the watch of the leader open.
    _store: Option<Arc<dyn ElectionDriver>>,
}

impl ClusterClient {
    /// Creates a client of the configured REST server; without one, of the leader that the store names.
    pub async fn connect(configuration: &Configuration) -> Result<ClusterClient, ClientError> {
        ClusterClient::connect_to(configuration, &[]).await
    }

    /// Creates a client of these JobManagers (`host:port` of their REST servers); without one, as
    /// [`ClusterClient::connect`].
    pub async fn connect_to(
        configuration: &Configuration,
        addresses: &[String],
    ) -> Result<ClusterClient, ClientError> {
        let waits = watch::Sender::new(None);
        ClusterClient::connect_reporting(configuration, addresses, None, &waits).await
    }

    /// The same, and reports through `waits` why the store can't be opened yet. `reach_timeout` limits this,
    /// and reads while no JobManager accepts a connection.
    pub async fn connect_reporting(
        configuration: &Configuration,
        addresses: &[String],
        reach_timeout: Option<Duration>,
        waits: &watch::Sender<Option<String>>,
    ) -> Result<ClusterClient, ClientError> {
        let reach_timeout = reach_timeout.map(|it| it.min(configuration.client().timeout));
        let client = configuration.client();
        let addresses = match &client.rest {
            Some(rest) if addresses.is_empty() => vec![rest.to_string()],
            Some(_) | None => addresses.to_vec(),
        };
        if !addresses.is_empty() {
            let finder = StaticAddresses(addresses);
            return Ok(ClusterClient::over(
                configuration,
                finder,
                None,
                reach_timeout,
            ));
        }
        let process = ProcessId::new(format!("client-{:016x}", rand::random::<u64>()));
        let ha = configuration.ha();
        let opening = services::observe(&ha.backend, &process, |reason| {
            waits.send_replace(Some(format!("{reason} (see {})", ha.place)));
        });
        let timeout = reach_timeout.unwrap_or(client.timeout);
        let store = tokio::time::timeout(timeout, opening).await;
        let store = store.map_err(|_| {
            if let Some(place) = ha.backend.absence() {
                return ClientError::NoCluster { place };
            }
            let reason = waits.borrow().clone();
            let reason = reason
                .unwrap_or_else(|| "the store that names the leader has not answered".to_owned());
            ClientError::Unreachable {
                waited: timeout,
                last: format!("{reason}; `--address` connects to a JobManager without the store"),
            }
        })?;
        waits.send_replace(None);
        let finder = FollowedLeader(retrieval::follow(store.observed()));
        Ok(ClusterClient::over(
            configuration,
            finder,
            Some(store),
            reach_timeout,
        ))
    }

    fn over(
        configuration: &Configuration,
        finder: impl LeaderFinder,
        store: Option<Arc<dyn ElectionDriver>>,
        reach_timeout: Option<Duration>,
    ) -> ClusterClient {
        let client = configuration.client();
        let options = RetryOptions {
            timeout: client.timeout,
            retry_period: client.retry_period,
            reach_timeout,
            ..RetryOptions::default()
        };
        ClusterClient {
            jobs: JobClient::new(RestClient::new(Arc::new(finder), options))
                .fetching_at_most(configuration.options().jobmanager.max_artifacts.bytes()),
            defaults: Defaults::of(configuration),
            _store: store,
        }
    }

    /// Returns the client for requests about any job.
    pub fn jobs(&self) -> &JobClient {
        &self.jobs
    }

    /// Submits a job and waits for its end. An error unless it FINISHED.
    pub async fn execute(&self, job: impl Into<Job>) -> Result<JobExecutionResult, ExecuteError> {
        self.execute_async(job).await?.finished().await
    }

    /// Submits a job. When this returns, the job is in the store and survives the failure of any process.
    pub async fn execute_async(&self, job: impl Into<Job>) -> Result<JobExecution, ExecuteError> {
        let job = job.into();
        let is_chosen = job.id.is_some();
        let defaults = self.defaults.clone();
        let restore = job.restore.clone().or_else(|| defaults.restore.clone());
        // Compiling may read files and plan expressions.
        let compiling = tokio::task::spawn_blocking(move || job.compile_with(&defaults));
        let compiled = compiling.await.map_err(|error| ClientError::Unsendable {
            reason: format!("compiling the job failed: {error}"),
        })?;
        let graph = compiled.map_err(ExecuteError::InvalidJob)?;
        Ok(self
            .submit_from(&graph, is_chosen, restore.as_ref())
            .await?)
    }

    /// Submits a compiled graph. `id_is_chosen`: every try of this job uses the same id, also in another
    /// process, and means the same job.
    pub async fn submit(
        &self,
        graph: &pb::JobGraph,
        id_is_chosen: bool,
    ) -> Result<JobExecution, ClientError> {
        self.submit_from(graph, id_is_chosen, None).await
    }

    /// The same for a job that begins from a savepoint.
    pub async fn submit_from(
        &self,
        graph: &pb::JobGraph,
        id_is_chosen: bool,
        restore: Option<&Restore>,
    ) -> Result<JobExecution, ClientError> {
        let token = token_of(graph, id_is_chosen, restore);
        let submitted = self.jobs.submit_from(graph, &token, restore).await?;
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

/// Returns the submission's token. With a chosen id it is always the same, also after a restart of this process.
fn token_of(graph: &pb::JobGraph, chosen_id: bool, restore: Option<&Restore>) -> String {
    if !chosen_id {
        return format!("{:032x}", rand::random::<u128>());
    }
    let mut digest = artifact::digest(graph);
    if let Some(restore) = restore {
        let mut both = Sha256::new();
        both.update(&digest);
        both.update(restore.query().as_bytes());
        digest = both.finalize().to_vec();
    }
    let hex = digest.iter().take(16).map(|byte| format!("{byte:02x}"));
    hex.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tanist_config::LoadOptions;

    fn graph(name: &str) -> pb::JobGraph {
        pb::JobGraph {
            job_id: JobId::from_bits(1).to_string(),
            name: name.to_owned(),
            ..pb::JobGraph::default()
        }
    }

    #[test]
    fn a_job_file_is_read_with_the_files_beside_it_and_all_that_is_wrong_is_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("job.yaml");
        let file = "version: 1\nname: a\nartifacts: {m: m.bin}\nsteps:\n  - datagen: {count: \"${count}\"}\n  - discard: {}\n";
        std::fs::write(&path, file).expect("written");
        assert!(Job::read(directory.path().join("none.yaml")).is_err());
        let read = || Job::read(&path).expect("it is there");
        let compile = |job: Job| job.compile(&Configuration::defaults());
        let wrong = compile(read()).expect_err("no count").to_string();
        assert!(wrong.contains("count"), "{wrong}");
        let parallel = || read().with_parameter("count", "7").with_parallelism(3);
        let wrong = compile(parallel()).expect_err("no file").to_string();
        assert!(wrong.contains("artifact `m`"), "{wrong}");
        std::fs::write(directory.path().join("m.bin"), "content").expect("written");
        let id = JobId::from_bits(7);
        let graph = compile(parallel().with_id(id)).expect("all is there");
        assert_eq!(graph.job_id, id.to_string());
        assert_eq!(graph.artifacts[0].content, "content");
        assert_eq!(graph.vertices[0].parallelism, 3);
    }

    #[test]
    fn relative_paths_begin_where_this_process_works() {
        let job = tanist_compile::JobBuilder::new("a")
            .datagen("numbers", None, Some(1), 1, 1)
            .file_sink("out", "there")
            .build();
        let compiled = Job::from(job).compile(&Configuration::defaults());
        let graph = compiled.expect("valid");
        let expected = std::env::current_dir().expect("it works somewhere");
        let expected = format!("{:?}", expected.join("there"));
        let operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
        let specs: Vec<&str> = operators.map(|it| it.spec.as_str()).collect();
        assert!(
            specs.iter().any(|spec| spec.contains(&expected)),
            "{specs:?}"
        );
    }

    fn configured(settings: &[(&str, &str)]) -> Configuration {
        let mut load = LoadOptions::default();
        for (key, value) in settings {
            load = load.with(key, value);
        }
        Configuration::load(load).expect("it is valid")
    }

    #[tokio::test]
    async fn a_client_makes_no_store_and_says_that_there_is_none_and_where() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = directory.path().join("typo");
        let text = store.to_string_lossy().into_owned();
        let configuration = configured(&[
            ("high-availability.embedded.dir", &text),
            ("high-availability.cluster-id", "c7"),
            ("client.timeout", "300 ms"),
        ]);
        let connected = ClusterClient::connect(&configuration).await;
        let error = connected.expect_err("there is no store");
        assert!(matches!(error, ClientError::NoCluster { .. }), "{error}");
        let advice = error.advice().expect("there is some");
        assert!(advice.contains("--address"), "{advice}");
        let error = error.to_string();
        assert!(!store.exists(), "a client has made it");
        let named = store.join("c7").to_string_lossy().into_owned();
        for said in [&*named, "no cluster has been started here"] {
            assert!(error.contains(said), "{said} is not in: {error}");
        }
    }

    #[tokio::test]
    async fn why_a_store_can_not_be_reached_is_told_with_the_option_to_check() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let address = listener
            .and_then(|listener| listener.local_addr())
            .expect("a free port");
        let address = address.to_string();
        let endpoint = format!("http://{address}");
        let configuration = configured(&[
            ("high-availability.type", "etcd"),
            ("high-availability.etcd.endpoints", &endpoint),
        ]);
        let waits = watch::Sender::new(None);
        let mut told = waits.subscribe();
        let told = tokio::select! {
            _ = ClusterClient::connect_reporting(&configuration, &[], None, &waits) => {
                panic!("no server listens there")
            }
            told = told.wait_for(Option::is_some) => told.expect("it is told").clone(),
        };
        let told = told.unwrap_or_default();
        for said in [&*address, "high-availability.etcd.endpoints"] {
            assert!(told.contains(said), "{said} is not in: {told}");
        }
    }

    #[test]
    fn the_same_job_under_a_chosen_id_is_the_same_submission() {
        let token = token_of(&graph("a"), true, None);
        assert_eq!(token.len(), 32);
        let restore = Restore::new("/savepoints/a".parse().expect("a path"));
        let restored = token_of(&graph("a"), true, Some(&restore));
        assert_eq!(restored.len(), 32);
        assert_ne!(token, restored);
        assert_eq!(token, token_of(&graph("a"), true, None));
        assert_ne!(token, token_of(&graph("b"), true, None));
        assert_ne!(
            token_of(&graph("a"), false, None),
            token_of(&graph("a"), false, None)
        );
    }
}
