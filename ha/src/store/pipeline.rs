//! The commit pipeline of a term: orders all writes of the term, and determines the outcome of each
//! transaction. One task owns it from the grant to the end of the term; callers hold a [`CommitPipeline`].
//!
//! At most one transaction is in flight; commits that arrive meanwhile form the next batch. Each transaction
//! follows the last one by its change number. A transaction whose answer was lost is sent again, unchanged,
//! until the answer is definite: applied, or refused while the store has its number (an earlier copy was
//! applied). A late copy can't match the number again. "Not applied" is returned only if the transaction was
//! never sent or the store refused it.
//!
//! A store that is out of space does not stop the pipeline: see the module `out_of_space`.

mod out_of_space;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::{debug, error, warn};

use self::out_of_space::Unnumbered;
use crate::election::{Epoch, LeaderSession, NotLeading};
use crate::error::{Error, Outcome, Result};
use crate::keys::Key;
use crate::retry::Backoff;
use crate::store::{Change, CommitReply, CommitRequest, CoordinationStore, Limits, Verdict, Write};

const MAILBOX: usize = 1024;
const FIRST_RETRY: Duration = Duration::from_millis(10);
const SLOWEST_RETRY: Duration = Duration::from_secs(1);

/// The reason why a commit did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommitError {
    /// It is larger than the store's limit; nothing was sent.
    #[error(transparent)]
    TooLarge(Error),
    /// The store has no space for it. It was not applied; the term continues, and the caller may commit it
    /// again later.
    #[error("not applied: {0}")]
    OutOfSpace(Error),
    /// The term is over, and this was not applied.
    #[error("not applied: the term is over")]
    NotApplied,
    /// The term is over, and this may have been applied: only the next term knows.
    #[error("the term is over; only the next term can tell whether this was applied")]
    Unknown,
}

/// Counters of a term's pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PipelineStats {
    /// Commits that were applied.
    pub commits: u64,
    /// Transactions that contained them.
    pub transactions: u64,
    /// Total time from the first try to the definite answer of those transactions.
    pub busy: Duration,
}

/// A cheap handle to a term's pipeline. The pipeline ends with the term or with the last handle.
#[derive(Debug, Clone)]
pub struct CommitPipeline {
    commits: mpsc::Sender<Commit>,
    last: watch::Receiver<Change>,
    stats: watch::Receiver<PipelineStats>,
    limits: Limits,
}

#[derive(Debug)]
struct Commit {
    writes: Vec<Write>,
    reply: oneshot::Sender<Result<Change, CommitError>>,
}

impl CommitPipeline {
    /// Starts the pipeline of a term on the current runtime, from the change number in the store. Waits for
    /// the store until the term ends; `Fenced` if it is over.
    pub async fn start(
        store: Arc<dyn CoordinationStore>,
        session: LeaderSession,
    ) -> Result<CommitPipeline> {
        let last = read_last(&*store, &session).await?;
        let limits = store.limits();
        let (commits, mailbox) = mpsc::channel(MAILBOX);
        let (last_out, last) = watch::channel(last);
        let (stats_out, stats) = watch::channel(PipelineStats::default());
        let actor = PipelineActor {
            store,
            session,
            mailbox,
            last: last_out,
            stats: stats_out,
            deferred: None,
            unnumbered: Unnumbered::default(),
        };
        tokio::spawn(actor.run());
        Ok(CommitPipeline {
            commits,
            last,
            stats,
            limits,
        })
    }

    /// Commits all writes, or none. Returns when the outcome is definite or the term is over, however long
    /// the store is unavailable.
    pub async fn commit(&self, writes: Vec<Write>) -> Result<Change, CommitError> {
        let checked = self.limits.check("the store", &writes);
        checked.map_err(CommitError::TooLarge)?;
        let (reply, answer) = oneshot::channel();
        let sent = self.commits.send(Commit { writes, reply }).await;
        sent.map_err(|_| CommitError::NotApplied)?;
        answer.await.unwrap_or(Err(CommitError::Unknown))
    }

    /// The last transaction known to be committed.
    pub fn last(&self) -> Change {
        *self.last.borrow()
    }

    /// The counters so far.
    pub fn stats(&self) -> PipelineStats {
        *self.stats.borrow()
    }

    /// Completes when the pipeline accepts no more commits: the term ended, or the store's data contradicts
    /// the term. A term whose pipeline has ended while it still leads must resign.
    pub async fn ended(&self) {
        self.commits.closed().await;
    }

    /// The limits of one commit.
    pub fn limits(&self) -> Limits {
        self.limits
    }
}

/// The number that the term's first transaction follows, read while the fence holds.
async fn read_last(store: &dyn CoordinationStore, session: &LeaderSession) -> Result<Change> {
    let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
    loop {
        match store.guard().await {
            Ok(guard) => {
                let youngest = guard
                    .epoch
                    .as_ref()
                    .map_or(Epoch::ZERO, |(epoch, _, _)| *epoch);
                if youngest > session.epoch() {
                    return Err(Error::Fenced { epoch: youngest });
                }
                if youngest == session.epoch() {
                    return Ok(guard.change);
                }
                // A read from before the term began proves nothing: read again.
            }
            Err(error) => warn!(%error, "the store's change number can't be read"),
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_delay()) => {}
            () = session.over() => return Err(Error::Fenced { epoch: session.epoch().next() }),
        }
    }
}

struct PipelineActor {
    store: Arc<dyn CoordinationStore>,
    session: LeaderSession,
    mailbox: mpsc::Receiver<Commit>,
    last: watch::Sender<Change>,
    stats: watch::Sender<PipelineStats>,
    /// Taken from the mailbox, but too large for the previous batch.
    deferred: Option<Commit>,
    /// Items deleted without a number while the store was out of space.
    unnumbered: Unnumbered,
}

/// The outcome of a batch.
enum BatchOutcome {
    Applied,
    TooLarge(Error),
    OutOfSpace(Error),
    NotApplied,
    Unknown,
}

impl BatchOutcome {
    /// The error that a caller gets for a batch that ended with the term.
    fn into_error(self) -> CommitError {
        match self {
            BatchOutcome::TooLarge(error) => CommitError::TooLarge(error),
            BatchOutcome::OutOfSpace(error) => CommitError::OutOfSpace(error),
            BatchOutcome::NotApplied => CommitError::NotApplied,
            BatchOutcome::Applied | BatchOutcome::Unknown => CommitError::Unknown,
        }
    }
}

impl PipelineActor {
    async fn run(mut self) {
        while let Some(first) = self.next_commit().await {
            let batch = self.fill_batch(first);
            if !self.commit_batch(batch).await {
                break;
            }
            // No caller waits for this batch, so it runs only when no other commit is waiting.
            if !self.unnumbered.is_empty()
                && self.mailbox.is_empty()
                && !self.commit_batch(Vec::new()).await
            {
                break;
            }
        }
        self.refuse_remaining().await;
    }

    async fn next_commit(&mut self) -> Option<Commit> {
        if let Some(commit) = self.deferred.take() {
            return Some(commit);
        }
        tokio::select! {
            () = self.session.over() => None,
            commit = self.mailbox.recv() => commit,
        }
    }

    /// Adds the commits that already wait, up to the store's limits.
    fn fill_batch(&mut self, first: Commit) -> Vec<Commit> {
        let limits = self.store.limits();
        let mut writes = first.writes.len();
        let mut bytes: usize = first.writes.iter().map(Write::size).sum();
        let mut batch = vec![first];
        while let Ok(commit) = self.mailbox.try_recv() {
            writes += commit.writes.len();
            bytes += commit.writes.iter().map(Write::size).sum::<usize>();
            if writes > limits.writes || bytes > limits.bytes {
                self.deferred = Some(commit);
                break;
            }
            batch.push(commit);
        }
        batch
    }

    /// Commits a batch and answers its callers. Returns false if the term is over.
    async fn commit_batch(&mut self, batch: Vec<Commit>) -> bool {
        if self.wait_until_leading().await.is_err() {
            answer(batch, || Err(CommitError::NotApplied));
            return false;
        }
        let writes = batch
            .iter()
            .flat_map(|commit| commit.writes.iter().cloned());
        let request = CommitRequest {
            fence: self.session.fence().clone(),
            after: *self.last.borrow(),
            writes: merge(self.repeated_deletions(&batch).into_iter().chain(writes)),
        };
        let began = Instant::now();
        match self.send_until_definite(&request).await {
            BatchOutcome::Applied => {
                self.stats.send_modify(|stats| {
                    stats.commits += batch.len() as u64;
                    stats.transactions += 1;
                    stats.busy += began.elapsed();
                });
                self.unnumbered.numbered(&request.writes);
                self.last.send_replace(request.change());
                answer(batch, || Ok(request.change()));
                true
            }
            BatchOutcome::OutOfSpace(error) => self.without_space(batch, &error).await,
            BatchOutcome::TooLarge(error) if batch.len() == 1 => {
                answer(batch, || Err(CommitError::TooLarge(error.clone())));
                true
            }
            BatchOutcome::TooLarge(_) => {
                // Together they are too large: commit each in its own transaction.
                let mut rest = batch.into_iter();
                while let Some(commit) = rest.next() {
                    if !Box::pin(self.commit_batch(vec![commit])).await {
                        // These were only in the request that the store refused for its size.
                        answer(rest.collect(), || Err(CommitError::NotApplied));
                        return false;
                    }
                }
                true
            }
            BatchOutcome::NotApplied => {
                answer(batch, || Err(CommitError::NotApplied));
                false
            }
            BatchOutcome::Unknown => {
                answer(batch, || Err(CommitError::Unknown));
                false
            }
        }
    }

    fn repeated_deletions(&self, batch: &[Commit]) -> Vec<Write> {
        if self.unnumbered.is_empty() {
            return Vec::new();
        }
        let limits = self.store.limits();
        let writes = batch.iter().flat_map(|commit| &commit.writes);
        let bytes: usize = writes.clone().map(Write::size).sum();
        let room = limits.writes.saturating_sub(writes.count());
        self.unnumbered
            .repeated(room, limits.bytes.saturating_sub(bytes))
    }

    /// Sends the same transaction until the store's answer is definite or the term is over.
    async fn send_until_definite(&mut self, request: &CommitRequest) -> BatchOutcome {
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        let mut may_be_applied = false;
        loop {
            match self.store.commit(request).await {
                Ok(CommitReply::Applied) => return BatchOutcome::Applied,
                Ok(CommitReply::Refused(guard)) => match guard.verdict(request) {
                    Verdict::AlreadyApplied => return BatchOutcome::Applied,
                    Verdict::Fenced(epoch) => {
                        debug!(%epoch, "a transaction was refused: a younger term exists");
                        // The younger term began after a copy was applied, or no copy ever is: the fence
                        // refuses late ones. If the store's number is lower, none was applied. Otherwise the
                        // younger term may have continued from this transaction.
                        let gone_past = guard.change.number >= request.change().number;
                        return outcome_at_end(may_be_applied && gone_past);
                    }
                    Verdict::OtherIncarnation(found) => {
                        error!(
                            ?found,
                            "a transaction was refused: another incarnation of the cluster"
                        );
                        return outcome_at_end(may_be_applied);
                    }
                    Verdict::Detached => {
                        debug!("a transaction waits until the term is attached again");
                    }
                    Verdict::Overtaken(change) => {
                        error!(
                            number = change.number,
                            epoch = %change.epoch,
                            "another process wrote in this term: the term's data can't be trusted"
                        );
                        return outcome_at_end(may_be_applied);
                    }
                },
                Err(error) => match error.outcome() {
                    Outcome::Ambiguous => {
                        may_be_applied = true;
                        debug!(%error, "a transaction got no definite answer: sending it again");
                    }
                    Outcome::Fatal if error.is_over_limit() => {
                        return BatchOutcome::TooLarge(error);
                    }
                    // If an earlier copy is still in flight, it would be applied once there is space again.
                    Outcome::Transient
                        if matches!(error, Error::OutOfSpace { .. }) && !may_be_applied =>
                    {
                        return BatchOutcome::OutOfSpace(error);
                    }
                    Outcome::Transient | Outcome::Fenced | Outcome::Fatal => {
                        warn!(%error, "the store refused a transaction: sending it again");
                    }
                },
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay()) => {}
                () = self.session.over() => return outcome_at_end(may_be_applied),
            }
        }
    }

    /// Waits while the term is suspended: meanwhile no batch is begun.
    async fn wait_until_leading(&self) -> Result<(), NotLeading> {
        let mut backoff = Backoff::new(FIRST_RETRY, FIRST_RETRY * 10);
        loop {
            match self.session.check() {
                Ok(()) => return Ok(()),
                Err(NotLeading::Over) => return Err(NotLeading::Over),
                Err(NotLeading::Suspended) => tokio::select! {
                    () = tokio::time::sleep(backoff.next_delay()) => {}
                    () = self.session.over() => return Err(NotLeading::Over),
                },
            }
        }
    }

    /// Also answers commits that are being sent right now: dropping the receiver does not wait for those, and
    /// their senders would wait forever.
    async fn refuse_remaining(&mut self) {
        self.mailbox.close();
        answer(self.deferred.take().into_iter().collect(), || {
            Err(CommitError::NotApplied)
        });
        while let Some(commit) = self.mailbox.recv().await {
            answer(vec![commit], || Err(CommitError::NotApplied));
        }
    }
}

fn outcome_at_end(may_be_applied: bool) -> BatchOutcome {
    if may_be_applied {
        BatchOutcome::Unknown
    } else {
        BatchOutcome::NotApplied
    }
}

fn answer(batch: Vec<Commit>, result: impl Fn() -> Result<Change, CommitError>) {
    for commit in batch {
        let _ = commit.reply.send(result());
    }
}

/// Keeps one write for each key, the last one.
fn merge(writes: impl Iterator<Item = Write>) -> Vec<Write> {
    let mut merged: Vec<Write> = Vec::new();
    let mut places: HashMap<Key, usize> = HashMap::new();
    for write in writes {
        match places.get(write.key()) {
            Some(place) => merged[*place] = write,
            None => {
                places.insert(write.key().clone(), merged.len());
                merged.push(write);
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::keys::Name;
    use crate::testing::kinds::ITEMS;

    #[test]
    fn of_several_writes_to_a_key_only_the_last_is_sent() {
        let key = |name: &str| Key::new(ITEMS, Name::new(name).expect("a name"));
        let put = |name: &str, value: &'static str| Write::Put {
            key: key(name),
            value: Bytes::from_static(value.as_bytes()),
        };
        let merged = merge(
            [
                put("a", "1"),
                put("b", "1"),
                Write::Delete { key: key("a") },
            ]
            .into_iter(),
        );
        assert_eq!(merged, vec![Write::Delete { key: key("a") }, put("b", "1")]);
    }
}
