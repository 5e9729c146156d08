//! Who refuses whom: the highest epoch that this process has heard of, from any component, over any way.
//!
//! Invariant 2: whoever has accepted an epoch refuses every lower one from all. It is raised by every message, by leader
//! retrieval, by the exchange's handshake, and by a TaskExecutor when it *sends* a registration.

use std::sync::Arc;

use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_proto::v1 as pb;
use tokio::sync::watch;

use super::GatewayError;
use crate::dataflow::{EpochGate, Refused};

/// The youngest term that this process has heard of. Cheap to clone; all clones share it.
#[derive(Debug, Clone)]
pub struct HighestEpoch {
    heard: Arc<watch::Sender<Heard>>,
}

/// What has been heard.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Heard {
    /// The cluster's incarnation; `None` until first heard.
    pub incarnation: Option<ClusterIncarnation>,
    /// The youngest epoch.
    pub epoch: Epoch,
}

impl Default for HighestEpoch {
    fn default() -> HighestEpoch {
        HighestEpoch {
            heard: Arc::new(watch::Sender::new(Heard::default())),
        }
    }
}

impl HighestEpoch {
    /// Takes note of a term, and refuses it if it is of another cluster incarnation or older than one heard before.
    pub fn observe(
        &self,
        incarnation: &ClusterIncarnation,
        epoch: Epoch,
    ) -> Result<(), GatewayError> {
        let mut refusal = None;
        self.heard.send_if_modified(|heard| {
            if heard
                .incarnation
                .as_ref()
                .is_some_and(|known| known != incarnation)
            {
                let known = heard.incarnation.as_ref().map(ClusterIncarnation::as_str);
                refusal = Some(GatewayError::Outdated {
                    // Epochs of two clusters can't be compared: naming one would depose whoever hears of it.
                    epoch: 0,
                    reason: format!(
                        "cluster incarnation {incarnation}, but this process belongs to {}",
                        known.unwrap_or_default()
                    ),
                });
                return false;
            }
            if epoch < heard.epoch {
                refusal = Some(GatewayError::Outdated {
                    epoch: heard.epoch.get(),
                    reason: format!("epoch {epoch} is over, epoch {} was heard of", heard.epoch),
                });
                return false;
            }
            let raised = epoch > heard.epoch || heard.incarnation.is_none();
            heard.incarnation = Some(incarnation.clone());
            heard.epoch = epoch;
            raised
        });
        refusal.map_or(Ok(()), Err)
    }

    /// Checks the sender of a message, taking note of its term.
    pub fn admit(&self, sender: Option<&pb::Sender>) -> Result<Epoch, GatewayError> {
        let sender = sender
            .ok_or_else(|| GatewayError::Invalid("the message names no sender".to_owned()))?;
        let epoch = Epoch::new(sender.epoch);
        let incarnation = ClusterIncarnation::new(sender.cluster_incarnation.as_str());
        if let Err(refused) = self.observe(&incarnation, epoch) {
            tracing::info!(%epoch, %refused, "refused a message");
            return Err(refused);
        }
        Ok(epoch)
    }

    /// What has been heard so far.
    pub fn heard(&self) -> Heard {
        self.heard.borrow().clone()
    }

    /// Follows it.
    pub fn subscribe(&self) -> watch::Receiver<Heard> {
        self.heard.subscribe()
    }
}

/// The exchange between tasks hears and refuses like everything else in its process.
impl EpochGate for HighestEpoch {
    fn observe(&self, incarnation: &ClusterIncarnation, epoch: Epoch) -> Result<(), Refused> {
        HighestEpoch::observe(self, incarnation, epoch).map_err(|_| {
            let heard = self.heard();
            match heard.incarnation {
                Some(known) if known != *incarnation => Refused::OtherCluster {
                    offered: incarnation.clone(),
                    known,
                },
                Some(_) | None => Refused::Stale {
                    offered: epoch,
                    highest: heard.epoch,
                },
            }
        })
    }

    fn highest(&self) -> Option<(ClusterIncarnation, Epoch)> {
        let heard = self.heard();
        heard
            .incarnation
            .map(|incarnation| (incarnation, heard.epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_epoch_is_refused_after_a_higher_one_was_heard() {
        let highest = HighestEpoch::default();
        let cluster = ClusterIncarnation::new("c1");
        assert_eq!(highest.observe(&cluster, Epoch::new(3)), Ok(()));
        let refusal = highest.observe(&cluster, Epoch::new(2)).expect_err("older");
        assert_eq!(
            refusal.to_string(),
            "outdated: epoch 2 is over, epoch 3 was heard of"
        );
        assert_eq!(highest.observe(&cluster, Epoch::new(3)), Ok(()));
    }

    #[test]
    fn the_exchange_is_told_why_it_is_refused() {
        let gate = HighestEpoch::default();
        let (ours, other) = (ClusterIncarnation::new("a"), ClusterIncarnation::new("b"));
        assert_eq!(gate.highest(), None);
        EpochGate::observe(&gate, &ours, Epoch::new(4)).expect("the first");
        let stale = EpochGate::observe(&gate, &ours, Epoch::new(3));
        assert!(matches!(stale, Err(Refused::Stale { .. })), "{stale:?}");
        let foreign = EpochGate::observe(&gate, &other, Epoch::new(9));
        assert!(
            matches!(foreign, Err(Refused::OtherCluster { .. })),
            "{foreign:?}"
        );
        assert_eq!(gate.highest(), Some((ours, Epoch::new(4))));
    }

    #[test]
    fn another_incarnation_of_the_cluster_is_refused_whatever_its_epoch() {
        let highest = HighestEpoch::default();
        assert_eq!(
            highest.observe(&ClusterIncarnation::new("c1"), Epoch::new(3)),
            Ok(())
        );
        let refusal = highest.observe(&ClusterIncarnation::new("c2"), Epoch::new(2));
        let names_no_epoch = matches!(refusal, Err(GatewayError::Outdated { epoch: 0, .. }));
        assert!(names_no_epoch, "{refusal:?}");
        assert_eq!(highest.heard().epoch, Epoch::new(3));
    }
}
