//! The acts of leaders in the world of [`super`], one after the other, and what is left of them after a change of
//! leader.

use std::collections::BTreeMap;

use tanist_proto::id::ResourceId;

use super::{PLACES, World, starter};
use crate::core::workers::{Effect, Workers};
use crate::workers::{DriverError, Found};

impl World {
    /// Carries out the next act, or fails in it.
    pub(in crate::core::workers) fn act(&mut self, fails: bool) {
        let Some(effect) = self.acts.pop_front() else {
            return;
        };
        match effect {
            Effect::Recover(recorded) => {
                if fails {
                    let error = DriverError::new("blind");
                    self.workers.recovered(self.now, Err(error));
                } else {
                    let is_here = |id: &&ResourceId| self.started_at.get(*id) == Some(&self.place);
                    let known = recorded.iter().map(|it| {
                        let found = match (it.place == self.place, &it.worker) {
                            (false, _) => Found::Unseen,
                            (true, id) if self.processes.contains(id) => Found::Running,
                            (true, _) => Found::Gone,
                        };
                        (it.worker.clone(), found)
                    });
                    let mut found: BTreeMap<_, _> = known.collect();
                    for id in self.processes.iter().filter(is_here) {
                        found.entry(id.clone()).or_insert(Found::Running);
                    }
                    self.workers
                        .recovered(self.now, Ok(found.into_iter().collect()));
                }
            }
            Effect::Start(id) => {
                let record = self.workers.record_of(&id).expect("it is known").clone();
                self.records.insert(id.clone(), record);
                let answer = match fails {
                    true => Err(DriverError::new("no room")),
                    false => Ok(()),
                };
                if answer.is_ok() {
                    self.processes.insert(id.clone());
                } else {
                    self.note_failure();
                }
                self.workers.started(self.now, &id, answer);
            }
            Effect::Release(id) => {
                if !fails && let Some(record) = self.workers.record_of(&id) {
                    self.records.insert(id.clone(), record.clone());
                }
                self.workers.release_recorded(&id, !fails);
            }
            Effect::RemoveRecord(id) => {
                self.records.remove(&id);
                self.workers.removed(&id);
            }
            Effect::Stop(id) => {
                self.end_process_here(&id);
                self.workers.stopped(&id);
            }
            Effect::AskToLeave(_) | Effect::Watch(_) => unreachable!("these are no acts"),
        }
        self.settle();
    }

    /// A driver ends the processes it can see. Others find no record of themselves.
    fn end_process_here(&mut self, id: &ResourceId) {
        if self.started_at.get(id) == Some(&self.place) {
            self.end_process(id);
        }
    }

    /// Changes the leader; each act of the earlier one stops after one of its steps.
    pub(super) fn change_leader(&mut self, steps: usize) {
        for (number, act) in std::mem::take(&mut self.acts).into_iter().enumerate() {
            let step = (steps >> (number % 8)) % 3;
            match act {
                Effect::Start(id) => {
                    if step > 0 {
                        let record = self.workers.record_of(&id).expect("it is known").clone();
                        self.records.insert(id.clone(), record);
                    }
                    if step == 2 {
                        self.processes.insert(id);
                    } else if step == 1 {
                        self.late.push(id);
                    }
                }
                Effect::Release(id) if step > 0 => {
                    let record = self.workers.record_of(&id).expect("it is known").clone();
                    self.records.insert(id, record);
                }
                Effect::RemoveRecord(id) if step > 0 => {
                    self.records.remove(&id);
                    if step == 2 {
                        self.end_process_here(&id);
                    }
                }
                Effect::Stop(id) if step > 0 => self.end_process_here(&id),
                Effect::Recover(_)
                | Effect::Release(_)
                | Effect::RemoveRecord(_)
                | Effect::Stop(_)
                | Effect::AskToLeave(_)
                | Effect::Watch(_) => {}
            }
        }
        self.epoch += 1;
        self.place = PLACES[steps / 256 % PLACES.len()];
        self.registered.clear();
        self.watched.clear();
        self.failures.clear();
        let recorded = self.records.iter();
        let recorded = recorded
            .map(|(id, record)| (id.clone(), record.clone()))
            .collect();
        self.workers = Workers::new(
            self.options.clone(),
            starter(self.epoch, self.place),
            recorded,
        );
        self.settle();
    }

    /// A deposed leader completes a start; the worker sooner or later finds no record of itself.
    pub(in crate::core::workers) fn go_on_late(&mut self) {
        if let Some(id) = self.late.pop() {
            self.processes.insert(id);
        }
    }

    pub(in crate::core::workers) fn look_for_records(&mut self) {
        let unrecorded = self
            .processes
            .iter()
            .filter(|id| !self.records.contains_key(*id));
        for id in unrecorded.cloned().collect::<Vec<_>>() {
            if self.registered.contains_key(&id) {
                continue;
            }
            self.end_process(&id);
            self.tell_end(&id);
        }
        self.settle();
    }
}
