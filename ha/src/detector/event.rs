//! Input and output of a detector's core: values without behaviour. The actor makes the events and runs the
//! effects.

use std::time::Duration;

use super::peer_heartbeat::{Break, PeerHeartbeat, Reply};
use crate::clock::Moment;
use crate::election::{Epoch, Evidence, HostIdentity, ProcessId};

/// Timeouts and intervals of a detector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DetectorOptions {
    /// Interval between heartbeats, and between the detector's own ticks.
    pub heartbeat_interval: Duration,
    /// Silence after which other processes are asked.
    pub silence_timeout: Duration,
    /// Timeout for their answers, and for connecting to an address.
    pub inquiry_timeout: Duration,
}

impl Default for DetectorOptions {
    fn default() -> DetectorOptions {
        DetectorOptions {
            heartbeat_interval: Duration::from_millis(100),
            silence_timeout: Duration::from_millis(800),
            inquiry_timeout: Duration::from_millis(300),
        }
    }
}

/// The leader to watch, as the keys name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its term.
    pub epoch: Epoch,
    /// Its process id.
    pub process: ProcessId,
    /// The address that serves its heartbeats; `None`: unknown, or it serves none.
    pub address: Option<String>,
    /// Whether `leader-info` of this term names the address. If not, the address is from the list of JobManagers, and
    /// an earlier start of the process may have written it: what happens at the address proves nothing about the term
    /// before a heartbeat of the term has arrived from there.
    pub is_confirmed: bool,
    /// The host that it runs on, if announced together with this address.
    pub host: Option<HostIdentity>,
}

/// An input of the core.
#[derive(Debug, Clone)]
pub enum Event {
    /// The leader to watch; `None`: this process leads, or no process does.
    Watch(Option<Target>),
    /// A heartbeat of the leader, or of the process that answers at its address.
    Heartbeat(PeerHeartbeat),
    /// The stream ended, or could not be opened.
    Broken(Break),
    /// The number of processes to which this inquiry was sent.
    InquirySent {
        /// The inquiry.
        inquiry: u64,
        /// The number of processes.
        count: usize,
    },
    /// One of them answered, or failed to answer.
    Answered {
        /// The inquiry.
        inquiry: u64,
        /// Its answer; `None`: no answer.
        reply: Option<Reply>,
    },
    /// One of them is proven dead: it does not count.
    ProvenDead {
        /// The inquiry.
        inquiry: u64,
    },
    /// A depose request failed.
    DeposeFailed {
        /// The request; a later one may be pending.
        request: u64,
    },
    /// The number of recent false alarms.
    FalseAlarms(u32),
    /// The timer of the heartbeat interval fired.
    Tick,
}

/// An output of the core, run by the actor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Drop the stream, and connect to this address after a pause.
    Connect {
        /// The address.
        address: String,
        /// The pause.
        after: Duration,
    },
    /// Drop the stream.
    Disconnect,
    /// Ask other processes about the leader.
    Inquire {
        /// The inquiry.
        inquiry: u64,
    },
    /// Depose the leader of that epoch.
    Depose {
        /// Number of this request, unique in this detector.
        request: u64,
        /// The epoch of the term.
        epoch: Epoch,
        /// The evidence.
        evidence: Evidence,
    },
    /// The leader announced why it gives up the term of that epoch: the reason to record if the term ends.
    Explain(Epoch, Evidence),
    /// Cancel a depose request.
    CancelDepose {
        /// The request.
        request: u64,
    },
    /// The term is reachable until the given moment; `None`: its heartbeats no longer arrive.
    TermReachable(Epoch, Option<Moment>),
    /// Another living process leads with this process's id.
    DuplicateId(PeerHeartbeat),
}
