//! Options of a ResourceManager.

use std::time::Duration;

use crate::core::Balance;

/// Intervals and limits. The defaults are Flink's, except for `requirement_check_delay`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `heartbeat.interval`: time between two heartbeats to a TaskExecutor.
    pub heartbeat_interval: Duration,
    /// `heartbeat.timeout`: a TaskExecutor that has answered no heartbeat for this long is lost.
    pub heartbeat_timeout: Duration,
    /// `heartbeat.rpc-failure-threshold`: number of refused calls in a row after which a TaskExecutor is lost
    /// before the heartbeat timeout, unless this process is the one that is cut off. `None`: never.
    pub rpc_failure_threshold: Option<u32>,
    /// `rpc.ask.timeout`: timeout of every call that is not a heartbeat.
    pub rpc_timeout: Duration,
    /// How long changes are collected before slots are matched. As long as a burst of changes lasts
    /// (TaskExecutors that follow one leader, slots that are reported together), but no longer: every start and
    /// every takeover waits for it.
    pub requirement_check_delay: Duration,
    /// Delay before a refused slot is offered again and an unanswered slot request is repeated.
    pub slot_request_retry_delay: Duration,
    /// `resourcemanager.job.timeout`: how long a job without JobMaster keeps its requirements and unused slots.
    pub job_timeout: Duration,
    /// `resourcemanager.standalone.start-up-time`: how long TaskExecutors may take to register before a job is
    /// notified that no TaskExecutor can serve it.
    pub start_up_time: Duration,
    /// `taskmanager.load-balance.mode`.
    pub balance: Balance,
    /// `slotmanager.reservation.delay`: how long the first job that lacks slots waits before slots are kept for
    /// it.
    pub reservation_delay: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            heartbeat_interval: Duration::from_secs(10),
            heartbeat_timeout: Duration::from_secs(50),
            rpc_failure_threshold: Some(2),
            rpc_timeout: Duration::from_secs(10),
            requirement_check_delay: Duration::from_millis(2),
            slot_request_retry_delay: Duration::from_millis(500),
            job_timeout: Duration::from_secs(300),
            start_up_time: Duration::from_secs(300),
            balance: Balance::None,
            reservation_delay: Duration::from_secs(10),
        }
    }
}
