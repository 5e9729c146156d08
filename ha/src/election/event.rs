//! Input and output of an election's core: values without behaviour. The actor makes the events and runs the
//! effects.

use std::time::Duration;

use crate::clock::Moment;
use crate::election::driver::{
    Attempt, ClusterIncarnation, ElectionView, Epoch, EpochRecord, EpochToken, LeaderKey,
    SessionState, StoreIdentity,
};
use crate::error::Result;

/// An input of the core.
#[derive(Debug, Clone)]
pub enum Event {
    /// The lease or session changed or was renewed.
    Session(SessionState),
    /// The keys, from the watch or from a read.
    View(ElectionView),
    /// The answer to [`Effect::Read`].
    ReadReply(Result<ElectionView>),
    /// The answer to [`Effect::Advance`].
    AdvanceReply(Result<Attempt>),
    /// The answer to [`Effect::Attach`].
    AttachReply {
        /// The term's token.
        token: EpochToken,
        /// The store's answer.
        reply: Result<Attempt>,
    },
    /// The answer to [`Effect::Resign`].
    ResignReply(Result<Attempt>),
    /// Request to end the term of this epoch and to lead instead.
    Depose(Epoch),
    /// The depose request for this epoch was cancelled.
    CancelDepose(Epoch),
    /// The term of this epoch is reachable until the given moment; `None`: its heartbeats no longer arrive.
    TermReachable {
        /// The term's epoch.
        epoch: Epoch,
        /// End of validity.
        until: Option<Moment>,
    },
    /// End the own term and let another process lead.
    Resign,
    /// A message claims that this epoch exists.
    EpochClaimed {
        /// The epoch.
        epoch: Epoch,
        /// The sender of the message.
        sender: String,
    },
    /// The moment of [`Effect::WakeAt`] has come.
    Wake,
}

/// An output of the core, run by the actor.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "few exist at a time, each for one request to the store"
)]
pub enum Effect {
    /// Read the keys.
    Read,
    /// Take leadership or depose.
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
    /// Resign the term.
    Resign {
        /// The guard.
        token: EpochToken,
    },
    /// Report that a message claimed an epoch that the store does not have.
    Refute {
        /// The sender of the message.
        sender: String,
        /// The epoch.
        epoch: Epoch,
        /// The youngest epoch of the store.
        found: Epoch,
    },
    /// Publish this process's election status.
    Publish(ElectionStatus),
    /// Feed [`Event::Wake`] at this moment; replaces an earlier request.
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

/// The election status of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElectionStatus {
    /// It does not lead.
    Standby,
    /// It leads.
    Leading(Term),
    /// It may still lead, but the store has not confirmed that within the lease: it decides nothing.
    Suspended(Term),
    /// Its term of this epoch has ended; it stands by.
    Over(Epoch),
    /// The store does not belong to this process's cluster: the process must not continue.
    Refused(Refusal),
}

/// The reason why a store is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It is another incarnation of the cluster.
    OtherIncarnation {
        /// The incarnation that this process belongs to.
        expected: ClusterIncarnation,
        /// The incarnation of the store; `None`: it is empty.
        found: Option<ClusterIncarnation>,
    },
    /// It is an earlier state of the same incarnation.
    WentBack {
        /// The youngest epoch that the store had shown.
        known: Epoch,
        /// The epoch of the store.
        found: Epoch,
    },
    /// The youngest epoch was taken in another store: this one is a copy of it, or was restored since.
    Copied {
        /// The identity of that store.
        recorded: StoreIdentity,
        /// The identity of this one.
        found: StoreIdentity,
    },
}

/// Timeouts and intervals of the core.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Interval between retries while the store gives no answer.
    pub retry_interval: Duration,
    /// Time after resigning before this process takes free leadership again.
    pub resign_hold_off: Duration,
    /// Time for which leadership that became free without a resignation is left to a term whose heartbeats
    /// still arrive.
    pub suspended_hold_off: Duration,
    /// If leadership is free and this process never saw the `leader` key of the last term, as after its start: time
    /// that it leaves the last leader, until the detector reports whether that leader is reachable. Zero: there is no
    /// detector.
    pub no_contact_hold_off: Duration,
    /// Whether a `leader` key of an earlier start of this process is deposed as soon as it is seen. If false,
    /// the caller first verifies that the earlier start no longer answers, and then requests it.
    pub deposes_earlier_self: bool,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            retry_interval: Duration::from_millis(200),
            resign_hold_off: Duration::from_secs(2),
            suspended_hold_off: Duration::from_secs(10),
            no_contact_hold_off: Duration::ZERO,
            deposes_earlier_self: true,
        }
    }
}
