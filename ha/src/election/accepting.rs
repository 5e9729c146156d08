//! Accepting a store: what an operator does where a restored or copied store is to be the cluster's, or where `epoch` was
//! overwritten by hand.
//!
//! One guarded transaction makes the store another incarnation of the cluster, taken by nobody, in the store that it is:
//!
//! - Writes of the former incarnation are refused by their fence from then on, whatever epoch they are of.
//! - JobManagers of the former incarnation that use this store are refused by it; TaskManagers of it refuse the leaders of this one.
//! - Nobody leads in the accepted epoch. The first JobManager that is started takes the next one.
//!
//! A crash before the transaction leaves the store as it was, and one after it leaves it accepted; there is nothing in between.

use std::time::Duration;

use crate::election::driver::{
    Attempt, ClusterIncarnation, ElectionDriver, ElectionView, Epoch, EpochRecord,
};
use crate::error::{Error, Outcome, Result};

/// How often it is tried while the store gives no definite answer.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// What accepting a store makes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceptance {
    /// What the store holds.
    pub seen: ElectionView,
    /// What its `epoch` is to hold.
    pub next: EpochRecord,
}

/// Looks at a store and says what accepting it would make of it. `Misconfigured` if nobody has ever led in it: there is nothing
/// to be accepted.
pub async fn propose(driver: &dyn ElectionDriver) -> Result<Acceptance> {
    let seen = driver.read().await?;
    if seen.token().is_none() {
        return Err(Error::Misconfigured(
            "nobody has ever led in this store: there is nothing to accept, the first JobManager begins it".into(),
        ));
    }
    // Where `epoch` can't be read, what else names an epoch: numbers of another incarnation are not compared with these.
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

/// Accepts a store as it was looked at. `Misconfigured` if its `leader` is there and alive, unless `force` says that it may be;
/// `Unavailable` if it was changed since it was looked at; `NoAnswer` if it may or may not have been accepted.
pub async fn accept(driver: &dyn ElectionDriver, wanted: &Acceptance, force: bool) -> Result<()> {
    if let Some(leader) = wanted.seen.leader.as_ref().filter(|_| !force) {
        return Err(Error::Misconfigured(
            format!(
                "{} leads in epoch {}: end the JobManagers of this store before it is accepted, or wait until the lease of a dead one has \
                 run out",
                leader.process, leader.epoch
            )
            .into(),
        ));
    }
    let mut tries = 1;
    loop {
        // The incarnation is new each time, so the store itself tells whether an earlier try was applied.
        let error = match driver.accept(&wanted.seen, &wanted.next).await {
            Ok(Attempt::Applied(_)) => return Ok(()),
            Ok(Attempt::Refused(view)) if is_accepted(&view, &wanted.next) => return Ok(()),
            Ok(Attempt::Refused(_)) => {
                return Err(Error::Unavailable {
                    store: "the store",
                    reason: "it was changed since it was looked at; look again".to_owned(),
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
