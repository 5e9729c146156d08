//! The status of a stop that was requested through Flink's API: the body of `/jobs/:id/savepoints/:trigger`.

use serde::Serialize;
use tanist_proto::JobEnd;
use tanist_proto::v1::{BlockedReasonKind, JobDetails, JobEventKind};

use super::failure_cause::FailureCause;
use super::job::status_of;
use super::result::QueueStatus;

/// Takes the place of a savepoint's path after a job was drained. Flink's client displays it; nothing can be
/// restored from it, as it is neither a scheme nor a file.
const NO_SAVEPOINT: &str = "none: the job was drained and has finished, no savepoint was taken";

/// An asynchronous operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Operation {
    /// Whether it has ended.
    pub(crate) status: QueueStatus,
    /// How it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) operation: Option<Savepoint>,
}

/// The end of a stop: exactly one of the two fields is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Savepoint {
    /// Text in place of a savepoint's path: there is none, as the job was drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) location: Option<&'static str>,
    /// Why the job did not finish.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure_cause: Option<FailureCause>,
}

impl Operation {
    /// The status of a job's stop, from the job's record alone; `None` if it was not asked to stop.
    pub(crate) fn of_stop(job: &JobDetails) -> Option<Operation> {
        let ended = |savepoint| Operation {
            status: QueueStatus { id: "COMPLETED" },
            operation: Some(savepoint),
        };
        let failed = |class, text: &str| {
            ended(Savepoint {
                location: None,
                failure_cause: Some(FailureCause::new(class, text)),
            })
        };
        let is_told = |kind| job.events.iter().any(|event| event.kind() == kind);
        let is_stopping = |kind| kind == BlockedReasonKind::Stopping;
        let is_asked = is_told(JobEventKind::Stop)
            || job.blocked_reasons.iter().any(|it| is_stopping(it.kind()))
            // The remaining record of an old job does not say whether it was asked to stop.
            || !job.undescribed.is_empty();
        if !is_asked {
            return None;
        }
        let Some(end) = status_of(job).end() else {
            return Some(Operation {
                status: QueueStatus { id: "IN_PROGRESS" },
                operation: None,
            });
        };
        Some(match end {
            JobEnd::Finished => ended(Savepoint {
                location: Some(NO_SAVEPOINT),
                failure_cause: None,
            }),
            JobEnd::Canceled if is_told(JobEventKind::Cancel) => failed(
                "tanist.JobCanceled",
                "the job was cancelled before it had stopped",
            ),
            JobEnd::Canceled => failed(
                "tanist.JobCanceled",
                "the job was cancelled: none of its tasks had begun, so there was nothing to drain",
            ),
            JobEnd::Failed => {
                let why = job.failures.last().map_or("the job failed", |it| &it.cause);
                failed("tanist.JobFailed", why)
            }
        })
    }
}
