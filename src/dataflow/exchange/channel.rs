//! A bounded queue of batches between one producer and one consumer; it provides backpressure.
//!
//! Event-time signals are queued between the batches. They take no place and need no credit: of consecutive signals
//! only the last watermark is kept, and idle after it. Barriers of checkpoints take no place and need no credit
//! either; each is kept, and separates the signals before it from those after it. The first failure of a channel stays,
//! and drops what is queued.
//!
//! Between tasks of one TaskManager one queue is the whole channel. Over the network there is one at each end:
//! the server sends from the producer's queue while it has credit from the consumer, and the free places of the
//! consumer's queue are that credit.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::RecordBatch;
use parking_lot::Mutex;
use tanist_proto::v1::CheckpointBarrier;
use tokio::sync::{Notify, Semaphore};

use super::budget::NetworkBudget;
use crate::record::size_of;
use crate::time::TimeSignal;

/// Maximum number of batches in a queue.
pub(super) const PLACES: usize = 8;
/// Size in bytes above which a queue takes no further batch, even if it has free places.
pub(super) const MOST_BYTES: usize = 4 * 1024 * 1024;

/// Error: the consumer is gone for good, or the partition was closed from outside.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Closed(pub(crate) String);

/// Result of [`Channel::pop`].
#[derive(Debug)]
pub(super) enum Popped {
    Batch(RecordBatch),
    Time(TimeSignal),
    Barrier(CheckpointBarrier),
    /// Nothing yet; the reader will be notified.
    Empty,
    /// The end: all batches were taken.
    Finished,
    /// The end, with batches missing, for this reason.
    Failed(String),
}

/// What waits in a queue.
#[derive(Debug)]
enum Queued {
    Batch(RecordBatch),
    Time(TimeSignal),
    Barrier(CheckpointBarrier),
}

#[derive(Debug, Clone)]
enum End {
    Finished,
    Failed(String),
}

#[derive(Debug, Default)]
struct ChannelState {
    queue: VecDeque<Queued>,
    /// Number of batches in the queue.
    batches: usize,
    bytes: usize,
    end: Option<End>,
    reader: Option<Arc<Notify>>,
    /// The budget that counts `bytes` together with those of all other channels.
    budget: NetworkBudget,
    /// Credit that was given and not used: batches that may still arrive over the network.
    outstanding: usize,
}

#[derive(Debug, Default)]
pub(super) struct Channel {
    state: Mutex<ChannelState>,
    /// Notified when places become free. The producer waits here, and at the consumer's end of a remote channel the
    /// task that gives credit.
    places: Notify,
}

impl Channel {
    /// Creates a channel that uses this budget.
    pub(super) fn within(budget: &NetworkBudget) -> Channel {
        let channel = Channel::default();
        channel.state.lock().budget = budget.clone();
        channel
    }

    /// Creates a channel with its consumer attached.
    pub(super) fn read_by(reader: &Arc<Notify>, budget: &NetworkBudget) -> Arc<Channel> {
        let channel = Channel::within(budget);
        channel.state.lock().reader = Some(Arc::clone(reader));
        reader.notify_one();
        Arc::new(channel)
    }

    /// Attaches the only consumer, which `reader` wakes. Returns false if there is one already.
    #[must_use]
    pub(super) fn attach(&self, reader: &Arc<Notify>) -> bool {
        let mut state = self.state.lock();
        if state.reader.is_some() {
            return false;
        }
        state.reader = Some(Arc::clone(reader));
        reader.notify_one();
        true
    }

    /// Whether the consumer is attached.
    #[cfg(test)]
    pub(super) fn is_attached(&self) -> bool {
        self.state.lock().reader.is_some()
    }

    /// Adds a batch; waits while there is no place.
    pub(super) async fn push(&self, batch: RecordBatch) -> Result<(), Closed> {
        let size = size_of(&batch);
        loop {
            {
                let mut state = self.state.lock();
                match &state.end {
                    Some(End::Failed(cause)) => return Err(Closed(cause.clone())),
                    Some(End::Finished) => return Err(Closed("it has ended".to_owned())),
                    None => {}
                }
                let has_room = state.budget.has_room_for(size);
                let fits = state.batches == 0 || has_room && state.bytes + size <= MOST_BYTES;
                if state.batches < PLACES && fits {
                    state.put(batch, size);
                    return Ok(());
                }
            }
            self.places.notified().await;
        }
    }

    /// Adds a batch that arrived over the network on credit. Returns false if there was no credit.
    #[must_use]
    pub(super) fn push_on_credit(&self, batch: RecordBatch) -> bool {
        let mut state = self.state.lock();
        if state.outstanding == 0 {
            return false;
        }
        state.outstanding -= 1;
        let size = size_of(&batch);
        state.put(batch, size);
        true
    }

    /// Adds an event-time signal. It replaces the last watermark if no batch or barrier was added since.
    pub(super) fn signal(&self, signal: TimeSignal) {
        let mut state = self.state.lock();
        if state.end.is_some() {
            return;
        }
        let mut signals = Vec::new();
        while let Some(Queued::Time(said)) = state.queue.back() {
            signals.insert(0, *said);
            state.queue.pop_back();
        }
        signal.add_to(&mut signals);
        state.queue.extend(signals.into_iter().map(Queued::Time));
        state.wake();
    }

    /// Adds a barrier behind all that was added before.
    pub(super) fn barrier(&self, barrier: CheckpointBarrier) {
        let mut state = self.state.lock();
        if state.end.is_none() {
            state.queue.push_back(Queued::Barrier(barrier));
            state.wake();
        }
    }

    /// Why batches will be missing, if some will.
    pub(super) fn failure(&self) -> Option<String> {
        match &self.state.lock().end {
            Some(End::Failed(cause)) => Some(cause.clone()),
            Some(End::Finished) | None => None,
        }
    }

    /// Waits until there is enough credit for a message, and grants it.
    pub(super) async fn grant(&self) -> usize {
        loop {
            {
                let mut state = self.state.lock();
                let free = PLACES.saturating_sub(state.batches + state.outstanding);
                if !state.budget.has_room_for(0) {
                    // One batch at a time, so that the channel makes progress.
                    if free == PLACES {
                        state.outstanding += 1;
                        return 1;
                    }
                } else if free * 2 >= PLACES && state.bytes < MOST_BYTES {
                    state.outstanding += free;
                    return free;
                }
            }
            self.places.notified().await;
        }
    }

    /// Marks the end: all batches were added.
    pub(super) fn finish(&self) {
        self.end(End::Finished);
    }

    /// Fails the channel for this reason; queued batches are dropped.
    pub(super) fn fail(&self, cause: impl Into<String>) {
        self.end(End::Failed(cause.into()));
    }

    fn end(&self, end: End) {
        let mut state = self.state.lock();
        match (&state.end, &end) {
            // The first reason stays. A finished channel that is not read to its end can still be failed from outside.
            (Some(End::Failed(_)), _) | (Some(End::Finished), End::Finished) => return,
            (None | Some(End::Finished), _) => {}
        }
        if matches!(end, End::Failed(_)) {
            state.queue.clear();
            state.batches = 0;
            state.discard_bytes();
        }
        state.end = Some(end);
        state.wake();
        self.places.notify_one();
    }

    /// Takes the next element.
    pub(super) fn pop(&self) -> Popped {
        self.take(&mut self.state.lock())
    }

    /// Takes the next element; a batch uses one credit. `None`: a batch is queued and there is no credit.
    pub(super) fn pop_with(&self, credit: &Semaphore) -> Option<Popped> {
        // Under one lock: otherwise a batch that arrives between the two steps would be taken without credit.
        let mut state = self.state.lock();
        if let Some(Queued::Batch(_)) = state.queue.front() {
            credit.try_acquire().ok()?.forget();
        }
        Some(self.take(&mut state))
    }

    fn take(&self, state: &mut ChannelState) -> Popped {
        let batch = match state.queue.pop_front() {
            Some(Queued::Batch(batch)) => batch,
            Some(Queued::Time(signal)) => return Popped::Time(signal),
            Some(Queued::Barrier(barrier)) => return Popped::Barrier(barrier),
            None => {
                return match &state.end {
                    None => Popped::Empty,
                    Some(End::Finished) => Popped::Finished,
                    Some(End::Failed(cause)) => Popped::Failed(cause.clone()),
                };
            }
        };
        state.batches = state.batches.saturating_sub(1);
        let size = size_of(&batch).min(state.bytes);
        state.bytes -= size;
        state.budget.release(size);
        self.places.notify_one();
        Popped::Batch(batch)
    }
}

impl ChannelState {
    fn put(&mut self, batch: RecordBatch, size: usize) {
        self.bytes += size;
        self.budget.take(size);
        self.batches += 1;
        self.queue.push_back(Queued::Batch(batch));
        self.wake();
    }

    fn discard_bytes(&mut self) {
        self.budget.release(self.bytes);
        self.bytes = 0;
    }

    fn wake(&self) {
        if let Some(reader) = &self.reader {
            reader.notify_one();
        }
    }
}

impl Drop for ChannelState {
    fn drop(&mut self) {
        self.discard_bytes();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::testing::texts;

    fn fill(channel: &Channel, batch: &RecordBatch) -> usize {
        let mut pushed = 0;
        while let Some(result) = channel.push(batch.clone()).now_or_never() {
            result.expect("open");
            pushed += 1;
        }
        pushed
    }

    #[test]
    fn a_channel_holds_its_places_and_no_more() {
        let channel = Channel::default();
        assert_eq!(fill(&channel, &texts("w", &["a"])), PLACES);
        assert!(matches!(channel.pop(), Popped::Batch(_)));
        assert_eq!(fill(&channel, &texts("w", &["a"])), 1);
    }

    #[test]
    fn a_batch_that_comes_while_the_queue_is_looked_at_needs_credit_too() {
        let (credit, batch) = (Semaphore::new(0), texts("w", &["a"]));
        for _ in 0..1_000 {
            let channel = Arc::new(Channel::default());
            let (pushing, batch) = (channel.clone(), batch.clone());
            let pushes = std::thread::spawn(move || pushing.push(batch).now_or_never());
            loop {
                match channel.pop_with(&credit) {
                    Some(Popped::Empty) => {}
                    None => break,
                    Some(popped) => panic!("{popped:?} went out without credit"),
                }
            }
            pushes
                .join()
                .expect("it pushes")
                .expect("there is room")
                .expect("open");
        }
    }

    #[test]
    fn channels_share_a_budget_and_each_goes_on_with_one_batch_when_that_is_used_up() {
        let batch = texts("w", &["x".repeat(1000).as_str()]);
        let budget = NetworkBudget::new(5 * size_of(&batch) as u64);
        let [one, other, third] = [(); 3].map(|()| Channel::within(&budget));
        assert_eq!(fill(&one, &batch), 5);
        assert_eq!((fill(&other, &batch), fill(&third, &batch)), (1, 1));
        assert_eq!(fill(&other, &batch), 0);
        assert!(matches!(other.pop(), Popped::Batch(_)));
        assert_eq!(fill(&other, &batch), 1);
        one.fail("its consumer is gone");
        assert_eq!(fill(&other, &batch), 3, "what it held is left again");
        drop((one, other));
        assert_eq!(budget.taken(), size_of(&batch) as u64, "the third one's");
    }

    #[test]
    fn credit_is_given_one_by_one_when_the_budget_is_used_up() {
        let batch = texts("w", &["a"]);
        let budget = NetworkBudget::new(size_of(&batch) as u64);
        let (full, far) = (Channel::within(&budget), Channel::within(&budget));
        assert_eq!(far.grant().now_or_never(), Some(PLACES));
        for _ in 0..PLACES {
            assert!(far.push_on_credit(batch.clone()), "credit is kept");
        }
        assert_eq!(fill(&full, &batch), 1);
        let more = Channel::within(&budget);
        assert_eq!(more.grant().now_or_never(), Some(1));
        assert_eq!(more.grant().now_or_never(), None);
        assert!(more.push_on_credit(batch));
        assert_eq!(more.grant().now_or_never(), None);
        assert!(matches!(more.pop(), Popped::Batch(_)));
        assert_eq!(more.grant().now_or_never(), Some(1));
    }

    #[test]
    fn bytes_bound_it_too_but_one_batch_always_fits() {
        let channel = Channel::default();
        let third = texts("w", &["x".repeat(MOST_BYTES / 3 + 1).as_str()]);
        assert_eq!(fill(&channel, &third), 2);
        let huge = texts("w", &["x".repeat(MOST_BYTES + 1).as_str()]);
        let channel = Channel::default();
        assert_eq!(fill(&channel, &huge), 1);
    }

    #[tokio::test]
    async fn a_waiting_producer_is_told_when_its_channel_is_closed() {
        let channel = Arc::new(Channel::default());
        fill(&channel, &texts("w", &["a"]));
        let pushing = tokio::spawn({
            let channel = Arc::clone(&channel);
            async move { channel.push(texts("w", &["a"])).await }
        });
        tokio::task::yield_now().await;
        channel.fail("superseded");
        assert_eq!(
            pushing.await.expect("no panic"),
            Err(Closed("superseded".into()))
        );
        assert!(matches!(channel.pop(), Popped::Failed(cause) if cause == "superseded"));
    }

    #[test]
    fn credit_never_exceeds_the_free_places() {
        let channel = Channel::default();
        assert_eq!(channel.grant().now_or_never(), Some(PLACES));
        assert_eq!(channel.grant().now_or_never(), None);
        for _ in 0..PLACES {
            assert!(channel.push_on_credit(texts("w", &["a"])));
        }
        assert!(!channel.push_on_credit(texts("w", &["a"])));
        for _ in 0..PLACES / 2 {
            assert_eq!(channel.grant().now_or_never(), None);
            channel.pop();
        }
        assert_eq!(channel.grant().now_or_never(), Some(PLACES / 2));
    }

    #[test]
    fn time_takes_no_place_and_only_the_last_of_it_is_kept_between_batches() {
        let channel = Channel::default();
        for watermark in 0..100 {
            channel.signal(TimeSignal::Watermark(watermark));
        }
        assert_eq!(fill(&channel, &texts("w", &["a"])), PLACES);
        channel.signal(TimeSignal::Watermark(100));
        channel.signal(TimeSignal::Idle);
        let credit = Semaphore::new(0);
        let first = channel.pop_with(&credit);
        assert!(matches!(
            first,
            Some(Popped::Time(TimeSignal::Watermark(99)))
        ));
        assert!(channel.pop_with(&credit).is_none(), "a batch needs credit");
        for _ in 0..PLACES {
            assert!(matches!(channel.pop(), Popped::Batch(_)));
        }
        let last = channel.pop();
        assert!(matches!(last, Popped::Time(TimeSignal::Watermark(100))));
        assert!(matches!(channel.pop(), Popped::Time(TimeSignal::Idle)));
        assert!(matches!(channel.pop(), Popped::Empty));
    }

    #[test]
    fn barriers_take_no_place_need_no_credit_and_separate_what_is_before_them_from_what_follows() {
        let channel = Channel::default();
        let barrier = |number| CheckpointBarrier {
            number,
            ..CheckpointBarrier::default()
        };
        assert_eq!(fill(&channel, &texts("w", &["a"])), PLACES);
        channel.signal(TimeSignal::Watermark(1));
        channel.barrier(barrier(1));
        channel.barrier(barrier(2));
        channel.signal(TimeSignal::Watermark(2));
        for _ in 0..PLACES {
            assert!(matches!(channel.pop(), Popped::Batch(_)));
        }
        let credit = Semaphore::new(0);
        let next = || {
            format!(
                "{:?}",
                channel.pop_with(&credit).expect("no credit is needed")
            )
        };
        assert_eq!(next(), "Time(Watermark(1))");
        for number in [1, 2] {
            assert_eq!(next(), format!("{:?}", Popped::Barrier(barrier(number))));
        }
        assert_eq!(next(), "Time(Watermark(2))");
        channel.finish();
        channel.barrier(barrier(3));
        assert_eq!(next(), "Finished");
    }

    #[test]
    fn there_is_one_consumer() {
        let (channel, reader) = (Channel::default(), Arc::new(Notify::new()));
        assert!(channel.attach(&reader));
        assert!(!channel.attach(&reader));
    }
}
