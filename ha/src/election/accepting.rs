//! Accepting a store: an operator makes a restored or copied store the cluster's store, or repairs an `epoch`
//! that was overwritten by hand.
//!
//! One guarded transaction makes the store another incarnation of the cluster, without a holder, with the
//! store's identity:
//!
//! - From then on the fence refuses writes of the former incarnation, independent of their epoch.
//! - Running candidates of the former incarnation refuse the store and leave the election; other running processes
//!   refuse leaders of the accepted incarnation.
//! - No process leads in the accepted epoch. The first candidate that is started takes the next one.
//!
//! A crash before the transaction leaves the store unchanged, and one after it leaves it accepted; there is
//! nothing in between.

use std::time::Duration;

use crate::election::driver::{
    Attempt, ClusterIncarnation, ElectionDriver, ElectionView, Epoch, EpochRecord,
};
use crate::error::{Error, Outcome, Result};

/// Maximum number of tries while the store gives no definite answer.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// A proposal to accept a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceptance {
    /// The current content of the store's keys.
    pub seen: ElectionView,
    /// The new value of `epoch`.
    pub next: EpochRecord,
}

/// Reads a store and returns what accepting it would write. `Misconfigured` if no process has ever led in it:
/// there is nothing to accept.
pub async fn propose(driver: &dyn ElectionDriver) -> Result<Acceptance> {
    let seen = driver.read().await?;
    if seen.token().is_none() {
        return Err(Error::Misconfigured(
            "no process has ever led in this store: there is nothing to accept".into(),
        ));
    }
    // If `epoch` can't be read, use the other keys that name an epoch. Epochs of different incarnations are
    // never compared.
    let of_leader = seen.leader.as_ref().map(|leader| leader.epoch);
    let of_info = seen.info.as_ref().map(|info| info.epoch);
    let named = [of_leader, of_info].into_iter().flatten();
    let youngest = named.fold(seen.youngest(), Epoch::max);
    let next = EpochRecord {
        epoch: youngest.next(),
        incarnation: ClusterIncarnation::generate(),
        holder: None,
        store: seen.store.clone(),
    };
    Ok(Acceptance { seen, next })
}

/// Accepts a store as proposed. Errors: `Misconfigured` if its `leader` is alive and `force` is not set;
/// `Unavailable` if the store changed since the proposal; `NoAnswer` if it may or may not have been accepted.
pub async fn accept(driver: &dyn ElectionDriver, wanted: &Acceptance, force: bool) -> Result<()> {
    if let Some(leader) = wanted.seen.leader.as_ref().filter(|_| !force) {
        return Err(Error::Misconfigured(
            format!(
                "{} leads in epoch {}: end the processes that may lead in this store before it is accepted, or wait until the lease of a dead one has \
                 run out",
                leader.process, leader.epoch
            )
            .into(),
        ));
    }
    let mut tries = 1;
    loop {
        // The incarnation is new for each proposal, so the store itself shows whether an earlier try was
        // applied.
        let error = match driver.accept(&wanted.seen, &wanted.next).await {
            Ok(Attempt::Applied(_)) => return Ok(()),
            Ok(Attempt::Refused(view)) if is_accepted(&view, &wanted.next) => return Ok(()),
            Ok(Attempt::Refused(_)) => {
                return Err(Error::Unavailable {
                    store: "the store",
                    reason: "it was changed since it was read; run the command again".to_owned(),
                });
            }
            Err(error) => error,
        };
        let may_pass = matches!(error.outcome(), Outcome::Transient | Outcome::Ambiguous);
        if !may_pass || tries == TRIES {
            return Err(error);
        }
        tries += 1;
        tokio::time::sleep(PAUSE).await;
    }
}

fn is_accepted(view: &ElectionView, next: &EpochRecord) -> bool {
    let record = view.epoch.as_ref().map(|(record, _)| record);
    record.is_some_and(|record| record.incarnation == next.incarnation)
}
