//! Why a term followed another one: what was known of the former leader, and when. For the takeover record: the
//! election itself decides nothing by it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Moment;
use crate::election::driver::{Epoch, ProcessId};

/// The kind of evidence that the former term must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Detection {
    /// The leader itself, or a process on its behalf, requested the takeover.
    Invited,
    /// Its process has ended: its address refuses connections on this host, or the store's lock on its file
    /// became free.
    ProcessGone,
    /// Another process, or another start of it, answers at its address.
    OtherIncarnation,
    /// Its heartbeat stream broke, and other processes lost it too.
    LostBySeveral,
    /// It was silent beyond the timeout, and other processes do not receive its heartbeats either.
    SilentConfirmed,
    /// An earlier start of this process had led, and no longer answers.
    OwnEarlierIncarnation,
    /// It lost contact with most of its followers and handed over to a process that reaches them.
    HandedOver,
    /// It resigned because its recovery made no progress.
    Stalled,
    /// It resigned without inviting a successor.
    Resigned,
    /// Its lease or session ran out.
    LeaseExpired,
}

impl Detection {
    /// Its name in records, logs and REST.
    pub fn name(self) -> &'static str {
        match self {
            Detection::Invited => "invited",
            Detection::ProcessGone => "process-gone",
            Detection::OtherIncarnation => "other-incarnation",
            Detection::LostBySeveral => "lost-by-several",
            Detection::SilentConfirmed => "silent-confirmed",
            Detection::OwnEarlierIncarnation => "own-earlier-incarnation",
            Detection::HandedOver => "handed-over",
            Detection::Stalled => "stalled",
            Detection::Resigned => "resigned",
            Detection::LeaseExpired => "lease-expired",
        }
    }

    /// Whether the former leader may have been healthy: it was judged from outside.
    pub fn may_be_a_false_alarm(self) -> bool {
        match self {
            Detection::OtherIncarnation
            | Detection::LostBySeveral
            | Detection::SilentConfirmed
            | Detection::ProcessGone => true,
            Detection::Invited
            | Detection::OwnEarlierIncarnation
            | Detection::HandedOver
            | Detection::Stalled
            | Detection::Resigned
            | Detection::LeaseExpired => false,
        }
    }
}

impl fmt::Display for Detection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The leader that was found to be gone, as far as it was known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Former {
    /// Its process id.
    pub process: Option<ProcessId>,
    /// The start of that process.
    pub incarnation: Option<String>,
    /// The address that served its heartbeats: `host:port`.
    pub address: Option<String>,
}

/// The evidence of a process that requests a deposition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// The kind of evidence.
    pub detection: Detection,
    /// The leader to depose.
    pub former: Former,
    /// Time of its last heartbeat.
    pub last_heartbeat: Option<Moment>,
    /// Time at which the evidence was complete.
    pub detected: Moment,
}

/// How a term followed another one. All moments use the clock of the process that leads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Takeover {
    /// The epoch of the former term.
    pub former_epoch: Epoch,
    /// Why the former term ended, and its leader.
    pub evidence: Evidence,
    /// When leadership was granted.
    pub granted: Moment,
    /// The same by the wall clock: milliseconds since 1970, for display.
    pub granted_ms: u64,
}

impl Takeover {
    /// Time from the last heartbeat until the detection; `None` if no heartbeat ever arrived.
    pub fn noticed_after(&self) -> Option<Duration> {
        let last = self.evidence.last_heartbeat?;
        Some(self.evidence.detected.since(last))
    }

    /// Time from the detection until leadership was granted.
    pub fn deposed_after(&self) -> Duration {
        self.granted.since(self.evidence.detected)
    }
}
