//! The work of executions: they read, align barriers, save their state, end, and tell their leader.

use super::super::super::effect::Barrier;
use super::super::super::{Event, TaskProgress};
use super::execution::{Element, Execution, Life};
use super::invariants::Checked;
use super::world::{Message, World};
use crate::core::Connection;

impl World {
    /// A trigger arrives at a source.
    pub(super) fn arrive(&mut self, at: usize, barrier: Barrier) {
        if barrier.number > self.executions[at].highest {
            self.take_up(at, barrier);
            self.send(at, Element::Barrier(barrier));
            // Also one that has paused goes on behind a barrier that does not say so.
            let pauses = barrier.pauses.then_some(barrier.number);
            self.executions[at].paused_behind = pauses;
        }
    }

    pub(super) fn take_up(&mut self, at: usize, barrier: Barrier) {
        let object = (!self.random.one_in(3)).then(|| {
            let generation = self.executions[at].generation;
            format!(
                "{}-{generation}-{:016x}",
                barrier.number,
                self.random.next()
            )
        });
        self.executions[at].take_up(barrier, object, self.padding);
    }

    /// A source sends to all sinks of its region and generation.
    pub(super) fn send(&mut self, at: usize, element: Element) {
        let source = &self.executions[at];
        let (task, region, generation) = (source.task, source.region, source.generation);
        let number = self.regions[region].iter().position(|it| *it == task);
        let number = number.expect("it is of the region");
        let sinks = self.executions.iter_mut();
        let sinks = sinks.filter(|it| {
            (it.region, it.generation) == (region, generation)
                && !it.inputs.is_empty()
                && it.lives()
        });
        for sink in sinks {
            sink.inputs[number].queue.push_back(element);
        }
    }

    /// Any execution does some work.
    pub(super) fn run_any(&mut self) -> Checked {
        let Some(at) = self.pick_execution(|_| true) else {
            return Ok(());
        };
        self.run_execution(at);
        Ok(())
    }

    pub(super) fn run_execution(&mut self, at: usize) {
        let execution = &mut self.executions[at];
        match execution.life {
            Life::Running if execution.paused_behind.is_some() => {}
            Life::Running if execution.inputs.is_empty() => {
                if execution.position >= self.records {
                    return self.end_input(at);
                }
                let index = execution.position;
                execution.position += 1;
                let is_alone = self.regions[execution.region].len()
                    == self.sources_of(self.executions[at].region);
                if is_alone {
                    let task = self.executions[at].task;
                    self.executions[at].open.push((task, index));
                }
                self.send(at, Element::Record);
            }
            Life::Running => self.read(at),
            // It ends once its last write is finished.
            Life::InputEnded if execution.writing.is_none() => self.end(at),
            Life::InputEnded | Life::Ended | Life::Dead => {}
        }
    }

    pub(super) fn read(&mut self, at: usize) {
        let open = self.executions[at].open_inputs();
        let Some(input) = self.random.pick(&open) else {
            return;
        };
        let execution = &mut self.executions[at];
        let source = self.regions[execution.region][input];
        if let Some(number) = execution.read(input, source) {
            self.tell_declined(at, number);
        }
        let execution = &self.executions[at];
        if execution.is_aligned() {
            let barrier = execution.barrier.expect("it blocks for one");
            self.take_up(at, barrier);
        }
        if self.executions[at].inputs.iter().all(|it| it.is_ended) {
            self.end_input(at);
        }
    }

    pub(super) fn end_input(&mut self, at: usize) {
        let execution = &mut self.executions[at];
        execution.life = Life::InputEnded;
        let (task, generation, te) = (execution.task, execution.generation, execution.te);
        if execution.inputs.is_empty() {
            self.last_positions
                .insert((task, generation), execution.position);
            self.send(at, Element::End);
        }
        let event = self.executions[at].input_ended(self.connection(te));
        self.tell(te, event);
    }

    pub(super) fn end(&mut self, at: usize) {
        let execution = &mut self.executions[at];
        execution.life = Life::Ended;
        let (task, generation, te) = (execution.task, execution.generation, execution.te);
        self.true_ends.insert((task, generation), execution.highest);
        let connection = self.connection(te);
        let event = self.end_event(task, generation, connection);
        self.tell(te, event);
    }

    pub(super) fn tell(&mut self, te: usize, event: Event) {
        if let Some(leader) = self.tes[te].leader.filter(|_| !self.tes[te].is_mute) {
            self.messages.push(Message::Tell { leader, event });
        }
    }

    /// A task declines the number that it blocks for or writes.
    pub(super) fn decline(&mut self, at: usize) {
        let execution = &mut self.executions[at];
        let number = execution.highest;
        execution.give_up(number, TaskProgress::Declined);
        self.tell_declined(at, number);
    }

    fn tell_declined(&mut self, at: usize, number: u64) {
        let te = self.executions[at].te;
        let event = self.executions[at].declined(self.connection(te), number);
        self.tell(te, event);
    }

    pub(super) fn finish_any_writing(&mut self) -> Checked {
        let Some(at) = self.pick_execution(|it| it.writing.is_some()) else {
            return Ok(());
        };
        self.finish_writing(at);
        Ok(())
    }

    pub(super) fn finish_writing(&mut self, at: usize) {
        let object = self.executions[at].finish_writing();
        self.objects.extend(object);
        self.acknowledge(at);
    }

    /// A TaskExecutor repeats what was not answered.
    pub(super) fn tell_any(&mut self) {
        let at = self.random.below(self.executions.len().max(1));
        if at < self.executions.len() {
            self.repeat(at);
        }
    }

    pub(super) fn repeat(&mut self, at: usize) {
        let execution = &self.executions[at];
        if execution.life == Life::Dead {
            return;
        }
        if execution.life == Life::Ended && !execution.is_end_recorded {
            let (task, generation, te) = (execution.task, execution.generation, execution.te);
            let connection = self.connection(te);
            let event = self.end_event(task, generation, connection);
            self.tell(te, event);
        }
        self.acknowledge(at);
    }

    pub(super) fn acknowledge(&mut self, at: usize) {
        let execution = &self.executions[at];
        let te = execution.te;
        if let Some(event) = execution.acknowledged(self.connection(te)) {
            self.tell(te, event);
        }
    }

    pub(super) fn end_event(
        &mut self,
        task: usize,
        generation: u64,
        connection: Connection,
    ) -> Event {
        let mut executions = self.executions.iter_mut();
        let execution = executions.find(|it| (it.task, it.generation) == (task, generation));
        let execution = execution.expect("it was reported");
        let end = execution.end();
        Event::TaskEnded {
            connection,
            task,
            generation,
            end,
        }
    }

    pub(super) fn pick_execution(
        &mut self,
        is_wanted: impl Fn(&Execution) -> bool,
    ) -> Option<usize> {
        let found = self.executions.iter().enumerate();
        let found = found
            .filter(|(_, it)| it.lives() && is_wanted(it))
            .map(|it| it.0);
        let found: Vec<usize> = found.collect();
        self.random.pick(&found)
    }
}
