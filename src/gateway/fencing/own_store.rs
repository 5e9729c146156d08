//! A process's own store, as far as it says who leads: a watch, and linearizable reads that many ask for at once.
//!
//! One read is under way at a time. It answers all that asked before it began, so that a thousand messages of a term that the watch
//! has not shown yet cost two reads. A read that nobody waits for any more is finished all the same: what it shows is shown by the
//! watch as well.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tanist_ha::retrieval::LeaderView;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::gateway::NoAnswer;

/// Reads that may be asked for at once; each asks for one that waits.
const WAITING: usize = 4096;
/// A read without an answer is given up after this, so that the next one can begin.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

type Reply = oneshot::Sender<Result<LeaderView, NoAnswer>>;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct OwnStore {
    leaders: watch::Receiver<LeaderView>,
    reads: mpsc::Sender<Reply>,
}

impl OwnStore {
    /// What `leaders` shows and `read` reads, linearizably. Runs on the present runtime for as long as a clone is there.
    pub fn start<R>(
        leaders: watch::Sender<LeaderView>,
        read: impl Fn() -> R + Send + 'static,
    ) -> OwnStore
    where
        R: Future<Output = Result<LeaderView, NoAnswer>> + Send + 'static,
    {
        let (reads, asked) = mpsc::channel(WAITING);
        let store = OwnStore {
            leaders: leaders.subscribe(),
            reads,
        };
        tokio::spawn(answer(leaders, read, asked));
        store
    }

    /// A store whose watch is never late, as one inside this process: a read shows the same.
    pub fn never_late(leaders: watch::Sender<LeaderView>) -> OwnStore {
        let shown = leaders.clone();
        let read = move || std::future::ready(Ok(shown.borrow().clone()));
        OwnStore::start(leaders, read)
    }

    /// What the store shows of the leader.
    pub fn leaders(&self) -> watch::Receiver<LeaderView> {
        self.leaders.clone()
    }

    /// A linearizable read that begins after this call.
    pub async fn read(&self) -> Result<LeaderView, NoAnswer> {
        let (reply, answered) = oneshot::channel();
        let asked = self.reads.try_send(reply);
        asked.map_err(|error| NoAnswer(format!("it can't be asked: {error}")))?;
        let answered = answered.await;
        answered.map_err(|_| NoAnswer("it was closed".to_owned()))?
    }
}

impl fmt::Debug for OwnStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnStore").finish_non_exhaustive()
    }
}

async fn answer<R>(
    leaders: watch::Sender<LeaderView>,
    read: impl Fn() -> R + Send + 'static,
    mut asked: mpsc::Receiver<Reply>,
) where
    R: Future<Output = Result<LeaderView, NoAnswer>> + Send + 'static,
{
    while let Some(first) = asked.recv().await {
        let mut waiting = vec![first];
        while let Ok(next) = asked.try_recv() {
            waiting.push(next);
        }
        let late = |_| NoAnswer(format!("none within {READ_TIMEOUT:?}"));
        let answer = timeout(READ_TIMEOUT, read()).await;
        let answer = answer.map_err(late).and_then(|answer| answer);
        if let Ok(view) = &answer {
            // Of the same epoch the watch knows more: it comes after what it has shown.
            leaders.send_if_modified(|known| {
                let is_news = view.epoch > known.epoch;
                if is_news {
                    *known = view.clone();
                }
                is_news
            });
        }
        for reply in waiting {
            let _nobody_waits = reply.send(answer.clone());
        }
    }
}
