//! The Dispatcher on paused time over the memory store, with JobMasters that the test scripts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tanist_compile::{CompileOptions, JobBuilder};
use tanist_gateway::blobs::BlobFetcher;
use tanist_gateway::{
    Adoption, Departure, Detail, DispatcherGateway as _, GatewayError, GatewayResult,
    JobMasterControl, JobMasterGateway, JobMasterLauncher, JobMasterRegistration, LocalConnector,
    ResourceOverview, ResourceRequirements, ResourceRequirementsGateway,
};
use tanist_ha::clock::Clock;
use tanist_ha::election::core::Timing;
use tanist_ha::election::{
    ElectionOptions, LeaderElection, LeaderSession, Leadership, ProcessId, random_start,
};
use tanist_ha::memory::{Faults, MemoryCluster};
use tanist_ha::records::store::RecordStore;
use tanist_ha::store::pipeline::CommitPipeline;
use tanist_proto::id::{JobId, ResourceId};
use tanist_proto::v1 as pb;
use tokio::sync::watch;

use super::testing::{JOB, cancel, checks, describe, recovered, result, submission};
use crate::{
    Cleaner, Dispatcher, DispatcherContext, DispatcherHandle, DispatcherOptions, HiddenOutput,
    JobStore, RecoveredJobs, SinkCleaner,
};

/// A JobMaster that ends when the test says so.
#[derive(Debug, Clone)]
pub(super) struct Scripted {
    pub(super) result: watch::Sender<Option<pb::JobResult>>,
    /// Whether cancellations stay unanswered.
    hangs: watch::Sender<bool>,
    heard: Arc<Mutex<Vec<&'static str>>>,
}

#[async_trait]
impl JobMasterControl for Scripted {
    fn gateway(&self) -> Arc<dyn JobMasterGateway> {
        unreachable!("not called in these tests")
    }

    async fn cancel(&self) -> GatewayResult<()> {
        self.heard.lock().push("cancel");
        let mut hangs = self.hangs.subscribe();
        let _ = hangs.wait_for(|hangs| !hangs).await;
        Ok(())
    }

    async fn trigger_savepoint(&self, _: pb::TriggerSavepointRequest) -> GatewayResult<()> {
        unreachable!("no test takes a savepoint")
    }

    async fn stop_job(&self) -> GatewayResult<()> {
        self.heard.lock().push("stop job");
        Ok(())
    }

    async fn describe(&self, _: Detail) -> GatewayResult<pb::JobDetails> {
        let status = pb::JobStatus::Running.into();
        Ok(pb::JobDetails {
            status,
            ..pb::JobDetails::default()
        })
    }

    async fn ended(&self) -> Option<pb::JobResult> {
        let mut result = self.result.subscribe();
        let ended = result.wait_for(Option::is_some).await;
        ended.ok().and_then(|result| result.clone())
    }

    fn report_task_manager_lost(&self, _: ResourceId, _: String) {}

    async fn reconciled(&self) -> Option<Adoption> {
        Some(Adoption::default())
    }

    async fn result_written(&self) {
        self.heard.lock().push("result written");
    }

    async fn stop(&self) {
        self.heard.lock().push("stop");
    }
}

/// The environment of a Dispatcher.
#[derive(Debug, Default)]
struct Environment {
    started: Mutex<BTreeMap<String, Scripted>>,
    launches: Mutex<Vec<(String, bool)>>,
    cleaned: Mutex<Vec<String>>,
    failing_cleanups: Mutex<u32>,
}

impl JobMasterLauncher for Environment {
    fn launch(
        &self,
        graph: pb::JobGraph,
        _state: pb::JobState,
        recovered: bool,
    ) -> Arc<dyn JobMasterControl> {
        let scripted = Scripted {
            result: watch::Sender::new(None),
            hangs: watch::Sender::new(false),
            heard: Arc::default(),
        };
        self.launches.lock().push((graph.job_id.clone(), recovered));
        self.started.lock().insert(graph.job_id, scripted.clone());
        Arc::new(scripted)
    }
}

#[async_trait]
impl ResourceRequirementsGateway for Environment {
    async fn register_job_master(&self, _: JobMasterRegistration) -> GatewayResult<()> {
        Ok(())
    }

    async fn disconnect_job_master(&self, _: JobId, _: Departure) -> GatewayResult<()> {
        Ok(())
    }

    async fn declare_required_resources(&self, _: ResourceRequirements) -> GatewayResult<()> {
        Ok(())
    }

    async fn resource_overview(&self) -> GatewayResult<ResourceOverview> {
        Ok(ResourceOverview::default())
    }
}

#[async_trait]
impl SinkCleaner for Environment {
    async fn clean(
        &self,
        directory: &str,
        _job: JobId,
        _run: &str,
        _kept: &HiddenOutput,
    ) -> Result<(), String> {
        let mut failing = self.failing_cleanups.lock();
        if *failing > 0 {
            *failing -= 1;
            return Err("no permission".to_owned());
        }
        self.cleaned.lock().push(directory.to_owned());
        Ok(())
    }
}

pub(super) struct Fixture {
    pub(super) cluster: MemoryCluster,
    environment: Arc<Environment>,
    pub(super) store: Arc<JobStore>,
    pub(super) faults: Faults,
    pub(super) session: LeaderSession,
    _election: LeaderElection,
}

impl Fixture {
    pub(super) async fn new() -> Fixture {
        let cluster = MemoryCluster::default();
        let process = ProcessId::new("jm");
        let clock = Clock::tokio();
        let driver = Arc::new(cluster.election(process.clone(), clock));
        let timing = Timing::default();
        let options = ElectionOptions {
            process,
            start: random_start(),
            timing,
            clock,
        };
        let election = LeaderElection::start(driver, options);
        let mut leadership = election.leadership();
        let is_granted = |it: &Leadership| matches!(it, Leadership::Granted(_));
        let granted = leadership.wait_for(is_granted).await;
        let granted = granted.expect("it runs").clone();
        let session = granted.session().expect("granted").clone();
        let records = cluster.store();
        let faults = records.faults();
        let records: Arc<dyn tanist_ha::store::CoordinationStore> = Arc::new(records);
        let pipeline = CommitPipeline::start(records.clone(), session.clone())
            .await
            .expect("it leads");
        let records = RecordStore::new(records, None, 100_000);
        Fixture {
            cluster,
            environment: Arc::default(),
            store: Arc::new(JobStore::new(records, pipeline, session.epoch())),
            faults,
            session,
            _election: election,
        }
    }

    pub(super) fn start(&self, recovered: RecoveredJobs) -> DispatcherHandle {
        let context = DispatcherContext {
            session: self.session.clone(),
            store: self.store.clone(),
            launcher: self.environment.clone(),
            resources: self.environment.clone(),
            cleaner: Cleaner {
                sinks: self.environment.clone(),
                blobs: None,
                initial_backoff: Duration::from_secs(1),
                max_backoff: Duration::from_secs(60),
                attempts: None,
            },
            blobs: BlobFetcher::new(Arc::new(LocalConnector::default()), Duration::from_secs(10)),
            checks: checks(),
        };
        Dispatcher::start(DispatcherOptions::default(), context, recovered)
    }

    /// Starts a Dispatcher with the stored jobs, as the next term would.
    async fn recover(&self) -> DispatcherHandle {
        self.start(recovered(&self.store).await)
    }

    pub(super) fn job_master(&self) -> Scripted {
        self.environment.started.lock()[&JOB.to_string()].clone()
    }

    /// Returns the directories that were cleaned.
    pub(super) fn cleaned(&self) -> Vec<String> {
        self.environment.cleaned.lock().clone()
    }

    pub(super) fn launches(&self) -> usize {
        self.environment.launches.lock().len()
    }

    pub(super) async fn until_stored(&self, what: &str, claim: impl Fn(&RecoveredJobs) -> bool) {
        for _ in 0..10_000 {
            if claim(&recovered(&self.store).await) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!(
            "not within 1000 s: {what}: {:?}",
            recovered(&self.store).await
        );
    }
}

pub(super) fn is_clean(stored: &RecoveredJobs) -> bool {
    stored.jobs.is_empty() && stored.results.iter().all(|(_, result)| !result.dirty)
}

#[tokio::test(start_paused = true)]
async fn a_submission_that_comes_again_while_it_is_persisted_gets_the_same_answer() {
    let fixture = Fixture::new().await;
    let dispatcher = fixture.start(RecoveredJobs::default());
    fixture.faults.delay(Duration::from_secs(3));
    let (first, second, other) = tokio::join!(
        dispatcher.submit_job(submission("token")),
        dispatcher.submit_job(submission("token")),
        dispatcher.submit_job(submission("another")),
    );
    assert!(!first.expect("accepted").repeated);
    assert!(second.expect("accepted").repeated);
    assert!(matches!(other, Err(GatewayError::Conflict(_))), "{other:?}");
    assert_eq!(fixture.launches(), 1);
    let again = dispatcher.submit_job(submission("token")).await;
    assert!(again.expect("accepted").repeated);
    let other = dispatcher.submit_job(submission("another")).await;
    assert!(matches!(other, Err(GatewayError::Conflict(_))), "{other:?}");
    assert_eq!(fixture.launches(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_job_with_a_path_that_means_something_else_to_each_process_is_refused() {
    let fixture = Fixture::new().await;
    let dispatcher = fixture.start(RecoveredJobs::default());
    let options = CompileOptions {
        job_id: JOB,
        ..CompileOptions::default()
    };
    let job = JobBuilder::new("stream")
        .datagen("numbers", Some(1), Some(1), 1, 1)
        .file_sink("out", "there")
        .build();
    let mut relative = submission("token");
    relative.graph = Some(job.compile(&options).expect("valid"));
    let refusal = dispatcher.submit_job(relative).await;
    let is_told = |reason: &str| reason.contains("step `out`: the path `there` is relative");
    assert!(
        matches!(&refusal, Err(GatewayError::Invalid(reason)) if is_told(reason)),
        "{refusal:?}"
    );
    assert_eq!(fixture.launches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_being_persisted_can_not_be_canceled_yet() {
    let fixture = Fixture::new().await;
    let dispatcher = fixture.start(RecoveredJobs::default());
    fixture.faults.delay(Duration::from_secs(3));
    let (accepted, canceled) = tokio::join!(
        dispatcher.submit_job(submission("token")),
        dispatcher.cancel_job(cancel()),
    );
    accepted.expect("accepted");
    assert!(
        matches!(canceled, Err(GatewayError::NotYet(_))),
        "{canceled:?}"
    );
    dispatcher.cancel_job(cancel()).await.expect("passed on");
    assert_eq!(*fixture.job_master().heard.lock(), ["cancel"]);
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_that_nobody_waits_for_any_more_is_not_waited_for() {
    let fixture = Fixture::new().await;
    let dispatcher = fixture.start(RecoveredJobs::default());
    let submitted = dispatcher.submit_job(submission("token")).await;
    submitted.expect("accepted");
    let hangs = fixture.job_master().hangs;
    hangs.send_replace(true);
    for _ in 0..3 {
        let timeout = Duration::from_secs(1);
        let canceled = tokio::time::timeout(timeout, dispatcher.cancel_job(cancel())).await;
        assert!(canceled.is_err(), "{canceled:?}");
    }
    let mut turns = 0;
    while hangs.receiver_count() > 0 {
        turns += 1;
        assert!(turns < 1_000, "{} wait", hangs.receiver_count());
        tokio::task::yield_now().await;
    }
    assert_eq!(*fixture.job_master().heard.lock(), ["cancel"; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_submission_whose_term_ends_meanwhile_is_not_known_to_have_failed() {
    let fixture = Fixture::new().await;
    let dispatcher = fixture.start(RecoveredJobs::default());
    fixture.faults.delay(Duration::from_secs(3));
    let stopping = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        dispatcher.stop().await;
    };
    let (answer, ()) = tokio::join!(dispatcher.submit_job(submission("token")), stopping);
    assert!(
        matches!(answer, Err(GatewayError::Unknown(_))),
        "{answer:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_that_ended_is_cleaned_up_after_and_its_end_can_not_be_changed() {
    let fixture = Fixture::new().await;
    let dispatcher = fixture.start(RecoveredJobs::default());
    dispatcher
        .submit_job(submission("token"))
        .await
        .expect("accepted");
    let finished = result(pb::JobStatus::Finished);
    fixture.job_master().result.send_replace(Some(finished));
    fixture
        .until_stored("a clean result", |it| {
            is_clean(it) && !it.results.is_empty()
        })
        .await;
    assert_eq!(*fixture.environment.cleaned.lock(), ["/out"]);
    assert_eq!(*fixture.job_master().heard.lock(), ["result written"]);
    let answer = dispatcher.cancel_job(cancel()).await;
    assert!(
        matches!(answer, Err(GatewayError::Conflict(_))),
        "{answer:?}"
    );
    for stop in [false, true] {
        let request = pb::TriggerSavepointRequest {
            job_id: JOB.to_string(),
            trigger_id: "a".repeat(32),
            directory: "/savepoints".to_owned(),
            stop,
        };
        let answer = dispatcher.trigger_savepoint(request).await;
        let Err(GatewayError::Conflict(text)) = answer else {
            panic!("{answer:?}");
        };
        let expected = format!("job {JOB} has already ended: FINISHED");
        assert_eq!(text, expected, "stop: {stop}");
    }
    let unknown = pb::CancelJobRequest {
        job_id: JobId::from_bits(0xB).to_string(),
    };
    let answer = dispatcher.cancel_job(unknown).await;
    assert!(
        matches!(answer, Err(GatewayError::NotFound(_))),
        "{answer:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_cancel_of_a_canceled_job_is_acknowledged_again() {
    let fixture = Fixture::new().await;
    let canceled = result(pb::JobStatus::Canceled);
    fixture
        .store
        .put_result(canceled.clone())
        .await
        .expect("written");
    let dispatcher = fixture.recover().await;
    dispatcher
        .cancel_job(cancel())
        .await
        .expect("it has what it wants");
}

#[tokio::test(start_paused = true)]
async fn a_dirty_result_resumes_the_cleanup_and_the_job_is_not_run() {
    let fixture = Fixture::new().await;
    *fixture.environment.failing_cleanups.lock() = 3;
    let finished = result(pb::JobStatus::Finished);
    fixture
        .store
        .put_result(finished.clone())
        .await
        .expect("written");
    let dispatcher = fixture.recover().await;
    let details = dispatcher.describe_job(describe()).await.expect("known");
    assert_eq!(details.status(), pb::JobStatus::Finished);
    fixture.until_stored("a clean result", is_clean).await;
    assert_eq!(*fixture.environment.cleaned.lock(), ["/out"]);
    assert_eq!(fixture.launches(), 0);
    dispatcher.stop().await;
    let _next = fixture.recover().await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        fixture.environment.cleaned.lock().len(),
        1,
        "once is enough"
    );
}

#[tokio::test(start_paused = true)]
async fn a_clean_result_is_forgotten_after_its_time_and_a_dirty_one_is_not() {
    let fixture = Fixture::new().await;
    *fixture.environment.failing_cleanups.lock() = 1000;
    let old = |dirty, job: u128| pb::JobResult {
        job_id: JobId::from_bits(job).to_string(),
        ended_at_ms: 1,
        dirty,
        ..result(pb::JobStatus::Finished)
    };
    fixture
        .store
        .put_clean_result(&old(false, 0xA))
        .await
        .expect("written");
    fixture
        .store
        .put_result(old(true, 0xB))
        .await
        .expect("written");
    let dispatcher = fixture.recover().await;
    // The end by the clock of an earlier leader does not matter.
    tokio::time::sleep(Duration::from_secs(3500)).await;
    assert_eq!(recovered(&fixture.store).await.results.len(), 2);
    fixture
        .until_stored("one result", |stored| stored.results.len() == 1)
        .await;
    let answer = dispatcher.describe_job(describe()).await;
    assert!(
        matches!(answer, Err(GatewayError::NotFound(_))),
        "{answer:?}"
    );
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let listed = dispatcher.list_jobs(pb::ListJobsRequest::default()).await;
    assert_eq!(listed.expect("listed").jobs.len(), 1);
}

/// Its sink's directory may have been unavailable when the job ended.
#[tokio::test(start_paused = true)]
async fn what_a_job_may_have_left_is_looked_for_once_more_when_it_is_forgotten() {
    let fixture = Fixture::new().await;
    let clean = pb::JobResult {
        dirty: false,
        ..result(pb::JobStatus::Canceled)
    };
    let written = fixture.store.put_clean_result(&clean).await;
    written.expect("written");
    let _dispatcher = fixture.recover().await;
    tokio::time::sleep(Duration::from_secs(3500)).await;
    assert!(fixture.cleaned().is_empty());
    fixture
        .until_stored("no result", |stored| stored.results.is_empty())
        .await;
    assert_eq!(fixture.cleaned(), ["/out"]);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_term_stops_all_job_masters_and_writes_nothing() {
    let fixture = Fixture::new().await;
    let dispatcher = fixture.start(RecoveredJobs::default());
    dispatcher
        .submit_job(submission("token"))
        .await
        .expect("accepted");
    let before = fixture.store.last_change();
    dispatcher.stop().await;
    assert_eq!(*fixture.job_master().heard.lock(), ["stop"]);
    assert_eq!(fixture.store.last_change(), before);
    let next = fixture.recover().await;
    assert_eq!(
        fixture.environment.launches.lock()[1],
        (JOB.to_string(), true)
    );
    let again = next.submit_job(submission("token")).await;
    assert!(
        again.expect("accepted").repeated,
        "the key is in the record"
    );
}
