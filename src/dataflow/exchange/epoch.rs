//! What the exchange shares with the rest of its TaskManager about terms: the highest epoch that anybody here has heard.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use tanist_ha::election::{ClusterIncarnation, Epoch};

/// Why somebody's term is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A younger term has been heard of.
    #[error("epoch {offered} is over: epoch {highest} was heard")]
    Stale {
        /// The epoch that was refused.
        offered: Epoch,
        /// The highest one.
        highest: Epoch,
    },
    /// Another cluster, or this one with another store.
    #[error("cluster incarnation {offered} is refused: this process belongs to {known}")]
    OtherCluster {
        /// The incarnation that was refused.
        offered: ClusterIncarnation,
        /// The one that was heard first.
        known: ClusterIncarnation,
    },
}

/// The highest epoch that a process has heard, from any component.
pub trait EpochGate: fmt::Debug + Send + Sync {
    /// Accepts a term, and takes note of it if it is the youngest so far.
    fn observe(&self, incarnation: &ClusterIncarnation, epoch: Epoch) -> Result<(), Refused>;

    /// The youngest term so far. What this process says to others, it says in this term.
    fn highest(&self) -> Option<(ClusterIncarnation, Epoch)>;
}

/// An [`EpochGate`] in memory.
#[derive(Debug, Default)]
pub struct HighestEpoch {
    heard: Mutex<Option<(ClusterIncarnation, Epoch)>>,
}

impl EpochGate for HighestEpoch {
    fn observe(&self, incarnation: &ClusterIncarnation, epoch: Epoch) -> Result<(), Refused> {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        match &*heard {
            Some((known, _)) if known != incarnation => Err(Refused::OtherCluster {
                offered: incarnation.clone(),
                known: known.clone(),
            }),
            Some((_, highest)) if epoch < *highest => Err(Refused::Stale {
                offered: epoch,
                highest: *highest,
            }),
            Some(_) | None => {
                *heard = Some((incarnation.clone(), epoch));
                Ok(())
            }
        }
    }

    fn highest(&self) -> Option<(ClusterIncarnation, Epoch)> {
        self.heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_epoch_and_another_cluster_are_refused() {
        let gate = HighestEpoch::default();
        let (ours, other) = (ClusterIncarnation::new("a"), ClusterIncarnation::new("b"));
        assert_eq!(gate.highest(), None);
        gate.observe(&ours, Epoch::new(2)).expect("the first");
        gate.observe(&ours, Epoch::new(2)).expect("the same");
        gate.observe(&ours, Epoch::new(4)).expect("a higher one");
        assert!(matches!(
            gate.observe(&ours, Epoch::new(3)),
            Err(Refused::Stale { .. })
        ));
        assert!(matches!(
            gate.observe(&other, Epoch::new(9)),
            Err(Refused::OtherCluster { .. })
        ));
        assert_eq!(gate.highest(), Some((ours, Epoch::new(4))));
    }
}
