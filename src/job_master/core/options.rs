//! Timeouts and limits of the core.

use super::{FailoverStrategy, RestartStrategy};

/// Timeouts and limits of the core. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct CoreOptions {
    /// Timeout of a region's wait for slots. After it the wait counts as a failure.
    pub slot_request_timeout_ms: u64,
    /// Time after which an idle slot that the job doesn't need is given back.
    pub slot_idle_timeout_ms: u64,
    /// Timeout for a cancelled task to stop. After it the JobMaster gives its TaskManager up.
    pub task_cancellation_timeout_ms: u64,
    /// Time to wait, after a recovery, for a TaskManager that the record names.
    pub reconcile_timeout_ms: u64,
    /// The strategy for graphs that name none.
    pub restart_strategy: RestartStrategy,
    /// Number of slots from which on a driver starts no more TaskManagers. None if there is no driver or no
    /// limit.
    pub max_slots: Option<u32>,
    /// Which regions restart after a failure.
    pub failover_strategy: FailoverStrategy,
    /// Number of failures that the record keeps.
    pub exception_history_size: usize,
    /// A job that would have more regions has one for each set of vertices that pipelined edges connect.
    pub max_regions: usize,
    /// Seed of the jitter.
    pub seed: u64,
}
