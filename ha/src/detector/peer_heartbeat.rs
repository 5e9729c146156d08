//! Messages between the processes of a cluster about liveness. Values only: [`Peers`](super::peers::Peers) sends
//! them, and the detector judges them. A message proves nothing; it is evidence at most.

use std::time::Duration;

use crate::election::{Epoch, HostIdentity, ProcessId};

/// The role of a process, as it reports itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// It does not lead.
    Standby,
    /// It leads in this epoch.
    Leading(Epoch),
    /// It may still lead in this epoch, but its store does not confirm it.
    Suspended(Epoch),
}

impl Role {
    /// The epoch of the term that it leads or may still lead.
    pub fn epoch(self) -> Option<Epoch> {
        match self {
            Role::Standby => None,
            Role::Leading(epoch) | Role::Suspended(epoch) => Some(epoch),
        }
    }
}

/// The activity of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// It is a standby.
    #[default]
    Standby,
    /// It was granted a term and recovers.
    Recovering,
    /// It leads, with everything recovered.
    Leading,
}

/// Progress of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// The phase.
    pub phase: Phase,
    /// Amount of the phase that is done.
    pub done: u64,
    /// Total amount; zero: unknown.
    pub total: u64,
}

/// Time since each part of a leading process was last scheduled; `None`: unknown, or not present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SchedulingAges {
    /// Its main runtime.
    pub runtime: Option<Duration>,
    /// The term's Dispatcher.
    pub dispatcher: Option<Duration>,
    /// The term's ResourceManager.
    pub resource_manager: Option<Duration>,
}

/// One heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerHeartbeat {
    /// The sender.
    pub process: ProcessId,
    /// The start of that process.
    pub incarnation: String,
    /// Its role.
    pub role: Role,
    /// The host that it runs on, if known.
    pub host: Option<HostIdentity>,
    /// Its progress.
    pub progress: Progress,
    /// Time of the last change of its role or phase: milliseconds since 1970 by its own wall clock; `None`: not
    /// reported. For display.
    pub since_ms: Option<u64>,
    /// Time since each of its parts was last scheduled.
    pub scheduling_ages: SchedulingAges,
    /// The last term that it gave up because it made no progress; `None`: there is none.
    pub stalled_term: Option<Epoch>,
    /// The change number of its copy of the records; zero: it keeps none.
    pub cached_change: u64,
    /// Of a leader: addresses of some processes, besides the contending ones, that can be asked about it.
    pub witnesses: Vec<String>,
}

/// The reason why a heartbeat stream ended or could not be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Break {
    /// The connection was established and then ended.
    Ended,
    /// The address refuses connections: no process listens there, or a firewall refuses.
    Refused,
    /// Refused, at an address of this process's own network namespace: its own kernel says that no process
    /// listens there.
    RefusedHere,
    /// Refused, at a loopback address: no process listens there on this host; the address may have meant
    /// another host.
    RefusedOnLoopback,
    /// The address does not answer within the timeout, or is unreachable.
    NoAnswer,
}

/// The query of a process that lost a leader, to another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivenessQuery {
    /// The lost leader.
    pub leader: ProcessId,
    /// Its term.
    pub epoch: Epoch,
    /// The address that serves its heartbeats.
    pub address: String,
    /// Time for which the called process may wait for a heartbeat before it answers.
    pub timeout: Duration,
}

/// The reason why a leader invites a standby to depose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invitation {
    /// A user requested it, or the leader's process is about to end.
    Requested,
    /// The leader lost contact with most of its followers, and the invited process reaches them.
    HandOver,
}

/// The answer of another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// It has received a heartbeat of the leader after the query.
    Reachable,
    /// It receives no heartbeats of the leader either.
    Lost {
        /// Time since the leader's last heartbeat; zero if it only tried now.
        since: Duration,
    },
    /// It does not know: it watches another leader, or was itself delayed.
    Unsure,
}
