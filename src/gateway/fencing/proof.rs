//! Decides which term a process accepts, and why. Pure.
//!
//! - *Proven* is the highest epoch that the process's own store has shown, by a watch or by a linearizable read.
//! - *Provisional* is a higher epoch that a message named while that store did not answer; the message named the
//!   same store. The store's first answer confirms or rejects it.
//! - Everything else in a message changes nothing: it is only compared with these two.
//! - A linearizable read that began after the store had shown an epoch, and that shows a lower one, proves that
//!   the store went back.

use std::cmp::Ordering;

use tanist_ha::election::{ClusterIncarnation, Epoch, StoreIdentity, TermHolder};
use tanist_ha::retrieval::LeaderView;

/// The term that a message claims to be of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Incarnation of the cluster.
    pub incarnation: ClusterIncarnation,
    /// Epoch of the term.
    pub epoch: Epoch,
    /// The claimed holder; `None`: the message names none, as for all messages of TaskManagers.
    pub holder: Option<TermHolder>,
    /// Identity of the store in which the term is claimed to have been taken.
    pub store: Option<StoreIdentity>,
}

/// What the own store has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Incarnation of the cluster; `None`: the store is empty.
    pub incarnation: Option<ClusterIncarnation>,
    /// The highest epoch.
    pub epoch: Epoch,
    /// The rest of the epoch's record; `None`: not read.
    pub details: Option<Details>,
}

/// Holder of an epoch, and the store that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Details {
    /// The process that took it; `None`: no process leads in it.
    pub holder: Option<TermHolder>,
    /// Identity of this store; `None`: it has none.
    pub store: Option<StoreIdentity>,
}

impl From<&LeaderView> for Shown {
    fn from(view: &LeaderView) -> Shown {
        Shown {
            incarnation: view.incarnation.clone(),
            epoch: view.epoch,
            details: Some(Details {
                holder: view.holder.clone(),
                store: view.store.clone(),
            }),
        }
    }
}

/// Whether a message is of the accepted term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Admitted,
    /// It is not, and no answer of the store can change that.
    Refused(Refusal),
    /// Only the store can say, by the answer to a read that began after the message arrived.
    Unproven,
}

/// Why a message is not of the accepted term.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is of another cluster, or of this one with another store.
    #[error("cluster incarnation {offered}, but this process belongs to {known}")]
    OtherIncarnation {
        /// Incarnation in the message.
        offered: ClusterIncarnation,
        /// Incarnation in the own store.
        known: ClusterIncarnation,
    },
    /// There is a higher epoch.
    #[error("epoch {offered} is over: this process knows epoch {youngest}")]
    Older {
        /// Epoch of the message.
        offered: Epoch,
        /// Epoch of this process.
        youngest: Epoch,
    },
    /// Another process, or another start of it, holds this epoch.
    #[error("epoch {epoch} is not held by {offered}: {}", holder_text(.holder.as_ref()))]
    OtherHolder {
        /// The epoch.
        epoch: Epoch,
        /// Holder named in the message.
        offered: TermHolder,
        /// The actual holder.
        holder: Option<TermHolder>,
    },
}

fn holder_text(holder: Option<&TermHolder>) -> String {
    match holder {
        Some(holder) => format!("the store names {holder}"),
        None => "the store names no holder".to_owned(),
    }
}

/// A term taken from a message while the store did not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ProvisionalTerm {
    epoch: Epoch,
    holder: TermHolder,
}

/// What was known when a read of the store began. Its answer is compared with this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadBaseline {
    proven: Epoch,
    provisional: Option<ProvisionalTerm>,
}

impl ReadBaseline {
    /// Returns the epoch that the store had shown by then.
    pub fn proven(&self) -> Epoch {
        self.proven
    }
}

/// A provisional term that the store has contradicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contradicted {
    /// Number that distinguishes it from earlier ones.
    pub number: u64,
    /// The provisional epoch.
    pub epoch: Epoch,
}

/// State of the proof; see the module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Proof {
    /// Incarnation of the own store; `None` until it has shown one.
    incarnation: Option<ClusterIncarnation>,
    proven: Epoch,
    /// Holder of the proven epoch; `None`: not read yet.
    holder: Option<Option<TermHolder>>,
    /// Identity of the store as last read; `None`: not read yet.
    store: Option<Option<StoreIdentity>>,
    provisional: Option<ProvisionalTerm>,
    contradicted: Option<Contradicted>,
    went_back: Option<Epoch>,
}

impl Proof {
    /// Returns the cluster's incarnation; `None` until the store has shown it.
    pub fn incarnation(&self) -> Option<&ClusterIncarnation> {
        self.incarnation.as_ref()
    }

    /// Returns the epoch that this process accepts.
    pub fn youngest(&self) -> Epoch {
        let provisional = self.provisional.as_ref().map(|it| it.epoch);
        provisional.unwrap_or_default().max(self.proven)
    }

    /// Returns the epoch that the store has shown.
    pub fn proven(&self) -> Epoch {
        self.proven
    }

    /// Whether the accepted epoch is provisional, not proven.
    pub(crate) fn is_provisional(&self) -> bool {
        self.provisional.is_some()
    }

    /// Returns the last provisional term that the store has contradicted.
    pub fn contradicted(&self) -> Option<Contradicted> {
        self.contradicted
    }

    /// Returns the epoch to which the store went back: it shows this one after it had shown a higher one.
    pub fn went_back(&self) -> Option<Epoch> {
        self.went_back
    }

    /// Compares a message's claim with what is known. The order matters: first the cluster, then the epoch, then the
    /// holder.
    pub fn check(&self, claim: &Claim) -> Verdict {
        let Some(known) = &self.incarnation else {
            return Verdict::Unproven;
        };
        if *known != claim.incarnation {
            return Verdict::Refused(Refusal::OtherIncarnation {
                offered: claim.incarnation.clone(),
                known: known.clone(),
            });
        }
        let youngest = self.youngest();
        if claim.epoch < youngest {
            let offered = claim.epoch;
            return Verdict::Refused(Refusal::Older { offered, youngest });
        }
        let Some(offered) = &claim.holder else {
            return match claim.epoch == youngest {
                true => Verdict::Admitted,
                false => Verdict::Unproven,
            };
        };
        let holder = match &self.provisional {
            Some(provisional) => Some(Some(&provisional.holder)),
            None => self.holder.as_ref().map(Option::as_ref),
        };
        match holder {
            Some(holder) if claim.epoch == youngest => match holder == Some(offered) {
                true => Verdict::Admitted,
                false => Verdict::Refused(Refusal::OtherHolder {
                    epoch: youngest,
                    offered: offered.clone(),
                    holder: holder.cloned(),
                }),
            },
            Some(_) | None => Verdict::Unproven,
        }
    }

    /// Records a view of the own store, of this moment or of an earlier one. A view below the proven epoch is refused:
    /// it is late, or the store went back, which only [`Proof::answered`] can tell.
    pub fn show(&mut self, shown: &Shown) -> Result<(), Refusal> {
        let Some(incarnation) = &shown.incarnation else {
            return Ok(());
        };
        if let Some(known) = self.incarnation.as_ref().filter(|it| *it != incarnation) {
            return Err(Refusal::OtherIncarnation {
                offered: incarnation.clone(),
                known: known.clone(),
            });
        }
        if shown.epoch < self.proven {
            return Err(Refusal::Older {
                offered: shown.epoch,
                youngest: self.proven,
            });
        }
        self.incarnation = Some(incarnation.clone());
        if shown.epoch > self.proven {
            self.proven = shown.epoch;
            self.holder = None;
        }
        if let Some(details) = &shown.details {
            self.holder = Some(details.holder.clone());
            self.store = Some(details.store.clone());
        }
        let Some(provisional) = self.provisional.take() else {
            return Ok(());
        };
        match (provisional.epoch.cmp(&self.proven), &self.holder) {
            // The provisional term names the holder until the holder of the same epoch is read.
            (Ordering::Greater, _) | (Ordering::Equal, None) => {
                self.provisional = Some(provisional)
            }
            (Ordering::Equal, Some(holder)) if holder.as_ref() != Some(&provisional.holder) => {
                self.contradict(&provisional);
            }
            // Proven, or the term is over.
            (Ordering::Equal | Ordering::Less, _) => {}
        }
        Ok(())
    }

    fn contradict(&mut self, provisional: &ProvisionalTerm) {
        let number = self.contradicted.map_or(0, |it| it.number) + 1;
        let epoch = provisional.epoch;
        self.contradicted = Some(Contradicted { number, epoch });
    }

    /// Returns what must be kept while the store is read.
    pub fn read_baseline(&self) -> ReadBaseline {
        ReadBaseline {
            proven: self.proven,
            provisional: self.provisional.clone(),
        }
    }

    /// Records the answer of the own store to a linearizable read that began at `baseline`.
    pub fn answered(&mut self, shown: &Shown, baseline: &ReadBaseline) {
        let is_of_cluster = shown.incarnation.is_some() && {
            let refusal = self.show(shown).err();
            !matches!(refusal, Some(Refusal::OtherIncarnation { .. }))
        };
        if is_of_cluster && shown.epoch < baseline.proven {
            self.went_back = Some(shown.epoch);
        }
        let is_contradicted = |it: &ProvisionalTerm| {
            baseline.provisional.as_ref() == Some(it) && shown.epoch < it.epoch
        };
        if let Some(provisional) = self
            .provisional
            .take_if(|it| !is_of_cluster || is_contradicted(it))
        {
            self.contradict(&provisional);
        }
    }

    /// Whether a message may count without proof while the store does not answer: it names the store that
    /// proved the last epoch.
    pub(crate) fn is_credible(&self, claim: &Claim) -> bool {
        self.check(claim) == Verdict::Unproven
            && self.incarnation.is_some()
            && claim.holder.is_some()
            && self.store.as_ref() == Some(&claim.store)
    }

    /// Whether the own store has an identity, which distinguishes it from its copies.
    pub(crate) fn has_identity(&self) -> bool {
        matches!(self.store, Some(Some(_)))
    }

    /// Accepts a message's term until the store answers. Returns whether it is accepted.
    pub fn accept_provisionally(&mut self, claim: &Claim) -> bool {
        let Some(holder) = claim.holder.clone().filter(|_| self.is_credible(claim)) else {
            return false;
        };
        self.provisional = Some(ProvisionalTerm {
            epoch: claim.epoch,
            holder,
        });
        true
    }
}
