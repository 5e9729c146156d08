//! Decides which submissions a Dispatcher accepts and when a result expires. Pure.

use tanist_gateway::{GatewayError, GatewayResult};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

/// Identity of a submission: two submissions with the same key are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SubmissionKey {
    /// The client's token, the same for every try.
    pub token: String,
    /// SHA-256 of the encoded graph.
    pub digest: Vec<u8>,
}

impl SubmissionKey {
    /// Key of a job whose record of the submission can't be read, now or when the job ended.
    pub(crate) fn unknown() -> SubmissionKey {
        SubmissionKey {
            token: String::new(),
            digest: Vec::new(),
        }
    }

    /// Whether this is [`SubmissionKey::unknown`].
    pub(crate) fn is_unknown(&self) -> bool {
        self.token.is_empty() && self.digest.is_empty()
    }
}

/// A checked submission.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Submission {
    /// Id of the job.
    pub job: JobId,
    /// The job graph to run.
    pub graph: pb::JobGraph,
    /// Identity, to recognize a repeated submission.
    pub key: SubmissionKey,
    /// The submission is accepted until this deadline.
    pub deadline: Deadline,
    /// What the job begins from; `None`: from the start.
    pub restore: Option<pb::RestoreRequest>,
    /// Why the checks refuse it; `None`: they don't. Only a submission of an unknown job is refused for it: another
    /// build, or another limit, may have accepted the same one before.
    pub flaw: Option<String>,
}

/// Time until which a submission may be accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// No deadline.
    Never,
    /// Measured by the clock of one term. No other leader has this clock.
    OfTerm {
        /// Epoch of the term.
        epoch: u64,
        /// Time on that clock, in milliseconds.
        until_ms: u64,
    },
}

impl Deadline {
    /// Reads the deadline of a request.
    pub(crate) fn of(request: &pb::SubmitJobRequest) -> Deadline {
        match request.deadline_ms {
            0 => Deadline::Never,
            until_ms => Deadline::OfTerm {
                epoch: request.deadline_epoch,
                until_ms,
            },
        }
    }

    fn check(self, job: JobId, now: &Times) -> GatewayResult<()> {
        match self {
            Deadline::Never => Ok(()),
            Deadline::OfTerm { epoch, .. } if epoch != now.epoch => {
                let reason = format!(
                    "the deadline of this submission of job {job} is measured by the clock of epoch {epoch}, but epoch {} leads: ask \
                     for its time and send it again",
                    now.epoch
                );
                Err(GatewayError::Outdated {
                    epoch: now.epoch,
                    reason,
                })
            }
            Deadline::OfTerm { until_ms, .. } if now.term_ms > until_ms => {
                Err(GatewayError::Invalid(format!(
                    "this submission of job {job} arrived {} ms after its deadline, by the leader's own clock, and was not \
                     taken: if the job is still wanted, submit it again",
                    now.term_ms - until_ms
                )))
            }
            Deadline::OfTerm { until_ms, .. } if until_ms - now.term_ms > now.longest_ms => {
                Err(GatewayError::Invalid(format!(
                    "the deadline of this submission of job {job} is {} ms ahead; the maximum is half of jobstore.expiration-time, \
                     {} ms",
                    until_ms - now.term_ms,
                    now.longest_ms
                )))
            }
            Deadline::OfTerm { .. } => Ok(()),
        }
    }
}

/// The time on a leader's clock, which decides about deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    /// Epoch of the leader's term.
    pub epoch: u64,
    /// Time on the term's clock, in milliseconds.
    pub term_ms: u64,
    /// Maximum time from now to a deadline, in milliseconds.
    pub longest_ms: u64,
}

/// What the Dispatcher knows about the job of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known<'a> {
    /// Nothing.
    Nothing,
    /// Its submission is being written.
    Persisting(&'a SubmissionKey),
    /// It is stored and has not ended: running, rebuilding or quarantined.
    Accepted(&'a SubmissionKey),
    /// It has ended, and its result is kept.
    Ended {
        /// Key of the submission that ran.
        key: &'a SubmissionKey,
        /// Whether its leftovers are still being removed.
        dirty: bool,
    },
}

/// Decision about a submission.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Persist it.
    Accept,
    /// Wait for the answer to an earlier try of the same submission.
    Join,
    /// Wait until another submission under the same id is written or has failed, then decide. The other one may
    /// never be stored.
    Undecided,
    /// Acknowledge it, like the earlier try.
    Repeated,
    /// The same, once the job's leftovers are removed.
    RepeatedWhenClean,
}

/// Decides about a submission that arrives at `now`.
///
/// In this order: the same submission gets the same answer, also after its deadline and if it has a flaw; only then is
/// another one under the same id refused. Deadline and flaw matter for a submission of an unknown job alone.
pub(crate) fn admit(
    submission: &Submission,
    known: Known<'_>,
    now: &Times,
) -> GatewayResult<Admission> {
    let same = |key: &SubmissionKey| *key == submission.key;
    match known {
        Known::Persisting(key) if same(key) => Ok(Admission::Join),
        Known::Persisting(_) => Ok(Admission::Undecided),
        Known::Accepted(key) if same(key) => Ok(Admission::Repeated),
        Known::Ended { key, dirty } if same(key) => Ok(if dirty {
            Admission::RepeatedWhenClean
        } else {
            Admission::Repeated
        }),
        Known::Accepted(key) | Known::Ended { key, .. } if key.is_unknown() => {
            Err(GatewayError::Incomparable(format!(
                "job {} was already submitted, and whether this is the same submission can't be told, as its record can't be \
                 read: choose another job id if it is another job",
                submission.job
            )))
        }
        Known::Accepted(key) | Known::Ended { key, .. } => {
            let what = if key.digest == submission.key.digest {
                "another submission of the same graph"
            } else {
                "another graph"
            };
            Err(GatewayError::Conflict(format!(
                "job {} was already submitted, by {what}: choose another job id, or another token if the id follows \
                 from it",
                submission.job
            )))
        }
        Known::Nothing => {
            submission.deadline.check(submission.job, now)?;
            match &submission.flaw {
                Some(flaw) => Err(GatewayError::Invalid(flaw.clone())),
                None => Ok(Admission::Accept),
            }
        }
    }
}

/// Returns the state of a job that was just submitted: generation 0, nothing deployed.
pub(crate) fn first_state(submission: &Submission, now_ms: u64) -> pb::JobState {
    pb::JobState {
        job_id: submission.job.to_string(),
        name: submission.graph.name.clone(),
        submitted_at_ms: now_ms,
        submission_token: submission.key.token.clone(),
        graph_digest: submission.key.digest.clone(),
        sinks: Some(sink_directories(&submission.graph)),
        ..pb::JobState::default()
    }
}

/// Returns the directories that the sinks of a graph write to, for the cleanup.
pub(crate) fn sink_directories(graph: &pb::JobGraph) -> pb::SinkDirectories {
    let directories = tanist_model::sink_directories(graph).into_iter();
    let paths = directories.map(|it| it.to_string_lossy().into_owned());
    pb::SinkDirectories {
        paths: paths.collect(),
        run: graph.run.clone(),
    }
}

/// Whether a result may be forgotten: it is clean and has been kept for the retention time. `since_ms` and
/// `counted_ms` are counts of the leaders' common clock ([`super::Retention`]).
pub(crate) fn is_expired(
    result: &pb::JobResult,
    since_ms: u64,
    counted_ms: u64,
    retention_ms: u64,
) -> bool {
    !result.dirty && counted_ms >= since_ms.saturating_add(retention_ms)
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
            deadline: Deadline::OfTerm {
                epoch: 3,
                until_ms: 100,
            },
            restore: None,
            flaw: None,
        }
    }

    /// The leader of epoch 3.
    fn at(term_ms: u64) -> Times {
        Times {
            epoch: 3,
            term_ms,
            longest_ms: 1000,
        }
    }

    #[test]
    fn the_same_submission_gets_the_same_answer_however_often_it_comes() {
        let first = submission("t", 1);
        assert_eq!(
            admit(&first, Known::Nothing, &at(50)),
            Ok(Admission::Accept)
        );
        assert_eq!(
            admit(&first, Known::Persisting(&first.key), &at(50)),
            Ok(Admission::Join)
        );
        assert_eq!(
            admit(&first, Known::Accepted(&first.key), &at(50)),
            Ok(Admission::Repeated)
        );
    }

    #[test]
    fn nothing_is_refused_for_a_submission_that_is_not_in_the_store_yet() {
        let (first, other) = (submission("t", 1), submission("u", 2));
        let undecided = admit(&other, Known::Persisting(&first.key), &at(50));
        assert_eq!(undecided, Ok(Admission::Undecided));
    }

    #[test]
    fn a_repeated_submission_of_an_ended_job_gets_its_result_and_another_one_is_refused_as_before()
    {
        let (first, later, other) = (submission("t", 1), submission("u", 1), submission("t", 2));
        let ended = |dirty| Known::Ended {
            key: &first.key,
            dirty,
        };
        assert_eq!(
            admit(&first, ended(false), &at(500)),
            Ok(Admission::Repeated)
        );
        let waits = admit(&first, ended(true), &at(500));
        assert_eq!(waits, Ok(Admission::RepeatedWhenClean));
        // Only id and token decide, whether the job has ended or not.
        for asked in [&later, &other] {
            for known in [ended(true), ended(false), Known::Accepted(&first.key)] {
                let refusal = admit(asked, known, &at(50));
                assert!(
                    matches!(refusal, Err(GatewayError::Conflict(_))),
                    "{refusal:?}"
                );
            }
        }
    }

    #[test]
    fn a_repeated_submission_is_answered_even_after_its_deadline() {
        let first = submission("t", 1);
        assert_eq!(
            admit(&first, Known::Accepted(&first.key), &at(500)),
            Ok(Admission::Repeated)
        );
        assert!(matches!(
            admit(&first, Known::Nothing, &at(101)),
            Err(GatewayError::Invalid(_))
        ));
    }

    #[test]
    fn what_was_accepted_under_another_limit_is_answered_and_would_be_refused_as_a_job_of_its_own()
    {
        let flawed = Submission {
            flaw: Some("the path `a` is relative".to_owned()),
            ..submission("t", 1)
        };
        let key = &flawed.key;
        let ended = Known::Ended { key, dirty: false };
        for known in [Known::Accepted(key), ended] {
            assert_eq!(admit(&flawed, known, &at(50)), Ok(Admission::Repeated));
        }
        let refusal = admit(&flawed, Known::Nothing, &at(50));
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
            let refusal = admit(&other, Known::Accepted(&first.key), &at(50));
            assert!(
                matches!(refusal, Err(GatewayError::Conflict(_))),
                "{refusal:?}"
            );
        }
    }

    #[test]
    fn what_can_not_be_compared_is_not_called_another_job() {
        let key = &SubmissionKey::unknown();
        let ended = Known::Ended { key, dirty: true };
        for known in [Known::Accepted(key), ended] {
            let refusal = admit(&submission("t", 1), known, &at(50));
            assert!(
                matches!(&refusal, Err(GatewayError::Incomparable(reason)) if !reason.contains("another graph")),
                "{refusal:?}"
            );
        }
    }

    #[test]
    fn a_deadline_counts_by_the_clock_of_its_term_alone() {
        let by = |deadline| {
            let submission = Submission {
                deadline,
                ..submission("t", 1)
            };
            admit(&submission, Known::Nothing, &at(500))
        };
        let of = |epoch, until_ms| by(Deadline::OfTerm { epoch, until_ms });
        assert_eq!(of(3, 500), Ok(Admission::Accept));
        assert_eq!(of(3, 1500), Ok(Admission::Accept));
        let refusals = [
            of(3, 499).expect_err("late"),
            of(3, 1501).expect_err("too far ahead"),
        ];
        for refusal in refusals {
            assert!(matches!(refusal, GatewayError::Invalid(_)), "{refusal}");
        }
        for epoch in [2, 4] {
            let refusal = of(epoch, 1000).expect_err("another clock");
            let asks_again = matches!(refusal, GatewayError::Outdated { epoch: 3, .. });
            assert!(asks_again, "{refusal}");
            assert!(refusal.is_retryable());
        }
        assert_eq!(by(Deadline::Never), Ok(Admission::Accept));
    }

    #[test]
    fn only_clean_results_expire() {
        let mut result = pb::JobResult {
            ended_at_ms: 1,
            kept_since_ms: 1000,
            dirty: true,
            ..Default::default()
        };
        assert!(!is_expired(&result, 1000, 10_000, 500));
        result.dirty = false;
        assert!(is_expired(&result, 1000, 1500, 500));
        assert!(!is_expired(&result, 1000, 1499, 500));
    }
}
