//! Writes the core's log lines: level, fields and text of each. Decides nothing.

use tracing::{debug, info, warn};

use crate::core::LogLine;

/// Writes one line.
pub(crate) fn write(line: LogLine) {
    match line {
        LogLine::Registered {
            task_manager,
            address,
            slots,
            registration,
        } => info!(%task_manager, address, slots, registration, "registered task manager"),
        LogLine::IncarnationReplaced {
            task_manager,
            old,
            new,
        } => info!(%task_manager, old, new, "a new incarnation replaces a task manager"),
        LogLine::Left {
            task_manager,
            cause,
        } => info!(%task_manager, cause, "task manager left"),
        LogLine::Lost {
            task_manager,
            address,
            cause,
        } => warn!(%task_manager, address, cause, "lost task manager"),
        LogLine::StoodStill { late } => {
            warn!(
                ?late,
                "this process stood still, extending the deadlines of TaskManagers"
            );
        }
        LogLine::BadSlotReport {
            task_manager,
            error,
        } => warn!(%task_manager, %error, "bad slot report"),
        LogLine::BadSlotAnswer {
            task_manager,
            error,
        } => warn!(%task_manager, %error, "bad answer to a slot request"),
        LogLine::SlotRefused {
            task_manager,
            reason,
        } => info!(%task_manager, reason, "slot request was refused"),
        LogLine::SlotRequested {
            job,
            task_manager,
            slot,
            allocation,
        } => debug!(%job, %task_manager, slot, %allocation, "requesting slot"),
        LogLine::SlotsKept { job, missing, on } => {
            info!(%job, missing, on, "slots are kept for the job");
        }
        LogLine::SlotsLacking {
            job,
            acquired,
            missing,
        } => warn!(%job, acquired, missing, "not enough slots for job"),
        LogLine::SlotsSuffice { job } => info!(%job, "the job no longer lacks slots"),
        LogLine::Unfulfillable { job, verdict } => {
            warn!(%job, %verdict, "no task manager can serve the job");
        }
        LogLine::Declared { job, resources } => debug!(%job, ?resources, "requirements"),
        LogLine::JobMasterReplaced { job, old, new } => {
            warn!(%job, %old, %new, "a younger JobMaster replaces the registered one");
        }
        LogLine::JobMasterLeft { job, departure } => {
            debug!(%job, ?departure, "its JobMaster left");
        }
        LogLine::JobMasterSilent { job, job_master } => {
            warn!(
                %job, %job_master,
                "no message from a JobMaster within heartbeat.timeout, its registration ends"
            );
        }
        LogLine::JobAbandoned {
            job,
            slots,
            had_requirements,
            timeout,
        } => {
            warn!(
                %job, slots, had_requirements, ?timeout,
                "the job has no JobMaster, freeing its unused slots"
            );
        }
        LogLine::Draining {
            target,
            evict,
            by,
            reason,
        } => info!(%target, evict, by, reason, "draining"),
        LogLine::Undrained { target } => info!(%target, "no longer draining"),
        LogLine::WorkerStarting { worker, spec } => info!(%worker, %spec, "starting a worker"),
        LogLine::WorkerFailed { worker, cause } => {
            warn!(%worker, cause, "a worker could not be started");
        }
        LogLine::WorkerReleased {
            worker,
            idle_timeout,
        } => info!(%worker, ?idle_timeout, "releasing an idle worker"),
        LogLine::WorkerEnded { worker, how } => info!(%worker, how, "a worker has ended"),
        LogLine::WorkerDied { worker, how } => warn!(%worker, how, "a worker has ended"),
        LogLine::WorkerGone { worker } => {
            info!(%worker, "a worker of an earlier term is gone");
        }
        LogLine::WorkerUnrecorded { worker } => {
            warn!(%worker, "stopping a worker that has no record in the store");
        }
        LogLine::WorkersUnknown { error } => {
            warn!(%error, "the driver can't list the running workers, retrying");
        }
        LogLine::WorkerSlotsDiffer {
            worker,
            slots,
            wanted,
        } => {
            warn!(
                %worker, slots, wanted,
                "a worker has another number of slots than it was started with"
            );
        }
    }
}
