//! Declarations to the ResourceManager: which JobMaster serves the job, and which slots it needs. One is in flight at a
//! time (`actor/verdict.rs`); after one that fails, the needs of that moment are declared.

use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::{
    GatewayError, JobMasterRegistration, ResourceRequirement, ResourceRequirements,
};
use tanist_proto::id::JobId;
use tanist_proto::resources::ResourceProfile;
use tokio::task::JoinSet;

use super::actor::job_id;
use super::calls::{Calls, Done, bounded};
use super::core::Needs;

impl Calls {
    /// Registers if necessary, then declares all needs of the job if they are known.
    pub(super) fn declare(
        &self,
        io: &mut JoinSet<Done>,
        wanted: Option<Arc<Needs>>,
        is_registered: bool,
    ) {
        let resources = self.resources.clone();
        // Without needs to declare, registering again serves as the heartbeat.
        let is_registering = !is_registered || wanted.is_none();
        let registration = is_registering.then(|| JobMasterRegistration {
            job: self.job_id(),
            job_master: self.id,
            verdict: self.verdict.clone(),
        });
        let requirements = wanted.as_ref().map(|wanted| self.requirements(wanted));
        let (ask_timeout, retry_delay) = (self.ask_timeout, self.retry_delay);
        io.spawn(async move {
            let declared = async {
                if let Some(registration) = registration {
                    resources.register_job_master(registration).await?;
                }
                match requirements {
                    Some(requirements) => resources.declare_required_resources(requirements).await,
                    None => Ok(()),
                }
            };
            let answer = bounded(ask_timeout, declared).await;
            if let Err(error) = &answer {
                tracing::debug!(%error, "requirements were not accepted; they are declared again");
                // NotFound: the ResourceManager does not know this JobMaster. The next declaration registers it, and
                // follows immediately.
                if is_registering || !matches!(error, GatewayError::NotFound(_)) {
                    tokio::time::sleep(retry_delay.min(Duration::from_secs(1))).await;
                }
            }
            Done::Declared { wanted, answer }
        });
    }

    pub(super) fn job_id(&self) -> JobId {
        job_id(&self.job.job_id)
    }

    fn requirements(&self, wanted: &Needs) -> ResourceRequirements {
        let at_once = |profile: &ResourceProfile| {
            let mut at_once = wanted.at_once.iter();
            let found = at_once.find(|(it, _)| it == profile);
            found.map_or(0, |(_, number)| *number)
        };
        let slots = wanted.slots.iter();
        let resources = slots.map(|(profile, number)| ResourceRequirement {
            profile: profile.clone(),
            minimum: at_once(profile).min(*number),
            maximum: *number,
        });
        ResourceRequirements {
            job: self.job_id(),
            job_master: self.id,
            job_master_address: self.rpc_address.to_string(),
            resources: resources.collect(),
            held: wanted.held.clone(),
            submission: wanted.submission,
            is_bounded: wanted.is_bounded,
        }
    }
}
