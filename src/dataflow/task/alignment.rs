//! Which channels of a task are blocked for a checkpoint, and when its cut is complete.
//!
//! Pure. A channel that has delivered the barrier is blocked until all that are live have; one that has ended counts.
//! Invariants: `resolved` never falls, and no number at or below it is taken up; a channel is blocked only while its
//! task waits for the barriers of one number, which is above `resolved`.

use tanist_proto::v1::CheckpointBarrier;

use super::faults::{Fault, is_planted};

/// The barriers of a task's channels; see the module.
#[derive(Debug)]
pub(super) struct BarrierAlignment {
    /// The highest number that was taken up, declined, aborted, or restored from.
    resolved: u64,
    /// Whether a channel has not ended, by its number.
    live: Vec<bool>,
    /// `None`: no channel is blocked.
    aligning: Option<Aligning>,
}

/// The checkpoint for which channels are blocked.
#[derive(Debug)]
struct Aligning {
    barrier: CheckpointBarrier,
    blocked: Vec<bool>,
}

/// What a barrier causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Nothing: the number is over.
    Ignored,
    /// Its channel is blocked until the other live ones have delivered it.
    Blocked,
    /// The cut is complete: the task takes the number up before any other input.
    Complete,
}

impl BarrierAlignment {
    /// No channels yet. No number up to this one is taken up.
    pub(super) fn above(resolved: u64) -> BarrierAlignment {
        BarrierAlignment {
            resolved,
            live: Vec::new(),
            aligning: None,
        }
    }

    /// The task reads this number of channels.
    pub(super) fn open(&mut self, channels: usize) {
        self.live = vec![true; channels];
    }

    /// The highest number that is over.
    pub(super) fn resolved(&self) -> u64 {
        self.resolved
    }

    /// The highest number that is over or for which channels are blocked.
    pub(super) fn highest(&self) -> u64 {
        let aligning = self.aligning.as_ref();
        aligning.map_or(self.resolved, |aligning| aligning.barrier.number)
    }

    /// The checkpoint for which channels are blocked; `None`: no channel is.
    pub(super) fn blocked_for(&self) -> Option<u64> {
        self.aligning.as_ref().map(|it| it.barrier.number)
    }

    /// Whether nothing may be taken from a channel.
    pub(super) fn is_blocked(&self, channel: usize) -> bool {
        let aligning = self.aligning.as_ref();
        let is_blocked = |it: &Aligning| it.blocked.get(channel).copied().unwrap_or_default();
        aligning.is_some_and(is_blocked) && !is_planted(Fault::BlockedChannelRead)
    }

    /// A channel has delivered a barrier. If it is that of a higher number than the task waits for, the lower one is
    /// over.
    pub(super) fn arrive(&mut self, channel: usize, barrier: CheckpointBarrier) -> Arrival {
        let number = barrier.number;
        if number <= self.resolved || number < self.highest() {
            return Arrival::Ignored;
        }
        if let Some(lower) = self.blocked_for().filter(|lower| *lower < number) {
            self.resolve(lower);
        }
        let channels = self.live.len();
        let aligning = self.aligning.get_or_insert_with(|| Aligning {
            barrier,
            blocked: vec![false; channels],
        });
        if let Some(blocked) = aligning.blocked.get_mut(channel) {
            *blocked = true;
        }
        match self.complete() {
            Some(_) => Arrival::Complete,
            None => Arrival::Blocked,
        }
    }

    /// A channel has ended. Returns the barrier whose cut is complete now, if there is one.
    pub(super) fn end(&mut self, channel: usize) -> Option<CheckpointBarrier> {
        if let Some(live) = self.live.get_mut(channel) {
            *live = false;
        }
        self.complete()
    }

    /// This number and all below are over; channels that are blocked for one of them are released.
    pub(super) fn resolve(&mut self, number: u64) {
        self.resolved = self.resolved.max(number);
        let is_over = |blocked: u64| blocked <= number && !is_planted(Fault::AbortReleasesNothing);
        if self.blocked_for().is_some_and(is_over) {
            self.aligning = None;
        }
    }

    /// Resolves the number for which channels are blocked if all live ones are, and returns its barrier. `None`: no
    /// channel is blocked, or a live one is not.
    fn complete(&mut self) -> Option<CheckpointBarrier> {
        let aligning = self.aligning.as_ref()?;
        let mut channels = self.live.iter().zip(&aligning.blocked);
        let counts_ends = !is_planted(Fault::EndedChannelNotCounted);
        let is_complete =
            channels.all(|(is_live, is_blocked)| *is_blocked || !is_live && counts_ends);
        if !is_complete && !is_planted(Fault::OneBarrierCompletes) {
            return None;
        }
        let barrier = aligning.barrier;
        self.resolve(barrier.number);
        Some(barrier)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;
    use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};

    use super::super::faults::plant;
    use super::*;

    fn barrier(number: u64) -> CheckpointBarrier {
        CheckpointBarrier {
            number,
            ..CheckpointBarrier::default()
        }
    }

    fn aligned(channels: usize) -> BarrierAlignment {
        let mut alignment = BarrierAlignment::above(0);
        alignment.open(channels);
        alignment
    }

    #[test]
    fn a_channel_is_blocked_until_all_have_delivered_the_barrier() {
        let mut alignment = aligned(2);
        assert_eq!(alignment.arrive(1, barrier(3)), Arrival::Blocked);
        assert!(alignment.is_blocked(1) && !alignment.is_blocked(0));
        assert_eq!(alignment.arrive(0, barrier(3)), Arrival::Complete);
        assert!(!alignment.is_blocked(1) && !alignment.is_blocked(0));
        assert_eq!(alignment.highest(), 3);
    }

    #[test]
    fn an_ended_channel_counts() {
        let mut alignment = aligned(3);
        assert_eq!(alignment.end(2), None);
        assert_eq!(alignment.arrive(0, barrier(1)), Arrival::Blocked);
        assert_eq!(alignment.end(1), Some(barrier(1)));
        assert!(!alignment.is_blocked(0));
        assert_eq!(alignment.arrive(0, barrier(2)), Arrival::Complete);
    }

    #[test]
    fn a_higher_number_ends_the_wait_for_a_lower_one_and_lower_ones_are_ignored() {
        let mut alignment = aligned(2);
        assert_eq!(alignment.arrive(0, barrier(5)), Arrival::Blocked);
        assert_eq!(alignment.arrive(1, barrier(3)), Arrival::Ignored);
        assert_eq!(alignment.arrive(1, barrier(7)), Arrival::Blocked);
        assert!(!alignment.is_blocked(0) && alignment.is_blocked(1));
        assert_eq!(alignment.arrive(0, barrier(6)), Arrival::Ignored);
        assert_eq!(alignment.arrive(0, barrier(7)), Arrival::Complete);
    }

    #[test]
    fn what_is_over_releases_its_channels_and_its_late_barriers_are_ignored() {
        let mut alignment = aligned(2);
        assert_eq!(alignment.arrive(0, barrier(5)), Arrival::Blocked);
        alignment.resolve(4);
        assert!(alignment.is_blocked(0));
        alignment.resolve(5);
        assert!(!alignment.is_blocked(0));
        assert_eq!(alignment.arrive(1, barrier(5)), Arrival::Ignored);
        let mut restored = BarrierAlignment::above(9);
        restored.open(1);
        assert_eq!(restored.arrive(0, barrier(9)), Arrival::Ignored);
        assert_eq!(restored.arrive(0, barrier(10)), Arrival::Complete);
    }

    /// What a channel delivers, in order.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Delivered {
        Record,
        Barrier(u64),
    }

    /// Each number is sent on all channels, each at any place among their records, or on some channels only, as when
    /// it was aborted before the others heard of it.
    fn channel() -> impl Strategy<Value = VecDeque<Delivered>> {
        prop::collection::vec((0_usize..4, prop::bool::weighted(0.8)), 0..6).prop_map(|numbers| {
            let mut delivered = VecDeque::new();
            for (number, (records, is_sent)) in (1..).zip(numbers) {
                delivered.extend([Delivered::Record].repeat(records));
                delivered.extend(is_sent.then_some(Delivered::Barrier(number)));
            }
            delivered.push_back(Delivered::Record);
            delivered
        })
    }

    /// The channels deliver in this order of steps: a number of a channel, or an abort of a number.
    fn check_cuts(
        mut channels: Vec<VecDeque<Delivered>>,
        steps: Vec<(usize, u64)>,
    ) -> Result<(), TestCaseError> {
        let sent = channels.clone();
        let mut alignment = aligned(channels.len());
        let (mut taken, mut ended) = (vec![0; channels.len()], vec![false; channels.len()]);
        // The model: numbers that are over, and those that the task has taken up.
        let (mut over, mut cuts) = (0, Vec::new());
        let count = channels.len();
        let ends = (0..40 * count).map(|step| (step % count, 0));
        for (channel, abort) in steps.into_iter().chain(ends) {
            if channel >= channels.len() {
                let is_blocked_for = alignment.blocked_for();
                alignment.resolve(abort);
                over = over.max(abort);
                if is_blocked_for.is_some_and(|number| number <= abort) {
                    prop_assert!((0..channels.len()).all(|it| !alignment.is_blocked(it)));
                }
                continue;
            }
            if alignment.is_blocked(channel) || ended[channel] {
                continue;
            }
            let complete = match channels[channel].pop_front() {
                Some(Delivered::Record) => {
                    taken[channel] += 1;
                    None
                }
                Some(Delivered::Barrier(number)) => {
                    taken[channel] += 1;
                    let arrival = alignment.arrive(channel, barrier(number));
                    let is_over = number <= over;
                    prop_assert!(!is_over || arrival == Arrival::Ignored);
                    (arrival == Arrival::Complete).then_some(number)
                }
                None => {
                    ended[channel] = true;
                    alignment.end(channel).map(|it| it.number)
                }
            };
            let blocked = (0..channels.len()).filter(|it| alignment.is_blocked(*it));
            for blocked in blocked {
                prop_assert!(!ended[blocked]);
                let number = alignment.blocked_for().expect("a channel is blocked");
                prop_assert!(number > over);
                // It is blocked right behind its barrier.
                let last = sent[blocked][taken[blocked] - 1];
                prop_assert_eq!(last, Delivered::Barrier(number));
            }
            if let Some(number) = complete {
                prop_assert!(number > over);
                over = number;
                prop_assert!(ended.iter().any(|ended| !ended), "all input has ended");
                for (index, sent) in sent.iter().enumerate() {
                    let wanted = Delivered::Barrier(number);
                    let place = sent.iter().position(|it| *it == wanted);
                    let before = if ended[index] {
                        sent.len()
                    } else {
                        taken[index]
                    };
                    // A live channel is cut right behind its barrier; one that has ended is before the cut.
                    if !ended[index] {
                        prop_assert_eq!(place.map(|place| place + 1), Some(before));
                    }
                }
                cuts.push(number);
            }
            prop_assert!(alignment.highest() >= over);
        }
        prop_assert!(ended.iter().all(|ended| *ended), "a channel stays blocked");
        prop_assert_eq!(alignment.blocked_for(), None);
        prop_assert!(cuts.is_sorted_by(|one, other| one < other));
        Ok(())
    }

    fn deliveries() -> impl Strategy<Value = (Vec<VecDeque<Delivered>>, Vec<(usize, u64)>)> {
        let steps = prop::collection::vec((0_usize..6, 0_u64..8), 0..60);
        (prop::collection::vec(channel(), 1..5), steps)
    }

    #[test]
    fn each_planted_fault_is_found_within_100_cases() {
        for fault in [
            Fault::BlockedChannelRead,
            Fault::OneBarrierCompletes,
            Fault::EndedChannelNotCounted,
            Fault::AbortReleasesNothing,
        ] {
            let config = ProptestConfig {
                cases: 100,
                failure_persistence: None,
                ..ProptestConfig::default()
            };
            let seed = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
            let mut runner = TestRunner::new_with_rng(config, seed);
            let failed = runner.run(&deliveries(), |(channels, steps)| {
                plant(Some(fault));
                let checked = check_cuts(channels, steps);
                plant(None);
                checked
            });
            println!("{fault:?}: {failed:?}");
            assert!(
                matches!(failed, Err(TestError::Fail(..))),
                "{fault:?} is not found"
            );
        }
    }

    proptest! {
        #[test]
        fn a_cut_is_between_the_same_elements_on_all_channels_and_no_channel_stays_blocked(
            (channels, steps) in deliveries(),
        ) {
            check_cuts(channels, steps)?;
        }

        #[test]
        fn a_number_that_all_send_and_no_abort_reaches_is_taken_up(
            records in prop::collection::vec(0_usize..5, 1..5),
            order in prop::collection::vec(0_usize..5, 0..40),
        ) {
            let mut channels: Vec<VecDeque<Delivered>> = records
                .iter()
                .map(|records| {
                    let mut delivered = VecDeque::from([Delivered::Record].repeat(*records));
                    delivered.push_back(Delivered::Barrier(1));
                    delivered
                })
                .collect();
            let mut alignment = aligned(channels.len());
            let mut is_complete = false;
            let count = channels.len();
            let rest = (0..10 * count).map(|step| step % count);
            for index in order.into_iter().chain(rest) {
                let Some(channel) = channels.get_mut(index) else { continue };
                if alignment.is_blocked(index) {
                    continue;
                }
                if channel.pop_front() == Some(Delivered::Barrier(1)) {
                    is_complete |= alignment.arrive(index, barrier(1)) == Arrival::Complete;
                }
            }
            prop_assert!(is_complete);
        }
    }
}
