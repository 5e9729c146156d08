//! Options of a Dispatcher, taken from the configuration.

use std::time::Duration;

/// Options of a Dispatcher.
#[derive(Debug, Clone)]
pub struct DispatcherOptions {
    /// Time for which the result of an ended job is kept (`jobstore.expiration-time`).
    pub result_retention: Duration,
    /// Maximum number of ended jobs whose descriptions are kept (`jobstore.max-capacity`).
    pub max_described: usize,
    /// Maximum total size of a job's uploaded files, in bytes (`artifacts.max-size`).
    pub max_uploaded: u64,
    /// Interval at which expired results are removed.
    pub expiration_interval: Duration,
    /// Capacity of the mailbox.
    pub mailbox: usize,
    /// Timeout of a submission or cancellation for the store; then the answer is that the outcome is unknown.
    pub store_timeout: Duration,
}

impl Default for DispatcherOptions {
    fn default() -> DispatcherOptions {
        DispatcherOptions {
            result_retention: Duration::from_secs(3600),
            max_described: usize::MAX,
            max_uploaded: u64::MAX,
            expiration_interval: Duration::from_secs(30),
            mailbox: 1024,
            store_timeout: Duration::from_secs(5),
        }
    }
}
