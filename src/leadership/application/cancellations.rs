//! Cancels the jobs of an application that has ended. A quarantined job may be impossible to cancel: its tasks
//! had all finished, and part of their output may be visible. Such a job is led again, once per term, so that
//! it finishes; if no leader can lead it, it never ends.
//!
//! Nothing of a job is deleted here: that is an operator's decision.

use std::collections::BTreeSet;

use tanist_gateway::{DispatcherGateway, GatewayError};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::{debug, info, warn};

/// The state of cancellations that were refused.
#[derive(Debug, Default)]
pub(super) struct Cancellations {
    /// Jobs whose retry was answered.
    retried: BTreeSet<JobId>,
    /// Jobs for which it is logged that they are led again.
    logged: BTreeSet<JobId>,
}

impl Cancellations {
    /// Asks for a job's end. Returns the reason if the job will never end.
    pub(super) async fn cancel(
        &mut self,
        dispatcher: &dyn DispatcherGateway,
        job: JobId,
        details: &pb::JobDetails,
    ) -> Option<String> {
        let job_id = job.to_string();
        let request = pb::CancelJobRequest { job_id };
        let refusal = match dispatcher.cancel_job(request).await {
            Ok(_) => {
                info!(%job, "cancelling a job: its application has ended");
                return None;
            }
            Err(GatewayError::Conflict(refusal)) if details.quarantined.is_some() => refusal,
            Err(error) => {
                debug!(%job, %error, "a job can't be cancelled yet: retrying");
                return None;
            }
        };
        if !self.retried.insert(job) {
            return Some(refusal);
        }
        if self.logged.insert(job) {
            warn!(%job, refusal, "a quarantined job can't be cancelled: starting it once more, so that it finishes");
        }
        let request = pb::ResolveQuarantineRequest {
            job_id: job.to_string(),
            action: pb::QuarantineAction::Retry.into(),
            ..pb::ResolveQuarantineRequest::default()
        };
        match dispatcher.resolve_quarantine(request).await {
            Ok(_) => info!(%job, "a quarantined job was started once more"),
            Err(error) if error.is_retryable() => {
                debug!(%job, %error, "a quarantined job can't be started yet: retrying");
                self.retried.remove(&job);
            }
            Err(error) => warn!(%job, %error, "a quarantined job can't be started"),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use parking_lot::Mutex;

    use super::*;
    use tanist_gateway::GatewayResult;

    const JOB: JobId = JobId::from_bits(7);

    /// Cancels nothing, and answers retries with what the test sets.
    #[derive(Debug)]
    struct Refusing {
        retried: Mutex<Vec<GatewayResult<pb::Ack>>>,
    }

    fn not_called<T>() -> GatewayResult<T> {
        unreachable!("this test does not call it")
    }

    #[async_trait]
    impl DispatcherGateway for Refusing {
        async fn submit_job(
            &self,
            _: pb::SubmitJobRequest,
        ) -> GatewayResult<pb::SubmitJobResponse> {
            not_called()
        }

        async fn tell_term_time(&self, _: pb::TermTimeRequest) -> GatewayResult<pb::TermTime> {
            not_called()
        }

        async fn cancel_job(&self, _: pb::CancelJobRequest) -> GatewayResult<pb::Ack> {
            Err(GatewayError::Conflict("all have finished".to_owned()))
        }

        async fn stop_job(&self, _: pb::StopJobRequest) -> GatewayResult<pb::Ack> {
            not_called()
        }

        async fn list_jobs(&self, _: pb::ListJobsRequest) -> GatewayResult<pb::ListJobsResponse> {
            not_called()
        }

        async fn describe_job(&self, _: pb::DescribeJobRequest) -> GatewayResult<pb::JobDetails> {
            not_called()
        }

        async fn describe_cluster(
            &self,
            _: pb::DescribeClusterRequest,
        ) -> GatewayResult<pb::ClusterOverview> {
            not_called()
        }

        async fn list_task_managers(
            &self,
            _: pb::ListTaskManagersRequest,
        ) -> GatewayResult<pb::ListTaskManagersResponse> {
            not_called()
        }

        async fn trigger_savepoint(
            &self,
            _: pb::TriggerSavepointRequest,
        ) -> GatewayResult<pb::Ack> {
            not_called()
        }

        async fn dispose_savepoint(
            &self,
            _: pb::DisposeSavepointRequest,
        ) -> GatewayResult<pb::Ack> {
            not_called()
        }

        async fn drain_task_manager(
            &self,
            _: pb::DrainTaskManagerRequest,
        ) -> GatewayResult<pb::Ack> {
            not_called()
        }

        async fn resolve_quarantine(
            &self,
            request: pb::ResolveQuarantineRequest,
        ) -> GatewayResult<pb::Ack> {
            assert_eq!(request.action(), pb::QuarantineAction::Retry);
            let mut retried = self.retried.lock();
            retried.pop().expect("it is not asked that often")
        }
    }

    fn answering(retried: Vec<GatewayResult<pb::Ack>>) -> Refusing {
        let retried = Mutex::new(retried);
        Refusing { retried }
    }

    fn left(dispatcher: &Refusing) -> usize {
        dispatcher.retried.lock().len()
    }

    fn quarantined() -> pb::JobDetails {
        pb::JobDetails {
            status: pb::JobStatus::Suspended.into(),
            quarantined: Some(pb::Quarantine::default()),
            ..pb::JobDetails::default()
        }
    }

    #[tokio::test]
    async fn a_job_that_has_finished_is_led_again_once_and_given_up_if_it_is_set_aside_again() {
        let later = Err(GatewayError::NotYet("out of reach".to_owned()));
        // Answers are popped from the end.
        for last in [
            Ok(pb::Ack {}),
            Err(GatewayError::Conflict("it lacks an operator".to_owned())),
        ] {
            let dispatcher = answering(vec![last, later.clone()]);
            let mut cancellations = Cancellations::default();
            for open in [1, 0] {
                let given_up = cancellations.cancel(&dispatcher, JOB, &quarantined()).await;
                assert_eq!((given_up, left(&dispatcher)), (None, open));
            }
            let given_up = cancellations.cancel(&dispatcher, JOB, &quarantined()).await;
            assert_eq!(given_up.as_deref(), Some("all have finished"));
        }
    }

    #[tokio::test]
    async fn a_job_that_is_led_and_finishes_is_waited_for() {
        let dispatcher = answering(Vec::new());
        let running = pb::JobDetails {
            status: pb::JobStatus::Running.into(),
            ..pb::JobDetails::default()
        };
        for _ in 0..3 {
            let given_up = Cancellations::default()
                .cancel(&dispatcher, JOB, &running)
                .await;
            assert_eq!(given_up, None);
        }
    }
}
