//! Values of the options of checkpoints: the only mode, the only number at a time, the limit of failures, what is
//! retained, and what jobs begin from.
//!
//! Flink has more modes and numbers. They are read, so that a configuration of Flink is refused with the reason.

use std::fmt;
use std::str::FromStr;

use tanist_proto::id::JobId;

use super::address::StorageLocation;
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

/// What becomes of the newest checkpoint of a job that is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointRetention {
    /// It is removed.
    DeleteOnCancellation,
    /// It is kept as long as the result of the job.
    RetainOnCancellation,
}

impl OptionValue for CheckpointRetention {
    const KIND: &'static str = "`DELETE_ON_CANCELLATION` or `RETAIN_ON_CANCELLATION`";

    fn parse(text: &str) -> Result<CheckpointRetention, String> {
        match text.to_ascii_lowercase().replace('-', "_").as_str() {
            "delete_on_cancellation" => Ok(CheckpointRetention::DeleteOnCancellation),
            "retain_on_cancellation" => Ok(CheckpointRetention::RetainOnCancellation),
            "no_externalized_checkpoints" => Err(
                "is not supported: the newest checkpoint of a job that FAILED is always kept; write \
                 `DELETE_ON_CANCELLATION` to have that of a cancelled job removed"
                    .to_owned(),
            ),
            _ => Err(
                "is neither `DELETE_ON_CANCELLATION` nor `RETAIN_ON_CANCELLATION`".to_owned(),
            ),
        }
    }
}

/// Which job owns a retained checkpoint after another job began from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClaimMode {
    /// It stays as it is, and can be used again.
    #[default]
    NoClaim,
    /// It is moved to the job, which removes it once it has a checkpoint of its own.
    Claim,
}

impl OptionValue for ClaimMode {
    const KIND: &'static str = "`NO_CLAIM` or `CLAIM`";

    fn parse(text: &str) -> Result<ClaimMode, String> {
        match text.to_ascii_lowercase().replace('-', "_").as_str() {
            "no_claim" => Ok(ClaimMode::NoClaim),
            "claim" => Ok(ClaimMode::Claim),
            "legacy" => Err(
                "is not supported: nothing but the job that it belongs to removes a checkpoint; write `NO_CLAIM`, and it \
                 stays as it is, or `CLAIM`"
                    .to_owned(),
            ),
            _ => Err("is no claim mode: write `NO_CLAIM` or `CLAIM`".to_owned()),
        }
    }
}

impl FromStr for ClaimMode {
    type Err = String;

    fn from_str(text: &str) -> Result<ClaimMode, String> {
        ClaimMode::parse(text.trim())
    }
}

impl fmt::Display for ClaimMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClaimMode::NoClaim => "NO_CLAIM",
            ClaimMode::Claim => "CLAIM",
        })
    }
}

/// What a job begins from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestoreFrom {
    /// The directory of a savepoint.
    Savepoint(StorageLocation),
    /// The retained checkpoint of an ended job.
    Job(JobId),
}

impl OptionValue for RestoreFrom {
    const KIND: &'static str = "absolute path, s3:// URL, or `job:ID`";

    fn parse(text: &str) -> Result<RestoreFrom, String> {
        match text.strip_prefix("job:") {
            Some(job) => job
                .trim()
                .parse()
                .map(RestoreFrom::Job)
                .map_err(|_| "names no job: write `job:` and its id, 32 hex digits".to_owned()),
            None => StorageLocation::parse(text).map(RestoreFrom::Savepoint),
        }
    }
}

impl FromStr for RestoreFrom {
    type Err = String;

    fn from_str(text: &str) -> Result<RestoreFrom, String> {
        RestoreFrom::parse(text.trim())
    }
}

impl fmt::Display for RestoreFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreFrom::Savepoint(path) => path.fmt(f),
            RestoreFrom::Job(job) => write!(f, "job:{job}"),
        }
    }
}
