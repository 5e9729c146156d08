//! Leader retrieval: a watch of the current leader, for processes that do not contend.
//!
//! [`follow`] starts a task that converts each view of the election's keys into a [`LeaderView`]; the driver owns
//! the keys' watch. Invariant: the epoch of the published views never decreases. So a store that was wiped, or
//! restored from an earlier epoch, changes nothing here until its epoch has reached the former one: a watch may be
//! late and can't prove that a store went back, a linearizable read can.

use tokio::sync::watch;

use crate::election::{
    ClusterIncarnation, ElectionView, Epoch, LeaderInformation, StoreIdentity, TermHolder,
};

/// The known leader information.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaderView {
    /// The cluster's incarnation, once a process has led.
    pub incarnation: Option<ClusterIncarnation>,
    /// The youngest epoch. May be younger than the leader's: then a successor has taken it and not confirmed
    /// yet.
    pub epoch: Epoch,
    /// The process that took the youngest epoch.
    pub holder: Option<TermHolder>,
    /// The identity of the store that this view comes from; `None` if it shows none.
    pub store: Option<StoreIdentity>,
    /// The confirmed leader of the youngest epoch, while its lease or session is alive.
    pub leader: Option<LeaderInformation>,
}

impl From<&ElectionView> for LeaderView {
    fn from(view: &ElectionView) -> LeaderView {
        LeaderView {
            incarnation: view
                .epoch
                .as_ref()
                .map(|(record, _)| record.incarnation.clone()),
            epoch: view.youngest(),
            holder: view
                .epoch
                .as_ref()
                .and_then(|(record, _)| record.holder.clone()),
            store: view.store.clone(),
            leader: view.confirmed().cloned(),
        }
    }
}

/// Follows the leader in a driver's watch, in a task on the current runtime. The task ends with the driver or
/// with the last receiver.
pub fn follow(mut observed: watch::Receiver<Option<ElectionView>>) -> watch::Receiver<LeaderView> {
    observed.mark_changed();
    let (known, leaders) = watch::channel(LeaderView::default());
    tokio::spawn(async move {
        loop {
            tokio::select! {
                changed = observed.changed() => if changed.is_err() { break },
                () = known.closed() => break,
            }
            let view = observed.borrow_and_update().clone();
            if view.as_ref().is_some_and(|view| view.unreadable.is_some()) {
                // No process can lead; such a view has no epoch, so the known one stays.
                known.send_if_modified(|before| before.leader.take().is_some());
                continue;
            }
            if let Some(view) = view.as_ref().map(LeaderView::from) {
                known.send_if_modified(|before| {
                    let is_news = view.epoch >= before.epoch && *before != view;
                    if is_news {
                        *before = view;
                    }
                    is_news
                });
            }
        }
    });
    leaders
}
