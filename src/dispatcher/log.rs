//! Writes the core's log lines: level, fields and text of each. Decides nothing.

use tracing::{error, info, warn};

use super::core::LogLine;

/// Writes one line.
pub(super) fn write(line: LogLine) {
    match line {
        LogLine::JobSubmitted { job, name } => info!(%job, name, "job submitted"),
        LogLine::JobEnded { job, status } => {
            info!(%job, status = status.as_str_name(), "job ended");
        }
        LogLine::ResultNotWritten { job, failure } => {
            error!(%job, %failure, "the result of a job could not be written");
        }
        LogLine::CleanupResumed { job } => {
            info!(%job, "the cleanup of an ended job is resumed");
        }
        LogLine::NotMarkedClean { job, failure } => {
            warn!(%job, %failure, "a result could not be marked clean");
        }
        LogLine::ResultsNotDeleted { failure } => {
            warn!(%failure, "expired results could not be removed");
        }
        LogLine::DescriptionsNotDropped { failure } => {
            warn!(%failure, "descriptions beyond the capacity could not be dropped");
        }
        LogLine::RetentionNotNoted { job, failure } => {
            warn!(%job, %failure, "the retention count could not be written: results may be kept longer");
        }
        LogLine::Quarantined { job, reason } => error!(%job, reason, "a job is quarantined"),
        LogLine::WasCancelled { job } => {
            info!(%job, "a job that can't be led was cancelled before, and ends as CANCELED");
        }
        LogLine::DirectoriesUnknown { job } => {
            warn!(%job, "the sink directories of a quarantined job are unknown: its files may be left behind");
        }
        LogLine::QuarantineNotWritten { job, failure } => {
            warn!(%job, %failure, "the quarantine of this job could not be written: the next term recovers the job again");
        }
        LogLine::LedAgain { job } => info!(%job, "a quarantined job is led again"),
        LogLine::JobNotReread { job, failure } => {
            info!(%job, %failure, "a job whose JobMaster broke is left to the next term: this one is ending");
        }
        LogLine::SuspectNotRead { job, failure } => {
            warn!(%job, %failure, "a job that waits to be recovered is left to the next term: this one is ending");
        }
        LogLine::SuspectCancelled { job } => {
            info!(%job, "a job is cancelled before it is recovered");
        }
        LogLine::RecordsUnavailable { job, reason } => {
            warn!(%job, reason, "a job can't be read for now; reading is retried");
        }
        LogLine::ResultUnavailable { job, reason } => {
            warn!(%job, reason, "the result of an ended job can't be read for now; reading is retried");
        }
        LogLine::ResultRead { job } => info!(%job, "the result of an ended job is read"),
    }
}
