//! Event time: watermarks between operators and tasks, and how several channels' watermarks combine.
//!
//! Pure. A watermark `w` says that no later record of this channel has an event time of `w` or before;
//! it never decreases. An idle channel sends no watermark for a while and does not hold back the
//! others. ADR 0008 has the rules.

use arrow_array::RecordBatch;

/// A statement about event time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeSignal {
    /// Event time has reached this value, in milliseconds since 1970.
    Watermark(i64),
    /// Nothing arrives at the moment: don't wait for this channel.
    Idle,
}

/// What operators and tasks send to each other.
#[derive(Debug, Clone)]
pub enum Element {
    /// Records.
    Batch(RecordBatch),
    /// A statement about event time.
    Time(TimeSignal),
}

impl TimeSignal {
    /// Adds this to the signals that are still to be sent: a watermark replaces all before it, idle is
    /// kept behind one. There are never more than these two.
    pub(super) fn add_to(self, signals: &mut Vec<TimeSignal>) {
        match self {
            TimeSignal::Watermark(_) => signals.clear(),
            TimeSignal::Idle if signals.last() == Some(&TimeSignal::Idle) => return,
            TimeSignal::Idle => {}
        }
        signals.push(self);
    }
}

/// Event time of one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChannelTime {
    watermark: i64,
    idle: bool,
}

impl Default for ChannelTime {
    /// A channel that has sent nothing holds back all others.
    fn default() -> ChannelTime {
        ChannelTime {
            watermark: i64::MIN,
            idle: false,
        }
    }
}

impl ChannelTime {
    /// Applies a signal from the channel.
    pub(super) fn apply(&mut self, signal: TimeSignal) {
        match signal {
            TimeSignal::Watermark(watermark) => {
                self.watermark = self.watermark.max(watermark);
                self.idle = false;
            }
            TimeSignal::Idle => self.idle = true,
        }
    }
}

/// Combined event time of all channels of a task: that of the slowest channel that is not idle.
#[derive(Debug, Default)]
pub(super) struct Alignment {
    sent: ChannelTime,
    /// The signal to send next.
    pending: Option<TimeSignal>,
}

impl Alignment {
    /// Whether the change of one channel's state can change the combined one.
    pub(super) fn may_change(&self, from: ChannelTime, to: ChannelTime) -> bool {
        from.idle || to.idle || from.watermark <= self.sent.watermark
    }

    /// The signal to send after the one that [`Alignment::align`] returned, before any other input is
    /// taken.
    pub(super) fn pending(&mut self) -> Option<TimeSignal> {
        let signal = self.pending.take()?;
        self.sent.apply(signal);
        Some(signal)
    }

    /// Returns the signal to send, if event time is later than what was sent before. `channels` must
    /// not include channels that have ended.
    pub(super) fn align(
        &mut self,
        channels: impl Iterator<Item = ChannelTime>,
    ) -> Option<TimeSignal> {
        let (mut latest, mut least) = (None, None);
        for channel in channels {
            latest = latest.max(Some(channel.watermark));
            if !channel.idle {
                least = Some(
                    least.map_or(channel.watermark, |least: i64| least.min(channel.watermark)),
                );
            }
        }
        let signal = match least {
            Some(least) if least > self.sent.watermark || self.sent.idle => {
                TimeSignal::Watermark(least.max(self.sent.watermark))
            }
            // If the other channels had become idle first, only the latest one would have counted: the
            // order must not matter.
            None if latest.is_some() && !self.sent.idle => {
                self.pending = Some(TimeSignal::Idle);
                match latest {
                    Some(latest) if latest > self.sent.watermark => TimeSignal::Watermark(latest),
                    Some(_) | None => return self.pending(),
                }
            }
            Some(_) | None => return None,
        };
        self.sent.apply(signal);
        Some(signal)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::TimeSignal::{Idle, Watermark};
    use super::*;

    fn after(signals: &[TimeSignal]) -> ChannelTime {
        let mut channel = ChannelTime::default();
        signals.iter().for_each(|signal| channel.apply(*signal));
        channel
    }

    #[test]
    fn the_slowest_channel_that_is_not_idle_counts() {
        let mut alignment = Alignment::default();
        let mut align = |channels: &[&[TimeSignal]]| {
            let channels: Vec<_> = channels.iter().map(|signals| after(signals)).collect();
            alignment.align(channels.into_iter())
        };
        assert_eq!(align(&[&[Watermark(7)], &[]]), None);
        assert_eq!(
            align(&[&[Watermark(7)], &[Watermark(3)]]),
            Some(Watermark(3))
        );
        assert_eq!(
            align(&[&[Watermark(7)], &[Watermark(3), Idle]]),
            Some(Watermark(7))
        );
        // The channel is active again but behind the others: event time does not go back.
        assert_eq!(align(&[&[Watermark(7)], &[Watermark(4)]]), None);
        assert_eq!(
            align(&[&[Watermark(9)], &[Watermark(8)]]),
            Some(Watermark(8))
        );
        assert_eq!(align(&[&[Idle], &[Watermark(8), Idle]]), Some(Idle));
        assert_eq!(align(&[&[Idle], &[Idle]]), None);
        assert_eq!(align(&[&[Idle], &[Watermark(5)]]), Some(Watermark(8)));
        assert_eq!(align(&[]), None);
    }

    #[test]
    fn in_which_order_channels_fall_idle_makes_no_difference() {
        for first in [0, 1] {
            let mut alignment = Alignment::default();
            let mut channels = [after(&[Watermark(7)]), ChannelTime::default()];
            let mut said = Vec::new();
            for index in [first, 1 - first] {
                channels[index].apply(Idle);
                said.extend(alignment.align(channels.iter().copied()));
                said.extend(alignment.pending());
            }
            assert_eq!(said, [Watermark(7), Idle]);
        }
    }

    #[test]
    fn what_is_to_be_said_is_a_watermark_and_then_idle_at_most() {
        let mut signals = Vec::new();
        let mut said = |signal: TimeSignal| {
            signal.add_to(&mut signals);
            signals.clone()
        };
        assert_eq!(said(Idle), [Idle]);
        assert_eq!(said(Watermark(1)), [Watermark(1)]);
        assert_eq!(said(Watermark(2)), [Watermark(2)]);
        assert_eq!(said(Idle), [Watermark(2), Idle]);
        assert_eq!(said(Idle), [Watermark(2), Idle]);
        assert_eq!(said(Watermark(3)), [Watermark(3)]);
    }

    proptest! {
        #[test]
        fn time_never_goes_back_and_skipping_what_can_not_change_it_changes_nothing(
            steps in prop::collection::vec((0_usize..4, prop::option::of(-50_i64..50)), 0..80),
        ) {
            let mut channels = [ChannelTime::default(); 4];
            let (mut always, mut when_needed) = (Alignment::default(), Alignment::default());
            let mut highest = i64::MIN;
            for (index, signal) in steps {
                let before = channels[index];
                channels[index].apply(signal.map_or(Idle, Watermark));
                let expected = always.align(channels.iter().copied());
                let found = match when_needed.may_change(before, channels[index]) {
                    true => when_needed.align(channels.iter().copied()),
                    false => None,
                };
                prop_assert_eq!(found, expected);
                prop_assert_eq!(when_needed.pending(), always.pending());
                if let Some(Watermark(watermark)) = found {
                    prop_assert!(watermark >= highest);
                    highest = watermark;
                    let active = channels.iter().filter(|channel| !channel.idle);
                    let least = active.map(|channel| channel.watermark).min();
                    let latest = channels.iter().map(|channel| channel.watermark).max();
                    prop_assert!(least.or(latest).is_some_and(|known| known <= watermark));
                }
            }
        }
    }
}
