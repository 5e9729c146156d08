//! Writes the core's log lines: level, fields and text of each. Decides nothing.

use tanist_proto::id::ResourceId;
use tracing::{debug, error, info, warn};

use super::core::LogLine;

/// Writes one line about a job.
pub(super) fn write(job: &str, line: LogLine) {
    match line {
        LogLine::StatusChanged {
            from,
            to,
            is_recovery,
        } => {
            // A new leader recovers all jobs at the same time: ten thousand lines would delay the takeover.
            if is_recovery {
                debug!(job, ?from, ?to, "job status changed");
            } else {
                info!(job, ?from, ?to, "job status changed");
            }
        }
        LogLine::TasksAwaited {
            tasks,
            task_managers,
            first,
        } => {
            let first = first.as_ref().map(ResourceId::as_str);
            debug!(
                job,
                tasks, task_managers, first, "waiting for running tasks"
            );
        }
        LogLine::Reconciled {
            tasks_adopted,
            tasks_restarted,
        } => debug!(job, tasks_adopted, tasks_restarted, "reconciled"),
        LogLine::RegionFailed {
            what,
            task,
            task_manager,
            cause,
            of,
        } => warn!(job, task, task_manager, cause, of, "{what}"),
        LogLine::RegionHeld { wait_ms } => {
            info!(
                job,
                wait_ms, "waiting until executions of a region that may still run have stopped"
            );
        }
        LogLine::RegionsMoved { regions, cause } => {
            info!(job, regions, cause, "regions are moved");
        }
        LogLine::TaskManagerLost {
            task_manager,
            cause,
        } => warn!(job, %task_manager, cause, "TaskManager lost"),
        LogLine::UnknownTask {
            task_manager,
            vertex,
        } => warn!(job, %task_manager, vertex, "unknown task reported"),
        LogLine::CommitUnanswered { cause } => warn!(job, "{cause}"),
        LogLine::RecordRefused { reason } => {
            warn!(
                job,
                reason,
                "the job's record was refused; all tasks have finished, so it is written again without its oldest event"
            );
        }
        LogLine::IllegalTransition { of, from, to } => {
            error!(job, of, %from, %to, "illegal transition, which is a bug");
        }
    }
}
