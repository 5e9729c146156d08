//! The TaskExecutor: offers slots, runs tasks in them, and outlives any JobManager.
//!
//! It owns the slot table and the executions. It does not decide what runs: the ResourceManager assigns its slots
//! to jobs, the JobMasters deploy tasks. It follows the leader, and registers there with all its slots and
//! executions. Without a leader its tasks continue, except those that the store shows as superseded.
//!
//! One task (`actor.rs`) owns all state; the decisions are in `core`. A [`TaskExecutorHandle`] calls it. The process
//! that started it watches [`TaskExecutor::fatal`]: the cause for which the process must end.
//!
//! ```text
//! connection:  idle --leader--> registering --success--> registered
//!                                 ^  ^  another leader       | silence, "outdated", disconnected
//!                                 |  +-----------------------+
//! slot:        free --request_slot--> allocated --accepted--> active          (a dynamic slot exists only while held)
//!                ^                        | rejected, not accepted in time | free_slots, job ended
//!                +---nothing runs in it-- releasing <--------------------+
//! job:         (first slot) --> known --ended, unknown to leader or store, timeout--> ending --no task--> forgotten
//! execution:   admitted once --> deploying .. running --> finished | canceled | failed --acknowledged--> forgotten
//!              (its generation stays remembered until the job is forgotten)
//! ```
//!
//! Registrations are numbered. The number separates a message that a leader sent before a reconnect or a restart
//! from the report made after it: messages name the registration that they belong to, and the TaskExecutor refuses
//! any other than the present one; the leader refuses a registration at or below the highest that it has seen. So
//! the numbers of one TaskManager must *differ* over all its starts, and *grow*. They differ by a random part that
//! each start's numbers have ([`first_registration`]); no clock is relied on. They grow within a start by counting,
//! and over starts by the wall clock or, if that was set back, by the leader's answer: it names the highest number
//! that it has seen, and the next attempt, which follows at once, goes above it. Until then nothing was registered,
//! and no message names the refused number. A registration that an earlier start sent and that arrives after that,
//! with a higher number, makes the leader believe in a process that is gone: messages that the leader sends for it
//! are refused here, and the heartbeat timeout ends it like any lost connection.

mod actor;
mod core;
mod dataflow_launcher;
mod handle;
mod isolation_guard;
mod launcher;
mod log;
mod options;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use rand::Rng as _;
use tanist_gateway::fencing::{HighestEpoch, OwnStore};
use tanist_gateway::{Connector, JobRecords};
use tanist_ha::clock::{self, wall_clock_ms};
use tanist_proto::resources::WorkerResourceSpec;
use tanist_proto::v1 as pb;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use self::handle::TaskExecutorHandle;
pub use self::isolation_guard::IsolationGuard;
pub use self::launcher::{
    CheckpointStatus, RunningTask, SinkOutput, TaskLauncher, TaskStart, TaskStatus,
};
pub use self::options::{CheckpointPlace, Options};

/// Description of a TaskExecutor in its registration.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskExecutorDescription {
    /// Its ids and addresses.
    pub location: pb::TaskManagerLocation,
    /// The host.
    pub hardware: pb::HardwareDescription,
    /// Its total resources, and the number of default slots they are divided into.
    pub worker: WorkerResourceSpec,
    /// Memory that the system allows the process.
    pub memory_configuration: pb::MemoryConfiguration,
    /// The cluster that it is configured for.
    pub cluster_id: String,
    /// The program's version.
    pub version: String,
    /// Version of the protocol it speaks.
    pub protocol_version: u32,
    /// Incarnation of the cluster whose driver started it. Empty: no driver did.
    pub worker_of: String,
}

/// Whether a TaskExecutor is registered, and whether it is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Presence {
    /// Whether it is registered at a ResourceManager and within the heartbeat timeout.
    pub is_registered: bool,
    /// Whether no slot is in use, every end of an execution is acknowledged, and no output is kept.
    pub is_unused: bool,
}

impl Presence {
    fn publish(self, watchers: &watch::Sender<Presence>) {
        watchers.send_if_modified(|known| std::mem::replace(known, self) != self);
    }
}

/// Why a TaskExecutor must end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fatal {
    /// The cluster will never accept it: it is unknown, belongs to another cluster, or its version does not fit.
    Refused(String),
    /// It was drained: its last slot is free, and no consumer will read from it any more. Not an error.
    Drained,
    /// A cancelled task did not end within the timeout: only the end of the process ends it.
    CancellationTimedOut(String),
    /// It ended unexpectedly.
    Broken(String),
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fatal::Drained => f.write_str("it was drained"),
            Fatal::Refused(cause) | Fatal::CancellationTimedOut(cause) | Fatal::Broken(cause) => {
                f.write_str(cause)
            }
        }
    }
}

/// What a TaskExecutor needs from its process.
#[derive(Debug)]
pub struct TaskExecutorServices {
    /// Makes clients of the leader's components.
    pub connector: Arc<dyn Connector>,
    /// The process's own store: the leader, and the proof of each term.
    pub store: OwnStore,
    /// The highest epoch that this process accepts.
    pub highest_epoch: HighestEpoch,
    /// Returns the stored state of jobs whose JobMaster is silent.
    pub records: Arc<dyn JobRecords>,
    /// Runs the tasks.
    pub launcher: Arc<dyn TaskLauncher>,
    /// Its description.
    pub description: TaskExecutorDescription,
    /// Registrations get numbers above this: [`first_registration`].
    pub first_registration: u64,
    /// The time until which tasks of isolated jobs may run, and the clock that counts for them.
    pub guard: IsolationGuard,
}

/// A TaskExecutor. Dropping it ends it without disconnect messages, as the end of its process would.
#[derive(Debug)]
pub struct TaskExecutor {
    handle: TaskExecutorHandle,
    fatal: watch::Receiver<Option<Fatal>>,
    presence: watch::Receiver<Presence>,
    _cancel_on_drop: tokio_util::sync::DropGuard,
    task: JoinHandle<()>,
}

impl TaskExecutor {
    /// Starts it.
    pub fn start(options: Options, services: TaskExecutorServices) -> TaskExecutor {
        let (mailbox, messages) = mpsc::channel(actor::MAILBOX);
        let (fatal_sender, fatal) = watch::channel(None);
        let (presence_sender, presence) = watch::channel(Presence::default());
        let cancel = CancellationToken::new();
        let terms = services.highest_epoch.clone();
        terms.proven_by(services.store.clone());
        let started = clock::Started::now();
        let core = core::TaskExecutorCore::new(
            started.uptime(),
            options.clone(),
            services.description.clone(),
            services.highest_epoch.clone(),
            services.first_registration,
        );
        let channels = actor::Channels::new(
            mailbox.clone(),
            messages,
            fatal_sender,
            presence_sender,
            cancel.clone(),
        );
        let task =
            tokio::spawn(actor::Actor::new(options, services, core, channels, started).run());
        let handle = TaskExecutorHandle::new(mailbox, terms);
        TaskExecutor {
            handle,
            fatal,
            presence,
            _cancel_on_drop: cancel.drop_guard(),
            task,
        }
    }

    /// A handle to it.
    pub fn handle(&self) -> TaskExecutorHandle {
        self.handle.clone()
    }

    /// Watches whether it is registered and used.
    pub fn presence(&self) -> watch::Receiver<Presence> {
        self.presence.clone()
    }

    /// Waits until it must end, and returns the cause. Otherwise never returns.
    pub async fn fatal(&self) -> Fatal {
        let mut fatal = self.fatal.clone();
        let cause = match fatal.wait_for(Option::is_some).await {
            Ok(cause) => cause.clone(),
            Err(_ended) => None,
        };
        cause.unwrap_or_else(|| Fatal::Broken("the TaskExecutor ended".to_owned()))
    }

    /// Ends its tasks, disconnects with the cause, so that they are rescheduled at once, and waits for its end.
    pub async fn stop(self, cause: &str) {
        let message = |done| actor::Message::Stop(cause.to_owned(), done);
        let _it_ended_either_way = self.handle.send(message).await;
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the TaskExecutor did not end in order");
        }
    }
}

/// First registration number of a start: the wall clock, so that it is usually above those of earlier starts, plus
/// a random part, so that it differs in any case. See the module.
pub fn first_registration() -> u64 {
    (wall_clock_ms() << 20) | rand::rng().random_range(0..1 << 19)
}
