//! Keeps a confirmed term confirmed: watches `leader-info`, and publishes it again when another writer
//! deleted or overwrote it.
//!
//! Without `leader-info` no client, standby or new follower finds the leader for the rest of the term. Invariant:
//! it is written only under the term's fence, so a term that is over publishes nothing. While it can't be
//! published (`leader` is missing, the store gives no answer), this is tried again until the term is over.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, warn};

use crate::election::driver::{Attempt, ElectionDriver, ElectionView, LeaderInformation};
use crate::election::session::LeaderSession;
use crate::retry::Backoff;

/// Maximum interval between reads of the store while the watch reports nothing.
const SLOWEST_RETRY: Duration = Duration::from_secs(5);

/// Watches the keys until the term is over.
pub(super) async fn keep(
    driver: Arc<dyn ElectionDriver>,
    session: LeaderSession,
    information: LeaderInformation,
    retry_interval: Duration,
) {
    let mut observed = driver.observed();
    let mut backoff = Backoff::new(retry_interval, SLOWEST_RETRY);
    let mut warned = false;
    loop {
        let seen_damaged = |view: &Option<ElectionView>| {
            view.as_ref()
                .is_some_and(|view| is_damaged(view, &information))
        };
        tokio::select! {
            damaged = observed.wait_for(seen_damaged) => if damaged.is_err() { return },
            () = session.over() => return,
        }
        // The watched view may date from before this term's publication: read the store before warning.
        match driver.read().await {
            Ok(view) if is_damaged(&view, &information) => {
                if !std::mem::replace(&mut warned, true) {
                    warn!(
                        epoch = %information.epoch,
                        "leader-info was deleted or overwritten by another writer: it is published again"
                    );
                }
                match driver.publish(session.fence().token, &information).await {
                    Ok(Attempt::Applied(_)) => debug!("leader-info is published again"),
                    Ok(Attempt::Refused(_)) => debug!(
                        "leader-info can't be published while the leader key is missing: retrying"
                    ),
                    Err(error) => debug!(%error, "leader-info could not be published: retrying"),
                }
            }
            Ok(_) => {}
            Err(error) => debug!(%error, "leader-info could not be read: retrying"),
        }
        // Limits how often a writer that overwrites it again and again is answered.
        tokio::select! {
            () = tokio::time::sleep(retry_interval) => {}
            () = session.over() => return,
        }
        // A lagging watch keeps showing the old view until its next update. A watch that arrives at the same
        // value again reports nothing; the timer covers that.
        tokio::select! {
            changed = observed.changed() => match changed {
                Ok(()) => backoff.reset(),
                Err(_) => return,
            },
            () = tokio::time::sleep(backoff.next_delay()) => {}
            () = session.over() => return,
        }
    }
}

/// Whether `leader-info` differs from what this term published. False for a view of another term, or while no
/// `leader` is there.
fn is_damaged(view: &ElectionView, information: &LeaderInformation) -> bool {
    let is_of_this = view.youngest() == information.epoch && view.leader.is_some();
    is_of_this && view.info.as_ref() != Some(information)
}
