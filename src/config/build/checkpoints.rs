//! Builds the options of checkpoints.

use std::time::Duration;

use super::super::address::StorageLocation;
use super::super::checkpointing::{ExactlyOnce, OneAtATime, SHORTEST_INTERVAL_MS};
use super::super::options::*;
use super::super::table::*;
use super::Builder;

impl Builder<'_> {
    /// `ha` has the storage that is used unless checkpoints have one of their own.
    pub(super) fn checkpoints(&mut self, ha: &HaOptions) -> CheckpointOptions {
        let values = self.values;
        // Each has one value; another one is refused when it is read.
        let ExactlyOnce = values.get(&CHECKPOINTING_MODE);
        let OneAtATime = values.get(&CHECKPOINTING_MAX_CONCURRENT);
        let interval = values
            .find(&CHECKPOINTING_INTERVAL)
            .filter(|it| !it.is_zero());
        let shortest = Duration::from_millis(SHORTEST_INTERVAL_MS);
        self.require(
            interval.is_none_or(|it| it >= shortest),
            &[CHECKPOINTING_INTERVAL.name],
            || format!("write at least `{SHORTEST_INTERVAL_MS} ms`, or 0 for no checkpoints"),
        );
        CheckpointOptions {
            interval,
            min_pause: values.get(&CHECKPOINTING_MIN_PAUSE),
            timeout: self.positive(&CHECKPOINTING_TIMEOUT),
            tolerable_failures: values.get(&CHECKPOINTING_TOLERABLE).limit,
            retained: values.get(&CHECKPOINTING_RETAINED),
            storage: self.checkpoint_storage(ha),
        }
    }

    fn checkpoint_storage(&self, ha: &HaOptions) -> Option<StorageOptions> {
        let Some(location) = self.values.find(&CHECKPOINTING_DIR) else {
            return ha.storage.clone();
        };
        let one_host = ha.backend.directory().is_some();
        let bucket = matches!(location, StorageLocation::S3(_));
        let declared = self.values.get(&HA_STORAGE_SHARED);
        Some(StorageOptions {
            location,
            shared: one_host || bucket || declared,
        })
    }
}
