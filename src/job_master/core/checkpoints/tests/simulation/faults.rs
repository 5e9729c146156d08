//! What goes wrong in the world: leaders, tasks, TaskExecutors and connections end, messages are lost and repeated,
//! the store and the blob store refuse.

use super::super::super::{Event, TaskProgress};
use super::execution::Life;
use super::invariants::Checked;
use super::world::{Message, World, te_of};

impl World {
    /// Something goes wrong.
    pub(super) fn suffer(&mut self) -> Checked {
        let pick = self.random.below(usize::MAX);
        match self.random.below(15) {
            13 => self.isolate(pick % self.tes.len()),
            11 | 12 => {
                let te = pick % self.tes.len();
                self.tes[te].is_deaf ^= true;
                Ok(())
            }
            0 | 1 => self.change_leader(),
            // No message arrives for longer than a trigger may remain unanswered.
            10 => self.pass(1_200),
            2 | 3 => {
                self.fail_task(pick);
                Ok(())
            }
            4 => {
                // A TaskExecutor ends, with all that runs there, and starts again.
                let te = pick % self.tes.len();
                for execution in self.executions.iter_mut().filter(|it| it.te == te) {
                    execution.life = Life::Dead;
                }
                self.break_link(te)
            }
            5 => self.break_link(pick % self.tes.len()),
            6 => {
                if let Some(execution) =
                    self.pick_execution(|it| it.progress == TaskProgress::Writing)
                {
                    self.executions[execution].writing = None;
                    self.decline(execution);
                }
                Ok(())
            }
            7 => {
                self.refuses_next_write = true;
                Ok(())
            }
            8 if !self.outside.is_empty() => self.do_outside(pick % self.outside.len(), true),
            9 => {
                // A source comes to its end early.
                let source = self.pick_execution(|it| {
                    let reads = it.inputs.is_empty() && it.paused_behind.is_none();
                    it.life == Life::Running && reads
                });
                if let Some(source) = source {
                    self.end_input(source);
                }
                Ok(())
            }
            _ => {
                // Messages arrive twice.
                if !self.messages.is_empty() {
                    let copy = self.messages[pick % self.messages.len()].clone();
                    self.messages.push(copy);
                }
                Ok(())
            }
        }
    }

    /// A task fails.
    pub(super) fn fail_task(&mut self, pick: usize) {
        let running = self.executions.iter_mut().filter(|it| it.lives());
        let mut running: Vec<_> = running.collect();
        let count = running.len();
        if count > 0 {
            running[pick % count].life = Life::Dead;
        }
    }

    /// Another process leads. The former one has died, or does not know it yet.
    pub(super) fn change_leader(&mut self) -> Checked {
        let present = self.present();
        self.take_over();
        if self.random.one_in(2) {
            self.kill(present);
        }
        Ok(())
    }

    pub(super) fn kill(&mut self, leader: usize) {
        self.leaders[leader].is_dead = true;
        for te in &mut self.tes {
            if te.leader == Some(leader) {
                te.leader = None;
                te.lost_ms = self.now_ms;
            }
        }
    }

    /// A TaskExecutor and its leader do not hear each other, until another process leads.
    pub(super) fn isolate(&mut self, te: usize) -> Checked {
        self.tes[te].is_deaf = true;
        self.tes[te].is_mute = true;
        for _ in 0..25 {
            for _ in 0..25 {
                self.work()?;
            }
            self.pass(250)?;
        }
        let present = self.present();
        self.kill(present);
        self.take_over();
        Ok(())
    }

    /// A connection breaks. What was in flight on it is lost.
    pub(super) fn break_link(&mut self, te: usize) -> Checked {
        let connection = self.connection(te);
        self.messages.retain(|message| match message {
            Message::Call { te: to, .. } => *to != te,
            Message::Tell { event, .. } => sender(event) != Some(te),
        });
        let leader = self.tes[te].leader.take();
        self.tes[te].lost_ms = self.now_ms;
        if let Some(leader) = leader {
            self.hear(leader, Event::Disconnected { connection })?;
        }
        Ok(())
    }
}

/// The TaskExecutor that sent a message.
fn sender(event: &Event) -> Option<usize> {
    match event {
        Event::TriggerAnswered { connection, .. }
        | Event::Acknowledged { connection, .. }
        | Event::Declined { connection, .. }
        | Event::InputEnded { connection, .. }
        | Event::TaskEnded { connection, .. } => Some(te_of(connection)),
        _ => None,
    }
}
