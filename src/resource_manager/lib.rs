//! The ResourceManager: keeps the registrations of the cluster's TaskExecutors and assigns their slots to jobs.
//!
//! It owns the registrations, the view of all slots, and the slot requirements of jobs. Nothing of it is
//! persisted: at registration TaskExecutors report their allocations to the ResourceManager of a new term, and
//! JobMasters declare their requirements. It does not know what runs in a slot, and never takes away a slot
//! that is in use.
//!
//! If a driver is configured, it starts TaskExecutors when jobs need them and releases idle ones: `core::workers`.
//!
//! ```text
//! TaskExecutor:  unknown --register--> registered --register (higher number)--> registered
//!                   ^                      | goodbye; no answer for heartbeat.timeout; refused calls
//!                   +----------------------+
//! JobMaster:     absent --register--> registered --register (younger)--> registered; the older one is notified
//!                   ^                     | goodbye; silent for heartbeat.timeout
//!                   |                     v
//!                   +-- job.timeout -- absent     (requirements and unused slots are dropped)
//! slot:          free --match--> pending --allocated--> allocated --reported free--> free     (dynamic: forgotten)
//!                  ^                |  \--occupied--> allocated (to the holder that the answer names)
//!                  +--rest----------+ refused
//! ```

mod actor;
mod core;
mod drains;
mod drivers;
mod handle;
mod log;
mod options;
#[cfg(test)]
mod tests;
mod workers;

use std::sync::Arc;

use tanist_gateway::Connector;
use tanist_gateway::fencing::OnHigherEpoch;
use tanist_gateway::refusals::Refusals;
use tanist_ha::clock::{Started, wall_clock_ms};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use self::core::slot_manager::{
    RequestOutcome, Shortage, SlotManager, SlotRequest, SlotsReport, SlotsVersion,
};
pub use self::core::{Balance, Contact, Term};
pub use self::drains::{DrainRecord, DrainTarget, DrainsServices, recorded_drains};
pub use self::drivers::local_process::{LocalProcessDriver, LocalProcessOptions, WorkerGroups};
pub use self::handle::ResourceManagerHandle;
pub use self::options::Options;
pub use self::workers::{
    ClusterEnd, DriverError, FinalStatus, Found, RecordedWorker, ResourceManagerDriver,
    WorkerRecord, WorkerRequest, WorkersOptions, WorkersServices, recorded_workers,
    worker_record_key,
};

use self::core::workers::{Starter, Workers};
use self::workers::acting::Acts;

/// What a ResourceManager needs from its process.
pub struct ResourceManagerServices {
    /// Makes clients of TaskExecutors.
    pub connector: Arc<dyn Connector>,
    /// Judges whether refused calls count.
    pub refusals: Arc<dyn Refusals>,
    /// The term that the ResourceManager belongs to.
    pub term: Term,
    /// Called with every younger term that a message names.
    pub on_higher_epoch: OnHigherEpoch,
    /// Starts and stops TaskExecutors. `None`: TaskExecutors are started from outside.
    pub workers: Option<WorkersServices>,
    /// Writes drains, and the drains recorded so far.
    pub drains: DrainsServices,
}

impl ResourceManagerServices {
    /// The driver and the pipeline that carry out decisions about workers.
    fn acts(&self) -> Option<Acts> {
        let workers = self.workers.as_ref()?;
        Some(Acts {
            driver: workers.driver.clone(),
            pipeline: workers.pipeline.clone(),
            cluster: self.term.incarnation.clone(),
            spec: workers.options.spec.clone(),
        })
    }

    /// The workers that the ResourceManager begins with.
    fn workers(&self, seed: u64) -> Option<Workers> {
        let workers = self.workers.as_ref()?;
        let starter = Starter {
            driver: workers.driver.name(),
            place: workers.driver.place(),
            epoch: self.term.epoch.get(),
            seed,
        };
        let (options, recorded) = (workers.options.clone(), workers.recorded.clone());
        Some(Workers::new(options, starter, recorded))
    }
}

impl std::fmt::Debug for ResourceManagerServices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResourceManagerServices")
            .field("term", &self.term)
            .finish_non_exhaustive()
    }
}

/// The ResourceManager of one term.
#[derive(Debug)]
pub struct ResourceManager {
    handle: ResourceManagerHandle,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl ResourceManager {
    /// Starts it.
    pub fn start(options: Options, services: ResourceManagerServices) -> ResourceManager {
        let (mailbox, messages) = mpsc::channel(actor::MAILBOX);
        let (shortages, followed) = watch::channel(Default::default());
        let cancel = CancellationToken::new();
        let seed = rand::random();
        let started = Started::now();
        let now = started.uptime();
        let drained = services.drains.recorded.clone();
        let core =
            core::ResourceManagerCore::new(now, options.clone(), services.term.clone(), seed)
                .with_drains(now, wall_clock_ms(), drained)
                .with_workers(services.workers(seed));
        let actor = actor::Actor::new(
            options,
            services,
            core,
            messages,
            shortages,
            cancel.clone(),
            started,
        );
        let task = tokio::spawn(actor.run());
        let handle = ResourceManagerHandle::new(mailbox, followed);
        ResourceManager {
            handle,
            cancel,
            task,
        }
    }

    /// A handle to it.
    pub fn handle(&self) -> ResourceManagerHandle {
        self.handle.clone()
    }

    /// Ends it and waits for the end. Sends no messages.
    pub async fn stop(self) {
        self.cancel.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the resource manager did not end in order");
        }
    }
}
