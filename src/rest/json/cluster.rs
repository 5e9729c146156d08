//! Bodies about the cluster as a whole: `/overview`, `/config`.

use serde::Serialize;
use tanist_proto::v1::ClusterOverview;

use super::{REVISION, VERSION};

/// `/overview`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Overview {
    /// Number of registered TaskManagers.
    pub taskmanagers: u32,
    /// Number of registered TaskManagers that are drained.
    pub taskmanagers_blocked: u32,
    /// Number of TaskManagers that a driver starts and that have not registered.
    pub taskmanagers_pending: usize,
    /// Number of slots of the registered TaskManagers.
    pub slots_total: u32,
    /// Number of free slots of TaskManagers that are not drained.
    pub slots_available: u32,
    /// Number of free slots of TaskManagers that are drained.
    pub slots_free_and_blocked: u32,
    /// Number of jobs that have not ended.
    pub jobs_running: u32,
    /// Number of jobs that FINISHED.
    pub jobs_finished: u32,
    /// Number of jobs that were CANCELED.
    pub jobs_cancelled: u32,
    /// Number of jobs that FAILED.
    pub jobs_failed: u32,
    /// The version of this program.
    pub flink_version: &'static str,
    /// The revision of this program.
    pub flink_commit: &'static str,
}

impl Overview {
    /// The leader's overview.
    pub fn new(overview: &ClusterOverview) -> Overview {
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
pub struct UiConfig {
    /// Interval between its reads, in milliseconds.
    pub refresh_interval: u64,
    /// The zone of all times.
    pub timezone_name: &'static str,
    /// Offset from UTC, in milliseconds.
    pub timezone_offset: i64,
    /// The version of this program.
    pub flink_version: &'static str,
    /// The revision of this program.
    pub flink_revision: &'static str,
    /// The features that it may offer.
    pub features: Features,
}

/// The features that a user interface may offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Features {
    /// Uploading programs.
    pub web_submit: bool,
    /// Cancelling jobs.
    pub web_cancel: bool,
    /// Rescaling jobs.
    pub web_rescale: bool,
    /// Whether this is a history server.
    pub web_history: bool,
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
