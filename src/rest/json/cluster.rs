//! Bodies about the cluster as a whole: `/overview`, `/config`.

use serde::Serialize;
use tanist_proto::v1::ClusterOverview;

use super::{REVISION, VERSION};

/// `/overview`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Overview {
    /// Number of registered TaskManagers.
    pub(crate) taskmanagers: u32,
    /// Number of registered TaskManagers that are drained.
    pub(crate) taskmanagers_blocked: u32,
    /// Number of TaskManagers that a driver starts and that have not registered.
    pub(crate) taskmanagers_pending: usize,
    /// Number of slots of the registered TaskManagers.
    pub(crate) slots_total: u32,
    /// Number of free slots of TaskManagers that are not drained.
    pub(crate) slots_available: u32,
    /// Number of free slots of TaskManagers that are drained.
    pub(crate) slots_free_and_blocked: u32,
    /// Number of jobs that have not ended.
    pub(crate) jobs_running: u32,
    /// Number of jobs that FINISHED.
    pub(crate) jobs_finished: u32,
    /// Number of jobs that were CANCELED.
    pub(crate) jobs_cancelled: u32,
    /// Number of jobs that FAILED.
    pub(crate) jobs_failed: u32,
    /// The version of this program.
    pub(crate) flink_version: &'static str,
    /// The revision of this program.
    pub(crate) flink_commit: &'static str,
}

impl Overview {
    /// The leader's overview.
    pub(crate) fn new(overview: &ClusterOverview) -> Overview {
        Overview {
            taskmanagers: overview.task_managers,
            taskmanagers_blocked: overview.task_managers_blocked,
            taskmanagers_pending: overview.workers.as_ref().map_or(0, |it| it.pending.len()),
            slots_total: overview.slots_total,
            slots_available: overview.slots_available,
            slots_free_and_blocked: overview.slots_free_and_blocked,
            jobs_running: overview.jobs_running,
            jobs_finished: overview.jobs_finished,
            jobs_cancelled: overview.jobs_cancelled,
            jobs_failed: overview.jobs_failed,
            flink_version: VERSION,
            flink_commit: REVISION,
        }
    }
}

/// `/config`: what a user interface has to know before it shows anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct UiConfig {
    /// Interval between its reads, in milliseconds.
    pub(crate) refresh_interval: u64,
    /// The zone of all times.
    pub(crate) timezone_name: &'static str,
    /// Offset from UTC, in milliseconds.
    pub(crate) timezone_offset: i64,
    /// The version of this program.
    pub(crate) flink_version: &'static str,
    /// The revision of this program.
    pub(crate) flink_revision: &'static str,
    /// The features that it may offer.
    pub(crate) features: Features,
}

/// The features that a user interface may offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Features {
    /// Uploading programs.
    pub(crate) web_submit: bool,
    /// Cancelling jobs.
    pub(crate) web_cancel: bool,
    /// Rescaling jobs.
    pub(crate) web_rescale: bool,
    /// Whether this is a history server.
    pub(crate) web_history: bool,
}

impl Default for UiConfig {
    /// The values of every Tanist cluster.
    fn default() -> UiConfig {
        UiConfig {
            refresh_interval: 3000,
            timezone_name: "UTC",
            timezone_offset: 0,
            flink_version: VERSION,
            flink_revision: REVISION,
            features: Features {
                web_submit: false,
                web_cancel: true,
                web_rescale: false,
                web_history: false,
            },
        }
    }
}
