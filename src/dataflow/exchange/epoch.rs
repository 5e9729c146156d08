//! What the exchange shares with the rest of its TaskManager about terms: the highest epoch that anybody here has heard.

use std::fmt;

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
