//! A Dispatcher's environment in tests: a term over the memory store, scripted JobMasters, and a
//! ResourceManager and a cleaner that record their calls. Makes no decisions and contains no tests.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tanist_gateway::blobs::BlobFetcher;
use tanist_gateway::{
    Adoption, Departure, Detail, DispatcherGateway, GatewayError, GatewayResult, JobMasterControl,
    JobMasterGateway, JobMasterLauncher, JobMasterRegistration, LocalConnector, ResourceOverview,
    ResourceRequirements, ResourceRequirementsGateway,
};
use tanist_ha::blob::{BlobOptions, BlobStore};
use tanist_ha::clock::Clock;
use tanist_ha::election::core::Timing;
use tanist_ha::election::{
    ElectionOptions, LeaderElection, LeaderSession, Leadership, ProcessId, random_start,
};
use tanist_ha::memory::{Faults, MemoryCluster, MemoryStore};
use tanist_ha::records::store::RecordStore;
use tanist_ha::store::pipeline::CommitPipeline;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::v1 as pb;
use tokio::sync::watch;

use super::testing::{checks, found, recovered};
use crate::core::{Deadline, Submission, SubmissionKey};
use crate::handle::Command;
use crate::{
    Cleaner, Dispatcher, DispatcherContext, DispatcherHandle, DispatcherOptions, HiddenOutput,
    JobStore, SinkCleaner,
};

/// How a scripted JobMaster has ended.
#[derive(Debug, Clone)]
pub(crate) enum End {
    NotYet,
    Broken,
    Unfit,
    Result(Box<pb::JobResult>),
}

/// Whether a scripted JobMaster describes its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Describes {
    AtOnce,
    /// Not before it is set to `Closed`.
    Never,
    Closed,
}

/// A JobMaster that ends when the test says so.
#[derive(Debug)]
pub(crate) struct Scripted {
    pub(crate) state: pb::JobState,
    end: watch::Sender<End>,
    pub(crate) describes: watch::Sender<Describes>,
    retained: Mutex<Option<Arc<pb::JobCheckpoints>>>,
}

impl Scripted {
    fn close(&self) {
        self.describes.send_if_modified(|describes| {
            let is_asked = *describes == Describes::Never;
            if is_asked {
                *describes = Describes::Closed;
            }
            is_asked
        });
    }
}

#[async_trait]
impl JobMasterControl for Scripted {
    fn gateway(&self) -> Arc<dyn JobMasterGateway> {
        unreachable!("no TaskExecutor is here")
    }

    async fn cancel(&self) -> GatewayResult<()> {
        Ok(())
    }

    async fn trigger_savepoint(&self, _: pb::TriggerSavepointRequest) -> GatewayResult<()> {
        unreachable!("no test takes a savepoint")
    }

    async fn stop_job(&self) -> GatewayResult<()> {
        Ok(())
    }

    async fn describe(&self, _: Detail) -> GatewayResult<pb::JobDetails> {
        let mut describes = self.describes.subscribe();
        let answers = describes.wait_for(|it| *it != Describes::Never).await;
        if answers.is_ok_and(|it| *it == Describes::Closed) {
            return Err(GatewayError::gone("the JobMaster"));
        }
        Ok(pb::JobDetails {
            job_id: self.state.job_id.clone(),
            status: pb::JobStatus::Running.into(),
            events: self.state.events.clone(),
            ..pb::JobDetails::default()
        })
    }

    async fn ended(&self) -> Option<pb::JobResult> {
        let mut end = self.end.subscribe();
        let ended = end.wait_for(|end| !matches!(end, End::NotYet)).await;
        match &*ended.expect("the sender is this one's") {
            End::Result(result) => Some((**result).clone()),
            End::NotYet | End::Broken | End::Unfit => None,
        }
    }

    fn retained_checkpoints(&self) -> Option<Arc<pb::JobCheckpoints>> {
        self.retained.lock().clone()
    }

    fn unfit(&self) -> Option<String> {
        let is_unfit = matches!(*self.end.borrow(), End::Unfit);
        is_unfit.then(|| "it names nothing".to_owned())
    }

    fn report_task_manager_lost(&self, _: ResourceId, _: String) {}

    async fn reconciled(&self) -> Option<Adoption> {
        Some(Adoption::default())
    }

    async fn result_written(&self) {
        self.close();
    }

    async fn stop(&self) {
        self.close();
    }
}

/// The environment of a Dispatcher.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) job_masters: Mutex<Vec<Arc<Scripted>>>,
    pub(crate) withdrawn: Mutex<Vec<JobId>>,
    pub(crate) cleaned: Mutex<Vec<String>>,
    /// Directories whose cleanup hangs.
    pub(crate) hanging: Mutex<Vec<String>>,
}

impl JobMasterLauncher for World {
    fn launch(
        &self,
        _graph: pb::JobGraph,
        state: pb::JobState,
        _recovered: bool,
    ) -> Arc<dyn JobMasterControl> {
        let end = watch::Sender::new(End::NotYet);
        let describes = watch::Sender::new(Describes::AtOnce);
        let started = Arc::new(Scripted {
            state,
            end,
            describes,
            retained: Mutex::default(),
        });
        self.job_masters.lock().push(started.clone());
        started
    }
}

#[async_trait]
impl ResourceRequirementsGateway for World {
    async fn register_job_master(&self, _: JobMasterRegistration) -> GatewayResult<()> {
        Ok(())
    }

    async fn disconnect_job_master(&self, job: JobId, _: Departure) -> GatewayResult<()> {
        self.withdrawn.lock().push(job);
        Ok(())
    }

    async fn declare_required_resources(&self, _: ResourceRequirements) -> GatewayResult<()> {
        Ok(())
    }

    async fn resource_overview(&self) -> GatewayResult<ResourceOverview> {
        Err(GatewayError::NotYet("not here".to_owned()))
    }
}

#[async_trait]
impl SinkCleaner for World {
    async fn clean(
        &self,
        directory: &str,
        _job: JobId,
        _run: &str,
        _kept: &HiddenOutput,
    ) -> Result<(), String> {
        if self.hanging.lock().iter().any(|it| it == directory) {
            std::future::pending::<()>().await;
        }
        self.cleaned.lock().push(directory.to_owned());
        Ok(())
    }
}

/// Whether the results of ended jobs are read when a Dispatcher starts.
#[derive(Debug, Clone, Copy)]
enum Results {
    Read,
    Unread,
}

/// One term of one process.
pub(crate) struct Leader {
    pub(crate) cluster: MemoryCluster,
    pub(crate) process: ProcessId,
    _election: LeaderElection,
    /// Faults of its view of the election.
    pub(crate) election_faults: Faults,
    pub(crate) session: LeaderSession,
    pub(crate) records: Arc<MemoryStore>,
    pub(crate) store: Arc<JobStore>,
    pub(crate) dispatcher: DispatcherHandle,
    pub(crate) world: Arc<World>,
}

impl Leader {
    pub(crate) async fn of(cluster: &MemoryCluster, name: &str) -> Leader {
        Leader::with(cluster, name, None, DispatcherOptions::default()).await
    }

    pub(crate) async fn with(
        cluster: &MemoryCluster,
        name: &str,
        blobs: Option<Arc<BlobStore>>,
        options: DispatcherOptions,
    ) -> Leader {
        Leader::start(cluster, name, blobs, options, Results::Read).await
    }

    /// A leader that has not read the results of jobs that ended before.
    pub(crate) async fn with_unread_results(cluster: &MemoryCluster, name: &str) -> Leader {
        let options = DispatcherOptions::default();
        Leader::start(cluster, name, None, options, Results::Unread).await
    }

    async fn start(
        cluster: &MemoryCluster,
        name: &str,
        blobs: Option<Arc<BlobStore>>,
        options: DispatcherOptions,
        results: Results,
    ) -> Leader {
        let process = ProcessId::new(name);
        let clock = Clock::tokio();
        let driver = Arc::new(cluster.election(process.clone(), clock));
        let election_faults = driver.faults();
        let election = LeaderElection::start(
            driver,
            ElectionOptions {
                process: process.clone(),
                start: random_start(),
                timing: Timing::default(),
                clock,
            },
        );
        let mut leadership = election.leadership();
        let granted = leadership.wait_for(|it| matches!(it, Leadership::Granted(_)));
        let session = granted
            .await
            .expect("the election lives")
            .session()
            .cloned();
        let session = session.expect("granted");
        let records = Arc::new(cluster.store_of(process.clone()));
        let coordination = records.clone();
        let pipeline = CommitPipeline::start(coordination.clone(), session.clone());
        let pipeline = pipeline.await.expect("leads");
        let of_cluster = blobs.as_ref();
        let of_cluster = of_cluster.map(|blobs| Arc::new(blobs.of_cluster(session.incarnation())));
        let of_records = RecordStore::new(coordination, of_cluster.clone(), 256);
        let world = Arc::new(World::default());
        let store = JobStore::new(of_records, pipeline, session.epoch());
        let store = Arc::new(store.with_sinks(world.clone()));
        let recovered = match results {
            Results::Read => recovered(&store).await,
            Results::Unread => found(&store).await,
        };
        let context = DispatcherContext {
            session: session.clone(),
            store: store.clone(),
            launcher: world.clone(),
            resources: world.clone(),
            cleaner: Cleaner {
                sinks: world.clone(),
                blobs: of_cluster,
                initial_backoff: Duration::from_millis(10),
                max_backoff: Duration::from_secs(1),
                attempts: None,
            },
            blobs: BlobFetcher::new(Arc::new(LocalConnector::default()), Duration::from_secs(10)),
            checks: checks(),
        };
        let dispatcher = Dispatcher::start(options, context, recovered);
        Leader {
            cluster: cluster.clone(),
            process,
            _election: election,
            election_faults,
            session,
            records,
            store,
            dispatcher,
            world,
        }
    }

    pub(crate) async fn submit(&self, job: JobId) -> GatewayResult<pb::SubmitJobResponse> {
        Leader::submit_to(&self.dispatcher, submission(job)).await
    }

    /// Submits it after its deadline, by the clock of this term.
    pub(crate) async fn submit_late(&self, job: JobId) -> GatewayResult<pb::SubmitJobResponse> {
        let late = Submission {
            deadline: Deadline::OfTerm {
                epoch: self.session.epoch().get(),
                until_ms: 1,
            },
            ..submission(job)
        };
        Leader::submit_to(&self.dispatcher, late).await
    }

    pub(crate) async fn submit_to(
        dispatcher: &DispatcherHandle,
        submission: Submission,
    ) -> GatewayResult<pb::SubmitJobResponse> {
        let submission = Box::new(submission);
        let command = |reply| Command::Submit { submission, reply };
        dispatcher.ask(command).await
    }

    pub(crate) async fn describe(&self, job: JobId) -> GatewayResult<pb::JobDetails> {
        let job_id = job.to_string();
        let request = pb::DescribeJobRequest {
            job_id,
            ..pb::DescribeJobRequest::default()
        };
        self.dispatcher.describe_job(request).await
    }

    pub(crate) async fn cancel(&self, job: JobId) -> GatewayResult<pb::Ack> {
        let job_id = job.to_string();
        let request = pb::CancelJobRequest { job_id };
        self.dispatcher.cancel_job(request).await
    }

    pub(crate) fn end_last(&self, end: End) {
        let job_masters = self.world.job_masters.lock();
        let last = job_masters.last().expect("a JobMaster was started");
        last.end.send_replace(end);
    }

    /// The JobMaster that was started last hands this record over with its result.
    pub(crate) fn retain_with_last(&self, record: pb::JobCheckpoints) {
        let job_masters = self.world.job_masters.lock();
        let last = job_masters.last().expect("a JobMaster was started");
        *last.retained.lock() = Some(Arc::new(record));
    }

    pub(crate) async fn status(&self, job: JobId) -> Option<pb::JobStatus> {
        self.describe(job)
            .await
            .ok()
            .map(|details| details.status())
    }

    pub(crate) async fn wait_for(&self, job: JobId, status: pb::JobStatus) {
        for _ in 0..10_000 {
            if self.status(job).await == Some(status) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{job} is not {status:?}, but {:?}", self.status(job).await);
    }
}

pub(crate) fn submission(job: JobId) -> Submission {
    let graph = pb::JobGraph {
        job_id: job.to_string(),
        name: "test".to_owned(),
        ..pb::JobGraph::default()
    };
    Submission {
        job,
        graph,
        key: SubmissionKey {
            token: "token".to_owned(),
            digest: vec![1],
        },
        deadline: Deadline::Never,
        restore: None,
        flaw: None,
    }
}

pub(crate) fn result_of(job: JobId) -> pb::JobResult {
    pb::JobResult {
        job_id: job.to_string(),
        status: pb::JobStatus::Finished.into(),
        ended_at_ms: tanist_ha::clock::wall_clock_ms(),
        dirty: true,
        submission_token: "token".to_owned(),
        graph_digest: vec![1],
        ..pb::JobResult::default()
    }
}

pub(crate) const JOB: JobId = JobId::from_bits(7);

pub(crate) async fn blobs() -> (tempfile::TempDir, Arc<BlobStore>) {
    let directory = tempfile::tempdir().expect("a directory");
    let url = directory.path().to_string_lossy().into_owned();
    let options = BlobOptions { url, shared: true };
    let store = BlobStore::open(&options).await.expect("opened");
    (directory, Arc::new(store))
}

/// A name that does not compress.
pub(crate) fn large_name() -> String {
    (0..200)
        .map(|_| format!("{:016x}", rand::random::<u64>()))
        .collect()
}
