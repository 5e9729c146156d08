//! The ResourceManager: keeps the registrations of the cluster's TaskExecutors and assigns their slots to jobs.
//!
//! It owns the registrations, the view of all slots, and the slot requirements of jobs. Nothing of it is
//! persisted: at registration TaskExecutors report their allocations to the ResourceManager of a new term, and
//! JobMasters declare their requirements. It does not know what runs in a slot, and never takes away a slot
//! that is in use.
//!
//! If a driver is configured, it starts TaskExecutors when jobs need them and releases idle ones: [`workers`].
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
mod draining;
pub mod drains;
pub mod drivers;
mod effect;
#[cfg(test)]
mod forgetting_tests;
mod handle;
#[cfg(test)]
mod idle_tests;
mod job_masters;
#[cfg(test)]
mod matching_model_tests;
mod packing;
mod placement;
#[cfg(test)]
mod profile_model;
#[cfg(test)]
mod profile_model_tests;
#[cfg(test)]
mod profile_tests;
mod queue;
#[cfg(test)]
mod queue_tests;
mod registering;
#[cfg(test)]
mod registration_tests;
mod report;
#[cfg(test)]
mod scripted;
mod shortages;
pub mod slot_manager;
#[cfg(test)]
mod slot_manager_model_tests;
#[cfg(test)]
mod slot_manager_tests;
mod slots;
#[cfg(test)]
mod slots_tests;
mod standstill;
#[cfg(test)]
mod tests;
mod unfulfillable;
#[cfg(test)]
mod unfulfillable_tests;
mod worker_control;
pub mod workers;

use std::sync::Arc;
use std::time::Duration;

use tanist_ha::clock::wall_clock_ms;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::core::{Contact, Term};
use self::drains::DrainsServices;
pub use self::handle::ResourceManagerHandle;
pub use self::placement::Balance;
pub use self::slot_manager::Shortage;
use self::workers::WorkersServices;
use self::workers::acting::Acts;
use self::workers::core::{Starter, Workers};
use crate::gateway::Connector;
use crate::gateway::fencing::OnHigherEpoch;
use crate::gateway::refusals::Refusals;

/// Intervals and limits. The defaults are Flink's, except for `requirement_check_delay`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `heartbeat.interval`: time between two heartbeats to a TaskExecutor.
    pub heartbeat_interval: Duration,
    /// `heartbeat.timeout`: a TaskExecutor that has answered no heartbeat for this long is lost.
    pub heartbeat_timeout: Duration,
    /// `heartbeat.rpc-failure-threshold`: number of refused calls in a row after which a TaskExecutor is lost
    /// before the heartbeat timeout, unless this process is the one that is cut off. `None`: never.
    pub rpc_failure_threshold: Option<u32>,
    /// `rpc.ask.timeout`: timeout of every call that is not a heartbeat.
    pub rpc_timeout: Duration,
    /// How long changes are collected before slots are matched. As long as a burst of changes lasts
    /// (TaskExecutors that follow one leader, slots that are reported together), but no longer: every start and
    /// every takeover waits for it.
    pub requirement_check_delay: Duration,
    /// Delay before a refused slot is offered again and an unanswered slot request is repeated.
    pub slot_request_retry_delay: Duration,
    /// `resourcemanager.job.timeout`: how long a job without JobMaster keeps its requirements and unused slots.
    pub job_timeout: Duration,
    /// `resourcemanager.standalone.start-up-time`: how long TaskExecutors may take to register before a job is
    /// notified that no TaskExecutor can serve it.
    pub start_up_time: Duration,
    /// `taskmanager.load-balance.mode`.
    pub balance: Balance,
    /// `slotmanager.reservation.delay`: how long the first job that lacks slots waits before slots are kept for
    /// it.
    pub reservation_delay: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            heartbeat_interval: Duration::from_secs(10),
            heartbeat_timeout: Duration::from_secs(50),
            rpc_failure_threshold: Some(2),
            rpc_timeout: Duration::from_secs(10),
            requirement_check_delay: Duration::from_millis(2),
            slot_request_retry_delay: Duration::from_millis(500),
            job_timeout: Duration::from_secs(300),
            start_up_time: Duration::from_secs(300),
            balance: Balance::None,
            reservation_delay: Duration::from_secs(10),
        }
    }
}

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
        let now = Instant::now();
        let drained = services.drains.recorded.clone();
        let core = core::Core::new(now, options.clone(), services.term.clone(), seed)
            .with_drains(now, wall_clock_ms(), drained)
            .with_workers(services.workers(seed));
        let actor = actor::Actor::new(options, services, core, messages, shortages, cancel.clone());
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
