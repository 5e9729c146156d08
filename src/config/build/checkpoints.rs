//! Builds the options of checkpoints, and of what jobs begin from.

use std::time::Duration;

use super::super::checkpointing::{ExactlyOnce, OneAtATime, SHORTEST_INTERVAL_MS};
use super::super::options::*;
use super::super::table::*;
use super::Builder;

impl Builder<'_> {
    pub(super) fn checkpoints(&mut self) -> CheckpointOptions {
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
            retention: values.get(&CHECKPOINTING_RETENTION),
            savepoint_dir: values.find(&SAVEPOINT_DIR),
        }
    }

    pub(super) fn state_recovery(&mut self) -> StateRecoveryOptions {
        StateRecoveryOptions {
            path: self.values.find(&STATE_RECOVERY_PATH),
            ignore_unclaimed_state: self.values.get(&STATE_RECOVERY_IGNORE_UNCLAIMED),
            claim_mode: self.values.get(&STATE_RECOVERY_CLAIM_MODE),
        }
    }
}
