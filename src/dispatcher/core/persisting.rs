//! A submission that is being written, and the submissions under the same id that wait for it. In memory only: if the
//! term ends, their clients retry.

use tanist_proto::v1 as pb;

use super::{Replies, Submission, SubmissionKey};

type Reply<R> = <R as Replies>::To<pb::SubmitJobResponse>;

/// A submission that is being written.
#[derive(Debug)]
pub(crate) struct Persisting<R: Replies> {
    key: SubmissionKey,
    name: String,
    /// Its tries, the first one first.
    waiting: Vec<Reply<R>>,
    /// Other submissions under the same id. They are decided when this one is.
    others: Vec<(Submission, Reply<R>)>,
}

impl<R: Replies> Persisting<R> {
    pub(super) fn of(submission: &Submission, reply: Reply<R>) -> Persisting<R> {
        Persisting {
            key: submission.key.clone(),
            name: submission.graph.name.clone(),
            waiting: vec![reply],
            others: Vec::new(),
        }
    }

    pub(super) fn key(&self) -> &SubmissionKey {
        &self.key
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Adds another try of the same submission.
    pub(super) fn join(&mut self, reply: Reply<R>) {
        self.waiting.push(reply);
    }

    /// Adds another submission, which is decided later.
    pub(super) fn postpone(&mut self, submission: Submission, reply: Reply<R>) {
        self.others.push((submission, reply));
    }

    /// Returns the replies to its tries, and the other submissions.
    #[expect(clippy::type_complexity, reason = "two lists")]
    pub(super) fn into_waiting(self) -> (Vec<Reply<R>>, Vec<(Submission, Reply<R>)>) {
        (self.waiting, self.others)
    }
}
