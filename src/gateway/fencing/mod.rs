//! Fencing of incoming messages: the highest epoch that this process accepts, for all its components and transports.
//!
//! - A process that accepts an epoch refuses every lower one, and the same one from a process that does not hold it.
//! - A higher epoch counts once the process's own store shows it (`proof`). A message of a higher epoch waits
//!   for that ([`HighestEpoch::prove`]), for less than its first deadline; without proof it is refused, and
//!   nothing has changed.
//! - While the own store does not answer, a leader whose message names the same store is accepted provisionally.
//!   The store's first answer confirms or rejects it.

mod epoch_gate;
mod own_store;
mod proof;
#[cfg(test)]
mod proof_tests;
#[cfg(test)]
mod tests;

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tanist_ha::election::{ClusterIncarnation, Epoch, ProcessId, StoreIdentity, TermHolder};
use tanist_ha::retrieval::LeaderView;
use tanist_proto::v1 as pb;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until};

pub use self::epoch_gate::{EpochGate, Refused};
pub use self::own_store::OwnStore;
pub use self::proof::{Claim, Contradicted, Proof, ReadBaseline};
use self::proof::{Refusal, Shown, Verdict};
use super::{GatewayError, GatewayResult};

/// Time that a message waits for proof. The first dial of a leader must get the answer within its own limit of 500 ms.
const PROOF_TIMEOUT: Duration = Duration::from_millis(400);
/// Time without an answer of the own store after which a message that names this store is accepted. A store
/// that works answers sooner.
const SILENCE: Duration = Duration::from_millis(150);
/// The same for a store without an identity, which can't be distinguished from its copy. Longer than the first
/// dial waits.
const SILENCE_WITHOUT_IDENTITY: Duration = Duration::from_millis(700);
/// Delay between two reads of a store that can't be reached.
const PAUSE: Duration = Duration::from_millis(50);
/// The same while a term is accepted without proof.
const RECHECK_PAUSE: Duration = Duration::from_millis(500);
/// Minimum interval between two log messages about messages without proof.
const LOG_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum length, in characters, of a name from outside in texts.
const LONGEST_NAME: usize = 100;
/// Number of leaders' messages that may wait for proof at the same time; the same for hellos of the exchange.
const WAITING: usize = 1024;

/// Called when another process names a higher epoch than that of this process's own term, with the name of that
/// process. It makes the election read the store; only the store ends the term. Called from an actor, so it must not
/// block.
pub type OnHigherEpoch = Arc<dyn Fn(Epoch, &str) + Send + Sync>;

/// Returns the sender of a term's messages.
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

/// The term that this process accepts. Cheap to clone; all clones share it.
#[derive(Debug, Clone)]
pub struct HighestEpoch {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    proof: watch::Sender<Proof>,
    store: OnceLock<OwnStore>,
    /// Permits for leaders' messages that wait for proof.
    leaders: Semaphore,
    /// Permits for hellos of the exchange that wait for proof. Separate, so that many hellos can't block a
    /// leader's message.
    hellos: Semaphore,
    /// Time of the last log message about a term that is not in the store; limits their number.
    last_logged: Mutex<Option<Instant>>,
}

/// What a process accepts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AcceptedTerm {
    /// Incarnation of the cluster; `None` until the own store has shown one.
    pub incarnation: Option<ClusterIncarnation>,
    /// The highest epoch.
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
                last_logged: Mutex::default(),
            }),
        }
    }
}

impl HighestEpoch {
    /// Sets the process's own store, which proves epochs. Only the first call has an effect.
    pub fn proven_by(&self, store: OwnStore) {
        let _there_is_one = self.shared.store.set(store);
    }

    /// Records that the own store shows at least this epoch; nothing else was read. Fails if it is of another
    /// cluster incarnation, or lower than shown before.
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

    /// Records a view of the own store's watch.
    pub fn follow(&self, view: &LeaderView) -> Result<(), GatewayError> {
        self.show(&Shown::from(view))
    }

    fn show(&self, shown: &Shown) -> Result<(), GatewayError> {
        self.change(|proof| proof.show(shown))
            .map_err(GatewayError::from)
    }

    /// Returns what must be passed to [`HighestEpoch::answered`] after the store has answered a read.
    pub fn read_baseline(&self) -> ReadBaseline {
        self.shared.proof.borrow().read_baseline()
    }

    /// Records the answer of the own store to a linearizable read that began at `baseline`.
    pub fn answered(
        &self,
        incarnation: &ClusterIncarnation,
        epoch: Epoch,
        baseline: &ReadBaseline,
    ) {
        let shown = Shown {
            incarnation: Some(incarnation.clone()),
            epoch,
            details: None,
        };
        self.change(|proof| proof.answered(&shown, baseline));
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
                tracing::error!(%epoch, %proven, "the store contradicts the epoch that was accepted provisionally while the store did not answer");
            }
            *proof != before
        });
        outcome.expect("the closure was run")
    }

    /// Checks the sender of a leader's message against the accepted term. Does not wait.
    pub fn admit(&self, sender: Option<&pb::Sender>) -> GatewayResult<Epoch> {
        let claim = leaders_claim(sender)?;
        let verdict = self.shared.proof.borrow().check(&claim);
        let refused = match verdict {
            Verdict::Admitted => return Ok(claim.epoch),
            Verdict::Refused(refusal) => refusal.into(),
            Verdict::Unproven => unproven(&claim, "this process's own store has not shown it"),
        };
        tracing::info!(epoch = %claim.epoch, %refused, "refused a message");
        Err(refused)
    }

    /// The same, but waits for the proof of a higher epoch. Call it before a message can change anything.
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
            // Only messages of the exchange name no holder.
            None => &self.shared.hellos,
        };
        let Ok(_place) = places.try_acquire() else {
            return Err(unproven(claim, "too many messages are waiting for proof"));
        };
        let mut leaders = store.leaders();
        let mut changes = self.subscribe();
        // The watch may show it already.
        self.follow_watch(&mut leaders);
        if let Some(definite) = self.definite(claim) {
            return definite;
        }
        let until = Instant::now() + self.proof_timeout(claim);
        let mut reading = pin!(self.read(store));
        loop {
            tokio::select! {
                biased;
                Ok(()) = leaders.changed() => self.follow_watch(&mut leaders),
                Ok(()) = changes.changed() => {}
                () = &mut reading => {
                    // This read began after the message arrived.
                    return self.definite(claim).unwrap_or_else(|| Err(self.contradicted(claim)));
                }
                () = sleep_until(until) => return self.accept_provisionally(claim),
            }
            if let Some(definite) = self.definite(claim) {
                return definite;
            }
        }
    }

    fn follow_watch(&self, leaders: &mut watch::Receiver<LeaderView>) {
        let view = leaders.borrow_and_update().clone();
        // Dropped: the TaskExecutor follows the watch too, and logs a refusal.
        let _refused = self.follow(&view);
    }

    /// Returns once the store has answered a read that began after this call.
    async fn read(&self, store: &OwnStore) {
        loop {
            let baseline = self.read_baseline();
            match store.read().await {
                Ok(view) => {
                    let shown = Shown::from(&view);
                    return self.change(|proof| proof.answered(&shown, &baseline));
                }
                Err(error) => {
                    tracing::debug!(%error, "the store can't be read to prove an epoch; reading is retried");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Reads the store repeatedly while a term is accepted that it has not shown. Never returns.
    pub async fn recheck(&self) {
        let mut proofs = self.subscribe();
        loop {
            if proofs.wait_for(Proof::is_provisional).await.is_err() {
                return std::future::pending().await;
            }
            if let Some(store) = self.shared.store.get() {
                let baseline = self.read_baseline();
                if let Ok(view) = store.read().await {
                    let shown = Shown::from(&view);
                    self.change(|proof| proof.answered(&shown, &baseline));
                }
            }
            sleep(RECHECK_PAUSE).await;
        }
    }

    fn definite(&self, claim: &Claim) -> Option<GatewayResult<()>> {
        let verdict = self.shared.proof.borrow().check(claim);
        match verdict {
            Verdict::Admitted => Some(Ok(())),
            Verdict::Refused(refusal) => {
                let refused = GatewayError::from(refusal);
                tracing::info!(epoch = %claim.epoch, %refused, "refused a message");
                Some(Err(refused))
            }
            Verdict::Unproven => None,
        }
    }

    fn proof_timeout(&self, claim: &Claim) -> Duration {
        let proof = self.shared.proof.borrow();
        match (proof.is_credible(claim), proof.has_identity()) {
            (true, true) => SILENCE,
            (true, false) => SILENCE_WITHOUT_IDENTITY,
            (false, _) => PROOF_TIMEOUT,
        }
    }

    fn accept_provisionally(&self, claim: &Claim) -> GatewayResult<()> {
        if self.change(|proof| proof.accept_provisionally(claim)) {
            let (epoch, holder) = (claim.epoch, claim.holder.as_ref());
            let holder = holder.map(ToString::to_string);
            tracing::warn!(%epoch, holder, "this process's own store does not answer: a leader that names the same store is accepted provisionally until it does");
            return Ok(());
        }
        Err(unproven(claim, "this process's own store gives no answer"))
    }

    fn contradicted(&self, claim: &Claim) -> GatewayError {
        let epoch = self.shared.proof.borrow().proven();
        let reason = format!("this process's own store shows epoch {epoch}");
        let refused = unproven(claim, &reason);
        let now = Instant::now();
        let mut last_logged = self.shared.last_logged.lock();
        if last_logged.is_none_or(|at| now.saturating_duration_since(at) >= LOG_INTERVAL) {
            *last_logged = Some(now);
            tracing::warn!(%refused, "a message names a term that is not in this process's store");
        }
        refused
    }

    /// Returns what this process accepts.
    pub fn accepted(&self) -> AcceptedTerm {
        let proof = self.shared.proof.borrow();
        AcceptedTerm {
            incarnation: proof.incarnation().cloned(),
            epoch: proof.youngest(),
        }
    }

    /// Subscribes to changes of the proof.
    pub fn subscribe(&self) -> watch::Receiver<Proof> {
        self.shared.proof.subscribe()
    }
}

/// Returns the term that a leader's message claims.
fn leaders_claim(sender: Option<&pb::Sender>) -> GatewayResult<Claim> {
    let invalid = |reason: &str| GatewayError::Invalid(reason.to_owned());
    let sender = sender.ok_or_else(|| invalid("the message names no sender"))?;
    if sender.process.is_empty() {
        return Err(invalid("the message does not name the holder of its term"));
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

/// Error for a claim that may still be proven: the sender may send the message again.
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
            // Epochs of two clusters can't be compared, and an equal epoch is not higher.
            Refusal::OtherIncarnation { .. } | Refusal::OtherHolder { .. } => 0,
            Refusal::Older { youngest, .. } => youngest.get(),
        };
        // The text may contain a name from the message: escape it.
        let reason = refusal.to_string().escape_debug().to_string();
        GatewayError::Outdated { epoch, reason }
    }
}

/// The exchange between tasks uses the same proof and refusals as the rest of its process. A consumer names no
/// holder, so it is never accepted without proof.
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
        let accepted = self.accepted();
        Err(match accepted.incarnation {
            Some(known) if known != *incarnation => Refused::OtherCluster {
                offered: incarnation.clone(),
                known,
            },
            Some(_) if epoch < accepted.epoch => Refused::Stale {
                offered: epoch,
                highest: accepted.epoch,
            },
            Some(_) | None => Refused::Unproven(refused.to_string()),
        })
    }

    fn highest(&self) -> Option<(ClusterIncarnation, Epoch)> {
        let accepted = self.accepted();
        accepted
            .incarnation
            .map(|incarnation| (incarnation, accepted.epoch))
    }
}
