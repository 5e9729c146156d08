//! What the exchange shares with the rest of its TaskManager about terms: the youngest epoch that its own store has shown.

use std::fmt;

use async_trait::async_trait;
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
    /// A younger term that this process's own store does not show.
    #[error("{0}")]
    Unproven(String),
}

/// The youngest epoch that a process goes by, in all its components.
#[async_trait]
pub trait EpochGate: fmt::Debug + Send + Sync {
    /// Accepts the youngest term. Waits a moment for the own store to show one that is younger still; what it does not show is
    /// refused and changes nothing.
    async fn admit(&self, incarnation: &ClusterIncarnation, epoch: Epoch) -> Result<(), Refused>;

    /// The youngest term so far. What this process says to others, it says in this term.
    fn highest(&self) -> Option<(ClusterIncarnation, Epoch)>;
}
