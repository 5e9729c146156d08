//! How a term came about: what was known of the former leader, and when. For the takeover's record; nothing is decided by it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Moment;
use crate::election::driver::{Epoch, ProcessId};

/// By what it was found out that the former term has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Detection {
    /// The leader itself, or somebody in its name, asked to be deposed.
    Invited,
    /// Its process has ended: its address refuses on this very host, or the store's lock on its file came free.
    ProcessGone,
    /// Another process, or another start of it, answers at its address.
    OtherIncarnation,
    /// The stream of its beats broke, and others lost it too.
    LostBySeveral,
    /// It was silent for too long, and others do not hear it either.
    SilentConfirmed,
    /// An earlier start of this very process had led, and answers no more.
    OwnEarlierIncarnation,
    /// It misses most TaskManagers and let go in favour of a process that hears them.
    HandedOver,
    /// It gave up because its recovery stood still.
    Stalled,
    /// It resigned, and nobody had been invited.
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

    /// Whether the former leader may turn out to have been well: it was judged from outside.
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
    /// Who.
    pub process: Option<ProcessId>,
    /// Which start of it.
    pub incarnation: Option<String>,
    /// Where its beats were served: `host:port`.
    pub address: Option<String>,
}

/// What a process knows when it asks to depose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// By what.
    pub detection: Detection,
    /// Who is to be deposed.
    pub former: Former,
    /// When its last beat was heard.
    pub last_beat: Option<Moment>,
    /// When it was clear.
    pub detected: Moment,
}

/// How a term followed another one. All moments are by the clock of the process that leads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Takeover {
    /// The epoch of the former term.
    pub former_epoch: Epoch,
    /// Why, and of whom.
    pub evidence: Evidence,
    /// When leadership was granted.
    pub granted: Moment,
    /// The same by the wall clock: milliseconds since 1970, for people.
    pub granted_ms: u64,
}

impl Takeover {
    /// From the last beat until it was clear that the leader is gone; `None` if no beat was ever heard.
    pub fn noticed_after(&self) -> Option<Duration> {
        let last = self.evidence.last_beat?;
        Some(self.evidence.detected.since(last))
    }

    /// From then until this process led.
    pub fn deposed_after(&self) -> Duration {
        self.granted.since(self.evidence.detected)
    }
}
