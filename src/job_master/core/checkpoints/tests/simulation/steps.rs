//! What happens next in the world without faults: time, registrations and messages.

use super::super::super::{Effect, Event, TaskProgress, TaskReport, TriggerAnswer};
use super::execution::{Execution, Life};
use super::invariants::Checked;
use super::world::{Message, World, te_of};

impl World {
    /// Something happens that is no fault.
    pub(super) fn work(&mut self) -> Checked {
        match self.random.below(16) {
            0..4 => self.deliver_any(),
            4..9 => self.run_any(),
            9 | 10 => self.finish_any_writing(),
            11 => {
                let leader = self.any_leader();
                self.apply_write(leader)
            }
            12 => {
                let leader = self.any_leader();
                self.answer(leader)
            }
            13 if !self.outside.is_empty() => {
                let index = self.random.below(self.outside.len());
                let is_copy = matches!(self.outside[index].effect, Effect::CopySavepoint { .. });
                if is_copy && self.copies_slowly && !self.extra.one_in(30) {
                    return Ok(());
                }
                self.do_outside(index, false)
            }
            14 => self.register_any(),
            _ => {
                self.tell_any();
                self.lead()
            }
        }
    }

    /// Time passes.
    pub(super) fn pass(&mut self, ms: u64) -> Checked {
        self.now_ms += ms;
        for execution in 0..self.executions.len() {
            let te = &self.tes[self.executions[execution].te];
            let is_alone = te.leader.is_none() && te.lost_ms + 1_000 <= self.now_ms;
            if is_alone && self.executions[execution].progress == TaskProgress::Blocked {
                self.decline(execution);
            }
        }
        for leader in 0..self.leaders.len() {
            self.hear(leader, Event::TimePassed)?;
        }
        Ok(())
    }

    /// A TaskExecutor without a leader registers at the present one, and reports all executions.
    fn register_any(&mut self) -> Checked {
        let te = self.random.below(self.tes.len());
        self.register(te)
    }

    pub(super) fn register(&mut self, te: usize) -> Checked {
        let leader = self.present();
        if self.tes[te].leader == Some(leader) || self.leaders[leader].is_dead {
            return self.report(te);
        }
        let at = &mut self.tes[te];
        at.leader = Some(leader);
        at.registration += 1;
        at.epoch = self.leaders[leader].epoch;
        at.is_deaf = false;
        at.is_mute = false;
        at.takes_none = self.has_older && self.versions.one_in(6);
        let takes_checkpoints = !at.takes_none;
        self.reached.older += u64::from(!takes_checkpoints);
        let connection = self.connection(te);
        let reports = self.reports(te);
        let ended = self
            .executions
            .iter()
            .filter(|it| it.te == te && it.life == Life::Ended);
        let ended: Vec<(usize, u64)> = ended.map(|it| (it.task, it.generation)).collect();
        self.hear(
            leader,
            Event::Registered {
                connection: connection.clone(),
                takes_checkpoints,
                reports,
            },
        )?;
        for (task, generation) in ended {
            let event = self.end_event(task, generation, connection.clone());
            self.hear_of_end(leader, event)?;
        }
        Ok(())
    }

    fn reports(&self, te: usize) -> Vec<TaskReport> {
        let known = self
            .executions
            .iter()
            .filter(|it| it.te == te && it.life != Life::Dead);
        known.map(Execution::report).collect()
    }

    /// A registered TaskExecutor answers a heartbeat.
    fn report(&mut self, te: usize) -> Checked {
        match self.random.one_in(3) && !self.tes[te].is_mute {
            true => self.report_now(te),
            false => Ok(()),
        }
    }

    pub(super) fn report_now(&mut self, te: usize) -> Checked {
        let Some(leader) = self.tes[te].leader else {
            return Ok(());
        };
        let connection = self.connection(te);
        let reports = self.reports(te);
        self.hear(
            leader,
            Event::Reported {
                connection,
                reports,
            },
        )?;
        Ok(())
    }

    /// Any message arrives.
    fn deliver_any(&mut self) -> Checked {
        if self.messages.is_empty() {
            return Ok(());
        }
        let index = self.random.below(self.messages.len());
        self.deliver(index)
    }

    pub(super) fn deliver(&mut self, index: usize) -> Checked {
        let message = &self.messages[index];
        if matches!(message, Message::Call { te, .. } if self.tes[*te].is_deaf) {
            return Ok(());
        }
        match self.messages.swap_remove(index) {
            Message::Tell { leader, event } => match event {
                Event::TaskEnded { .. } => self.hear_of_end(leader, event),
                event => self.receive(leader, event),
            },
            Message::Call {
                leader,
                te,
                registration,
                effect,
            } => {
                let at = &self.tes[te];
                let is_served =
                    at.epoch <= self.leaders[leader].epoch && at.registration == registration;
                match is_served {
                    true => self.take_call(leader, effect),
                    false => Ok(()),
                }
            }
        }
    }

    fn take_call(&mut self, leader: usize, effect: Effect) -> Checked {
        let find = |world: &World, task: usize, generation: u64| {
            let mut executions = world.executions.iter();
            executions.position(|it| (it.task, it.generation) == (task, generation))
        };
        match effect {
            Effect::Trigger {
                connection,
                sources,
                barrier,
            } => {
                let generation = sources.generation;
                let takes_none = self.tes[te_of(&connection)].takes_none;
                let answer = |world: &mut World, task: usize| match find(world, task, generation) {
                    _ if takes_none => TriggerAnswer::Refused("it takes none".to_owned()),
                    Some(at) if world.executions[at].life == Life::Running => {
                        world.arrive(at, barrier);
                        TriggerAnswer::Injected
                    }
                    Some(at) if world.executions[at].life != Life::Dead => {
                        TriggerAnswer::SourceEnded
                    }
                    _ => TriggerAnswer::Refused("it does not run".to_owned()),
                };
                let tasks = sources.tasks.into_iter();
                let answers = tasks.map(|task| (task, answer(self, task)));
                let answers = answers.collect();
                let event = Event::TriggerAnswered {
                    connection,
                    region: sources.region,
                    number: barrier.number,
                    answers,
                };
                self.messages.push(Message::Tell { leader, event });
            }
            Effect::Abort {
                executions, number, ..
            } => {
                for task in executions.tasks {
                    let Some(at) = find(self, task, executions.generation) else {
                        continue;
                    };
                    let execution = &mut self.executions[at];
                    if execution.lives() && execution.highest <= number {
                        execution.give_up(number, TaskProgress::Aborted);
                        self.resume(leader, at, number)?;
                    }
                }
            }
            Effect::AnswerAcknowledgement {
                task,
                generation,
                number,
                ..
            } => {
                if let Some(at) = find(self, task, generation) {
                    let execution = &mut self.executions[at];
                    execution.is_answered |= execution.highest == number;
                }
            }
            other => unreachable!("{other:?} is no message"),
        }
        Ok(())
    }
}
