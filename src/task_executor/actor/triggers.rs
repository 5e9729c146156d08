//! Requests to begin a checkpoint: their reply channels, and the tasks that begin it. Decides nothing: [`crate::core`]
//! says which tasks are asked.

use std::collections::BTreeMap;

use tanist_ha::clock::Uptime;
use tanist_proto::v1 as pb;
use tanist_proto::v1::trigger_answer::Answer;

use super::{Actor, Reply};
use crate::core::TriggeredSource;

/// Reply channels of open requests, by number.
#[derive(Debug, Default)]
pub(super) struct OpenTriggers {
    last: u64,
    open: BTreeMap<u64, Reply<pb::TriggerCheckpointResponse>>,
}

impl Actor {
    /// Handles a request of a JobMaster. If it is admitted, an effect of the same turn answers it.
    pub(super) fn trigger_requested(
        &mut self,
        now: Uptime,
        request: &pb::TriggerCheckpointRequest,
        reply: Reply<pb::TriggerCheckpointResponse>,
    ) {
        self.triggers.last += 1;
        let request_id = self.triggers.last;
        match self.core.trigger_checkpoint(now, request, request_id) {
            Ok(()) => drop(self.triggers.open.insert(request_id, reply)),
            Err(refusal) => self.answer(reply, Err(refusal)),
        }
    }

    /// Has running tasks begin a checkpoint, and answers the request.
    pub(super) fn trigger_sources(
        &mut self,
        request_id: u64,
        barrier: pb::CheckpointBarrier,
        sources: Vec<TriggeredSource>,
    ) {
        let answer = |source| match source {
            TriggeredSource::Runs(task) => match self.running.get(&task) {
                Some(running) => running.trigger(barrier),
                None => Answer::Refused("it is being restored".to_owned()),
            },
            TriggeredSource::Answered(answer) => answer,
        };
        let answers = sources.into_iter().map(|source| pb::TriggerAnswer {
            answer: Some(answer(source)),
        });
        let answers = answers.collect();
        if let Some(reply) = self.triggers.open.remove(&request_id) {
            self.answer(reply, Ok(pb::TriggerCheckpointResponse { answers }));
        }
    }
}
