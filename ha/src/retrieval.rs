//! Who leads, for processes that only want to know: TaskManagers, clients, standbys.

use tokio::sync::watch;

use crate::election::{
    ClusterIncarnation, ElectionView, Epoch, LeaderInformation, StoreIdentity, TermHolder,
};

/// What is known of the leader.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaderView {
    /// The cluster's incarnation, once anybody has led.
    pub incarnation: Option<ClusterIncarnation>,
    /// The youngest epoch. It may be younger than the leader's: then a successor has taken and not confirmed yet.
    pub epoch: Epoch,
    /// Who took the youngest epoch.
    pub holder: Option<TermHolder>,
    /// The identity of the store that says all this; `None` if it shows none.
    pub store: Option<StoreIdentity>,
    /// The confirmed leader of the youngest epoch, while its lease or session lives.
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

/// Follows the leader in what a driver observes, on the present runtime. Ends with the driver or the last receiver.
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
                // Nobody can lead; the youngest epoch is the one that was there.
                known.send_if_modified(|before| before.leader.take().is_some());
                continue;
            }
            if let Some(view) = view.as_ref().map(LeaderView::from) {
                known.send_if_modified(|before| {
                    // A view of an older epoch says nothing.
                    let news = view.epoch >= before.epoch && *before != view;
                    if news {
                        *before = view;
                    }
                    news
                });
            }
        }
    });
    leaders
}
