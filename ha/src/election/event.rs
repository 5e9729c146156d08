//! What goes into an election's core and what comes out of it.

use std::time::Duration;

use crate::clock::Moment;
use crate::election::driver::{
    Attempt, ClusterIncarnation, ElectionView, Epoch, EpochRecord, EpochToken, LeaderKey,
    SessionState, StoreIdentity,
};
use crate::error::Result;

/// What an election is told.
#[derive(Debug, Clone)]
pub enum Event {
    /// The lease or session changed or was renewed.
    Session(SessionState),
    /// The keys, as watched or as read.
    View(ElectionView),
    /// The answer to [`Effect::Read`].
    ReadReply(Result<ElectionView>),
    /// The answer to [`Effect::Advance`].
    AdvanceReply(Result<Attempt>),
    /// The answer to [`Effect::Attach`].
    AttachReply {
        /// Of which term.
        token: EpochToken,
        /// What the store said.
        reply: Result<Attempt>,
    },
    /// The answer to [`Effect::Resign`].
    ResignReply(Result<Attempt>),
    /// Somebody has reason to end the term of this epoch and to lead instead.
    Depose(Epoch),
    /// There is no such reason any more.
    Spare(Epoch),
    /// The term of this epoch is heard to live, which counts until then; `None`: it is not heard any more.
    Vouched {
        /// Whose.
        epoch: Epoch,
        /// Until when.
        until: Option<Moment>,
    },
    /// End the own term and let another process lead.
    Resign,
    /// A message says that this epoch exists.
    Told {
        /// The epoch.
        epoch: Epoch,
        /// Who says so.
        teller: String,
    },
    /// The moment of [`Effect::WakeAt`] has come.
    Wake,
}

/// What an election does.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "few exist at a time, each for one request to the store"
)]
pub enum Effect {
    /// Read the keys.
    Read,
    /// Take or depose.
    Advance {
        /// The guard.
        seen: ElectionView,
        /// The new value of `epoch`.
        next: EpochRecord,
        /// The new value of `leader`.
        leader: LeaderKey,
    },
    /// Put `leader` again in the same term.
    Attach {
        /// The guard.
        token: EpochToken,
        /// The value of `leader`.
        leader: LeaderKey,
    },
    /// Give the term up.
    Resign {
        /// The guard.
        token: EpochToken,
    },
    /// Say that a message told of an epoch that the store does not have.
    Refute {
        /// Who told of it.
        teller: String,
        /// The epoch.
        epoch: Epoch,
        /// The youngest epoch of the store.
        found: Epoch,
    },
    /// Tell the process of its standing.
    Publish(Standing),
    /// Feed [`Event::Wake`] at this moment; replaces an earlier one.
    WakeAt(Moment),
}

/// A term of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// Its epoch.
    pub epoch: Epoch,
    /// The guard of its writes.
    pub token: EpochToken,
}

/// How this process stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It does not lead.
    Standby,
    /// It leads.
    Leading(Term),
    /// It may still lead, but the store has not said so for too long: it decides nothing.
    Suspended(Term),
    /// Its term of this epoch has ended; it stands by.
    Over(Epoch),
    /// The store is not the one that this process belongs to: it must not go on.
    Refused(Refusal),
}

/// Why a store is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It is another incarnation of the cluster.
    OtherIncarnation {
        /// The incarnation that this process belongs to.
        expected: ClusterIncarnation,
        /// The incarnation of the store; `None`: it is empty.
        found: Option<ClusterIncarnation>,
    },
    /// It is this incarnation as it was before.
    WentBack {
        /// The youngest epoch that the store had shown.
        known: Epoch,
        /// The epoch of the store.
        found: Epoch,
    },
    /// It is a copy of the store in which its youngest epoch was taken, or was restored since.
    Copied {
        /// The identity of that store.
        recorded: StoreIdentity,
        /// The identity of this one.
        found: StoreIdentity,
    },
}

/// How the core waits.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Between tries at a store that gives no answer.
    pub retry_interval: Duration,
    /// After resigning, before this process takes free leadership again.
    pub resign_holdoff: Duration,
    /// For how long leadership that came free without a word is left to a term that is heard to live.
    pub suspended_holdoff: Duration,
    /// For how long leadership that was free before this process looked is left to whoever led last, until the detector says
    /// whether it hears that one. Zero: there is no detector to say so.
    pub unheard_holdoff: Duration,
    /// Whether a `leader` of an earlier start of this process is deposed as soon as it is seen. If not, somebody makes
    /// sure that it answers no more, and asks to.
    pub deposes_earlier_self: bool,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            retry_interval: Duration::from_millis(200),
            resign_holdoff: Duration::from_secs(2),
            suspended_holdoff: Duration::from_secs(10),
            unheard_holdoff: Duration::ZERO,
            deposes_earlier_self: true,
        }
    }
}
