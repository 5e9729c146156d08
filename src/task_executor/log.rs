//! Writes the core's log lines: level, fields and text of each. Decides nothing.

use tracing::{debug, error, info, warn};

use crate::core::LogLine;

/// Writes one line.
pub(crate) fn write(line: LogLine) {
    match line {
        LogLine::LeaderFollowed { epoch, address } => info!(%epoch, address, "following leader"),
        LogLine::LeaderAnnounced { epoch, process } => {
            debug!(%epoch, process, "dialled by a leader");
        }
        LogLine::LeaderRefused { refusal } => {
            warn!(%refusal, "the store's leader is not followed");
        }
        LogLine::LeaderWithoutAddress { leader } => {
            error!(%leader, "the leader publishes no rpc address");
        }
        LogLine::LeaderDropped { epoch, address } => {
            warn!(%epoch, address, "no longer following a leader that the store does not know");
        }
        LogLine::AtResourceManager {
            resource_manager,
            epoch,
            address,
        } => info!(
            resource_manager,
            epoch, address, "registered at the ResourceManager"
        ),
        LogLine::AtJobMaster { job, epoch } => info!(%job, epoch, "registered at the JobMaster"),
        LogLine::JobMasterRejected { job, reason } => {
            warn!(
                %job, reason,
                "registration rejected by the JobMaster, the store decides about the job"
            );
        }
        LogLine::RegistrationUnknown { error } => {
            info!(%error, "the ResourceManager does not know this registration, registering again");
        }
        LogLine::ResourceManagerSilent => {
            warn!("the ResourceManager is silent, registering again");
        }
        LogLine::ResourceManagerDisconnected { cause } => {
            warn!(cause, "the ResourceManager disconnected, registering again");
        }
        LogLine::JobMasterSilent { job } => {
            warn!(%job, "the JobMaster is silent, registering again");
        }
        LogLine::JobMasterDisconnected { job, cause } => {
            warn!(%job, cause, "the JobMaster disconnected, registering again");
        }
        LogLine::JobTakenOver { job } => {
            info!(%job, "another JobMaster took the job over, registering again");
        }
        LogLine::CallFailed { job, error } => {
            debug!(%job, %error, "a call to the JobMaster failed");
        }
        LogLine::SlotAllocated {
            job,
            allocation,
            slot,
            profile,
        } => info!(%job, %allocation, slot, %profile, "allocated slot"),
        LogLine::SlotFreed {
            job,
            allocation,
            cause,
        } => info!(%job, %allocation, cause, "freeing slot"),
        LogLine::SlotKept { job, allocation } => {
            warn!(%job, %allocation, "keeping a slot: a task that was not cancelled runs in it");
        }
        LogLine::SlotRejected { job, allocation } => {
            info!(%job, %allocation, "the JobMaster rejected a slot, freeing it");
        }
        LogLine::SlotNotAccepted { job, allocation } => {
            warn!(%job, %allocation, "no JobMaster accepted a slot in time, freeing it");
        }
        LogLine::TaskFailed {
            job,
            vertex,
            subtask,
            generation,
            cause,
        } => warn!(%job, %vertex, subtask, %generation, cause, "task failed"),
        LogLine::TaskRefused {
            job,
            vertex,
            subtask,
            generation,
            reason,
        } => warn!(%job, vertex, subtask, generation, reason, "refused task"),
        LogLine::TasksRefused { job, tasks, reason } => {
            warn!(%job, tasks, reason, "refused tasks");
        }
        LogLine::TaskStillRuns {
            job,
            vertex,
            subtask,
            ms,
        } => {
            warn!(
                %job, %vertex, subtask, ms,
                "a cancelled task has not ended yet, cancelling it again"
            );
        }
        LogLine::TasksSuperseded { job, tasks } => {
            warn!(%job, tasks, "the store has a younger generation, stopping tasks");
        }
        LogLine::IsolationLapsed { job, tasks, since } => {
            warn!(
                %job, tasks, ?since,
                "the store has not confirmed isolated tasks in time, stopping tasks: another attempt may start"
            );
        }
        LogLine::StoodStill { late } => {
            warn!(
                ?late,
                "this process stood still, extending the deadlines of cancelled tasks"
            );
        }
        LogLine::JobStopped { job } => info!(%job, "the job is stopped: its sources end"),
        LogLine::JobEnds { job, cause } => info!(%job, cause, "ending the job here"),
        LogLine::Draining => info!("draining: no more slots are accepted"),
        LogLine::DrainingEnded => info!("no longer draining: slots are accepted again"),
        LogLine::StoreSilent { reason, jobs } => {
            debug!(
                %reason, jobs,
                "the store did not answer whether tasks were superseded"
            );
        }
        LogLine::StoreNotBelieved { incarnation, epoch } => {
            error!(
                %incarnation, %epoch,
                "ignoring the store's answer about jobs: it is of another cluster or an older epoch"
            );
        }
        LogLine::StateUnreadable { job, reason } => {
            debug!(%job, reason, "the job's state can't be read here, its tasks continue");
        }
    }
}
