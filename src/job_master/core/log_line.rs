//! The log lines of the core, for operators. The actor writes them before it runs the effects; the core itself does no
//! I/O. [`crate::log`] has levels and texts.

use tanist_proto::id::ResourceId;
use tanist_proto::v1::JobStatus;

/// One line of the log.
#[derive(Debug, Clone)]
pub enum LogLine {
    /// The job has another status.
    StatusChanged {
        /// The status before.
        from: JobStatus,
        /// The present one.
        to: JobStatus,
        /// Whether it is a step of a recovery, which all jobs make at the same time.
        is_recovery: bool,
    },
    /// Running tasks of an earlier term are awaited.
    TasksAwaited {
        /// Number of tasks.
        tasks: usize,
        /// Number of their TaskManagers.
        task_managers: usize,
        /// The first of these.
        first: Option<ResourceId>,
    },
    /// No tasks of an earlier term are awaited any more.
    Reconciled {
        /// Number of tasks that go on.
        tasks_adopted: u32,
        /// Number of tasks that restart.
        tasks_restarted: u32,
    },
    /// A region has to run again.
    RegionFailed {
        /// What happens to it.
        what: &'static str,
        /// The task that failed.
        task: String,
        /// Its TaskManager.
        task_manager: String,
        /// The reason.
        cause: String,
        /// Number of failures at the same time.
        of: usize,
    },
    /// A region is not placed again before its executions have stopped.
    RegionHeld {
        /// Until then, in milliseconds.
        wait_ms: u64,
    },
    /// Regions leave drained TaskManagers.
    RegionsMoved {
        /// Number of regions.
        regions: u32,
        /// The reason.
        cause: String,
    },
    /// A TaskManager is given up.
    TaskManagerLost {
        /// The TaskManager.
        task_manager: ResourceId,
        /// The reason.
        cause: String,
    },
    /// A TaskManager reports a task that the job does not have.
    UnknownTask {
        /// The TaskManager.
        task_manager: ResourceId,
        /// The vertex, as it names it.
        vertex: String,
    },
    /// The commit of the sinks has no answer.
    CommitUnanswered {
        /// The text.
        cause: String,
    },
    /// The store refused the record of a job whose tasks have all finished.
    RecordRefused {
        /// The reason.
        reason: String,
    },
    /// A bug: a decided transition is not in the tables.
    IllegalTransition {
        /// The job or the task.
        of: String,
        /// The state before.
        from: String,
        /// The decided state.
        to: String,
    },
}
