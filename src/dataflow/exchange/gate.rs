//! The input of a task: all channels of all its edges, read in turn.
//!
//! The task owns its gate. It says which channels are blocked for a checkpoint, and receives barriers and the ends of
//! single channels. Nothing is taken from a blocked channel, but its failure is found. A channel that fails is an
//! [`InputError`], which names the producer and fails the task.

use std::sync::{Arc, OnceLock};

use arrow_array::RecordBatch;
use tanist_proto::v1::{CheckpointBarrier, ExecutionId};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::channel::{Channel, Popped};
use super::partition::{PartitionId, Partitions};
use crate::time::{Alignment, ChannelTime, TimeSignal};

/// Error: a producer ended before it had sent everything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("input from {producer} ended early: {cause}")]
pub(crate) struct InputError {
    /// The producer, as logs name it.
    pub producer: String,
    /// The reason.
    pub cause: String,
    /// The execution that produced the output, if the output was complete and kept.
    pub kept: Option<ExecutionId>,
}

/// What a task gets without waiting.
#[derive(Debug)]
pub(crate) enum Input {
    Batch(RecordBatch),
    /// Event time over all channels has reached this.
    Time(TimeSignal),
    /// A channel has delivered the barrier of a checkpoint.
    Barrier(usize, CheckpointBarrier),
    /// A channel has ended.
    ChannelEnded(usize),
    /// Nothing at the moment.
    Idle,
    /// All producers have ended.
    Ended,
}

/// An input channel, and where its consumption is recorded.
pub(super) struct Source {
    /// Number of the channel among all that the gate had at first.
    pub(super) number: usize,
    pub(super) producer: String,
    /// Empty until the producer was found.
    pub(super) channel: Arc<OnceLock<Arc<Channel>>>,
    /// Set for a channel within this TaskManager.
    pub(super) local: Option<Local>,
    /// The execution that produced the output, if it is complete and kept.
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

/// The channels that are still open. Dropping the gate closes its connections.
pub(crate) struct InputGate {
    sources: Vec<Source>,
    next: usize,
    alignment: Alignment,
    /// The number of a channel that has ended, until that is reported.
    ended: Option<usize>,
    readable: Arc<Notify>,
    /// Tasks that find local producers and fill remote channels.
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
            ended: None,
            readable,
            _openers: openers,
        }
    }

    /// Number of channels that have not ended. Before the first has, they are numbered from 0.
    pub(crate) fn channels(&self) -> usize {
        self.sources.len()
    }

    /// Returns what comes next of any channel, in turn.
    pub(crate) fn poll(&mut self, is_blocked: impl Fn(usize) -> bool) -> Result<Input, InputError> {
        if let Some(input) = self.take_due() {
            return Ok(input);
        }
        let mut looked_at = 0;
        while looked_at < self.sources.len() {
            let index = self.next % self.sources.len();
            let source = &mut self.sources[index];
            let popped = match source.channel.get() {
                None => Popped::Empty,
                Some(channel) if is_blocked(source.number) => {
                    channel.failure().map_or(Popped::Empty, Popped::Failed)
                }
                Some(channel) => channel.pop(),
            };
            match popped {
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
                Popped::Barrier(barrier) => {
                    let number = source.number;
                    self.next = index + 1;
                    return Ok(Input::Barrier(number, barrier));
                }
                Popped::Empty => {
                    self.next = index + 1;
                    looked_at += 1;
                }
                Popped::Finished => {
                    let Source {
                        number,
                        local,
                        channel,
                        ..
                    } = self.sources.swap_remove(index);
                    if let (Some(local), Some(channel)) = (local, channel.get()) {
                        local
                            .partitions
                            .consumed(local.partition, local.target, channel);
                    }
                    self.ended = Some(number);
                    if let Some(input) = self.take_due() {
                        return Ok(input);
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

    /// Returns event time that is due, then the end of a channel. In this order: a channel that has ended does not hold
    /// event time back, and its end may complete the cut of a checkpoint. The time that the records before the cut have
    /// reached must come before the cut.
    fn take_due(&mut self) -> Option<Input> {
        if let Some(signal) = self.alignment.pending() {
            return Some(Input::Time(signal));
        }
        self.ended?;
        if let Some(signal) = self.align() {
            return Some(Input::Time(signal));
        }
        self.ended.take().map(Input::ChannelEnded)
    }

    fn align(&mut self) -> Option<TimeSignal> {
        let times = self.sources.iter().map(|source| source.time);
        self.alignment.align(times)
    }

    /// Waits until [`InputGate::poll`] may return something.
    pub(crate) async fn readable(&self) {
        self.readable.notified().await;
    }

    /// Whether all producers were found.
    #[cfg(test)]
    pub(super) fn opened(&self) -> bool {
        self.sources
            .iter()
            .all(|source| source.channel.get().is_some())
    }
}
