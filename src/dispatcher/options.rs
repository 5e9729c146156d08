//! How a Dispatcher behaves: what of the configuration it needs.

use std::time::Duration;

/// How a Dispatcher behaves.
#[derive(Debug, Clone)]
pub struct DispatcherOptions {
    /// How long the result of an ended job is kept (`jobstore.expiration-time`).
    pub result_retention: Duration,
    /// Of how many ended jobs the description is kept at most (`jobstore.max-capacity`).
    pub max_described: usize,
    /// How many bytes the uploaded files of a job may have together (`artifacts.max-size`).
    pub max_uploaded: u64,
    /// How often expired results are looked for.
    pub expiration_interval: Duration,
    /// How many requests wait at most.
    pub mailbox: usize,
    /// How long a submission or cancellation waits for the store before it is answered that its fate is unknown.
    pub store_patience: Duration,
}

impl Default for DispatcherOptions {
    fn default() -> DispatcherOptions {
        DispatcherOptions {
            result_retention: Duration::from_secs(3600),
            max_described: usize::MAX,
            max_uploaded: u64::MAX,
            expiration_interval: Duration::from_secs(30),
            mailbox: 1024,
            store_patience: Duration::from_secs(5),
        }
    }
}
