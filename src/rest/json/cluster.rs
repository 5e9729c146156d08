//! Bodies about the cluster as a whole: `/overview`, `/config`.

use serde::Serialize;
use tanist_proto::v1::ClusterOverview;

use super::{REVISION, VERSION};

/// `/overview`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Overview {
    /// Registered TaskManagers.
    pub taskmanagers: u32,
    /// Those of them that are drained.
    pub taskmanagers_blocked: u32,
    /// Those that a driver starts and that have not registered.
    pub taskmanagers_pending: usize,
    /// Their slots.
    pub slots_total: u32,
    /// Those that no job has, of TaskManagers that are not drained.
    pub slots_available: u32,
    /// Those that no job has, of TaskManagers that are.
    pub slots_free_and_blocked: u32,
    /// Jobs that have not ended.
    pub jobs_running: u32,
    /// Jobs that FINISHED.
    pub jobs_finished: u32,
    /// Jobs that were CANCELED.
    pub jobs_cancelled: u32,
    /// Jobs that FAILED.
    pub jobs_failed: u32,
    /// This program's version.
    pub flink_version: &'static str,
    /// This program's revision.
    pub flink_commit: &'static str,
}

impl Overview {
    /// The overview that the leader gave.
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
    /// Milliseconds between its reads.
    pub refresh_interval: u64,
    /// The zone of all times.
    pub timezone_name: &'static str,
    /// Milliseconds from UTC.
    pub timezone_offset: i64,
    /// This program's version.
    pub flink_version: &'static str,
    /// This program's revision.
    pub flink_revision: &'static str,
    /// What it may offer.
    pub features: Features,
}

/// What a user interface may offer.
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
    /// What holds for every Tanist cluster.
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
