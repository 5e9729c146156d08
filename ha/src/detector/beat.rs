//! What the processes of a cluster tell and ask each other about who is alive.

use std::time::Duration;

use crate::election::{Epoch, HostIdentity, ProcessId};

/// How a process stands, as it says itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stance {
    /// It does not lead.
    Standby,
    /// It leads in this epoch.
    Leading(Epoch),
    /// It may still lead in this epoch, but its store does not confirm it.
    Suspended(Epoch),
}

impl Stance {
    /// The epoch of the term that it leads or may still lead.
    pub fn epoch(self) -> Option<Epoch> {
        match self {
            Stance::Standby => None,
            Stance::Leading(epoch) | Stance::Suspended(epoch) => Some(epoch),
        }
    }
}

/// What a process is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// It stands by.
    #[default]
    Standby,
    /// It was granted a term and recovers.
    Recovering,
    /// It leads, with everything recovered.
    Leading,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// With what.
    pub phase: Phase,
    /// So much of the phase is done,
    pub done: u64,
    /// of so much; zero: unknown.
    pub total: u64,
}

/// How long ago the parts of a leading process last had a turn; nothing: unknown, or not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Turns {
    /// Its main runtime.
    pub runtime: Option<Duration>,
    /// The term's Dispatcher.
    pub dispatcher: Option<Duration>,
    /// The term's ResourceManager.
    pub resource_manager: Option<Duration>,
}

/// One sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beat {
    /// Whose.
    pub process: ProcessId,
    /// Which start of it.
    pub incarnation: String,
    /// How it stands.
    pub stance: Stance,
    /// Where it runs, if its host tells.
    pub host: Option<HostIdentity>,
    /// What it is busy with.
    pub progress: Progress,
    /// Since when its stance and phase are what they are: milliseconds since 1970 by its own wall clock; nothing: it does
    /// not tell. For people.
    pub since_ms: Option<u64>,
    /// How long its parts have stood still.
    pub turns: Turns,
    /// The last term that it gave up because nothing in it moved.
    pub gave_up: Option<Epoch>,
    /// The change number up to which its copy of the records goes; zero: it keeps none.
    pub cached_change: u64,
    /// Of a leader: addresses of some processes beside the contending ones that can be asked about it.
    pub witnesses: Vec<String>,
}

/// How a stream of beats ended, or why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Break {
    /// The connection was there and ended.
    Ended,
    /// The address refuses connections: nobody is there, or a firewall says so.
    Refused,
    /// It refuses, and is an address of this process's own network namespace: its own kernel says that nobody is there.
    RefusedHere,
    /// It refuses, and is a loopback address: nobody is there on this host, wherever whoever named it may be.
    RefusedOnLoopback,
    /// The address does not answer in time, or can't be reached at all.
    NoAnswer,
}

/// What a process that lost a leader asks others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Whom it lost.
    pub leader: ProcessId,
    /// In which term.
    pub epoch: Epoch,
    /// Where that one serves its beats.
    pub address: String,
    /// How long the other one may try to hear it before it answers.
    pub patience: Duration,
}

/// Why a leader invites a standby to depose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invitation {
    /// Somebody asked it to, or it is about to end.
    Asked,
    /// It misses most TaskManagers, and the invited one reaches them.
    HandOver,
}

/// What others say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// It has heard the leader after it was asked.
    Hears,
    /// It does not hear it either, for so long.
    Lost {
        /// Since its last sign of life; zero if it only tried now.
        since: Duration,
    },
    /// It can't say: it follows another leader, or is too busy to trust itself.
    Unsure,
}
