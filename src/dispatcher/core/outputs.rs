//! What the present event leads to: effects and lines of the log, in order. The handlers of the core add to it; the
//! actor takes the lines, then the effects, after each event.

use tanist_gateway::{GatewayError, GatewayResult};
use tanist_proto::v1 as pb;

use super::{Effect, LogLine, Replies};

/// The outputs of the present event.
#[derive(Debug)]
pub(super) struct Outputs<R: Replies> {
    effects: Vec<Effect<R>>,
    log: Vec<LogLine>,
}

impl<R: Replies> Outputs<R> {
    pub(super) fn effect(&mut self, effect: Effect<R>) {
        self.effects.push(effect);
    }

    pub(super) fn log(&mut self, line: LogLine) {
        self.log.push(line);
    }

    pub(super) fn acknowledge(&mut self, reply: R::To<pb::Ack>, answer: GatewayResult<()>) {
        self.effect(Effect::Acknowledge { reply, answer });
    }

    /// The same for a request that may have come from this process itself.
    pub(super) fn acknowledge_if_asked(
        &mut self,
        reply: Option<R::To<pb::Ack>>,
        answer: GatewayResult<()>,
    ) {
        if let Some(reply) = reply {
            self.acknowledge(reply, answer);
        }
    }

    pub(super) fn answer_submission(
        &mut self,
        reply: R::To<pb::SubmitJobResponse>,
        answer: Result<pb::SubmitJobResponse, GatewayError>,
    ) {
        self.effect(Effect::AnswerSubmission { reply, answer });
    }

    /// Returns the effects since the last call.
    pub(super) fn take_effects(&mut self) -> Vec<Effect<R>> {
        std::mem::take(&mut self.effects)
    }

    /// Returns the lines since the last call.
    pub(super) fn take_log(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.log)
    }
}

impl<R: Replies> Default for Outputs<R> {
    fn default() -> Outputs<R> {
        Outputs {
            effects: Vec::new(),
            log: Vec::new(),
        }
    }
}
