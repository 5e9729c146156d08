//! The requests of tasks to coordinators: decided in the record, answered once the decision is durable.

use tanist_proto::v1 as pb;

use super::{Coordination, Coordinators, Pending, RequestKey, Taken, answer};
use crate::core::durable_record::DurableRecord;
use crate::core::execution_graph::ExecutionGraph;
use crate::core::output::Output;
use crate::core::{Connection, CoordinatorAnswer, CoordinatorRequest, Effect, Refusal};

impl Coordinators {
    /// Accepts a request of a task. The answer is an effect, in this step or when it is durable.
    pub(in crate::core) fn request(
        &mut self,
        connection: &Connection,
        request: CoordinatorRequest,
        record: &DurableRecord,
        graph: &ExecutionGraph,
        out: &mut Output,
    ) -> Result<(), Refusal> {
        let CoordinatorRequest {
            token,
            execution: id,
            operator,
            number,
        } = request;
        let task = graph.find(&id.vertex_id, id.subtask);
        let (Some(task), Some(coordination)) = (task, &mut self.of_job) else {
            return Err(Refusal::NotServed(id));
        };
        let is_there = graph.execution(task).is_on(&connection.task_manager);
        if !is_there || !coordination.serves(task, id.generation, record, graph) {
            return Err(Refusal::NotServed(id));
        }
        let pending = Pending {
            token,
            generation: id.generation,
        };
        // A task that repeats a request no longer waits for the first answer.
        let key = (task, operator, number);
        coordination.open.insert(key.clone());
        if let Some(before) = coordination.pending.insert(key, pending) {
            let answer = CoordinatorAnswer::NotServed("the request was repeated".to_owned());
            send(before.token, answer, out);
        }
        Ok(())
    }

    /// Marks a task's pending requests to be examined, as its execution may not be served any more.
    pub(in crate::core) fn recheck_requests(&mut self, task: usize) {
        if let Some(coordination) = &mut self.of_job {
            let all = coordination.pending.range((task, String::new(), 0)..);
            let own = all.take_while(|((of, ..), _)| *of == task);
            let own = own.map(|(key, _)| key.clone());
            coordination.open.extend(own);
        }
    }

    /// Decides on the pending requests, in the record. A decision is kept as long as the execution that sent the
    /// request is served.
    pub(in crate::core) fn decide_requests(
        &mut self,
        record: &mut DurableRecord,
        graph: &ExecutionGraph,
        out: &mut Output,
    ) {
        let Some(coordination) = &mut self.of_job else {
            return;
        };
        let open = match record.is_stopping() {
            true => coordination.pending.keys().cloned().collect(),
            false => coordination.open.clone(),
        };
        for key in open {
            let Some(pending) = coordination.pending.get(&key) else {
                continue;
            };
            let token = pending.token;
            match coordination.decide(&key, pending.generation, record, graph) {
                Ok(is_new) => coordination.has_decided |= is_new,
                Err(answer) => {
                    coordination.pending.remove(&key);
                    send(token, answer, out);
                }
            }
        }
    }

    /// Answers pending requests whose answer is in the durable record. Examines all of them if a write has become
    /// durable.
    pub(in crate::core) fn answer_requests(
        &mut self,
        has_written: bool,
        record: &DurableRecord,
        graph: &ExecutionGraph,
        out: &mut Output,
    ) {
        let Some(coordination) = &mut self.of_job else {
            return;
        };
        let open = std::mem::take(&mut coordination.open);
        let open = match has_written {
            true => coordination.pending.keys().cloned().collect(),
            false => open,
        };
        let durable = record.durable();
        for key in open {
            let Some(pending) = coordination.pending.get(&key) else {
                continue;
            };
            let (task, operator, number) = &key;
            let of = (*task, pending.generation);
            let found = coordination.find(durable, graph, of, operator);
            let state = found.and_then(|index| durable.coordinators[index].state.as_ref());
            let subtask = graph.task(*task).subtask;
            if let Some(answer) = state.and_then(|state| answer(state, subtask, *number)) {
                send(pending.token, CoordinatorAnswer::Decided(answer), out);
                coordination.pending.remove(&key);
            }
        }
    }

    /// Refuses all pending requests and all later ones, as the job has ended.
    pub(in crate::core) fn close(&mut self, out: &mut Output) {
        let Some(coordination) = &mut self.of_job else {
            return;
        };
        coordination.is_closed = true;
        coordination.open.clear();
        for (_, pending) in std::mem::take(&mut coordination.pending) {
            let ended = "the job has ended".to_owned();
            send(pending.token, CoordinatorAnswer::NotServed(ended), out);
        }
    }

    /// Whether the record that is about to be written has decisions that no execution has received.
    pub(in crate::core) fn take_decided(&mut self) -> bool {
        let coordination = self.of_job.as_mut();
        coordination.is_some_and(|it| std::mem::take(&mut it.has_decided))
    }
}

impl Coordination {
    /// Whether an execution may send requests: it has the generation of the record, is deployed, and does not
    /// have to end.
    fn serves(
        &self,
        task: usize,
        generation: u64,
        record: &DurableRecord,
        graph: &ExecutionGraph,
    ) -> bool {
        let at = graph.task(task);
        at.execution.generation.get() == generation
            && at.execution.is_deployed()
            && record.decided().regions[at.region].generation == generation
            && !record.is_stopping()
            && !self.is_closed
    }

    /// Decides on one request of an execution of this generation. Returns whether the record changed; an error says
    /// why there will be no decision.
    fn decide(
        &self,
        (task, operator, number): &RequestKey,
        generation: u64,
        record: &mut DurableRecord,
        graph: &ExecutionGraph,
    ) -> Result<bool, CoordinatorAnswer> {
        if !self.serves(*task, generation, record, graph) {
            let gone = "this execution is not served any more".to_owned();
            return Err(CoordinatorAnswer::NotServed(gone));
        }
        let found = self.find(record.decided(), graph, (*task, generation), operator);
        let index = found.ok_or_else(|| {
            let none = format!("{operator:?} has no coordinator");
            CoordinatorAnswer::Invalid(none)
        })?;
        let subtask = graph.task(*task).subtask;
        // A repeated request: the decided state is left unchanged, as it may be shared.
        let before: &pb::CoordinatorState = &record.decided().coordinators[index];
        let before = before.state.as_ref();
        if before.is_some_and(|state| answer(state, subtask, *number).is_some()) {
            return Ok(false);
        }
        match record.take_request(index, subtask, *number) {
            Some(Taken::Decided) => Ok(true),
            Some(Taken::AsBefore) => Ok(false),
            Some(Taken::OutOfTurn) | None => {
                let invalid = format!("request {number} of {operator:?} is out of turn");
                Err(CoordinatorAnswer::Invalid(invalid))
            }
        }
    }
}

fn send(token: u64, answer: CoordinatorAnswer, out: &mut Output) {
    out.push(Effect::AnswerCoordinator { token, answer });
}
