//! The pipeline while its store accepts no more data: puts are refused at once, deletions are still made.
//!
//! A put that the store refused for lack of space was not applied, and its caller gets that answer; nothing
//! queues behind it. Deletions free space, but can't take a change number, because that is a put. They are
//! applied at the last number without taking the next one. The fence holds as always, and a late copy can
//! only delete again what was not put since, because any put moves the number. Followers of the changes do
//! not see these deletions until the next numbered transaction, which repeats them. If the term ends before
//! that, the next term may still know deleted items; so only items that are no longer needed may be deleted
//! in a transaction of their own.

use std::collections::BTreeSet;

use tracing::{debug, warn};

use super::{
    Commit, CommitError, FIRST_RETRY, PipelineActor, SLOWEST_RETRY, answer, outcome_at_end,
};
use crate::error::{Error, Outcome};
use crate::keys::Key;
use crate::retry::Backoff;
use crate::store::{CommitReply, CommitRequest, Verdict, Write};

/// Items that were deleted without a change number.
#[derive(Debug, Default)]
pub(super) struct Unnumbered {
    keys: BTreeSet<Key>,
}

impl Unnumbered {
    /// Deletions that the next transaction repeats, limited by its free room (writes and bytes).
    pub(super) fn repeated(&self, mut room: usize, mut bytes: usize) -> Vec<Write> {
        let mut deletions = Vec::new();
        for key in &self.keys {
            let deletion = Write::Delete { key: key.clone() };
            if room == 0 || deletion.size() > bytes {
                break;
            }
            room -= 1;
            bytes -= deletion.size();
            deletions.push(deletion);
        }
        deletions
    }

    /// Forgets items whose writes now have a number.
    pub(super) fn numbered(&mut self, writes: &[Write]) {
        for write in writes {
            self.keys.remove(write.key());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

fn deletes_only(commit: &Commit) -> bool {
    let is_deletion = |write: &Write| matches!(write, Write::Delete { .. });
    !commit.writes.is_empty() && commit.writes.iter().all(is_deletion)
}

impl PipelineActor {
    /// Handles a batch that the store has no space for. Returns false if the term is over.
    pub(super) async fn without_space(&mut self, batch: Vec<Commit>, error: &Error) -> bool {
        let (deletions, puts): (Vec<Commit>, Vec<Commit>) =
            batch.into_iter().partition(deletes_only);
        answer(puts, || Err(CommitError::OutOfSpace(error.clone())));
        if deletions.is_empty() {
            return true;
        }
        let request = CommitRequest {
            fence: self.session.fence().clone(),
            after: *self.last.borrow(),
            writes: super::merge(
                deletions
                    .iter()
                    .flat_map(|commit| commit.writes.iter().cloned()),
            ),
        };
        match self.delete(&request).await {
            Ok(()) => {
                let keys = request.writes.iter().map(|write| write.key().clone());
                self.unnumbered.keys.extend(keys);
                answer(deletions, || Ok(request.after));
                true
            }
            Err(error @ (CommitError::OutOfSpace(_) | CommitError::TooLarge(_))) => {
                answer(deletions, || Err(error.clone()));
                true
            }
            Err(error @ (CommitError::NotApplied | CommitError::Unknown)) => {
                answer(deletions, || Err(error.clone()));
                false
            }
        }
    }

    /// Deletes without a number; sends the request again until the outcome is definite. Idempotent.
    async fn delete(&self, request: &CommitRequest) -> Result<(), CommitError> {
        let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
        let mut may_be_applied = false;
        loop {
            match self.store.delete_unnumbered(request).await {
                Ok(CommitReply::Applied) => {
                    debug!(number = request.after.number, "deleted without a number");
                    return Ok(());
                }
                Ok(CommitReply::Refused(guard)) => match guard.verdict(request) {
                    Verdict::Detached => {}
                    // The guards hold again by now.
                    Verdict::Overtaken(change) if change == request.after => {}
                    Verdict::Fenced(_)
                    | Verdict::OtherIncarnation(_)
                    | Verdict::AlreadyApplied
                    | Verdict::Overtaken(_) => {
                        return Err(outcome_at_end(may_be_applied).into_error());
                    }
                },
                // In this order: after a lost answer, an error of a later copy is not definite either.
                Err(error) if error.outcome() == Outcome::Ambiguous => may_be_applied = true,
                Err(error) if may_be_applied => {
                    warn!(%error, "a deletion may have been applied: sending it again")
                }
                Err(error) => return Err(CommitError::OutOfSpace(error)),
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.next_delay()) => {}
                () = self.session.over() => return Err(outcome_at_end(may_be_applied).into_error()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use crate::clock::Clock;
    use crate::election::core::Timing;
    use crate::election::{
        ElectionOptions, LeaderElection, LeaderSession, Leadership, ProcessId, random_start,
    };
    use crate::keys::{Key, Name};
    use crate::memory::MemoryCluster;
    use crate::store::pipeline::{CommitError, CommitPipeline};
    use crate::store::{CoordinationStore as _, Write};
    use crate::testing::kinds::ITEMS;

    async fn lead(cluster: &MemoryCluster) -> (LeaderElection, LeaderSession) {
        let (process, clock) = (ProcessId::new("a"), Clock::tokio());
        let driver = Arc::new(cluster.election(process.clone(), clock));
        let options = ElectionOptions {
            process,
            start: random_start(),
            timing: Timing::default(),
            clock,
        };
        let election = LeaderElection::start(driver, options);
        let mut leadership = election.leadership();
        let granted = leadership.wait_for(|now| matches!(now, Leadership::Granted(_)));
        let session = granted.await.expect("it runs").session().cloned();
        (election, session.expect("granted"))
    }

    fn key(name: &str) -> Key {
        Key::new(ITEMS, Name::new(name).expect("a name"))
    }

    fn put(name: &str) -> Vec<Write> {
        let value = Bytes::from_static(b"value");
        vec![Write::Put {
            key: key(name),
            value,
        }]
    }

    fn delete(name: &str) -> Vec<Write> {
        vec![Write::Delete { key: key(name) }]
    }

    #[tokio::test(start_paused = true)]
    async fn without_space_puts_are_refused_and_deletions_are_made_and_told_of_later() {
        let cluster = MemoryCluster::default();
        let (_election, session) = lead(&cluster).await;
        let store = Arc::new(cluster.store());
        let pipeline = CommitPipeline::start(store.clone(), session).await;
        let pipeline = pipeline.expect("it leads");
        for name in ["a", "b", "c"] {
            pipeline.commit(put(name)).await.expect("there is space");
        }
        let full_at = pipeline.last();

        cluster.out_of_space(true);
        let together = tokio::join!(
            pipeline.commit(put("d")),
            pipeline.commit(delete("a")),
            pipeline.commit(delete("b")),
            pipeline.commit([put("e"), delete("c")].concat()),
        );
        let refused = [&together.0, &together.3];
        for refused in refused {
            assert!(
                matches!(refused, Err(CommitError::OutOfSpace(_))),
                "{refused:?}"
            );
        }
        for done in [together.1, together.2] {
            assert_eq!(done.expect("deletions are made"), full_at);
        }
        let stored = store.get(&["a", "b", "c", "d"].map(key)).await;
        let stored: Vec<bool> = stored.expect("read").iter().map(Option::is_some).collect();
        assert_eq!(stored, [false, false, true, false]);

        cluster.out_of_space(false);
        let next = pipeline.commit(put("b")).await.expect("there is space");
        assert_eq!(next.number, full_at.number + 1);
        let touched = store.touched(next.number, next.number).await.expect("read");
        let touched = touched[0].clone().expect("it is in the ring").keys;
        assert_eq!(touched, ["items/a", "items/b"]);
        let stored = store.get(&[key("b")]).await.expect("read");
        assert!(stored[0].is_some(), "put after it was deleted");
        let after = pipeline.commit(put("d")).await.expect("there is space");
        let touched = store.touched(after.number, after.number).await;
        let touched = touched.expect("read")[0].clone().expect("in the ring").keys;
        assert_eq!(touched, ["items/d"], "told of once");
    }
}
