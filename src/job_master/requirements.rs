//! What the ResourceManager is told: who speaks for the job, and how many slots it needs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tanist_proto::id::ResourceId;
use tokio::task::JoinSet;

use super::actor::job_id;
use super::calls::{Calls, Done, bounded};
use crate::gateway::{
    GatewayError, JobMasterRegistration, ResourceRequirement, ResourceRequirements,
};

/// What is stated to the ResourceManager.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Wanted {
    /// So many slots.
    pub(super) needed: u32,
    /// So many of them are held since before this term, by TaskManager.
    pub(super) held: Arc<BTreeMap<ResourceId, u32>>,
}

impl Calls {
    /// Registers where that is to be done, then states all that the job needs, where that is known.
    pub(super) fn declare(
        &self,
        io: &mut JoinSet<Done>,
        wanted: Option<Wanted>,
        is_registered: bool,
    ) {
        let resources = self.resources.clone();
        // Without anything to state, registering again is the sign of life.
        let is_registering = !is_registered || wanted.is_none();
        let registration = is_registering.then(|| JobMasterRegistration {
            job: job_id(&self.graph),
            job_master: self.id,
            superseded: self.superseded.clone(),
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
                tracing::debug!(%error, "requirements were not taken, declared again later");
                // Whoever is only not known any more registers at once.
                if is_registering || !matches!(error, GatewayError::NotFound(_)) {
                    tokio::time::sleep(retry_delay.min(Duration::from_secs(1))).await;
                }
            }
            Done::Declared { wanted, answer }
        });
    }

    fn requirements(&self, wanted: &Wanted) -> ResourceRequirements {
        let needed = wanted.needed;
        let one_kind = ResourceRequirement {
            profile: None,
            minimum: needed,
            maximum: needed,
        };
        ResourceRequirements {
            job: job_id(&self.graph),
            job_master: self.id,
            job_master_address: self.rpc_address.clone(),
            resources: if needed == 0 {
                Vec::new()
            } else {
                vec![one_kind]
            },
            held: (*wanted.held).clone(),
        }
    }
}
