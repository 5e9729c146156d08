//! Which submissions, cancellations and results a Dispatcher accepts: pure.

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::quarantine::sink_directories;
use crate::gateway::{GatewayError, GatewayResult};
use crate::job::InvalidJobGraph;

/// What makes a submission the same as another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubmissionKey {
    /// The client's token, the same for every try.
    pub token: String,
    /// SHA-256 of the encoded graph.
    pub digest: Vec<u8>,
}

/// A submission that was checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Submission {
    /// Which job.
    pub job: JobId,
    /// What is to run.
    pub graph: pb::JobGraph,
    /// What makes it the same as another one.
    pub key: SubmissionKey,
    /// Milliseconds since 1970 after which it is refused; 0: never.
    pub deadline_ms: u64,
    /// Why it is refused unless an earlier version has accepted it.
    pub flaw: Option<InvalidJobGraph>,
}

/// What a Dispatcher knows of a job, as far as it matters to a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known<'a> {
    /// Nothing.
    Nothing,
    /// It is being persisted.
    Persisting(&'a SubmissionKey),
    /// It is there: running or quarantined.
    Accepted(&'a SubmissionKey),
    /// It has ended, and its result is kept.
    Ended {
        /// By which submission it ran.
        key: &'a SubmissionKey,
        /// Whether what it left is still being removed.
        dirty: bool,
    },
}

/// What becomes of a submission.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is persisted.
    Accept,
    /// It waits for the answer that an earlier try of the same submission gets.
    Join,
    /// It is admitted or refused when another one under the same id is in the store or not: that may never get there.
    Undecided,
    /// It gets the answer of an earlier try: acknowledged.
    Repeated,
    /// The same, when what the job left is removed.
    RepeatedWhenClean,
}

/// Decides about a submission that arrives at `now_ms`.
pub fn admit(submission: &Submission, known: Known<'_>, now_ms: u64) -> GatewayResult<Admission> {
    let same = |key: &SubmissionKey| *key == submission.key;
    match known {
        Known::Persisting(key) if same(key) => Ok(Admission::Join),
        Known::Persisting(_) => Ok(Admission::Undecided),
        Known::Accepted(key) if same(key) => Ok(Admission::Repeated),
        // Whoever asks for the same graph under the same id asks for its result.
        Known::Ended { key, dirty } if key.digest == submission.key.digest => Ok(if dirty {
            Admission::RepeatedWhenClean
        } else {
            Admission::Repeated
        }),
        Known::Accepted(key) | Known::Ended { key, .. } => {
            let what = if key.digest == submission.key.digest {
                "another submission of the same graph"
            } else {
                "another graph"
            };
            Err(GatewayError::Conflict(format!(
                "job {} was already submitted, by {what}: choose another job id",
                submission.job
            )))
        }
        Known::Nothing if submission.deadline_ms != 0 && now_ms > submission.deadline_ms => {
            Err(GatewayError::Invalid(format!(
                "this submission of job {} arrived after its deadline: submit it anew",
                submission.job
            )))
        }
        Known::Nothing => match &submission.flaw {
            Some(flaw) => Err(GatewayError::Invalid(flaw.to_string())),
            None => Ok(Admission::Accept),
        },
    }
}

/// The state of a job that was just submitted: generation 0, nothing deployed.
pub fn first_state(submission: &Submission, now_ms: u64) -> pb::JobState {
    pb::JobState {
        job_id: submission.job.to_string(),
        name: submission.graph.name.clone(),
        submitted_at_ms: now_ms,
        submission_token: submission.key.token.clone(),
        graph_digest: submission.key.digest.clone(),
        sinks: Some(pb::SinkDirectories {
            paths: sink_directories(&submission.graph),
        }),
        ..pb::JobState::default()
    }
}

/// Whether a result may be forgotten at `now_ms`: clean, and older than the retention time.
pub fn is_expired(result: &pb::JobResult, now_ms: u64, retention_ms: u64) -> bool {
    !result.dirty && now_ms > result.ended_at_ms.saturating_add(retention_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submission(token: &str, digest: u8) -> Submission {
        Submission {
            job: JobId::from_bits(1),
            graph: pb::JobGraph::default(),
            key: SubmissionKey {
                token: token.to_owned(),
                digest: vec![digest],
            },
            deadline_ms: 100,
            flaw: None,
        }
    }

    #[test]
    fn the_same_submission_gets_the_same_answer_however_often_it_comes() {
        let first = submission("t", 1);
        assert_eq!(admit(&first, Known::Nothing, 50), Ok(Admission::Accept));
        assert_eq!(
            admit(&first, Known::Persisting(&first.key), 50),
            Ok(Admission::Join)
        );
        assert_eq!(
            admit(&first, Known::Accepted(&first.key), 50),
            Ok(Admission::Repeated)
        );
    }

    #[test]
    fn nothing_is_refused_for_a_submission_that_is_not_in_the_store_yet() {
        let (first, other) = (submission("t", 1), submission("u", 2));
        let undecided = admit(&other, Known::Persisting(&first.key), 50);
        assert_eq!(undecided, Ok(Admission::Undecided));
    }

    #[test]
    fn the_same_graph_under_the_id_of_an_ended_job_gets_its_result_and_another_one_is_refused() {
        let (first, later, other) = (submission("t", 1), submission("u", 1), submission("u", 2));
        let ended = |dirty| Known::Ended {
            key: &first.key,
            dirty,
        };
        for asked in [&first, &later] {
            assert_eq!(admit(asked, ended(false), 500), Ok(Admission::Repeated));
            let waits = admit(asked, ended(true), 500);
            assert_eq!(waits, Ok(Admission::RepeatedWhenClean));
        }
        let refusal = admit(&other, ended(true), 50);
        assert!(matches!(refusal, Err(GatewayError::Conflict(_))));
    }

    #[test]
    fn a_repeated_submission_is_answered_even_after_its_deadline() {
        let first = submission("t", 1);
        assert_eq!(
            admit(&first, Known::Accepted(&first.key), 500),
            Ok(Admission::Repeated)
        );
        assert!(matches!(
            admit(&first, Known::Nothing, 101),
            Err(GatewayError::Invalid(_))
        ));
    }

    #[test]
    fn what_an_earlier_version_accepted_is_answered_and_would_be_refused_as_a_job_of_its_own() {
        let flaw = InvalidJobGraph {
            problems: vec!["the path `a` is relative".to_owned()],
        };
        let flawed = Submission {
            flaw: Some(flaw),
            ..submission("t", 1)
        };
        let key = &flawed.key;
        let ended = Known::Ended { key, dirty: false };
        for known in [Known::Accepted(key), ended] {
            assert_eq!(admit(&flawed, known, 50), Ok(Admission::Repeated));
        }
        let refusal = admit(&flawed, Known::Nothing, 50);
        let is_told = |reason: &str| reason.contains("the path `a` is relative");
        assert!(
            matches!(&refusal, Err(GatewayError::Invalid(reason)) if is_told(reason)),
            "{refusal:?}"
        );
    }

    #[test]
    fn the_id_of_another_job_is_refused() {
        let first = submission("t", 1);
        for other in [submission("t", 2), submission("u", 1)] {
            let refusal = admit(&other, Known::Accepted(&first.key), 50);
            assert!(
                matches!(refusal, Err(GatewayError::Conflict(_))),
                "{refusal:?}"
            );
        }
    }

    #[test]
    fn only_clean_results_expire() {
        let mut result = pb::JobResult {
            ended_at_ms: 1000,
            dirty: true,
            ..Default::default()
        };
        assert!(!is_expired(&result, 10_000, 500));
        result.dirty = false;
        assert!(is_expired(&result, 10_000, 500));
        assert!(!is_expired(&result, 1400, 500));
    }
}
