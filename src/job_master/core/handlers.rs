//! Lends the objects of the core to the handlers that decide. Decides nothing.

use super::JobMasterCore;
use super::durable_effects::DurableEffects;
use super::ending::Ending;
use super::eviction::Eviction;
use super::region_failover::RegionFailover;
use super::region_restart::RegionRestart;
use super::reports::Reports;
use super::scheduling::Scheduler;
use super::slot_needs::SlotNeeds;
use super::terminal_states::TerminalStates;

impl JobMasterCore {
    pub(super) fn ending(&mut self, now_ms: u64) -> Ending<'_> {
        Ending {
            end: &mut self.end,
            record: &mut self.record,
            graph: &self.graph,
            checkpointing: &self.checkpointing,
            checkpoint_commit: &mut self.checkpoint_commit,
            events: &mut self.job_events,
            out: &mut self.out,
            now_ms,
        }
    }

    pub(super) fn region_failover(&mut self, now_ms: u64) -> RegionFailover<'_> {
        self.eviction(now_ms).failover
    }

    pub(super) fn region_restart(&mut self, now_ms: u64) -> RegionRestart<'_> {
        RegionRestart {
            failover: &mut self.failover,
            graph: &mut self.graph,
            record: &self.record,
            slots: &mut self.slots,
            task_managers: &self.task_managers,
            out: &mut self.out,
            now_ms,
        }
    }

    pub(super) fn eviction(&mut self, now_ms: u64) -> Eviction<'_> {
        Eviction {
            moves: &mut self.moves,
            task_managers: &self.task_managers,
            failover: RegionFailover {
                failover: &mut self.failover,
                graph: &mut self.graph,
                record: &mut self.record,
                coordinators: &mut self.coordinators,
                checkpointing: &self.checkpointing,
                slots: &mut self.slots,
                reconciliation: &mut self.reconciliation,
                events: &mut self.job_events,
                out: &mut self.out,
                turn: self.turn,
                now_ms,
            },
        }
    }

    pub(super) fn scheduler(&mut self, now_ms: u64) -> Scheduler<'_> {
        Scheduler {
            graph: &mut self.graph,
            slots: &mut self.slots,
            record: &mut self.record,
            failover: &mut self.failover,
            coordinators: &mut self.coordinators,
            checkpointing: &self.checkpointing,
            task_managers: &self.task_managers,
            moves: &self.moves,
            out: &mut self.out,
            now_ms,
        }
    }

    pub(super) fn slot_needs(&self) -> SlotNeeds<'_> {
        SlotNeeds {
            graph: &self.graph,
            slots: &self.slots,
            record: &self.record,
            coordinators: &self.coordinators,
            task_managers: &self.task_managers,
            moves: &self.moves,
            now_ms: self.decided_at_ms,
        }
    }

    pub(super) fn reports(&mut self, now_ms: u64) -> Reports<'_> {
        Reports {
            options: &self.options,
            graph: &mut self.graph,
            record: &mut self.record,
            task_managers: &mut self.task_managers,
            slots: &mut self.slots,
            coordinators: &mut self.coordinators,
            failover: &mut self.failover,
            reconciliation: &mut self.reconciliation,
            dirty: &mut self.dirty,
            moves: &self.moves,
            out: &mut self.out,
            has_ended: self.end.has_ended(),
            turn: self.turn,
            now_ms,
        }
    }

    pub(super) fn durable_effects(&mut self, now_ms: u64) -> DurableEffects<'_> {
        DurableEffects {
            graph: &mut self.graph,
            record: &self.record,
            task_managers: &mut self.task_managers,
            dirty: &mut self.dirty,
            out: &mut self.out,
            checkpointing: &self.checkpointing,
            now_ms,
        }
    }

    pub(super) fn terminal_states(&mut self) -> TerminalStates<'_> {
        TerminalStates {
            graph: &mut self.graph,
            record: &mut self.record,
            slots: &mut self.slots,
            coordinators: &mut self.coordinators,
            has_written: self.dirty.has_written(),
        }
    }
}
