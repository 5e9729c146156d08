//! The part of the core that runs coordinators: has them prepared, puts that into the record with the placement, decides on
//! requests in `record`, and answers from `written`.

use std::sync::Arc;

use tanist_proto::v1 as pb;
use tanist_proto::v1::coordinator_state::State;

use super::{Asked, Preparation, Taken, Unprepared, answer, take};
use crate::job_master::core::{Failure, JobMasterCore};
use crate::job_master::event::{
    Connection, CoordinatorAnswer, CoordinatorRequest, Effect, Refusal,
};
use crate::job_master::execution_graph::{ExecutionGraph, RegionPhase};

impl JobMasterCore {
    /// Whether all is known that has to be recorded when the region is placed. If it is not, that is found out.
    pub(in crate::job_master) fn is_prepared(&mut self, region: usize) -> bool {
        let generation = self.next_generation(region);
        let Some(coordination) = &mut self.coordination else {
            return true;
        };
        let Some(operators) = coordination.operators.get(&region) else {
            return true;
        };
        match coordination.preparations.get(&region) {
            Some(Preparation::Ready { generation: of, .. }) if *of == generation => return true,
            Some(Preparation::Asked { generation: of }) if *of == generation => return false,
            Some(Preparation::Ready { .. } | Preparation::Asked { .. }) | None => {}
        }
        let asked = Preparation::Asked { generation };
        coordination.preparations.insert(region, asked);
        self.effects.push(Effect::Prepare {
            region,
            generation,
            operators: operators.clone(),
        });
        false
    }

    /// Whether a region waits for what has to be found out.
    pub(in crate::job_master) fn is_preparing(&self, region: usize) -> bool {
        let preparations = self.coordination.as_ref().map(|it| &it.preparations);
        let found = preparations.and_then(|it| it.get(&region));
        matches!(found, Some(Preparation::Asked { .. }))
    }

    fn next_generation(&self, region: usize) -> u64 {
        self.record.regions[region].generation.max(1)
    }

    /// What was found out, or why it was not.
    pub(in crate::job_master) fn note_prepared(
        &mut self,
        region: usize,
        generation: u64,
        outcome: Result<Vec<pb::CoordinatorState>, Unprepared>,
    ) {
        let Some(coordination) = &mut self.coordination else {
            return;
        };
        match coordination.preparations.get(&region) {
            Some(Preparation::Asked { generation: of }) if *of == generation => {}
            Some(Preparation::Asked { .. } | Preparation::Ready { .. }) | None => return,
        }
        match outcome {
            Ok(states) => {
                let ready = Preparation::Ready { generation, states };
                coordination.preparations.insert(region, ready);
            }
            Err(Unprepared {
                cause,
                is_unrecoverable,
            }) => {
                coordination.preparations.remove(&region);
                let phase = self.execution.regions[region].phase;
                if matches!(phase, RegionPhase::Waiting { .. }) {
                    self.failures.push(Failure {
                        is_unrecoverable,
                        ..Failure::of_region(region, cause)
                    });
                }
            }
        }
    }

    /// The region is placed: what was found out for its generation goes into the record.
    pub(in crate::job_master) fn record_prepared(&mut self, region: usize) {
        let generation = self.next_generation(region);
        let Some(coordination) = &mut self.coordination else {
            return;
        };
        if let Some(Preparation::Ready {
            generation: of,
            states,
        }) = coordination.preparations.remove(&region)
            && of == generation
        {
            self.forget_coordinators(region);
            Arc::make_mut(&mut self.record).coordinators.extend(states);
        }
    }

    /// The record says nothing more of a region's coordinators.
    pub(in crate::job_master) fn forget_coordinators(&mut self, region: usize) {
        if self.record.coordinators.is_empty() {
            return;
        }
        let execution = &self.execution;
        let record = Arc::make_mut(&mut self.record);
        record
            .coordinators
            .retain(|it| region_of(execution, it) != Some(region));
    }

    /// The same for regions of which everything has finished: nobody is left to ask.
    pub(in crate::job_master) fn forget_finished_coordinators(&mut self) {
        let execution = &self.execution;
        let has_finished = |it: &pb::CoordinatorState| {
            region_of(execution, it).is_some_and(|region| {
                let mut tasks = execution.regions[region].tasks.iter();
                tasks.all(|task| execution.tasks[*task].execution.is_recorded_as_finished())
            })
        };
        if self.record.coordinators.iter().any(has_finished) {
            Arc::make_mut(&mut self.record)
                .coordinators
                .retain(|it| !has_finished(it));
            self.revision += 1;
        }
    }

    /// A task asks. It is answered by an effect, in this turn or when the answer is durable.
    pub(in crate::job_master) fn ask(
        &mut self,
        connection: &Connection,
        request: CoordinatorRequest,
    ) -> Result<(), Refusal> {
        let CoordinatorRequest {
            token,
            execution: id,
            operator,
            number,
        } = request;
        let found = self.execution.find(&id.vertex_id, id.subtask);
        let task = found.filter(|task| {
            let execution = &self.execution.tasks[*task].execution;
            execution.is_on(&connection.task_manager) && self.serves(*task, id.generation)
        });
        let (Some(task), Some(coordination)) = (task, &mut self.coordination) else {
            return Err(Refusal::NotServed(id));
        };
        let asked = Asked {
            token,
            generation: id.generation,
        };
        // Whoever asks again does not wait for the first answer.
        if let Some(before) = coordination.asked.insert((task, operator, number), asked) {
            let answer = CoordinatorAnswer::NotServed("it was asked again".to_owned());
            self.answer_ask(before.token, answer);
        }
        Ok(())
    }

    /// Whether an execution is one that may ask: of the generation that the record has, there, and not to end.
    fn serves(&self, task: usize, generation: u64) -> bool {
        let at = &self.execution.tasks[task];
        at.execution.generation.get() == generation
            && at.execution.is_deployed()
            && self.record.regions[at.region].generation == generation
            && !self.is_stopping()
            && self.result.is_none()
    }

    fn answer_ask(&mut self, token: u64, answer: CoordinatorAnswer) {
        self.effects
            .push(Effect::AnswerCoordinator { token, answer });
    }

    /// Decides on what was asked, in the record.
    pub(in crate::job_master) fn decide_asked(&mut self) {
        let Some(mut coordination) = self.coordination.take() else {
            return;
        };
        let mut has_decided = false;
        coordination
            .asked
            .retain(|(task, operator, number), asked| {
                if !self.serves(*task, asked.generation) {
                    let gone = "this execution is not served any more".to_owned();
                    self.answer_ask(asked.token, CoordinatorAnswer::NotServed(gone));
                    return false;
                }
                let found = self.find_coordinator(&self.record, *task, operator, asked.generation);
                let Some(index) = found else {
                    let none = format!("{operator:?} has no coordinator");
                    self.answer_ask(asked.token, CoordinatorAnswer::Invalid(none));
                    return false;
                };
                let subtask = self.execution.tasks[*task].subtask;
                // Asked again: the record is not touched, which may be shared.
                let before = self.record.coordinators[index].state.as_ref();
                if before.is_some_and(|state| answer(state, subtask, *number).is_some()) {
                    return true;
                }
                let record = Arc::make_mut(&mut self.record);
                let state: Option<&mut State> = record.coordinators[index].state.as_mut();
                match state.map(|state| take(state, subtask, *number)) {
                    Some(Taken::Decided) => has_decided = true,
                    Some(Taken::AsBefore) => {}
                    Some(Taken::OutOfTurn) | None => {
                        let invalid = format!("request {number} of {operator:?} is out of turn");
                        self.answer_ask(asked.token, CoordinatorAnswer::Invalid(invalid));
                        return false;
                    }
                }
                true
            });
        coordination.has_decided |= has_decided;
        self.revision += u64::from(has_decided);
        self.coordination = Some(coordination);
    }

    /// Answers what the durable record has an answer to.
    pub(in crate::job_master) fn answer_asked(&mut self) {
        let Some(mut coordination) = self.coordination.take() else {
            return;
        };
        coordination
            .asked
            .retain(|(task, operator, number), asked| {
                let found = self.find_coordinator(&self.written, *task, operator, asked.generation);
                let state = found.and_then(|index| self.written.coordinators[index].state.as_ref());
                let subtask = self.execution.tasks[*task].subtask;
                match state.and_then(|state| answer(state, subtask, *number)) {
                    Some(answer) => {
                        self.answer_ask(asked.token, CoordinatorAnswer::Decided(answer));
                        false
                    }
                    None => true,
                }
            });
        self.coordination = Some(coordination);
    }

    /// The job has ended: nobody is answered any more.
    pub(in crate::job_master) fn refuse_asked(&mut self) {
        let Some(coordination) = &mut self.coordination else {
            return;
        };
        for (_, asked) in std::mem::take(&mut coordination.asked) {
            let ended = "the job has ended".to_owned();
            self.answer_ask(asked.token, CoordinatorAnswer::NotServed(ended));
        }
    }

    /// Whether the record that is about to be written has decisions that nobody has heard of.
    pub(in crate::job_master) fn take_decided(&mut self) -> bool {
        let coordination = self.coordination.as_mut();
        coordination.is_some_and(|it| std::mem::take(&mut it.has_decided))
    }

    /// The place of a coordinator's state in a record.
    fn find_coordinator(
        &self,
        record: &pb::JobState,
        task: usize,
        operator: &str,
        generation: u64,
    ) -> Option<usize> {
        record.coordinators.iter().position(|it| {
            it.generation == generation
                && it.operator == operator
                && self.execution.find(&it.vertex_id, 0)
                    == Some(self.execution.vertex_of(task).first)
        })
    }
}

fn region_of(execution: &ExecutionGraph, state: &pb::CoordinatorState) -> Option<usize> {
    let task = execution.find(&state.vertex_id, 0)?;
    Some(execution.tasks[task].region)
}
