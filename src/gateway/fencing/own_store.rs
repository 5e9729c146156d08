//! A process's own store as the source of the current leader: a watch, and linearizable reads shared by many callers.
//!
//! One read runs at a time. It answers all requests that arrived before it began, so a thousand messages of a
//! term that the watch has not shown yet cost two reads. A read whose callers have gone is finished anyway: the
//! watch shows its result too.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use tanist_ha::retrieval::LeaderView;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::NoAnswer;

/// Maximum number of reads that wait.
const WAITING: usize = 4096;
/// Timeout of a read, so that the next one can begin.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

type Reply = oneshot::Sender<Result<LeaderView, NoAnswer>>;

/// The process's own store; see the module. Cheap to clone.
#[derive(Clone)]
pub struct OwnStore {
    leaders: watch::Receiver<LeaderView>,
    reads: mpsc::Sender<Reply>,
}

impl OwnStore {
    /// Starts it: `leaders` is the watch, `read` a linearizable read. Runs on the current runtime until the
    /// last clone is dropped.
    pub fn start<R>(
        leaders: watch::Sender<LeaderView>,
        read: impl Fn() -> R + Send + 'static,
    ) -> OwnStore
    where
        R: Future<Output = Result<LeaderView, NoAnswer>> + Send + 'static,
    {
        let (reads, baseline) = mpsc::channel(WAITING);
        let store = OwnStore {
            leaders: leaders.subscribe(),
            reads,
        };
        tokio::spawn(answer(leaders, read, baseline));
        store
    }

    /// A store whose watch is never late, such as one inside this process: a read shows the same.
    pub fn never_late(leaders: watch::Sender<LeaderView>) -> OwnStore {
        let shown = leaders.clone();
        let read = move || std::future::ready(Ok(shown.borrow().clone()));
        OwnStore::start(leaders, read)
    }

    /// Returns the watch of the leader.
    pub fn leaders(&self) -> watch::Receiver<LeaderView> {
        self.leaders.clone()
    }

    /// Returns the result of a linearizable read that begins after this call.
    pub async fn read(&self) -> Result<LeaderView, NoAnswer> {
        let (reply, answered) = oneshot::channel();
        let sent = self.reads.try_send(reply);
        sent.map_err(|error| NoAnswer(format!("it can't be read: {error}")))?;
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
    mut requests: mpsc::Receiver<Reply>,
) where
    R: Future<Output = Result<LeaderView, NoAnswer>> + Send + 'static,
{
    while let Some(first) = requests.recv().await {
        let mut waiting = vec![first];
        while let Ok(next) = requests.try_recv() {
            waiting.push(next);
        }
        let late = |_| NoAnswer(format!("none within {READ_TIMEOUT:?}"));
        let answer = timeout(READ_TIMEOUT, read()).await;
        let answer = answer.map_err(late).and_then(|answer| answer);
        if let Ok(view) = &answer {
            // A read is passed to the watch only if it shows a higher epoch: for the same epoch, the watch may have
            // shown more than this read.
            leaders.send_if_modified(|known| {
                let is_news = view.epoch > known.epoch;
                if is_news {
                    *known = view.clone();
                }
                is_news
            });
        }
        for reply in waiting {
            let _ = reply.send(answer.clone());
        }
    }
}
