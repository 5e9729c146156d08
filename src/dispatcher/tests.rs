//! The Dispatcher over the memory store, with JobMasters that do what the test says.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tanist_ha::blob::{BlobOptions, BlobStore};
use tanist_ha::clock::Clock;
use tanist_ha::election::core::Timing;
use tanist_ha::election::{ElectionOptions, LeaderElection, LeaderSession, Leadership, ProcessId};
use tanist_ha::jobs::store::RecordStore;
use tanist_ha::memory::{MemoryCluster, MemoryStore};
use tanist_ha::store::pipeline::CommitPipeline;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::v1 as pb;
use tokio::sync::watch;

use super::core::{Submission, SubmissionKey};
use super::handle::Command;
use super::testing::recovered;
use super::{
    Cleaner, Dispatcher, DispatcherContext, DispatcherHandle, DispatcherOptions, JobStore,
    SinkCleaner,
};
use crate::gateway::blobs::BlobFetcher;
use crate::gateway::{
    Adoption, Departure, DispatcherGateway, GatewayError, GatewayResult, JobMasterControl,
    JobMasterGateway, JobMasterLauncher, JobMasterRegistration, LocalConnector, ResourceOverview,
    ResourceRequirements, ResourceRequirementsGateway,
};

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a scripted JobMaster has come to.
#[derive(Debug, Clone)]
pub(super) enum End {
    NotYet,
    Broken,
    Unfit,
    Result(Box<pb::JobResult>),
}

/// A JobMaster that ends when the test says so.
#[derive(Debug)]
pub(super) struct Scripted {
    pub(super) state: pb::JobState,
    end: watch::Sender<End>,
}

#[async_trait]
impl JobMasterControl for Scripted {
    fn gateway(&self) -> Arc<dyn JobMasterGateway> {
        unreachable!("no TaskExecutor is here")
    }

    async fn cancel(&self) -> GatewayResult<()> {
        Ok(())
    }

    async fn stop_job(&self) -> GatewayResult<()> {
        Ok(())
    }

    async fn describe(&self) -> GatewayResult<pb::JobDetails> {
        Ok(pb::JobDetails {
            job_id: self.state.job_id.clone(),
            status: pb::JobStatus::Running.into(),
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

    fn unfit(&self) -> Option<String> {
        let is_unfit = matches!(*self.end.borrow(), End::Unfit);
        is_unfit.then(|| "it names nothing".to_owned())
    }

    fn task_manager_gone(&self, _: ResourceId, _: String) {}

    async fn reconciled(&self) -> Option<Adoption> {
        Some(Adoption::default())
    }

    async fn result_written(&self) {}

    async fn stop(&self) {}
}

/// The surroundings of a Dispatcher.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) job_masters: Mutex<Vec<Arc<Scripted>>>,
    pub(super) withdrawn: Mutex<Vec<JobId>>,
    cleaned: Mutex<Vec<String>>,
}

impl JobMasterLauncher for World {
    fn launch(
        &self,
        _graph: pb::JobGraph,
        state: pb::JobState,
        _recovered: bool,
    ) -> Arc<dyn JobMasterControl> {
        let end = watch::Sender::new(End::NotYet);
        let started = Arc::new(Scripted { state, end });
        lock(&self.job_masters).push(started.clone());
        started
    }
}

#[async_trait]
impl ResourceRequirementsGateway for World {
    async fn register_job_master(&self, _: JobMasterRegistration) -> GatewayResult<()> {
        Ok(())
    }

    async fn disconnect_job_master(&self, job: JobId, _: Departure) -> GatewayResult<()> {
        lock(&self.withdrawn).push(job);
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
    async fn clean(&self, directory: &str, _job: JobId) -> Result<(), String> {
        lock(&self.cleaned).push(directory.to_owned());
        Ok(())
    }
}

/// One term of one process.
pub(super) struct Leader {
    pub(super) cluster: MemoryCluster,
    pub(super) process: ProcessId,
    _election: LeaderElection,
    session: LeaderSession,
    pub(super) records: Arc<MemoryStore>,
    pub(super) store: Arc<JobStore>,
    pub(super) dispatcher: DispatcherHandle,
    pub(super) world: Arc<World>,
}

impl Leader {
    pub(super) async fn of(cluster: &MemoryCluster, name: &str) -> Leader {
        Leader::with(cluster, name, None, DispatcherOptions::default()).await
    }

    pub(super) async fn with(
        cluster: &MemoryCluster,
        name: &str,
        blobs: Option<Arc<BlobStore>>,
        options: DispatcherOptions,
    ) -> Leader {
        let process = ProcessId::new(name);
        let clock = Clock::tokio();
        let driver = Arc::new(cluster.election(process.clone(), clock));
        let election = LeaderElection::start(
            driver,
            ElectionOptions {
                process: process.clone(),
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
        let of_records = RecordStore::new(coordination, of_cluster, 256);
        let store = Arc::new(JobStore::new(of_records, pipeline, session.epoch()));
        let recovered = recovered(&store).await;
        let world = Arc::new(World::default());
        let context = DispatcherContext {
            session: session.clone(),
            store: store.clone(),
            launcher: world.clone(),
            resources: world.clone(),
            cleaner: Cleaner {
                sinks: world.clone(),
                blobs,
                initial_backoff: Duration::from_millis(10),
                max_backoff: Duration::from_secs(1),
            },
            blobs: BlobFetcher::new(Arc::new(LocalConnector::default()), Duration::from_secs(10)),
        };
        let dispatcher = Dispatcher::start(options, context, recovered);
        Leader {
            cluster: cluster.clone(),
            process,
            _election: election,
            session,
            records,
            store,
            dispatcher,
            world,
        }
    }

    pub(super) async fn submit(&self, job: JobId) -> GatewayResult<pb::SubmitJobResponse> {
        self.submit_by(job, 0).await
    }

    async fn submit_by(
        &self,
        job: JobId,
        deadline_ms: u64,
    ) -> GatewayResult<pb::SubmitJobResponse> {
        let submission = Box::new(submission(job, deadline_ms));
        let command = |reply| Command::Submit { submission, reply };
        self.dispatcher.ask(command).await
    }

    pub(super) async fn describe(&self, job: JobId) -> GatewayResult<pb::JobDetails> {
        let job_id = job.to_string();
        let request = pb::DescribeJobRequest {
            job_id,
            ..pb::DescribeJobRequest::default()
        };
        self.dispatcher.describe_job(request).await
    }

    pub(super) async fn cancel(&self, job: JobId) -> GatewayResult<pb::Ack> {
        let job_id = job.to_string();
        let request = pb::CancelJobRequest { job_id };
        self.dispatcher.cancel_job(request).await
    }

    pub(super) fn end_last(&self, end: End) {
        let job_masters = lock(&self.world.job_masters);
        let last = job_masters.last().expect("a JobMaster was started");
        last.end.send_replace(end);
    }

    pub(super) async fn status(&self, job: JobId) -> Option<pb::JobStatus> {
        self.describe(job)
            .await
            .ok()
            .map(|details| details.status())
    }

    pub(super) async fn wait_for(&self, job: JobId, status: pb::JobStatus) {
        for _ in 0..10_000 {
            if self.status(job).await == Some(status) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{job} is not {status:?}, but {:?}", self.status(job).await);
    }
}

pub(super) fn submission(job: JobId, deadline_ms: u64) -> Submission {
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
        deadline_ms,
        flaw: None,
    }
}

pub(super) fn result_of(job: JobId) -> pb::JobResult {
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

pub(super) const JOB: JobId = JobId::from_bits(7);

/// B leads, and A, which is cut off from the store, has not heard of it.
async fn deposed_unawares() -> (Leader, Leader) {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    cluster.partition(&a.process);
    cluster.expire(&a.process);
    let b = Leader::of(&cluster, "b").await;
    assert!(!a.session.is_over());
    (a, b)
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_does_not_know_that_it_is_deposed_denies_no_job() {
    let (a, b) = deposed_unawares().await;
    b.submit(JOB).await.expect("acknowledged");
    for denied in [
        a.describe(JOB).await.map(|_| ()),
        a.cancel(JOB).await.map(|_| ()),
        a.dispatcher.job_master(JOB).await.map(|_| ()),
        a.submit_by(JOB, 1).await.map(|_| ()),
    ] {
        let denied = denied.expect_err("it knows nothing of the job");
        assert!(matches!(denied, GatewayError::NotYet(_)), "{denied:?}");
    }
    // In the moment in which it reaches the store again it may learn of its end first.
    a.cluster.heal(&a.process);
    let denied = a
        .cancel(JOB)
        .await
        .expect_err("it knows nothing of the job");
    assert!(denied.is_retryable(), "{denied:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_the_store_confirms_says_that_there_is_no_such_job() {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    let (described, cancelled, asked, late) = tokio::join!(
        a.describe(JOB),
        a.cancel(JOB),
        a.dispatcher.job_master(JOB),
        a.submit_by(JOB, 1),
    );
    assert!(
        matches!(described, Err(GatewayError::NotFound(_))),
        "{described:?}"
    );
    assert!(
        matches!(cancelled, Err(GatewayError::NotFound(_))),
        "{cancelled:?}"
    );
    assert!(matches!(asked, Err(GatewayError::NotFound(_))));
    assert!(matches!(late, Err(GatewayError::Invalid(_))), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_submission_whose_term_ends_under_it_is_not_said_to_be_unhandled() {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    a.records.faults().lose_replies(1);
    a.records.faults().delay(Duration::from_millis(500));
    let stop = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        a.dispatcher.stop().await;
    };
    let (answer, ()) = tokio::join!(a.submit(JOB), stop);
    assert!(
        matches!(answer, Err(GatewayError::Unknown(_))),
        "{answer:?}"
    );
    assert_eq!(recovered(&a.store).await.jobs.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_takes_an_expired_ones_place_is_not_forgotten_with_it() {
    let cluster = MemoryCluster::default();
    let options = DispatcherOptions {
        result_retention: Duration::ZERO,
        expiration_interval: Duration::from_secs(1),
        ..DispatcherOptions::default()
    };
    let a = Leader::with(&cluster, "a", None, options).await;
    a.submit(JOB).await.expect("acknowledged");
    let mut result = result_of(JOB);
    result.ended_at_ms = 1;
    a.end_last(End::Result(Box::new(result)));
    // Requests take longer than the look-out for expired results.
    a.records.faults().delay(Duration::from_millis(2500));
    while lock(&a.world.job_masters).len() < 2 {
        a.submit(JOB).await.expect("acknowledged");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for _ in 0..20 {
        assert_eq!(a.status(JOB).await, Some(pb::JobStatus::Running));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

pub(super) async fn blobs() -> (tempfile::TempDir, Arc<BlobStore>) {
    let directory = tempfile::tempdir().expect("a directory");
    let url = directory.path().to_string_lossy().into_owned();
    let options = BlobOptions { url, shared: true };
    let store = BlobStore::open(&options).await.expect("opened");
    (directory, Arc::new(store))
}

/// A name that no compression makes small.
pub(super) fn large_name() -> String {
    (0..200)
        .map(|_| format!("{:016x}", rand::random::<u64>()))
        .collect()
}

#[tokio::test]
async fn blobs_go_with_what_pointed_to_them() {
    let (_directory, blobs) = blobs().await;
    let cluster = MemoryCluster::default();
    let options = DispatcherOptions::default();
    let a = Leader::with(&cluster, "a", Some(blobs.clone()), options).await;
    let mut submission = submission(JOB, 0);
    submission.graph.name = large_name();
    let submission = Box::new(submission);
    let command = |reply| Command::Submit { submission, reply };
    a.dispatcher.ask(command).await.expect("acknowledged");
    for _ in 0..3 {
        let state = pb::JobState {
            job_id: JOB.to_string(),
            name: large_name(),
            ..pb::JobState::default()
        };
        use crate::gateway::persistence::JobStateStore as _;
        a.store.put_state(&state).await.expect("written");
    }
    let there = blobs.list().await.expect("listed").len();
    assert_eq!(there, 2, "of the graph and of the last state");
    a.end_last(End::Result(Box::new(result_of(JOB))));
    a.wait_for(JOB, pb::JobStatus::Finished).await;
    for _ in 0..1000 {
        if blobs.list().await.expect("listed").is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("left behind: {:?}", blobs.list().await);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_too_large_is_kept_without_its_details() {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    a.submit(JOB).await.expect("acknowledged");
    let mut result = result_of(JOB);
    result.details = Some(pb::JobDetails {
        name: (0..80_000)
            .map(|_| format!("{:016x}", rand::random::<u64>()))
            .collect(),
        ..pb::JobDetails::default()
    });
    a.end_last(End::Result(Box::new(result)));
    a.wait_for(JOB, pb::JobStatus::Finished).await;
    assert!(recovered(&a.store).await.jobs.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_a_late_task_left_behind_goes_with_the_result() {
    let cluster = MemoryCluster::default();
    let options = DispatcherOptions {
        result_retention: Duration::ZERO,
        expiration_interval: Duration::from_secs(60),
        ..DispatcherOptions::default()
    };
    let a = Leader::with(&cluster, "a", None, options).await;
    // The first look-out is over.
    tokio::time::sleep(Duration::from_secs(1)).await;
    a.submit(JOB).await.expect("acknowledged");
    let mut result = result_of(JOB);
    result.ended_at_ms = 1;
    result.remove = Some(pb::Cleanup {
        blobs: Vec::new(),
        sink_directories: vec!["/out".to_owned()],
        ..pb::Cleanup::default()
    });
    a.end_last(End::Result(Box::new(result)));
    a.wait_for(JOB, pb::JobStatus::Finished).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(lock(&a.world.cleaned).len(), 1);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(lock(&a.world.cleaned).len(), 2);
    let gone = a.describe(JOB).await.expect_err("forgotten");
    assert!(matches!(gone, GatewayError::NotFound(_)), "{gone:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_result_cannot_be_read_is_not_run_again() {
    use tanist_ha::keys::{Key, Kind, Name};
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    let pipeline = CommitPipeline::start(a.records.clone(), a.session.clone());
    let name = Name::new(JOB.to_string()).expect("a name");
    let write = tanist_ha::store::Write::Put {
        key: Key::new(Kind::Results, name),
        value: bytes::Bytes::from_static(b"what is this"),
    };
    let written = pipeline.await.expect("leads").commit(vec![write]).await;
    written.expect("committed");
    a.dispatcher.stop().await;
    cluster.partition(&a.process);
    cluster.expire(&a.process);
    let b = Leader::of(&cluster, "b").await;
    let refused = b.submit(JOB).await.expect_err("it has ended");
    assert!(matches!(refused, GatewayError::Conflict(_)), "{refused:?}");
    let refused = b.cancel(JOB).await.expect_err("it has ended");
    assert!(matches!(refused, GatewayError::Conflict(_)), "{refused:?}");
    assert!(lock(&b.world.job_masters).is_empty());
}

/// A job that has ended, with a store that takes so long for each write.
async fn just_ended(delay: Duration) -> Leader {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    a.submit(JOB).await.expect("acknowledged");
    a.records.faults().delay(delay);
    a.end_last(End::Result(Box::new(result_of(JOB))));
    a.wait_for(JOB, pb::JobStatus::Finished).await;
    assert!(a.describe(JOB).await.expect("known").cleaning_up);
    a
}

#[tokio::test(start_paused = true)]
async fn a_submission_of_a_job_that_just_ended_is_answered_when_nothing_of_that_is_left() {
    let a = just_ended(Duration::from_secs(1)).await;
    let answer = a.submit(JOB).await.expect("the result is its answer");
    assert!(answer.repeated);
    let details = a.describe(JOB).await.expect("known");
    assert!(!details.cleaning_up && details.hindrances.is_empty());
    assert_eq!(lock(&a.world.job_masters).len(), 1, "it did not run again");
}

#[tokio::test(start_paused = true)]
async fn a_submission_does_not_wait_for_a_cleanup_that_takes_too_long() {
    let a = just_ended(Duration::from_secs(60)).await;
    let asked = tokio::time::Instant::now();
    let (answer, waiting) = tokio::join!(a.submit(JOB), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        a.describe(JOB).await.expect("known")
    });
    assert!(answer.expect("the result is its answer").repeated);
    assert!(asked.elapsed() < Duration::from_secs(5));
    let text = &waiting.hindrances[0].text;
    assert!(text.contains("a submission with its id waits"), "{text}");
    assert!(a.describe(JOB).await.expect("known").cleaning_up);
}
