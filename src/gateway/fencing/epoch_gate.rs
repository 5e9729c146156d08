//! The gate through which the exchange between tasks checks terms: the youngest epoch that the store of this
//! TaskManager has shown. [`super::HighestEpoch`] owns that epoch and implements the gate, so that the exchange refuses
//! the same terms as the rest of its process.

use std::fmt;

use async_trait::async_trait;
use tanist_ha::election::{ClusterIncarnation, Epoch};

/// Why a term is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A younger term is known.
    #[error("epoch {offered} is over: epoch {highest} is known")]
    Stale {
        /// The epoch that was refused.
        offered: Epoch,
        /// The highest known epoch.
        highest: Epoch,
    },
    /// It is of another cluster, or of this one with another store.
    #[error("cluster incarnation {offered} is refused: this process belongs to {known}")]
    OtherCluster {
        /// The incarnation that was refused.
        offered: ClusterIncarnation,
        /// The incarnation that this process belongs to.
        known: ClusterIncarnation,
    },
    /// It is younger, but this process's own store does not show it.
    #[error("{0}")]
    Unproven(String),
}

/// The youngest epoch of a process, shared by all its components.
#[async_trait]
pub trait EpochGate: fmt::Debug + Send + Sync {
    /// Accepts the youngest term. Waits a moment for the own store to show a term that is younger still. A term
    /// that the store does not show is refused and changes nothing.
    async fn admit(&self, incarnation: &ClusterIncarnation, epoch: Epoch) -> Result<(), Refused>;

    /// The youngest term so far. This process sends all messages in this term.
    fn highest(&self) -> Option<(ClusterIncarnation, Epoch)>;
}
