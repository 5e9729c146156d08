//! Workers: the TaskManagers that the ResourceManager starts itself, through a driver, and releases again.
//!
//! [`crate::core::workers`] decides; `acting` writes decisions under the term's fence and then has the `driver` carry
//! them out. TaskManagers started by hand are not workers: they are neither stopped nor waited for, but their slots
//! count. `docs/adr/0016` says what is persisted when, and what a crash between two steps leaves.
//!
//! ```text
//! (none) --wanted--> REQUESTED --started--> PENDING --registers--> REGISTERED --idle, recorded--> RELEASING
//!                        | it failed           | too late, ended       | lost, ended                 | says goodbye
//!                        v                     v                       v                             v
//!                     STOPPING <---------------+-----------------------+------------------------- LEAVING
//!                        | record removed, then the process
//!                        v
//!                     (none)
//! of an earlier term: RECORDED --the driver looked--> PENDING | UNSEEN (elsewhere) | STOPPING (gone)
//!    that released it: RECORDED RELEASING --registers--> RELEASING, --too late, ended, gone--> STOPPING
//! ```

pub(crate) mod acting;
mod driver;
mod record;

use std::sync::Arc;
use std::time::Duration;

use tanist_ha::store::pipeline::CommitPipeline;
use tanist_proto::id::ResourceId;
use tanist_proto::resources::{Resources, WorkerResourceSpec};

pub use self::driver::{
    ClusterEnd, DriverError, FinalStatus, Found, RecordedWorker, ResourceManagerDriver,
    WorkerRequest,
};
pub use self::record::{WorkerRecord, key as worker_record_key, recorded_workers};

/// Limits. The defaults are Flink's.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkersOptions {
    /// Resources of a worker, unless a slot needs more.
    pub spec: WorkerResourceSpec,
    /// Largest resources that a worker can have where the driver starts it. `None`: all workers are of one kind.
    pub largest: Option<Resources>,
    /// `slotmanager.number-of-slots.min`.
    pub min_slots: u32,
    /// `slotmanager.number-of-slots.max`.
    pub max_slots: u32,
    /// `slotmanager.redundant-taskmanager-num`.
    pub redundant_workers: u32,
    /// `resourcemanager.taskmanager-timeout`: how long a worker may be idle before it is released.
    pub idle_timeout: Duration,
    /// `resourcemanager.taskmanager-registration.timeout`: time in which a started worker must register.
    pub registration_timeout: Duration,
    /// `resourcemanager.start-worker.max-failure-rate`: number of failed starts in a minute after which starts
    /// pause.
    pub max_failure_rate: f64,
    /// `resourcemanager.start-worker.retry-interval`: length of that pause.
    pub retry_interval: Duration,
}

impl WorkersOptions {
    /// The default limits, for this kind of worker.
    pub fn of(spec: WorkerResourceSpec) -> WorkersOptions {
        WorkersOptions {
            spec,
            largest: None,
            min_slots: 0,
            max_slots: u32::MAX,
            redundant_workers: 0,
            idle_timeout: Duration::from_secs(30),
            registration_timeout: Duration::from_secs(300),
            max_failure_rate: 10.0,
            retry_interval: Duration::from_secs(3),
        }
    }
}

/// What a ResourceManager needs to start and stop workers.
#[derive(Debug, Clone)]
pub struct WorkersServices {
    /// Limits.
    pub options: WorkersOptions,
    /// Starts and stops workers.
    pub driver: Arc<dyn ResourceManagerDriver>,
    /// Writes decisions.
    pub pipeline: CommitPipeline,
    /// The workers that the store had when the term began.
    pub recorded: Vec<(ResourceId, WorkerRecord)>,
}
