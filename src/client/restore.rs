//! The savepoint or checkpoint from which a job begins, instead of from the start.

use std::fmt::Write as _;

use tanist_config::{ClaimMode, Configuration, RestoreFrom};
use tanist_proto::v1 as pb;

/// A savepoint, or the retained checkpoint of an ended job, from which a job takes over the state of its steps.
///
/// State finds its step by the step's `uid`, or by its name. The job may have another parallelism and other steps. What
/// it begins from stays as it is, unless it is claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restore {
    from: RestoreFrom,
    allow_non_restored_state: bool,
    claim_mode: ClaimMode,
}

impl Restore {
    /// Begins from this savepoint or checkpoint.
    pub fn new(from: RestoreFrom) -> Restore {
        Restore {
            from,
            allow_non_restored_state: false,
            claim_mode: ClaimMode::NoClaim,
        }
    }

    /// Sets whether state that no step of the job has is left out. Otherwise the job is refused.
    #[must_use]
    pub fn allowing_non_restored_state(self, is_allowed: bool) -> Restore {
        Restore {
            allow_non_restored_state: is_allowed,
            ..self
        }
    }

    /// Sets whether a retained checkpoint is moved to the job. A savepoint can't be claimed.
    #[must_use]
    pub fn with_claim_mode(self, claim_mode: ClaimMode) -> Restore {
        Restore { claim_mode, ..self }
    }

    /// Returns what `execution.state-recovery.path` says.
    pub fn configured(configuration: &Configuration) -> Option<Restore> {
        let options = &configuration.client().state_recovery;
        let restore = Restore::new(options.path.clone()?);
        let restore = restore.with_claim_mode(options.claim_mode);
        Some(restore.allowing_non_restored_state(options.ignore_unclaimed_state))
    }

    /// What the job begins from.
    pub fn from(&self) -> &RestoreFrom {
        &self.from
    }

    /// Whether state that no step of the job has is left out.
    pub fn allows_non_restored_state(&self) -> bool {
        self.allow_non_restored_state
    }

    /// The same in the form of the protocol between processes.
    pub fn request(&self) -> pb::RestoreRequest {
        let from = match &self.from {
            RestoreFrom::Savepoint(path) => pb::restore_request::From::Path(path.to_string()),
            RestoreFrom::Job(job) => pb::restore_request::From::JobId(job.to_string()),
        };
        pb::RestoreRequest {
            from: Some(from),
            allow_non_restored_state: self.allow_non_restored_state,
            claim_mode: match self.claim_mode {
                ClaimMode::NoClaim => pb::RecoveryClaimMode::NoClaim,
                ClaimMode::Claim => pb::RecoveryClaimMode::Claim,
            }
            .into(),
        }
    }

    /// The query of a submission.
    pub(super) fn query(&self) -> String {
        let from = encoded(&self.from.to_string());
        let allow = self.allow_non_restored_state;
        let claim_mode = match self.claim_mode {
            ClaimMode::NoClaim => String::new(),
            ClaimMode::Claim => format!("&claim-mode={}", ClaimMode::Claim),
        };
        format!("savepoint-path={from}&allow-non-restored-state={allow}{claim_mode}")
    }
}

/// A text as the value of a query parameter.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' => {
                encoded.push(char::from(byte));
            }
            other => write!(encoded, "%{other:02X}").expect("writing to a string succeeds"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_any_name_is_one_value_of_the_query() {
        let from: RestoreFrom = "/save points/a&b=c%".parse().expect("a path");
        let restore = Restore::new(from).allowing_non_restored_state(true);
        assert_eq!(
            restore.query(),
            "savepoint-path=/save%20points/a%26b%3Dc%25&allow-non-restored-state=true"
        );
        let claimed = restore.with_claim_mode(ClaimMode::Claim);
        assert!(claimed.query().ends_with("=true&claim-mode=CLAIM"));
        let expected = pb::RecoveryClaimMode::Claim;
        assert_eq!(claimed.request().claim_mode(), expected);
    }
}
