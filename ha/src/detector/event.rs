//! What goes into a detector's core and what comes out of it.

use std::time::Duration;

use super::beat::{Beat, Break, Reply};
use crate::clock::Moment;
use crate::election::{Epoch, Evidence, HostIdentity, ProcessId};

/// How a detector waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DetectorOptions {
    /// From one beat to the next, and between the detector's own ticks.
    pub beat_interval: Duration,
    /// After so much silence others are asked.
    pub silence_timeout: Duration,
    /// How long they may take to answer, and an address to be reached.
    pub ask_timeout: Duration,
}

impl Default for DetectorOptions {
    fn default() -> DetectorOptions {
        DetectorOptions {
            beat_interval: Duration::from_millis(100),
            silence_timeout: Duration::from_millis(800),
            ask_timeout: Duration::from_millis(300),
        }
    }
}

/// The leader to watch, as the keys name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its term.
    pub epoch: Epoch,
    /// Who.
    pub process: ProcessId,
    /// Where its beats are served; `None`: not known, or it serves none.
    pub address: Option<String>,
    /// Whether this term itself published the address. Else it is what its process told the members, perhaps in an earlier
    /// start: nothing that happens there says anything about the term until it was heard there.
    pub is_confirmed: bool,
    /// Where it runs, if it announced that together with this address.
    pub host: Option<HostIdentity>,
}

/// What a detector is told.
#[derive(Debug, Clone)]
pub enum Event {
    /// This is the leader; `None`: it is this process, or nobody.
    Watch(Option<Target>),
    /// It, or who answers at its address, gave a sign of life.
    Beat(Beat),
    /// The stream ended, or could not be opened.
    Broken(Break),
    /// So many were asked in this inquiry.
    Asked {
        /// Which one.
        inquiry: u64,
        /// How many.
        count: usize,
    },
    /// One of them answered, or did not.
    Answered {
        /// In which inquiry.
        inquiry: u64,
        /// What.
        reply: Option<Reply>,
    },
    /// One of them is proven dead: it says nothing about anybody, and counts for nothing.
    Gone {
        /// In which inquiry.
        inquiry: u64,
    },
    /// That wish to depose failed.
    DeposeFailed {
        /// Which one: a later one may be under way.
        wish: u64,
    },
    /// So many false alarms were raised recently.
    FalseAlarms(u32),
    /// The timer of the beat interval fired.
    Tick,
}

/// What a detector does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Drop the stream, and open one to this address after a pause.
    Connect {
        /// Where.
        address: String,
        /// The pause.
        after: Duration,
    },
    /// Drop the stream.
    Disconnect,
    /// Ask others.
    Ask {
        /// In which inquiry.
        inquiry: u64,
    },
    /// Depose the leader of that epoch.
    Depose {
        /// Tells this wish from others of this detector.
        wish: u64,
        /// Whose term.
        epoch: Epoch,
        /// Why.
        evidence: Evidence,
    },
    /// The leader says why it gives the term of that epoch up: if it ends, this is why.
    Explain(Epoch, Evidence),
    /// Don't any more.
    Spare {
        /// Which wish to depose is taken back.
        wish: u64,
    },
    /// The term is heard to live, which counts until then; or no more.
    Vouch(Epoch, Option<Moment>),
    /// Another living process leads under this one's id.
    Twin(Beat),
}
