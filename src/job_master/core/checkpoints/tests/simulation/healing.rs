//! Without faults: everything that is under way comes to its end, and nothing is left behind.

use super::super::super::Event;
use super::execution::Life;
use super::invariants::{
    Checked, k10_blocked_number_is_in_flight, k13_only_retained_objects_are_left,
};
use super::world::{Placement, World};

/// Number of turns within which everything has to happen.
const TURNS: usize = 400;

impl World {
    /// All that can happen without time happens, until nothing does. `reads`: sources read, too.
    pub(super) fn settle(&mut self, reads: bool) -> Checked {
        for _ in 0..6 {
            for te in 0..self.tes.len() {
                self.register(te)?;
            }
            while !self.messages.is_empty() {
                self.deliver(self.messages.len() - 1)?;
            }
            for at in 0..self.executions.len() {
                self.run_without_faults(at, reads);
            }
            for leader in 0..self.leaders.len() {
                while !self.leaders[leader].writes.is_empty() {
                    self.apply_write(leader)?;
                }
                while !self.leaders[leader].answers.is_empty() {
                    self.answer(leader)?;
                }
            }
            while !self.outside.is_empty() {
                self.do_outside(0, false)?;
            }
            for region in 0..self.regions.len() {
                self.lead_region(self.present(), region)?;
            }
        }
        Ok(())
    }

    fn run_without_faults(&mut self, at: usize, reads: bool) {
        let execution = &self.executions[at];
        if execution.lives() && execution.writing.is_some() {
            self.finish_writing(at);
        }
        let execution = &self.executions[at];
        let is_source = execution.inputs.is_empty() && execution.life == Life::Running;
        if execution.lives() && (reads || !is_source) {
            for _ in 0..12 {
                self.run_execution(at);
            }
        }
        self.repeat(at);
    }

    /// Time passes until the present leader has something to do.
    fn pass_to_deadline(&mut self) -> Checked {
        let (now_ms, present) = (self.now_ms, self.present());
        let due_ms = self.leaders[present].core.deadline_ms(now_ms);
        self.pass(due_ms.saturating_sub(now_ms).max(1))
    }

    /// No fault happens any more, and one leader is left.
    pub(super) fn heal(&mut self) -> Checked {
        for leader in 0..self.present() {
            self.kill(leader);
        }
        if self.leaders[self.present()].is_dead {
            self.take_over();
        }
        self.refuses_next_write = false;
        self.has_older = false;
        for te in &mut self.tes {
            te.is_deaf = false;
            te.is_mute = false;
            // It is replaced by the present version, and registers again.
            te.leader.take_if(|_| te.takes_none);
        }
        self.settle(false)?;
        self.cancel_old();
        Ok(())
    }

    /// Regions with a source that reads.
    fn reading(&self) -> Vec<usize> {
        let reads = |region: &usize| {
            let generation = self.stored[*region].generation;
            let mut all = self.executions.iter();
            all.any(|it| {
                (it.region, it.generation) == (*region, generation)
                    && it.inputs.is_empty()
                    && it.life == Life::Running
            })
        };
        (0..self.regions.len()).filter(reads).collect()
    }

    /// Each region with a source that reads completes two more checkpoints, and no garbage is left.
    pub(super) fn go_on(&mut self) -> Checked {
        self.settle(false)?;
        if self.is_end_decided {
            return Ok(());
        }
        for _ in 0..2 {
            let before = self.record.next;
            let mut turns = 0;
            loop {
                self.settle(false)?;
                if self.is_end_decided {
                    return Ok(());
                }
                self.check_blocked()?;
                let missing = self.reading().into_iter();
                let missing = missing.filter(|region| self.newest_snapshot(*region).0 < before);
                let missing: Vec<usize> = missing.collect();
                if missing.is_empty() {
                    break;
                }
                turns += 1;
                if turns > TURNS {
                    return Err(format!("no checkpoint of regions {missing:?} completes"));
                }
                self.pass_to_deadline()?;
            }
        }
        self.pass(self.options.listing_interval_ms)?;
        self.settle(false)?;
        self.pass_to_deadline()?;
        self.settle(false)?;
        if self.is_end_decided {
            return Ok(());
        }
        let manifests = self.retained_manifests();
        let manifests = manifests.iter().map(|it| &**it);
        k13_only_retained_objects_are_left(manifests, self.record.floor, &self.objects)
    }

    /// K10, after each TaskExecutor has answered a heartbeat: a barrier may arrive after the abort was told.
    fn check_blocked(&mut self) -> Checked {
        for te in 0..self.tes.len() {
            self.report_now(te)?;
        }
        while !self.messages.is_empty() {
            self.deliver(self.messages.len() - 1)?;
        }
        self.check_paused()?;
        let core = &self.leaders[self.present()].core;
        for execution in self.executions.iter().filter(|it| it.life == Life::Running) {
            let is_present = execution.generation == self.stored[execution.region].generation;
            if let Some(barrier) = execution.barrier.filter(|_| is_present) {
                let in_flight = core.in_flight(execution.region);
                k10_blocked_number_is_in_flight(barrier.number, in_flight)?;
            }
        }
        Ok(())
    }

    /// All sources come to their end, or the job is canceled. All that is named is committed, and the rest goes.
    pub(super) fn come_to_an_end(&mut self, is_canceled: bool) -> Checked {
        let present = self.present();
        if is_canceled {
            self.is_end_decided = true;
            self.hear(present, Event::EndDecided)?;
        }
        let mut turns = 0;
        loop {
            self.settle(!is_canceled)?;
            let is_canceled = self.is_end_decided;
            let leader = &self.leaders[present];
            let finished = leader
                .placements
                .iter()
                .filter(|it| **it == Placement::Finished);
            let has_ended = is_canceled || finished.count() == self.regions.len();
            if has_ended && leader.core.is_all_committed() {
                break;
            }
            turns += 1;
            if turns > TURNS {
                let placements = &leader.placements;
                return Err(format!("the job does not end: {placements:?}"));
            }
            self.pass_to_deadline()?;
        }
        if !is_canceled && !self.is_end_decided {
            self.check_output()?;
            self.reached.finished += 1;
        }
        self.check_outcomes()?;
        let record = self.leaders[present].core.record_with_result(is_canceled);
        if record.floor != record.next || record.retained.len() > 1 {
            return Err("K13: the record of the result keeps too much".to_owned());
        }
        Ok(())
    }

    /// K7: all records of all sources are committed, by each sink of their region.
    fn check_output(&self) -> Checked {
        for (region, tasks) in self.regions.iter().enumerate() {
            let generation = self.stored[region].generation;
            let (sources, sinks) = tasks.split_at(self.sources_of(region));
            for source in sources {
                let last = self.last_positions.get(&(*source, generation));
                let last = last.copied().unwrap_or_default();
                // Records before the position of the origin are output of another job.
                let first = self.origin_positions.get(source).copied();
                let first = first.unwrap_or_default();
                let own = [*source];
                let sinks = if sinks.is_empty() { &own[..] } else { sinks };
                for sink in sinks {
                    for at in first..last {
                        let record = (format!("t{sink}"), format!("{source}.{at}"));
                        if !self.committed_records.contains_key(&record) {
                            return Err(format!("K7: record {record:?} is not committed"));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
