//! All JobMasters of one process at one address: a TaskExecutor registers at many of them with one message.
//!
//! Only the message is shared. Each registration in it has its own number, report and answer, and its own
//! JobMaster accepts or refuses it as if it had arrived alone. The caller retries an unanswered registration on
//! its own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::time::timeout;

use super::{Components, GatewayResult, JobMasterGateway, JobMastersGateway};

/// Timeout for one JobMaster, so that one that is still being created does not delay the others.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The JobMasters of the term that a process leads.
#[derive(Debug)]
pub struct JobMastersOf(pub Arc<dyn Components>);

#[async_trait]
impl JobMastersGateway for JobMastersOf {
    async fn register_task_managers(
        &self,
        request: pb::RegisterTaskManagersRequest,
    ) -> GatewayResult<pb::RegisterTaskManagersResponse> {
        let mut registrations = request.registrations;
        // All registrations of a term may arrive at once and wait. Decoded lists have spare capacity; release it.
        for registration in &mut registrations {
            registration.executions.shrink_to_fit();
            registration.slots.shrink_to_fit();
        }
        let jobs: Vec<Option<JobId>> = registrations
            .iter()
            .map(|registration| registration.job_id.parse().ok())
            .collect();
        let known = self
            .0
            .job_masters(jobs.iter().flatten().copied().collect())
            .await?;
        let mut known = known.into_iter();
        let found = jobs
            .into_iter()
            .map(|job| job.and_then(|_| known.next().flatten()));
        let outcomes = registrations.into_iter().zip(found);
        let outcomes = outcomes.map(|(registration, found)| register(registration, found));
        let outcomes = join_all(outcomes).await;
        Ok(pb::RegisterTaskManagersResponse { outcomes })
    }
}

async fn register(
    registration: pb::RegisterTaskManagerRequest,
    job_master: Option<Arc<dyn JobMasterGateway>>,
) -> pb::RegistrationOutcome {
    use pb::registration_outcome::Outcome;
    let outcome = match job_master {
        Some(job_master) => {
            match timeout(TIMEOUT, job_master.register_task_manager(registration)).await {
                Ok(Ok(response)) => Outcome::Response(response),
                Ok(Err(error)) => Outcome::Failed(error.to_string()),
                Err(_elapsed) => Outcome::Failed("the JobMaster is not ready yet".to_owned()),
            }
        }
        None => Outcome::Failed("the job has no JobMaster at present".to_owned()),
    };
    pb::RegistrationOutcome {
        outcome: Some(outcome),
    }
}
