//! The life of a TaskExecutor: whether it accepts slots, leaves because it was drained, or stops. Pure.
//!
//! ```text
//! running --drained and unused--> left (Fatal::Drained, once) --+
//!    +-------------------------- stop --------------------------+--> stopping
//! ```
//!
//! A drained TaskExecutor accepts no more slots, and leaves without harm when the last one is free and consumers
//! have taken all outputs of its tasks, or never will. The ResourceManager's heartbeats say whether it must drain:
//! that is in the store, and may be undone. It leaves when it is unused, unless it was draining from its first
//! registration on: then it was restarted meanwhile, perhaps by a supervisor that restarts it whenever it ends, and
//! stays, unused, until the drain is undone.

use super::effect::Effect;
use super::log_line::LogLine;
use super::output::Output;
use crate::Fatal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Left,
    Stopping,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Admission {
    Open,
    /// `is_releasing`: it must leave in any case once it is unused.
    Draining {
        is_releasing: bool,
    },
}

/// See the module.
#[derive(Debug)]
pub(super) struct Lifecycle {
    phase: Phase,
    admission: Admission,
    /// Whether a ResourceManager has accepted its slots at some time.
    was_open: bool,
}

impl Lifecycle {
    /// Runs, and is open for slots.
    pub(super) fn new() -> Lifecycle {
        Lifecycle {
            phase: Phase::Running,
            admission: Admission::Open,
            was_open: false,
        }
    }

    /// Whether it ends its tasks and accepts nothing more.
    pub(super) fn is_stopping(&self) -> bool {
        self.phase == Phase::Stopping
    }

    /// Begins to stop.
    pub(super) fn stop(&mut self) {
        self.phase = Phase::Stopping;
    }

    /// Whether it accepts no more slots.
    pub(super) fn is_draining(&self) -> bool {
        match self.admission {
            Admission::Open => false,
            Admission::Draining { .. } => true,
        }
    }

    /// Why a slot is not allocated. A slot that the requesting job holds already is confirmed while draining.
    pub(super) fn slot_refusal(&self, is_held: bool) -> Option<&'static str> {
        if self.is_stopping() {
            Some("the TaskManager is shutting down")
        } else if self.is_draining() && !is_held {
            Some("the TaskManager is being drained")
        } else {
            None
        }
    }

    /// Starts or ends draining, as a heartbeat says.
    pub(super) fn drain(&mut self, is_draining: bool, is_releasing: bool, output: &mut Output) {
        let was_draining = self.is_draining();
        self.was_open |= !is_draining;
        self.admission = match is_draining {
            true => Admission::Draining { is_releasing },
            false => Admission::Open,
        };
        match (was_draining, is_draining) {
            (false, true) => output.log(LogLine::Draining),
            (true, false) => output.log(LogLine::DrainingEnded),
            (true, true) | (false, false) => {}
        }
    }

    /// Records a registration at a ResourceManager. Only a heartbeat ends a drain.
    pub(super) fn registered(&mut self, is_draining: bool) {
        self.was_open |= !is_draining;
        if is_draining && self.admission == Admission::Open {
            let is_releasing = false;
            self.admission = Admission::Draining { is_releasing };
        }
    }

    /// Leaves, once, if it is drained and unused.
    pub(super) fn leave_if_drained(&mut self, is_unused: bool, output: &mut Output) {
        let may_leave = match self.admission {
            Admission::Open => false,
            Admission::Draining { is_releasing } => self.was_open || is_releasing,
        };
        if may_leave && is_unused && self.phase == Phase::Running {
            self.phase = Phase::Left;
            output.effect(Effect::Fatal(Fatal::Drained));
        }
    }
}
