//! Committers of an application's own binary: each makes the output of a kind visible that custom sinks have prepared.
//!
//! The registry belongs to the process, as that of operators does. JobManagers use it: they refuse graphs whose sinks
//! declare a kind without a committer, and the leader commits with it the output that durable manifests list. A commit
//! may be repeated at any time, also by two processes at once; a committer has to be idempotent.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tanist_model::{CommitError, CustomSpec};
use tanist_proto::v1::CheckpointCommittable;

/// What a committer makes visible: all output of its kind that the durable manifest of a checkpoint lists.
///
/// The result of the call is the answer for all of it. In addition a committer can answer for single outputs; if the
/// call succeeds, those without an answer are committed.
#[derive(Debug, Clone)]
pub struct CommitRequest {
    checkpoint: u64,
    committables: Arc<Vec<CheckpointCommittable>>,
    answers: Arc<Mutex<BTreeMap<usize, OutputAnswer>>>,
}

/// What a committer says about one output.
#[derive(Debug, Clone, PartialEq, Eq)]
enum OutputAnswer {
    /// It was visible before.
    AlreadyCommitted,
    /// It may become visible later; the reason why it is not now.
    RetryLater(String),
    /// It never becomes visible, for this reason: the job fails.
    Failed(String),
    /// It never becomes visible, for this reason, and the job goes on without it.
    Discarded(String),
}

/// One output of a request.
#[derive(Debug, Clone, Copy)]
pub struct OutputToCommit<'r> {
    request: &'r CommitRequest,
    index: usize,
}

impl<'r> OutputToCommit<'r> {
    /// The uid or else the name of the sink.
    pub fn sink(&self) -> &'r str {
        &self.request.committables[self.index].uid
    }

    /// What the sink says about its output.
    pub fn content(&self) -> &'r [u8] {
        &self.request.committables[self.index].content
    }

    /// It was committed by an earlier call. Counts as committed.
    pub fn already_committed(&self) {
        self.answer(OutputAnswer::AlreadyCommitted);
    }

    /// It could not be committed yet. This process calls the committer again with such outputs alone, a limited number
    /// of times. After that, or in another process, a call may have all outputs again.
    pub fn retry_later(&self, reason: impl Into<String>) {
        self.answer(OutputAnswer::RetryLater(reason.into()));
    }

    /// It can never be committed: the job fails, after the others are committed.
    pub fn fail(&self, reason: impl Into<String>) {
        self.answer(OutputAnswer::Failed(reason.into()));
    }

    /// It can never be committed, and is lost: the job goes on without it. The log has the reason.
    pub fn discard(&self, reason: impl Into<String>) {
        self.answer(OutputAnswer::Discarded(reason.into()));
    }

    fn answer(&self, answer: OutputAnswer) {
        self.request.answers.lock().insert(self.index, answer);
    }
}

impl CommitRequest {
    /// A request for these outputs, which all have the kind of the committer.
    pub fn new(checkpoint: u64, committables: Vec<CheckpointCommittable>) -> CommitRequest {
        CommitRequest {
            checkpoint,
            committables: Arc::new(committables),
            answers: Arc::default(),
        }
    }

    /// Number of the checkpoint, in its job.
    pub fn checkpoint(&self) -> u64 {
        self.checkpoint
    }

    /// The uid or else the name of each sink, and what it says about its output.
    pub fn outputs(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let committables = self.committables.iter();
        committables.map(|it| (&*it.uid, &*it.content))
    }

    /// Each output, to be answered for.
    pub fn each(&self) -> impl Iterator<Item = OutputToCommit<'_>> {
        let indices = 0..self.committables.len();
        indices.map(|index| OutputToCommit {
            request: self,
            index,
        })
    }

    /// Evaluates the answers after a call that succeeded. Returns a request for the next call and the reason for it, if
    /// an output is to be tried again. An error if none is, and one can never be committed.
    fn left(&self) -> Result<Option<(CommitRequest, String)>, CommitError> {
        let answers = self.answers.lock();
        let (mut later, mut reasons, mut failed) = (Vec::new(), Vec::new(), None);
        for (index, answer) in &*answers {
            let committable = &self.committables[*index];
            let sink = &committable.uid;
            match answer {
                OutputAnswer::AlreadyCommitted => {}
                OutputAnswer::RetryLater(reason) => {
                    later.push(committable.clone());
                    reasons.push(format!("{sink}: {reason}"));
                }
                OutputAnswer::Failed(reason) => {
                    // It stays in the request, so that the committer answers for it again: the job fails when no other
                    // output is to be tried again.
                    failed.get_or_insert_with(|| format!("{sink}: {reason}"));
                    later.push(committable.clone());
                }
                OutputAnswer::Discarded(reason) => {
                    let checkpoint = self.checkpoint;
                    tracing::warn!(
                        sink,
                        checkpoint,
                        reason,
                        "output is lost: its committer gave it up"
                    );
                }
            }
        }
        match (reasons.first(), failed) {
            (Some(reason), _) => {
                let request = CommitRequest::new(self.checkpoint, later);
                Ok(Some((request, reason.clone())))
            }
            (None, Some(reason)) => Err(CommitError::Refused(reason)),
            (None, None) => Ok(None),
        }
    }
}

/// Time between two calls for what is to be tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of calls for one request. After that the JobMaster repeats all of it.
const CALLS: usize = 20;

type Committing = Pin<Box<dyn Future<Output = Result<(), CommitError>> + Send>>;
type Commit = dyn Fn(CommitRequest) -> Committing + Send + Sync;

/// Makes output of one kind visible.
#[derive(Clone)]
pub struct Committer(Arc<Commit>);

impl Committer {
    /// A committer that calls this function. It may be called again with output that it has committed already, also
    /// while another process does the same.
    pub fn new<C, F>(commit: C) -> Committer
    where
        C: Fn(CommitRequest) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), CommitError>> + Send + 'static,
    {
        Committer(Arc::new(move |request| Box::pin(commit(request))))
    }

    /// Makes output visible. Calls the committer again with the outputs that are to be tried again, a limited number of
    /// times. After an error the caller repeats the whole request.
    pub async fn commit(&self, mut request: CommitRequest) -> Result<(), CommitError> {
        let mut calls = 1;
        loop {
            (self.0)(request.clone()).await?;
            let Some((left, reason)) = request.left()? else {
                return Ok(());
            };
            if calls == CALLS {
                return Err(CommitError::Failed(reason));
            }
            (calls, request) = (calls + 1, left);
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

impl fmt::Debug for Committer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Committer")
    }
}

static REGISTRY: RwLock<BTreeMap<String, Committer>> = RwLock::new(BTreeMap::new());

/// Registers the committer of a kind in this process, or replaces it.
pub fn register(kind: impl Into<String>, committer: Committer) {
    let mut registry = REGISTRY.write();
    registry.insert(kind.into(), committer);
}

/// The committer of a kind.
pub fn find(kind: &str) -> Option<Committer> {
    let registry = REGISTRY.read();
    registry.get(kind).cloned()
}

/// Why the output of a sink can't be committed by this process; `None` if it can.
pub(crate) fn missing(spec: &CustomSpec) -> Option<String> {
    let mut kinds = spec.commits.iter();
    let missing = kinds.find(|kind| find(kind).is_none())?;
    Some(format!(
        "this binary has no committer for output of kind `{missing}`: register it with `Application::committer`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(contents: &[&str]) -> CommitRequest {
        let committables = contents.iter().map(|content| CheckpointCommittable {
            uid: "rows".to_owned(),
            kind: "transaction".to_owned(),
            content: content.as_bytes().to_vec(),
        });
        CommitRequest::new(7, committables.collect())
    }

    /// Commits with a committer that answers for each output in the calls that are passed, and returns its outcome with
    /// the outputs of each call.
    async fn commit(
        contents: &[&str],
        answer: fn(usize, OutputToCommit<'_>),
    ) -> (Result<(), CommitError>, Vec<Vec<String>>) {
        let calls: Arc<Mutex<Vec<Vec<String>>>> = Arc::default();
        let seen = Arc::clone(&calls);
        let committer = Committer::new(move |request: CommitRequest| {
            let mut calls = seen.lock();
            let text = |it: OutputToCommit<'_>| String::from_utf8_lossy(it.content()).into_owned();
            calls.push(request.each().map(text).collect());
            request.each().for_each(|it| answer(calls.len(), it));
            async { Ok(()) }
        });
        let committed = committer.commit(request(contents)).await;
        let calls = calls.lock().clone();
        (committed, calls)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_to_be_tried_again_is_in_the_next_call_alone() {
        let (committed, calls) = commit(&["a", "b", "c"], |call, output| match output.content() {
            b"a" => output.already_committed(),
            b"b" if call < 3 => output.retry_later("the server is away"),
            _ => {}
        })
        .await;
        assert_eq!(committed, Ok(()));
        assert_eq!(calls, [vec!["a", "b", "c"], vec!["b"], vec!["b"]]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_stays_away_is_a_failure_that_is_tried_again_and_names_its_sink() {
        let (committed, calls) = commit(&["a", "b"], |_, output| {
            if output.content() == b"b" {
                output.retry_later("the server is away");
            }
        })
        .await;
        let expected = CommitError::Failed("rows: the server is away".to_owned());
        assert_eq!(committed, Err(expected));
        assert_eq!(calls.len(), CALLS);
    }

    #[tokio::test(start_paused = true)]
    async fn an_output_that_can_never_be_committed_fails_the_job_once_the_others_are_committed() {
        let (committed, calls) = commit(&["a", "b"], |call, output| match output.content() {
            b"a" => output.fail("the transaction is unknown"),
            b"b" if call == 1 => output.retry_later("the server is away"),
            _ => {}
        })
        .await;
        let expected = CommitError::Refused("rows: the transaction is unknown".to_owned());
        assert_eq!(committed, Err(expected));
        assert_eq!(calls, [vec!["a", "b"], vec!["a", "b"]]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_job_goes_on_without_an_output_that_is_discarded() {
        let (committed, calls) = commit(&["a", "b"], |_, output| {
            if output.content() == b"a" {
                output.discard("it has expired");
            }
        })
        .await;
        assert_eq!((committed, calls.len()), (Ok(()), 1));
    }
}
