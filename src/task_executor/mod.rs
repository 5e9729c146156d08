//! The TaskExecutor: offers slots, runs tasks in them, and outlives any JobManager.
//!
//! It owns the slot table and the executions. It does not decide what runs: the ResourceManager gives its slots to jobs, the
//! JobMasters deploy. It follows the leader, and registers there with all that it holds and runs; while nobody leads,
//! everything goes on that the store does not know to be superseded.
//!
//! ```text
//! connection:  idle --leader--> registering --success--> registered
//!                                 ^  ^  another leader       | silence, "outdated", let go
//!                                 |  +-----------------------+
//! slot:        free --request_slot--> allocated --accepted--> active
//!                ^                        | rejected, not taken in time  | free_slots, job ended
//!                +---nothing runs in it-- releasing <--------------------+
//! job:         (first slot) --> known --ended, unknown to leader or store, nobody answers for too long--> ending --tasks gone--> forgotten
//! execution:   admitted once --> deploying .. running --> finished | canceled | failed --acknowledged--> forgotten
//!              (its generation stays remembered until the job is forgotten)
//! ```

mod actor;
mod attempts;
mod connection;
mod core;
#[cfg(test)]
mod core_tests;
mod dataflow_launcher;
mod deliveries;
mod executions;
mod handle;
mod job;
mod launcher;
mod registering;
mod requests;
#[cfg(test)]
mod scripted_leader;
mod slot_table;
mod superseding;
#[cfg(test)]
mod superseding_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tanist_ha::election::LeaderInformation;
use tanist_proto::v1 as pb;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use self::handle::TaskExecutorHandle;
pub use self::launcher::{RunningTask, TaskLauncher, TaskStart, TaskStatus};
use crate::gateway::fencing::HighestEpoch;
use crate::gateway::registration::RegistrationOptions;
use crate::gateway::{Connector, JobRecords};

/// Intervals and limits. The defaults are Flink's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `cluster.registration.*`.
    pub registration: RegistrationOptions,
    /// `heartbeat.timeout`, where the leader does not say.
    pub heartbeat_timeout: Duration,
    /// `rpc.ask.timeout`: the deadline of every other call.
    pub rpc_timeout: Duration,
    /// How long to wait before a failed offer or report is sent again.
    pub retry_delay: Duration,
    /// `taskmanager.slot.timeout`: in which a JobMaster takes an allocated slot.
    pub slot_timeout: Duration,
    /// `job-manager-failover-timeout`: so long without any leader and without any answer of the store a job is let go.
    pub job_manager_failover_timeout: Duration,
    /// `task.cancellation.timeout`: a task that does not end within it ends the process.
    pub task_cancellation_timeout: Duration,
    /// How long tasks may take to end when the TaskExecutor stops, and how long goodbyes may take.
    pub stop_timeout: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            registration: RegistrationOptions::default(),
            heartbeat_timeout: Duration::from_secs(50),
            rpc_timeout: Duration::from_secs(10),
            retry_delay: Duration::from_millis(500),
            slot_timeout: Duration::from_secs(10),
            job_manager_failover_timeout: Duration::from_secs(300),
            task_cancellation_timeout: Duration::from_secs(180),
            stop_timeout: Duration::from_secs(5),
        }
    }
}

/// What a TaskExecutor says of itself when it registers.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskExecutorDescription {
    /// Who and where.
    pub location: pb::TaskManagerLocation,
    /// The host.
    pub hardware: pb::HardwareDescription,
    /// All that its slots have together.
    pub total_profile: pb::ResourceProfile,
    /// What a slot has.
    pub default_slot_profile: pb::ResourceProfile,
    /// How many slots.
    pub slots: u32,
    /// The program's version.
    pub version: String,
}

/// What a TaskExecutor needs from its process.
#[derive(Debug)]
pub struct TaskExecutorServices {
    /// The way to the leader.
    pub connector: Arc<dyn Connector>,
    /// The leader, from retrieval. Whoever sends it has raised `highest_epoch` before, which also says of which cluster it is.
    pub leader: watch::Receiver<Option<LeaderInformation>>,
    /// The youngest term that this process has heard of.
    pub highest_epoch: HighestEpoch,
    /// Answers how jobs stand that no JobMaster speaks for.
    pub records: Arc<dyn JobRecords>,
    /// Runs the tasks.
    pub launcher: Arc<dyn TaskLauncher>,
    /// Who this is.
    pub description: TaskExecutorDescription,
}

/// A TaskExecutor. Dropping it ends it without a word, as the end of its process would.
#[derive(Debug)]
pub struct TaskExecutor {
    handle: TaskExecutorHandle,
    fatal: watch::Receiver<Option<String>>,
    _cancel_on_drop: tokio_util::sync::DropGuard,
    task: JoinHandle<()>,
}

impl TaskExecutor {
    /// Starts it.
    pub fn start(options: Options, services: TaskExecutorServices) -> TaskExecutor {
        let (mailbox, messages) = mpsc::channel(actor::MAILBOX);
        let (fatal_sender, fatal) = watch::channel(None);
        let cancel = CancellationToken::new();
        let core = core::Core::new(
            Instant::now(),
            options.clone(),
            services.description.clone(),
            services.highest_epoch.clone(),
            first_registration(),
        );
        let channels = actor::Channels {
            mailbox: mailbox.clone(),
            messages,
            fatal: fatal_sender,
            cancel: cancel.clone(),
        };
        let task = tokio::spawn(actor::Actor::new(options, services, core, channels).run());
        let handle = TaskExecutorHandle::new(mailbox);
        TaskExecutor {
            handle,
            fatal,
            _cancel_on_drop: cancel.drop_guard(),
            task,
        }
    }

    /// A handle to it.
    pub fn handle(&self) -> TaskExecutorHandle {
        self.handle.clone()
    }

    /// Waits until it can't go on, for good: gives the reason. Never, otherwise.
    pub async fn fatal(&self) -> String {
        let mut fatal = self.fatal.clone();
        let reason = match fatal.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone(),
            Err(_ended) => Some("the task executor ended".to_owned()),
        };
        reason.unwrap_or_default()
    }

    /// Ends its tasks, says goodbye with the cause, so that they are rescheduled at once, and waits for the end.
    pub async fn stop(self, cause: &str) {
        let (done, wait) = oneshot::channel();
        let message = actor::Message::Stop(cause.to_owned(), done);
        if self.handle.send(message).await.is_ok() {
            let _it_ended_either_way = wait.await;
        }
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the task executor did not end in order");
        }
    }
}

/// Registration numbers grow, also over restarts of the process.
fn first_registration() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX >> 20) << 20
}
