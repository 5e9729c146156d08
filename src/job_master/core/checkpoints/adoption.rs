//! Adopts the number that an earlier leader left in flight at a region, or aborts it. Nothing is written for it.
//!
//! No trigger is persisted: the reports of executions are all that is known. A region is *settled* by this decision,
//! once all of its executions have reported. Until then, acknowledgements are kept as reports and get no answer, since
//! an answer is final. What may go wrong: a number is adopted that a task will never acknowledge; it is aborted by its
//! timeout.

use super::attempts::Attempts;
use super::event::{TaskEnd, TaskProgress, TaskReport};
use super::regions::Phase;
use super::requests::stop_of;
use crate::core::faults::{Fault, is_planted};

impl Attempts<'_> {
    /// Settles an awaited region: decides about the highest number that its executions report, or that their ends name.
    /// It is adopted if each execution has saved it, works on it, has not heard of it, or ended before it. All other
    /// numbers are aborted. Returns the adopted number.
    pub(super) fn settle(&mut self, region: usize) -> Option<u64> {
        let tasks = self.regions.topology().tasks_of(region).to_vec();
        let at = self.regions.get(region);
        let reports: Vec<TaskReport> = tasks
            .iter()
            .filter_map(|task| at.report(*task).cloned())
            .collect();
        if !self
            .regions
            .enter(region, Phase::Starting, &[Phase::Awaited])
        {
            return None;
        }
        let heard = reports
            .iter()
            .filter(|it| it.progress != TaskProgress::Unheard);
        let mut numbers: Vec<u64> = heard.map(|report| report.highest).collect();
        // An ended task may have taken up a number that no execution reports any more.
        let newest = self.record.restored_number(region);
        let ends = self.regions.get(region).ends();
        numbers.extend(ends.map(|(_, end)| end.highest).filter(|it| *it > newest));
        numbers.sort_unstable();
        numbers.dedup();
        let highest = numbers.pop();
        let adopted = highest.filter(|number| self.can_adopt(region, *number, &reports));
        let given_up = numbers
            .into_iter()
            .chain(highest.filter(|_| adopted.is_none()));
        let is_saved = |number: &u64| *number == self.record.newest_number(region);
        let given_up: Vec<u64> = given_up.filter(|number| !is_saved(number)).collect();
        let highest_given_up = given_up.iter().max().copied().unwrap_or_default();
        for number in given_up {
            self.tell_abort(region, number);
        }
        // After the aborts, which resume sources.
        if let Some(number) = self.paused_behind(region, &reports, highest_given_up) {
            self.regions.pause(region, number);
        }
        let number = adopted?;
        self.put_in_flight(region, number, self.record.durable().floor);
        self.rounds.join(region);
        for report in &reports {
            let place = self.regions.get(region).place(report.task).cloned();
            let connection = place.and_then(|place| self.links.connection(&place));
            if let Some(connection) = connection {
                self.apply_report(&connection, report);
            }
        }
        // No report follows if all have acknowledged or ended by now.
        self.complete_if_all(region);
        // At all sources once more: some may never have received the trigger. Barriers need not begin at the same time.
        self.trigger(region, None);
        Some(number)
    }

    /// The number behind which the sources of a region pause, after the aborts of numbers up to `aborted`. While the
    /// job stops, the region counts as paused only if all sources are whose input has not ended. Otherwise one paused
    /// source is enough: it has to be resumed, even if an abort may just have done that.
    fn paused_behind(&self, region: usize, reports: &[TaskReport], aborted: u64) -> Option<u64> {
        let ended = reports.iter().filter(|it| it.has_input_ended);
        let ended: Vec<usize> = ended.map(|it| it.task).collect();
        let open = self.open_sources(region).into_values().flatten();
        let open: Vec<usize> = open.filter(|it| !ended.contains(it)).collect();
        let of_sources = reports.iter().filter(|it| open.contains(&it.task));
        let stops = stop_of(&self.record.durable().requests).is_some();
        let stays = |it: &&TaskReport| it.is_paused && (!stops || it.highest > aborted);
        let paused = of_sources.filter(stays);
        let paused: Vec<u64> = paused.map(|it| it.highest).collect();
        let are_enough = !stops || paused.len() == open.len();
        paused.into_iter().max().filter(|_| are_enough)
    }

    fn can_adopt(&self, region: usize, number: u64, reports: &[TaskReport]) -> bool {
        let durable = self.record.durable();
        let is_above_floor = number >= durable.floor || is_planted(Fault::NumberBelowFloorAdopted);
        let is_possible = is_above_floor
            && number > self.record.newest_number(region)
            && number < durable.next
            && self.regions.topology().not_checkpointed(region).is_none();
        let refuses = |report: &TaskReport| {
            let is_refusal = matches!(
                report.progress,
                TaskProgress::Declined | TaskProgress::Aborted
            );
            report.highest == number && is_refusal
        };
        // A task that has ended after it took the number up: its acknowledgement is required, and without a report of
        // it the acknowledgement may be lost with its TaskExecutor.
        let owes = |(task, end): (usize, &TaskEnd)| {
            let has_saved = |report: &TaskReport| {
                let is_saved = matches!(report.progress, TaskProgress::Acknowledged(_));
                report.task == task && report.highest == number && is_saved
            };
            end.highest >= number && !reports.iter().any(has_saved)
        };
        // Sources that pause behind it would wait forever: the barrier of a repeated trigger does not resume them.
        let has_paused = |report: &TaskReport| report.is_paused && report.highest == number;
        let stops = stop_of(&self.record.durable().requests).is_some();
        if !stops && reports.iter().any(has_paused) {
            return false;
        }
        let mut ends = self.regions.get(region).ends();
        is_possible && !reports.iter().any(refuses) && !ends.any(owes)
    }
}
