//! A client that follows the leader and repeats requests without a definite answer, as the command line's
//! client does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tanist_gateway::{Connector, DispatcherGateway, GatewayError, GatewayResult, LocalConnector};
use tanist_ha::retrieval::LeaderView;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::sync::watch;

use super::history::Event;
use super::reached::Landmark;
use super::world::World;

const TIMEOUT: Duration = Duration::from_secs(3600);
const PAUSE: Duration = Duration::from_millis(50);
const DEADLINE: Duration = Duration::from_secs(3);

#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub connector: LocalConnector,
    pub leaders: watch::Receiver<LeaderView>,
    pub world: World,
}

impl Client {
    /// Submits a job until it is acknowledged or refused.
    pub(crate) async fn submit(
        &self,
        graph: &pb::JobGraph,
        token: &str,
    ) -> GatewayResult<pb::SubmitJobResponse> {
        let request = pb::SubmitJobRequest {
            graph: Some(graph.clone()),
            submission_token: token.to_owned(),
            ..pb::SubmitJobRequest::default()
        };
        let job: JobId = graph.job_id.parse().expect("a job id");
        let world = self.world.clone();
        // Whether it had been applied before the last request.
        let (was_asked, was_there) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let answer = self
            .repeat("submit", |dispatcher| {
                let request = request.clone();
                let (was_asked, was_there) = (was_asked.clone(), was_there.clone());
                let is_there = was_asked.swap(true, Ordering::Relaxed) && world.stored().has(job);
                was_there.store(is_there, Ordering::Relaxed);
                async move { dispatcher.submit_job(request).await }
            })
            .await?;
        if was_there.load(Ordering::Relaxed) {
            let reached = &self.world.reached;
            reached.note(Landmark::AmbiguousSubmissionResolved);
        }
        let job = answer.job_id.parse().expect("a job id");
        self.world.note(Event::Acknowledged(job));
        Ok(answer)
    }

    /// Cancels a job until that is acknowledged or refused.
    pub(crate) async fn cancel(&self, job: JobId) -> GatewayResult<()> {
        let request = pb::CancelJobRequest {
            job_id: job.to_string(),
        };
        self.repeat("cancel", |dispatcher| {
            let request = request.clone();
            async move { dispatcher.cancel_job(request).await }
        })
        .await?;
        self.world.note(Event::CancelAcknowledged(job));
        Ok(())
    }

    /// Stops a job until that is acknowledged or refused.
    pub(crate) async fn stop(&self, job: JobId) -> GatewayResult<()> {
        let request = pb::StopJobRequest {
            job_id: job.to_string(),
        };
        self.repeat("stop", |dispatcher| {
            let request = request.clone();
            async move { dispatcher.stop_job(request).await }
        })
        .await?;
        self.world.note(Event::StopAcknowledged(job));
        Ok(())
    }

    /// Resolves a quarantine with `action`, until that is acknowledged or refused.
    pub(crate) async fn resolve(
        &self,
        job: JobId,
        action: pb::QuarantineAction,
    ) -> GatewayResult<()> {
        let request = pb::ResolveQuarantineRequest {
            job_id: job.to_string(),
            action: action.into(),
            ..pb::ResolveQuarantineRequest::default()
        };
        self.repeat("resolve", |dispatcher| {
            let request = request.clone();
            async move { dispatcher.resolve_quarantine(request).await }
        })
        .await?;
        if action == pb::QuarantineAction::Delete {
            self.world.note(Event::CancelAcknowledged(job));
        }
        Ok(())
    }

    pub(crate) async fn describe(&self, job: JobId) -> GatewayResult<pb::JobDetails> {
        let request = pb::DescribeJobRequest {
            job_id: job.to_string(),
            ..pb::DescribeJobRequest::default()
        };
        self.repeat("describe", |dispatcher| {
            let request = request.clone();
            async move { dispatcher.describe_job(request).await }
        })
        .await
    }

    pub(crate) async fn list(&self) -> GatewayResult<pb::ListJobsResponse> {
        self.repeat("list", |dispatcher| {
            let request = pb::ListJobsRequest::default();
            async move { dispatcher.list_jobs(request).await }
        })
        .await
    }

    /// Waits until a job has ended; returns its status.
    pub(crate) async fn ended(&self, job: JobId) -> pb::JobStatus {
        let wait = async {
            loop {
                let status = self.describe(job).await.map(|details| details.status());
                match status {
                    Ok(status) if status.has_ended() => return status,
                    Ok(_) => tokio::time::sleep(PAUSE).await,
                    Err(error) => panic!("job {job} can't be described: {error}"),
                }
            }
        };
        match tokio::time::timeout(TIMEOUT, wait).await {
            Ok(status) => status,
            Err(_) => panic!("job {job} has not ended: {:#?}", self.world.stored()),
        }
    }

    async fn repeat<T, F>(
        &self,
        what: &str,
        mut ask: impl FnMut(Arc<dyn DispatcherGateway>) -> F,
    ) -> GatewayResult<T>
    where
        F: Future<Output = GatewayResult<T>>,
    {
        let start = tokio::time::Instant::now();
        loop {
            let leader = self.leaders.borrow().leader.clone();
            let address = leader.and_then(|leader| leader.addresses.get("rpc").cloned());
            let answer = match address {
                Some(address) => {
                    let call = ask(self.connector.dispatcher(&address));
                    let none = || GatewayError::NoAnswer {
                        target: address.clone(),
                        reason: "nothing in time".to_owned(),
                    };
                    let answer = tokio::time::timeout(DEADLINE, call).await;
                    answer.unwrap_or_else(|_| Err(none()))
                }
                None => Err(GatewayError::NotYet("no JobManager leads".to_owned())),
            };
            match answer {
                Err(error) if error.is_retryable() => {
                    assert!(start.elapsed() < TIMEOUT, "{what}: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
                definite => return definite,
            }
        }
    }
}
