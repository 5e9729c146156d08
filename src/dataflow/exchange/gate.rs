//! The input of a task: all channels of all its edges, read in turn.

use std::sync::{Arc, OnceLock};

use arrow_array::RecordBatch;
use tanist_proto::v1::ExecutionId;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::channel::{Channel, Popped};
use super::partition::{PartitionId, Partitions};
use crate::dataflow::time::{Alignment, ChannelTime, TimeSignal};

/// A producer that ended without having given everything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("input from {producer} broke off: {cause}")]
pub struct InputError {
    /// Who, as people know it.
    pub producer: String,
    /// Why.
    pub cause: String,
    /// Whose output it is, if that had been complete.
    pub kept: Option<ExecutionId>,
}

/// What a task finds without waiting.
#[derive(Debug)]
pub(in crate::dataflow) enum Input {
    Batch(RecordBatch),
    /// How far event time has come on all channels.
    Time(TimeSignal),
    /// Nothing at the moment.
    Idle,
    /// All producers have ended.
    Ended,
}

/// One channel, and what is told when it was taken to its end.
pub(super) struct Source {
    pub(super) producer: String,
    /// Empty until the producer has been found.
    pub(super) channel: Arc<OnceLock<Arc<Channel>>>,
    /// For a channel within this TaskManager.
    pub(super) local: Option<Local>,
    /// Whose output it is, if that is complete.
    pub(super) kept: Option<ExecutionId>,
    pub(super) time: ChannelTime,
}

/// A channel of a partition in this TaskManager.
#[derive(Clone)]
pub(super) struct Local {
    pub(super) partitions: Arc<Partitions>,
    pub(super) partition: PartitionId,
    pub(super) target: u32,
}

/// The channels that are still open. Dropping it ends its connections.
pub(in crate::dataflow) struct InputGate {
    sources: Vec<Source>,
    next: usize,
    alignment: Alignment,
    readable: Arc<Notify>,
    /// Finds local producers, fills remote channels.
    _openers: JoinSet<()>,
}

impl InputGate {
    pub(super) fn new(
        sources: Vec<Source>,
        readable: Arc<Notify>,
        openers: JoinSet<()>,
    ) -> InputGate {
        InputGate {
            sources,
            next: 0,
            alignment: Alignment::default(),
            readable,
            _openers: openers,
        }
    }

    /// The next batch of any channel, in turn.
    pub(in crate::dataflow) fn poll(&mut self) -> Result<Input, InputError> {
        if let Some(signal) = self.alignment.owed() {
            return Ok(Input::Time(signal));
        }
        let mut looked_at = 0;
        while looked_at < self.sources.len() {
            let index = self.next % self.sources.len();
            let source = &mut self.sources[index];
            match source
                .channel
                .get()
                .map_or(Popped::Empty, |channel| channel.pop())
            {
                Popped::Batch(batch) => {
                    self.next = index + 1;
                    return Ok(Input::Batch(batch));
                }
                Popped::Time(signal) => {
                    let before = source.time;
                    source.time.apply(signal);
                    let after = source.time;
                    if self.alignment.may_change(before, after)
                        && let Some(signal) = self.align()
                    {
                        return Ok(Input::Time(signal));
                    }
                }
                Popped::Empty => {
                    self.next = index + 1;
                    looked_at += 1;
                }
                Popped::Finished => {
                    let Source { local, channel, .. } = self.sources.swap_remove(index);
                    if let (Some(local), Some(channel)) = (local, channel.get()) {
                        local
                            .partitions
                            .consumed(local.partition, local.target, channel);
                    }
                    // Nobody waits for a channel that has ended.
                    if let Some(signal) = self.align() {
                        return Ok(Input::Time(signal));
                    }
                }
                Popped::Failed(cause) => {
                    return Err(InputError {
                        producer: source.producer.clone(),
                        cause,
                        kept: source.kept.clone(),
                    });
                }
            }
        }
        Ok(if self.sources.is_empty() {
            Input::Ended
        } else {
            Input::Idle
        })
    }

    fn align(&mut self) -> Option<TimeSignal> {
        let times = self.sources.iter().map(|source| source.time);
        self.alignment.align(times)
    }

    /// Waits until [`InputGate::poll`] may find something.
    pub(in crate::dataflow) async fn readable(&self) {
        self.readable.notified().await;
    }

    /// Whether all producers have been found.
    #[cfg(test)]
    pub(super) fn opened(&self) -> bool {
        self.sources
            .iter()
            .all(|source| source.channel.get().is_some())
    }
}
