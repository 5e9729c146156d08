//! Who refuses whom: the youngest epoch that this process goes by, for all its components and over all ways.
//!
//! - Who goes by an epoch refuses every lower one from all, and the same one from a process that does not hold it.
//! - A higher epoch counts once the process's own store shows it (`proof`). A message of a higher epoch waits for that
//!   ([`HighestEpoch::prove`]), for less than its first deadline; without proof it is refused, and nothing has changed.
//! - While the own store gives no answer, a leader is followed whose message names that same store. The first answer decides about it.

mod own_store;
mod proof;
#[cfg(test)]
mod proof_tests;
#[cfg(test)]
mod tests;

use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tanist_ha::election::{ClusterIncarnation, Epoch, ProcessId, StoreIdentity, TermHolder};
use tanist_ha::retrieval::LeaderView;
use tanist_proto::v1 as pb;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until};

pub use self::own_store::OwnStore;
pub use self::proof::{Asked, Claim, Contradicted, Proof};
use self::proof::{Judgement, Refusal, Shown};
use super::{GatewayError, GatewayResult};
use crate::dataflow::{EpochGate, Refused};

/// How long a message waits for proof. The first dial of a leader hears the answer within its own bound of 500 ms.
const PROOF_TIMEOUT: Duration = Duration::from_millis(400);
/// How long the own store may be silent before a message in its name is believed. A store that answers at all does so sooner.
const SILENCE: Duration = Duration::from_millis(150);
/// The same where the store has no identity, so that a copy of it can't be told from it: more than the first dial waits.
const SILENCE_WITHOUT_IDENTITY: Duration = Duration::from_millis(700);
/// Between two reads of a store that can't be reached.
const PAUSE: Duration = Duration::from_millis(50);
/// The same while a leader is believed whom nothing has proven.
const RECHECK_PAUSE: Duration = Duration::from_millis(500);
/// How often at most it is said that a message was refused for want of proof.
const SAID_INTERVAL: Duration = Duration::from_secs(1);
/// What is told of a name from outside.
const LONGEST_NAME: usize = 100;
/// Messages of leaders that may wait for proof at once, and as many hellos of the exchange.
const WAITING: usize = 1024;

/// Told that another process has named a younger epoch than that of this process's own term, and which one named it: the store
/// is asked, and alone ends the term. Called from an actor, so it must not wait.
pub type OnHigherEpoch = Arc<dyn Fn(Epoch, &str) + Send + Sync>;

/// How a term names itself in its messages.
pub fn sender_of(
    incarnation: &ClusterIncarnation,
    epoch: Epoch,
    holder: &TermHolder,
    store: Option<&StoreIdentity>,
) -> pb::Sender {
    pb::Sender {
        cluster_incarnation: incarnation.to_string(),
        epoch: epoch.get(),
        registration: 0,
        process: holder.process.to_string(),
        process_start: holder.start.clone(),
        store: store.map(ToString::to_string).unwrap_or_default(),
    }
}

/// The term that this process goes by. Cheap to clone; all clones share it.
#[derive(Debug, Clone)]
pub struct HighestEpoch {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    proof: watch::Sender<Proof>,
    store: OnceLock<OwnStore>,
    /// Places for leaders' messages that wait for proof.
    leaders: Semaphore,
    /// Places for hellos of the exchange that do: however many come, they keep no leader's message out.
    hellos: Semaphore,
    /// When it was last said that a message names a term which is not in the store: they may be many.
    said: Mutex<Option<Instant>>,
}

/// What a process goes by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Heard {
    /// The cluster's incarnation; `None` until the own store has shown one.
    pub incarnation: Option<ClusterIncarnation>,
    /// The youngest epoch.
    pub epoch: Epoch,
}

impl Default for HighestEpoch {
    fn default() -> HighestEpoch {
        HighestEpoch {
            shared: Arc::new(Shared {
                proof: watch::Sender::default(),
                store: OnceLock::new(),
                leaders: Semaphore::new(WAITING),
                hellos: Semaphore::new(WAITING),
                said: Mutex::default(),
            }),
        }
    }
}

impl HighestEpoch {
    /// What proves epochs from here on: the process's own store. The first one counts.
    pub fn proven_by(&self, store: OwnStore) {
        let _there_is_one = self.shared.store.set(store);
    }

    /// The own store shows at least this epoch, and nothing else was read. Refused: it is of another cluster incarnation, or older
    /// than what was shown before.
    pub fn observe(
        &self,
        incarnation: &ClusterIncarnation,
        epoch: Epoch,
    ) -> Result<(), GatewayError> {
        self.show(&Shown {
            incarnation: Some(incarnation.clone()),
            epoch,
            details: None,
        })
    }

    /// The watch of the own store shows this.
    pub fn follow(&self, view: &LeaderView) -> Result<(), GatewayError> {
        self.show(&Shown::from(view))
    }

    fn show(&self, shown: &Shown) -> Result<(), GatewayError> {
        self.change(|proof| proof.show(shown))
            .map_err(GatewayError::from)
    }

    /// What is to be kept when the own store is asked.
    pub fn asked(&self) -> Asked {
        self.shared.proof.borrow().asked()
    }

    /// The own store has answered a linearizable read that was begun after `asked`, with no more than this.
    pub fn answered(&self, incarnation: &ClusterIncarnation, epoch: Epoch, asked: &Asked) {
        let shown = Shown {
            incarnation: Some(incarnation.clone()),
            epoch,
            details: None,
        };
        self.change(|proof| proof.answered(&shown, asked));
    }

    fn change<T>(&self, change: impl FnOnce(&mut Proof) -> T) -> T {
        let mut outcome = None;
        self.shared.proof.send_if_modified(|proof| {
            let before = proof.clone();
            outcome = Some(change(proof));
            if let Some(it) = proof.contradicted()
                && before.contradicted() != Some(it)
            {
                let (epoch, proven) = (it.epoch, proof.proven());
                tracing::error!(%epoch, %proven, "the store contradicts the epoch that was believed while it was silent");
            }
            *proof != before
        });
        outcome.expect("the closure was run")
    }

    /// Checks the sender of a leader's message against the term that this process goes by. Waits for nothing.
    pub fn admit(&self, sender: Option<&pb::Sender>) -> GatewayResult<Epoch> {
        let claim = leaders_claim(sender)?;
        let judgement = self.shared.proof.borrow().judge(&claim);
        let refused = match judgement {
            Judgement::Admitted => return Ok(claim.epoch),
            Judgement::Refused(refusal) => refusal.into(),
            Judgement::Unproven => unproven(&claim, "this process's own store has not shown it"),
        };
        tracing::info!(epoch = %claim.epoch, %refused, "refused a message");
        Err(refused)
    }

    /// The same, but waits for the proof of a younger epoch. To be called before a message may change anything.
    pub async fn prove(&self, sender: Option<&pb::Sender>) -> GatewayResult<()> {
        let claim = leaders_claim(sender)?;
        self.prove_claim(&claim).await
    }

    async fn prove_claim(&self, claim: &Claim) -> GatewayResult<()> {
        if let Some(definite) = self.definite(claim) {
            return definite;
        }
        let Some(store) = self.shared.store.get() else {
            return Err(unproven(claim, "this process has no store yet"));
        };
        let places = match &claim.holder {
            Some(_) => &self.shared.leaders,
            // Only the exchange names no holder.
            None => &self.shared.hellos,
        };
        let Ok(_place) = places.try_acquire() else {
            return Err(unproven(claim, "too many messages wait for proof"));
        };
        let mut leaders = store.leaders();
        let mut changes = self.subscribe();
        // The watch may show it already.
        self.follow_watch(&mut leaders);
        if let Some(definite) = self.definite(claim) {
            return definite;
        }
        let until = Instant::now() + self.patience(claim);
        let mut asking = pin!(self.ask(store));
        loop {
            tokio::select! {
                biased;
                Ok(()) = leaders.changed() => self.follow_watch(&mut leaders),
                Ok(()) = changes.changed() => {}
                () = &mut asking => {
                    // It was asked after the message came.
                    return self.definite(claim).unwrap_or_else(|| Err(self.contradicted(claim)));
                }
                () = sleep_until(until) => return self.believe(claim),
            }
            if let Some(definite) = self.definite(claim) {
                return definite;
            }
        }
    }

    fn follow_watch(&self, leaders: &mut watch::Receiver<LeaderView>) {
        let view = leaders.borrow_and_update().clone();
        // The TaskExecutor, which follows it too, says so.
        let _refused = self.follow(&view);
    }

    /// Returns when the store has answered a read that began after this call.
    async fn ask(&self, store: &OwnStore) {
        loop {
            let asked = self.asked();
            match store.read().await {
                Ok(view) => {
                    let shown = Shown::from(&view);
                    return self.change(|proof| proof.answered(&shown, &asked));
                }
                Err(error) => {
                    tracing::debug!(%error, "an epoch can't be proven for now");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Asks the store for as long as a term is believed that it has not shown. Never ends.
    pub async fn recheck(&self) {
        let mut proofs = self.subscribe();
        loop {
            if proofs.wait_for(Proof::is_believing).await.is_err() {
                return std::future::pending().await;
            }
            if let Some(store) = self.shared.store.get() {
                let asked = self.asked();
                if let Ok(view) = store.read().await {
                    let shown = Shown::from(&view);
                    self.change(|proof| proof.answered(&shown, &asked));
                }
            }
            sleep(RECHECK_PAUSE).await;
        }
    }

    fn definite(&self, claim: &Claim) -> Option<GatewayResult<()>> {
        let judgement = self.shared.proof.borrow().judge(claim);
        match judgement {
            Judgement::Admitted => Some(Ok(())),
            Judgement::Refused(refusal) => {
                let refused = GatewayError::from(refusal);
                tracing::info!(epoch = %claim.epoch, %refused, "refused a message");
                Some(Err(refused))
            }
            Judgement::Unproven => None,
        }
    }

    fn patience(&self, claim: &Claim) -> Duration {
        let proof = self.shared.proof.borrow();
        match (proof.is_credible(claim), proof.has_identity()) {
            (true, true) => SILENCE,
            (true, false) => SILENCE_WITHOUT_IDENTITY,
            (false, _) => PROOF_TIMEOUT,
        }
    }

    fn believe(&self, claim: &Claim) -> GatewayResult<()> {
        if self.change(|proof| proof.believe(claim)) {
            let (epoch, holder) = (claim.epoch, claim.holder.as_ref());
            let holder = holder.map(ToString::to_string);
            tracing::warn!(%epoch, holder, "this process's own store gives no answer: a leader that names the same store is believed");
            return Ok(());
        }
        Err(unproven(claim, "this process's own store gives no answer"))
    }

    fn contradicted(&self, claim: &Claim) -> GatewayError {
        let epoch = self.shared.proof.borrow().proven();
        let reason = format!("this process's own store shows epoch {epoch}");
        let refused = unproven(claim, &reason);
        let now = Instant::now();
        let mut said = self
            .shared
            .said
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if said.is_none_or(|at| now.saturating_duration_since(at) >= SAID_INTERVAL) {
            *said = Some(now);
            tracing::warn!(%refused, "a message names a term that is not in this process's store");
        }
        refused
    }

    /// What this process goes by.
    pub fn heard(&self) -> Heard {
        let proof = self.shared.proof.borrow();
        Heard {
            incarnation: proof.incarnation().cloned(),
            epoch: proof.youngest(),
        }
    }

    /// Follows it.
    pub fn subscribe(&self) -> watch::Receiver<Proof> {
        self.shared.proof.subscribe()
    }
}

/// The term that a leader's message is of.
fn leaders_claim(sender: Option<&pb::Sender>) -> GatewayResult<Claim> {
    let invalid = |reason: &str| GatewayError::Invalid(reason.to_owned());
    let sender = sender.ok_or_else(|| invalid("the message names no sender"))?;
    if sender.process.is_empty() {
        return Err(invalid("the message does not name who holds its term"));
    }
    Ok(Claim {
        incarnation: ClusterIncarnation::new(sender.cluster_incarnation.as_str()),
        epoch: Epoch::new(sender.epoch),
        holder: Some(TermHolder {
            process: ProcessId::new(sender.process.as_str()),
            start: sender.process_start.clone(),
        }),
        store: Some(sender.store.as_str())
            .filter(|store| !store.is_empty())
            .map(StoreIdentity::new),
    })
}

/// It may still be proven: the same message may be sent again.
fn unproven(claim: &Claim, reason: &str) -> GatewayError {
    let holder = match &claim.holder {
        Some(holder) => {
            let name = holder.to_string();
            let name = name.escape_debug().take(LONGEST_NAME);
            format!(" of {}", name.collect::<String>())
        }
        None => String::new(),
    };
    GatewayError::NotYet(format!(
        "epoch {}{holder} is not proven: {reason}",
        claim.epoch
    ))
}

impl From<Refusal> for GatewayError {
    fn from(refusal: Refusal) -> GatewayError {
        let epoch = match &refusal {
            // Epochs of two clusters can't be compared, and the same one is younger than none.
            Refusal::OtherIncarnation { .. } | Refusal::OtherHolder { .. } => 0,
            Refusal::Older { youngest, .. } => youngest.get(),
        };
        // It may name who the message says to speak: text from outside.
        let reason = refusal.to_string().escape_debug().to_string();
        GatewayError::Outdated { epoch, reason }
    }
}

/// The exchange between tasks proves and refuses like everything else in its process. A consumer names no holder, so it is never
/// believed.
#[async_trait]
impl EpochGate for HighestEpoch {
    async fn admit(&self, incarnation: &ClusterIncarnation, epoch: Epoch) -> Result<(), Refused> {
        let claim = Claim {
            incarnation: incarnation.clone(),
            epoch,
            holder: None,
            store: None,
        };
        let Err(refused) = self.prove_claim(&claim).await else {
            return Ok(());
        };
        let heard = self.heard();
        Err(match heard.incarnation {
            Some(known) if known != *incarnation => Refused::OtherCluster {
                offered: incarnation.clone(),
                known,
            },
            Some(_) if epoch < heard.epoch => Refused::Stale {
                offered: epoch,
                highest: heard.epoch,
            },
            Some(_) | None => Refused::Unproven(refused.to_string()),
        })
    }

    fn highest(&self) -> Option<(ClusterIncarnation, Epoch)> {
        let heard = self.heard();
        heard
            .incarnation
            .map(|incarnation| (incarnation, heard.epoch))
    }
}
