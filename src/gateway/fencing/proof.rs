//! Which term a process goes by, and why. Pure.
//!
//! - *Proven* is the youngest epoch that the process's own store has shown, by a watch or by a linearizable read.
//! - *Believed* is a younger one that a message named while that store gave no answer, in the name of the same store. The first
//!   answer of the store decides about it.
//! - What else a message says changes nothing: it is compared with these two.
//! - A linearizable read that was begun after the store had shown an epoch, and that shows an older one, proves that the store
//!   went back.

use std::cmp::Ordering;

use tanist_ha::election::{ClusterIncarnation, Epoch, StoreIdentity, TermHolder};
use tanist_ha::retrieval::LeaderView;

/// The term that a message says to be of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The cluster.
    pub incarnation: ClusterIncarnation,
    /// The term.
    pub epoch: Epoch,
    /// Who is said to hold it; `None`: the message does not say, as no message of a TaskManager does.
    pub holder: Option<TermHolder>,
    /// The identity of the store in which it is said to have been taken.
    pub store: Option<StoreIdentity>,
}

/// What the own store has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The cluster; `None`: the store is empty.
    pub incarnation: Option<ClusterIncarnation>,
    /// The youngest epoch.
    pub epoch: Epoch,
    /// What else the epoch's record says; `None`: it was not read.
    pub details: Option<Details>,
}

/// Whose an epoch is, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Details {
    /// Who took it; `None`: nobody leads in it.
    pub holder: Option<TermHolder>,
    /// The identity of the store that says so; `None`: it has none.
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

/// Whether a message is of the term that this process goes by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// It is.
    Admitted,
    /// It is not, whatever the store says next.
    Refused(Refusal),
    /// Only the store can tell, by an answer that was asked for after the message.
    Unproven,
}

/// Why a message is not of the term that this process goes by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another cluster, or this one with another store.
    #[error("cluster incarnation {offered}, but this process belongs to {known}")]
    OtherIncarnation {
        /// That of the message.
        offered: ClusterIncarnation,
        /// That of the own store.
        known: ClusterIncarnation,
    },
    /// There is a younger term.
    #[error("epoch {offered} is over, epoch {youngest} was heard of")]
    Older {
        /// That of the message.
        offered: Epoch,
        /// That of this process.
        youngest: Epoch,
    },
    /// Another process, or another start of it, holds this very epoch.
    #[error("epoch {epoch} is not held by {offered}: {}", holder_text(.holder.as_ref()))]
    OtherHolder {
        /// The epoch.
        epoch: Epoch,
        /// Who the message says to hold it.
        offered: TermHolder,
        /// Who holds it.
        holder: Option<TermHolder>,
    },
}

fn holder_text(holder: Option<&TermHolder>) -> String {
    match holder {
        Some(holder) => format!("the store names {holder}"),
        None => "the store names nobody".to_owned(),
    }
}

/// A term that was taken over from a message while the store was silent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Believed {
    epoch: Epoch,
    holder: TermHolder,
}

/// What was known when the store was asked. Its answer is compared with this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    proven: Epoch,
    believed: Option<Believed>,
}

impl Asked {
    /// The epoch that the store had shown by then.
    pub fn proven(&self) -> Epoch {
        self.proven
    }
}

/// A belief that the store has contradicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contradicted {
    /// Tells it from earlier ones.
    pub number: u64,
    /// The epoch that was believed.
    pub epoch: Epoch,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Proof {
    /// That of the own store; `None` until it has shown one.
    incarnation: Option<ClusterIncarnation>,
    proven: Epoch,
    /// Who holds the proven epoch; `None`: not read yet.
    holder: Option<Option<TermHolder>>,
    /// The identity of the store when it last told it; `None`: not read yet.
    store: Option<Option<StoreIdentity>>,
    believed: Option<Believed>,
    contradicted: Option<Contradicted>,
    went_back: Option<Epoch>,
}

impl Proof {
    /// The cluster's incarnation; `None` until the store has shown it.
    pub fn incarnation(&self) -> Option<&ClusterIncarnation> {
        self.incarnation.as_ref()
    }

    /// The epoch that this process goes by.
    pub fn youngest(&self) -> Epoch {
        let believed = self.believed.as_ref().map(|it| it.epoch);
        believed.unwrap_or_default().max(self.proven)
    }

    /// The epoch that the store has shown.
    pub fn proven(&self) -> Epoch {
        self.proven
    }

    /// Whether the epoch that this process goes by is not proven.
    pub fn is_believing(&self) -> bool {
        self.believed.is_some()
    }

    /// The last belief that the store has contradicted.
    pub fn contradicted(&self) -> Option<Contradicted> {
        self.contradicted
    }

    /// The epoch that the store shows though it had shown a younger one.
    pub fn went_back(&self) -> Option<Epoch> {
        self.went_back
    }

    /// Compares a message's term with what is known.
    pub fn judge(&self, claim: &Claim) -> Judgement {
        let Some(known) = &self.incarnation else {
            return Judgement::Unproven;
        };
        if *known != claim.incarnation {
            return Judgement::Refused(Refusal::OtherIncarnation {
                offered: claim.incarnation.clone(),
                known: known.clone(),
            });
        }
        let youngest = self.youngest();
        if claim.epoch < youngest {
            let offered = claim.epoch;
            return Judgement::Refused(Refusal::Older { offered, youngest });
        }
        let Some(offered) = &claim.holder else {
            return match claim.epoch == youngest {
                true => Judgement::Admitted,
                false => Judgement::Unproven,
            };
        };
        let holder = match &self.believed {
            Some(believed) => Some(Some(&believed.holder)),
            None => self.holder.as_ref().map(Option::as_ref),
        };
        match holder {
            Some(holder) if claim.epoch == youngest => match holder == Some(offered) {
                true => Judgement::Admitted,
                false => Judgement::Refused(Refusal::OtherHolder {
                    epoch: youngest,
                    offered: offered.clone(),
                    holder: holder.cloned(),
                }),
            },
            Some(_) | None => Judgement::Unproven,
        }
    }

    /// The own store has shown this, now or earlier.
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
        let Some(believed) = self.believed.take() else {
            return Ok(());
        };
        match (believed.epoch.cmp(&self.proven), &self.holder) {
            // Until the holder of the same epoch is read the belief says who it is.
            (Ordering::Greater, _) | (Ordering::Equal, None) => self.believed = Some(believed),
            (Ordering::Equal, Some(holder)) if holder.as_ref() != Some(&believed.holder) => {
                self.contradict(&believed);
            }
            // Proven, or over.
            (Ordering::Equal | Ordering::Less, _) => {}
        }
        Ok(())
    }

    fn contradict(&mut self, believed: &Believed) {
        let number = self.contradicted.map_or(0, |it| it.number) + 1;
        let epoch = believed.epoch;
        self.contradicted = Some(Contradicted { number, epoch });
    }

    /// What is to be kept when the store is asked.
    pub fn asked(&self) -> Asked {
        Asked {
            proven: self.proven,
            believed: self.believed.clone(),
        }
    }

    /// The own store has answered a linearizable read that was begun after `asked`.
    pub fn answered(&mut self, shown: &Shown, asked: &Asked) {
        let is_of_cluster = shown.incarnation.is_some() && {
            let refusal = self.show(shown).err();
            !matches!(refusal, Some(Refusal::OtherIncarnation { .. }))
        };
        if is_of_cluster && shown.epoch < asked.proven {
            self.went_back = Some(shown.epoch);
        }
        let is_contradicted =
            |it: &Believed| asked.believed.as_ref() == Some(it) && shown.epoch < it.epoch;
        if let Some(believed) = self
            .believed
            .take_if(|it| !is_of_cluster || is_contradicted(it))
        {
            self.contradict(&believed);
        }
    }

    /// Whether a message may count without proof, while the store is silent: it is of the store that proved the last epoch.
    pub fn is_credible(&self, claim: &Claim) -> bool {
        self.judge(claim) == Judgement::Unproven
            && self.incarnation.is_some()
            && claim.holder.is_some()
            && self.store.as_ref() == Some(&claim.store)
    }

    /// Whether the own store has an identity, by which a copy of it is told from it.
    pub fn has_identity(&self) -> bool {
        matches!(self.store, Some(Some(_)))
    }

    /// The store is silent: goes by a message's term until it answers. Whether it does.
    pub fn believe(&mut self, claim: &Claim) -> bool {
        let Some(holder) = claim.holder.clone().filter(|_| self.is_credible(claim)) else {
            return false;
        };
        self.believed = Some(Believed {
            epoch: claim.epoch,
            holder,
        });
        true
    }
}
