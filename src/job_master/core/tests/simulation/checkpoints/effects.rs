//! What the checkpoints decide, checked and done: triggers and aborts go to TaskManagers, the rest to the store, the
//! blob store and committers, where it is done at any later time, also after the term.

use tanist_proto::v1 as pb;

use super::assert_holds;
use crate::core::checkpoints::tests::simulation::execution::Life;
use crate::core::checkpoints::tests::simulation::invariants::{
    k2_number_is_new, k5_number_is_not_below_the_floor, k6_only_durable_output_is_committed,
    k7_records_are_committed_once, k15_deleted_objects_are_garbage,
};
use crate::core::checkpoints::{Barrier, Effect, Event, TaskProgress, TriggerAnswer};
use crate::core::tests::simulation::world::{Call, Request, World};
use crate::core::{self, CommitProgress, Connection};

impl World {
    pub(super) fn run_checkpoint_effect(&mut self, effect: Effect) {
        let epoch = self.epoch;
        if let Effect::Write { record, .. } = &effect {
            self.assert_may_be_written(record);
        }
        let Some(at) = &mut self.checkpoints else {
            return;
        };
        match effect {
            Effect::Trigger { barrier, .. } => {
                let number = barrier.number;
                assert_holds(k5_number_is_not_below_the_floor(number, barrier.floor));
                if number >= at.base {
                    let term = usize::try_from(epoch).expect("few terms");
                    assert_holds(k2_number_is_new(&at.given, number, term));
                    at.given.insert(number, term);
                }
                self.call(effect);
            }
            Effect::Abort { .. } | Effect::AnswerAcknowledgement { .. } => self.call(effect),
            Effect::Write { write, record } => at.write = Some((write, record)),
            Effect::Commit {
                ref committables, ..
            } => {
                let listed = &at.listed_parts;
                assert_holds(k6_only_durable_output_is_committed(committables, listed));
                at.outside.push((epoch, effect));
                let began = core::Event::CheckpointCommit(CommitProgress::Began);
                at.answers.push_back(began);
            }
            Effect::Remove { ref objects, .. } => {
                let manifests = at.retained_manifests();
                let floor = at.record.floor;
                let checked = k15_deleted_objects_are_garbage(objects, manifests.iter(), floor);
                assert_holds(checked);
                at.outside.push((epoch, effect));
            }
            Effect::PutManifest { .. } | Effect::List => at.outside.push((epoch, effect)),
            Effect::FailRegion { region, cause } => {
                self.healthy.remove(&region);
                let failed = core::Event::CheckpointsFailed { region, cause };
                at.answers.push_back(failed);
            }
            Effect::Completed { .. } => at.reached.completed += 1,
            Effect::Aborted { reason, .. } => {
                at.reached.aborted += 1;
                at.aborts.push(reason);
            }
            Effect::ForgetCommits { .. } => {}
            Effect::AnswerSavepoint { trigger_id, answer } => at.note_answer(trigger_id, &answer),
            Effect::CopySavepoint { number, .. } => {
                at.assert_may_be_copied(number);
                at.outside.push((epoch, effect));
            }
            Effect::DiscardCopy { trigger_id, .. } => at.discard(&trigger_id),
        }
    }

    fn call(&mut self, effect: Effect) {
        let (Effect::Trigger { connection, .. }
        | Effect::Abort { connection, .. }
        | Effect::AnswerAcknowledgement { connection, .. }) = &effect
        else {
            return;
        };
        self.requests.push(Request {
            epoch: self.epoch,
            connection: connection.clone(),
            call: Call::Checkpoint(effect),
        });
    }

    /// A request arrives at the executions of a TaskManager, if it is current, and its answer arrives or is lost.
    pub(in crate::core::tests::simulation) fn deliver_to_streams(
        &mut self,
        (epoch, connection): (u64, Connection),
        effect: Effect,
        is_current: bool,
        is_answered: bool,
    ) {
        self.sync_streams();
        let Some(at) = &mut self.checkpoints else {
            return;
        };
        match effect {
            Effect::Trigger {
                sources, barrier, ..
            } => {
                let generation = sources.generation;
                let mut answer = |task: usize| {
                    if !is_current {
                        return TriggerAnswer::Refused("it is outdated".to_owned());
                    }
                    let answer = at.arrive((task, generation), barrier);
                    match is_answered {
                        true => answer,
                        false => TriggerAnswer::Refused("the answer was lost".to_owned()),
                    }
                };
                let answers = sources.tasks.into_iter().map(|task| (task, answer(task)));
                let event = Event::TriggerAnswered {
                    answers: answers.collect(),
                    connection,
                    region: sources.region,
                    number: barrier.number,
                };
                at.told.push((epoch, event));
            }
            Effect::Abort {
                executions, number, ..
            } if is_current => {
                for task in executions.tasks {
                    let key = (task, executions.generation);
                    let execution = self.checkpoints.as_mut().and_then(|at| at.execution(key));
                    if let Some(execution) = execution
                        && execution.lives()
                        && execution.highest <= number
                    {
                        execution.give_up(number, TaskProgress::Aborted);
                        assert_holds(self.resume(epoch, key, number));
                    }
                }
            }
            Effect::AnswerAcknowledgement {
                task,
                generation,
                number,
                ..
            } if is_current => {
                if let Some(execution) = at.execution((task, generation)) {
                    execution.is_answered |= execution.highest == number;
                }
            }
            _ => {}
        }
    }

    /// The world does one of the things that terms have asked of it.
    pub(super) fn do_outside(&mut self, pick: usize, fails: bool) {
        let Some(at) = &mut self.checkpoints else {
            return;
        };
        if at.outside.is_empty() {
            return;
        }
        let (epoch, effect) = at.outside.swap_remove(pick % at.outside.len());
        let mut progress = None;
        let event = match effect {
            Effect::Commit {
                number,
                committables,
            } => {
                let count = if fails {
                    committables.len() / 2
                } else {
                    committables.len()
                };
                for part in &committables[..count] {
                    at.commit(part);
                }
                at.has_failed |= fails;
                progress = Some(match fails {
                    true => CommitProgress::Failed("no space".to_owned()),
                    false => CommitProgress::Done,
                });
                match fails {
                    true => Event::CommitFailed { number },
                    false => Event::Committed { number },
                }
            }
            Effect::Remove { removal, objects } => {
                let count = if fails {
                    objects.len() / 2
                } else {
                    objects.len()
                };
                at.remove(&objects[..count]);
                match fails {
                    true => Event::RemovalFailed { removal },
                    false => Event::Removed { removal },
                }
            }
            Effect::PutManifest { number, bytes } => match fails {
                true => Event::ManifestNotPut("the blob store is away".to_owned()),
                false => {
                    let name = format!("manifest-{number}-{:016x}", at.random.next());
                    let length = bytes.len() as u64;
                    at.manifests.insert(name.clone(), bytes);
                    Event::ManifestPut(pb::ManifestObject { name, length })
                }
            },
            Effect::CopySavepoint {
                trigger_id, number, ..
            } => at.copy(&trigger_id, number, fails),
            Effect::List if fails => Event::NotListed,
            Effect::List => Event::Listed(at.objects.iter().cloned().collect()),
            other => unreachable!("{other:?} is done at once"),
        };
        if epoch == self.epoch && self.result.is_none() {
            let progress = progress.map(core::Event::CheckpointCommit);
            at.answers.extend(progress);
            self.tell_checkpoints(event);
            self.settle_checkpoints();
        }
    }
}

impl super::Checkpoints {
    /// A trigger arrives at an execution.
    fn arrive(&mut self, key: (usize, u64), barrier: Barrier) -> TriggerAnswer {
        let Some(at) = self.position(key) else {
            return TriggerAnswer::Refused("it does not run".to_owned());
        };
        match self.streams[at].execution.life {
            Life::Running => {
                self.inject(at, barrier);
                TriggerAnswer::Injected
            }
            Life::InputEnded | Life::Ended => TriggerAnswer::SourceEnded,
            Life::Dead => TriggerAnswer::Refused("it does not run".to_owned()),
        }
    }

    fn commit(&mut self, part: &pb::CheckpointCommittable) {
        let checked = k7_records_are_committed_once(&mut self.committed_records, part);
        assert_holds(checked);
        let part = (part.uid.clone(), part.kind.clone());
        self.uncommitted_parts.remove(&part);
        self.reached.committed += 1;
    }
}
