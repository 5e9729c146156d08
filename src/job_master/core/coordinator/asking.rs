//! The part of the core that runs coordinators: it has them prepared, records the result with the placement,
//! decides on requests in `record`, and answers from `written`.

use tanist_proto::v1 as pb;

use super::{Asked, Coordination, Preparation, Question, Taken, Unprepared, answer};
use crate::core::blocking::OfVertices;
use crate::core::execution_graph::{RegionPhase, as_index};
use crate::core::{
    Connection, CoordinatorAnswer, CoordinatorRequest, Effect, Failure, JobMasterCore, Refusal,
};

impl JobMasterCore {
    /// Whether the coordinators of a region in this group are prepared, so that it can be placed. If not,
    /// requests their preparation. `known` caches the answer by group.
    pub(in crate::core) fn is_prepared(
        &mut self,
        look: Option<usize>,
        known: &mut OfVertices,
    ) -> bool {
        look.is_none_or(|look| known.get(look, || self.is_looked_at(look)))
    }

    fn is_looked_at(&mut self, look: usize) -> bool {
        let Some(coordination) = &mut self.coordination else {
            return true;
        };
        if coordination.is_in(self.record.decided(), &self.execution, look) {
            // Another region of the group was placed with these states.
            return true;
        }
        let generation = coordination.generation(self.record.decided(), look);
        match coordination.preparations.get(&look) {
            Some(Preparation::Ready { generation: of, .. }) if *of == generation => return true,
            Some(Preparation::Asked { generation: of }) if *of == generation => return false,
            Some(Preparation::Ready { .. } | Preparation::Asked { .. }) | None => {}
        }
        let asked = Preparation::Asked { generation };
        coordination.preparations.insert(look, asked);
        let at = &coordination.looks[look];
        self.out.push(Effect::Prepare {
            region: at.regions[0],
            generation,
            look: at.present_look(generation),
            operators: at.operators.clone(),
        });
        false
    }

    fn look_of(&self, region: usize) -> Option<usize> {
        self.execution.regions[region].look
    }

    /// Whether the coordinators of a group are being prepared.
    pub(in crate::core) fn is_looking(&self, look: Option<usize>) -> bool {
        let found = look.and_then(|look| self.coordination.as_ref()?.preparations.get(&look));
        matches!(found, Some(Preparation::Asked { .. }))
    }

    /// Whether any coordinators are being prepared.
    pub(in crate::core) fn is_any_looking(&self) -> bool {
        let coordination = self.coordination.as_ref();
        let mut preparations = coordination.iter().flat_map(|it| it.preparations.values());
        preparations.any(|it| matches!(it, Preparation::Asked { .. }))
    }

    /// Whether a region waits for the preparation of its coordinators.
    pub(in crate::core) fn is_preparing(&self, region: usize) -> bool {
        self.is_looking(self.look_of(region))
    }

    /// Applies the result of a preparation.
    pub(in crate::core) fn note_prepared(
        &mut self,
        region: usize,
        generation: u64,
        outcome: Result<Vec<pb::CoordinatorState>, Unprepared>,
    ) {
        let look = self.look_of(region);
        let Some((coordination, look)) = self.coordination.as_mut().zip(look) else {
            return;
        };
        match coordination.preparations.get(&look) {
            Some(Preparation::Asked { generation: of }) if *of == generation => {}
            Some(Preparation::Asked { .. } | Preparation::Ready { .. }) | None => return,
        }
        match outcome {
            Ok(states) => {
                let operators = coordination.looks[look].operators.iter();
                let wanted = operators.map(|it| (&it.vertex_id, &it.operator));
                // A result that was requested under another region rule, for another group, does not count.
                if wanted.eq(states.iter().map(|it| (&it.vertex_id, &it.operator))) {
                    let ready = Preparation::Ready { generation, states };
                    coordination.preparations.insert(look, ready);
                }
            }
            Err(Unprepared {
                cause,
                is_unrecoverable,
            }) => {
                coordination.preparations.remove(&look);
                for region in &coordination.looks[look].regions {
                    let phase = self.execution.regions[*region].phase;
                    if matches!(phase, RegionPhase::Waiting { .. }) {
                        self.failures.push(Failure {
                            is_unrecoverable,
                            ..Failure::of_region(*region, cause.clone())
                        });
                    }
                }
            }
        }
    }

    /// Takes the prepared states of a region that is being placed. Empty if the record has them from another
    /// region of the group.
    pub(in crate::core) fn take_prepared(&mut self, region: usize) -> Vec<pb::CoordinatorState> {
        let look = self.look_of(region);
        let Some((coordination, look)) = self.coordination.as_mut().zip(look) else {
            return Vec::new();
        };
        if coordination.is_in(self.record.decided(), &self.execution, look) {
            return Vec::new();
        }
        let generation = coordination.generation(self.record.decided(), look);
        match coordination.preparations.remove(&look) {
            Some(Preparation::Ready {
                generation: of,
                states,
            }) if of == generation => states,
            Some(Preparation::Ready { .. } | Preparation::Asked { .. }) | None => Vec::new(),
        }
    }

    /// Removes the coordinators of a region that lost its placement from the record, unless another region is
    /// still placed with them.
    pub(in crate::core) fn forget_coordinators(&mut self, region: usize) {
        let look = self.look_of(region);
        let Some((coordination, look)) = self.coordination.as_mut().zip(look) else {
            return;
        };
        let is_placed =
            |region: &usize| !self.record.decided().regions[*region].placements.is_empty();
        if coordination.looks[look].regions.iter().any(is_placed) {
            return;
        }
        coordination.looks[look].failed.clear();
        coordination.looks[look].is_doubted = false;
        let execution = &self.execution;
        self.record
            .retain_coordinators(|it| Coordination::look_of_state(execution, it) != Some(look));
    }

    /// Notes that a task of a region failed by itself.
    pub(in crate::core) fn note_failed_by_itself(&mut self, region: usize) {
        let look = self.look_of(region);
        if let Some((coordination, look)) = self.coordination.as_mut().zip(look) {
            let look = &mut coordination.looks[look];
            look.is_doubted |= !look.failed.insert(region);
        }
    }

    /// Adds the regions that restart with this one because the preparation of their group is doubted.
    pub(in crate::core) fn add_doubted(&self, region: usize, to: &mut Vec<usize>) {
        let look = self.look_of(region);
        if let Some((coordination, look)) = self.coordination.as_ref().zip(look) {
            let look = &coordination.looks[look];
            if look.is_doubted {
                to.extend(&look.regions);
            }
        }
    }

    /// Removes finished coordinators from the record: it is durable that all of their regions have finished,
    /// and none of them runs again without all others. A single region that runs again needs the same answers
    /// as before: where that can happen, the record keeps the coordinators until the job ends.
    pub(in crate::core) fn forget_finished_coordinators(&mut self) {
        let Some(coordination) = &self.coordination else {
            return;
        };
        let execution = &self.execution;
        let all_finished = |vertex: &usize| {
            let parallelism = execution.vertices[*vertex].parallelism;
            execution.indexes.finished[*vertex] == as_index(parallelism)
        };
        let has_finished = |region: &usize| {
            // The region must not have been given up since; that is not durable yet.
            let is_of_record = self.record.is_generation_durable(*region);
            let mut tasks = execution.regions[*region].tasks.iter();
            is_of_record && tasks.all(|task| self.record.has_durably_finished(*task))
        };
        let is_over = |it: &pb::CoordinatorState| {
            let look = Coordination::look_of_state(execution, it);
            look.is_some_and(|look| {
                let look = &coordination.looks[look];
                !look.may_run_again_in_part
                    && look.vertices.iter().all(all_finished)
                    && look.regions.iter().all(has_finished)
            })
        };
        let over: Vec<pb::CoordinatorState> = {
            let states = self.record.decided().coordinators.iter();
            states.filter(|it| is_over(it)).cloned().collect()
        };
        if !over.is_empty() {
            self.record.retain_coordinators(|it| !over.contains(it));
        }
    }

    /// Accepts a request of a task. The answer is an effect, in this step or when it is durable.
    pub(in crate::core) fn ask(
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
        // A task that repeats a request no longer waits for the first answer.
        let question = (task, operator, number);
        coordination.open.insert(question.clone());
        if let Some(before) = coordination.asked.insert(question, asked) {
            let answer = CoordinatorAnswer::NotServed("the request was repeated".to_owned());
            self.answer_ask(before.token, answer);
        }
        Ok(())
    }

    /// Has a task's pending requests examined, as its execution may not be served any more.
    pub(in crate::core) fn recheck_requests(&mut self, task: usize) {
        if let Some(coordination) = &mut self.coordination {
            let all = coordination.asked.range((task, String::new(), 0)..);
            let own = all.take_while(|((of, ..), _)| *of == task);
            let own = own.map(|(question, _)| question.clone());
            coordination.open.extend(own);
        }
    }

    /// Whether an execution may send requests: it has the generation of the record, is deployed, and does not
    /// have to end.
    fn serves(&self, task: usize, generation: u64) -> bool {
        let at = &self.execution.tasks[task];
        at.execution.generation.get() == generation
            && at.execution.is_deployed()
            && self.record.decided().regions[at.region].generation == generation
            && !self.record.is_stopping()
            && !self.end.has_ended()
    }

    fn answer_ask(&mut self, token: u64, answer: CoordinatorAnswer) {
        self.out.push(Effect::AnswerCoordinator { token, answer });
    }

    /// Decides on the pending requests, in `record`. A decision is kept as long as the execution that asked
    /// is served.
    pub(in crate::core) fn decide_requests(&mut self) {
        let Some(mut coordination) = self.coordination.take() else {
            return;
        };
        let mut has_decided = false;
        let open = match self.record.is_stopping() {
            true => coordination.asked.keys().cloned().collect(),
            false => coordination.open.clone(),
        };
        for question in open {
            let Some(asked) = coordination.asked.get(&question).cloned() else {
                continue;
            };
            match self.decide_request(&coordination, &question, &asked) {
                Ok(is_new) => has_decided |= is_new,
                Err(answer) => {
                    coordination.asked.remove(&question);
                    self.answer_ask(asked.token, answer);
                }
            }
        }
        coordination.has_decided |= has_decided;
        self.coordination = Some(coordination);
    }

    /// Decides on one request. Returns whether `record` changed; an error says why there will be no decision.
    fn decide_request(
        &mut self,
        looks: &Coordination,
        (task, operator, number): &Question,
        asked: &Asked,
    ) -> Result<bool, CoordinatorAnswer> {
        if !self.serves(*task, asked.generation) {
            let gone = "this execution is not served any more".to_owned();
            return Err(CoordinatorAnswer::NotServed(gone));
        }
        let of = (*task, asked.generation);
        let found = looks.find(self.record.decided(), &self.execution, of, operator);
        let index = found.ok_or_else(|| {
            let none = format!("{operator:?} has no coordinator");
            CoordinatorAnswer::Invalid(none)
        })?;
        let subtask = self.execution.tasks[*task].subtask;
        // A repeated request: `record` is left unchanged, as it may be shared.
        let before = self.record.decided().coordinators[index].state.as_ref();
        if before.is_some_and(|state| answer(state, subtask, *number).is_some()) {
            return Ok(false);
        }
        match self.record.take_request(index, subtask, *number) {
            Some(Taken::Decided) => Ok(true),
            Some(Taken::AsBefore) => Ok(false),
            Some(Taken::OutOfTurn) | None => {
                let invalid = format!("request {number} of {operator:?} is out of turn");
                Err(CoordinatorAnswer::Invalid(invalid))
            }
        }
    }

    /// Answers pending requests whose answer is in the durable record.
    pub(in crate::core) fn answer_requests(&mut self) {
        let Some(mut coordination) = self.coordination.take() else {
            return;
        };
        let open = std::mem::take(&mut coordination.open);
        let open = match self.dirty.has_written {
            true => coordination.asked.keys().cloned().collect(),
            false => open,
        };
        for question in open {
            let Some(asked) = coordination.asked.get(&question) else {
                continue;
            };
            let (task, operator, number) = &question;
            let of = (*task, asked.generation);
            let found = coordination.find(self.record.durable(), &self.execution, of, operator);
            let state =
                found.and_then(|index| self.record.durable().coordinators[index].state.as_ref());
            let subtask = self.execution.tasks[*task].subtask;
            if let Some(answer) = state.and_then(|state| answer(state, subtask, *number)) {
                self.answer_ask(asked.token, CoordinatorAnswer::Decided(answer));
                coordination.asked.remove(&question);
            }
        }
        self.coordination = Some(coordination);
    }

    /// Refuses all pending requests, as the job has ended.
    pub(in crate::core) fn refuse_requests(&mut self) {
        let Some(coordination) = &mut self.coordination else {
            return;
        };
        coordination.open.clear();
        for (_, asked) in std::mem::take(&mut coordination.asked) {
            let ended = "the job has ended".to_owned();
            self.answer_ask(asked.token, CoordinatorAnswer::NotServed(ended));
        }
    }

    /// Whether the record that is about to be written has decisions that no execution has received.
    pub(in crate::core) fn take_decided(&mut self) -> bool {
        let coordination = self.coordination.as_mut();
        coordination.is_some_and(|it| std::mem::take(&mut it.has_decided))
    }
}
