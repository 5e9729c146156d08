//! Values of the options of checkpoints: the only mode, the only number at a time, and the limit of failures.
//!
//! Flink has more modes and numbers. They are read, so that a configuration of Flink is refused with the reason.

use super::value::OptionValue;

/// The shortest interval between two checkpoints, in milliseconds.
pub(super) const SHORTEST_INTERVAL_MS: u64 = 10;

/// The mode of checkpoints: each record counts once in the restored state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExactlyOnce;

impl OptionValue for ExactlyOnce {
    const KIND: &'static str = "`EXACTLY_ONCE`";

    fn parse(text: &str) -> Result<ExactlyOnce, String> {
        match text.to_ascii_lowercase().replace('-', "_").as_str() {
            "exactly_once" => Ok(ExactlyOnce),
            "at_least_once" => Err(
                "is not supported: barriers are always aligned, so that no record counts twice; write `EXACTLY_ONCE` \
                 or remove it"
                    .to_owned(),
            ),
            _ => Err("is no mode: write `EXACTLY_ONCE` or remove it".to_owned()),
        }
    }
}

/// The number of checkpoints of a region that are in progress at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OneAtATime;

impl OptionValue for OneAtATime {
    const KIND: &'static str = "1";

    fn parse(text: &str) -> Result<OneAtATime, String> {
        match text {
            "1" => Ok(OneAtATime),
            _ => Err(
                "is not supported: a region has one checkpoint in progress at most; write 1 or remove it"
                    .to_owned(),
            ),
        }
    }
}

/// Number of failed checkpoints of a region in a row that are no failure of the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TolerableFailures {
    /// `None`: any number (written `-1`).
    pub(super) limit: Option<u32>,
}

impl OptionValue for TolerableFailures {
    const KIND: &'static str = "number, or -1";

    fn parse(text: &str) -> Result<TolerableFailures, String> {
        if text == "-1" {
            return Ok(TolerableFailures { limit: None });
        }
        let number = text.parse().map_err(|_| {
            "is neither a whole number from 0 nor -1 (which tolerates any number)".to_owned()
        })?;
        Ok(TolerableFailures {
            limit: Some(number),
        })
    }
}
