//! Generates watermarks: the latest event time minus the allowed out-of-orderness and 1 ms.
//!
//! Watermarks from upstream are replaced by these. A subtask without a record for the idle timeout signals
//! idle, and repeats its watermark with its next record.

use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::Schema;
use tanist_dataflow::{Built, Operator, OperatorError, Output, Restored, Snapshot, TimeSignal};
use tanist_model::operators;
use tanist_proto::v1::EventTimeState;
use tokio::time::Instant;

use super::factory::{Runtime, Setup, operator};
use super::schema::column_of;
use super::windows::event_times;

impl Runtime for operators::Watermarks {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(Watermarks::new(setup.input()?, self)?)
    }
}

/// Name and signature of its saved state.
const TIME: &str = "time";
const SIGNATURE: &str = "watermarks";

pub(super) struct Watermarks {
    column: usize,
    out_of_orderness: i64,
    idle_timeout: Option<Duration>,
    /// The last watermark that was emitted.
    watermark: Option<i64>,
    /// Whether there was a record since the last tick.
    seen: bool,
    idle: bool,
    /// Its event time was restored, and is not yet emitted again.
    announces: bool,
    /// When it becomes idle unless a record arrives before.
    deadline: Option<Instant>,
}

impl Watermarks {
    pub(super) fn new(
        input: &Schema,
        spec: &operators::Watermarks,
    ) -> Result<Watermarks, OperatorError> {
        let out_of_orderness = i64::try_from(spec.out_of_orderness_ms)
            .map_err(|_| OperatorError::specification("`out-of-orderness` is too long"))?;
        Ok(Watermarks {
            column: column_of(input, &spec.column)?.0,
            out_of_orderness,
            idle_timeout: spec.idle_timeout_ms.map(Duration::from_millis),
            watermark: None,
            seen: false,
            idle: false,
            announces: false,
            deadline: None,
        })
    }

    /// Emits the restored event time, so that no operator behind it waits for it.
    fn announce(&mut self, output: &mut Output) {
        announce(&mut self.announces, self.watermark, self.idle, output);
    }
}

/// The event time of several subtasks together: nothing that one of them still waits for is late. Those that are idle
/// hold it back only if all are.
pub(super) fn earliest(times: &[EventTimeState]) -> Option<EventTimeState> {
    let earliest_of = |idle: bool| {
        let times = times.iter().filter(move |time| time.idle == idle);
        times.copied().min_by_key(|time| time.watermark)
    };
    earliest_of(false).or_else(|| earliest_of(true))
}

/// Emits a restored event time once, if that is due.
pub(super) fn announce(
    is_due: &mut bool,
    watermark: Option<i64>,
    is_idle: bool,
    output: &mut Output,
) {
    if !std::mem::take(is_due) {
        return;
    }
    if let Some(watermark) = watermark {
        output.signal(TimeSignal::Watermark(watermark));
    }
    if is_idle {
        output.signal(TimeSignal::Idle);
    }
}

impl Operator for Watermarks {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        let times: Vec<EventTimeState> = restored.messages(TIME, SIGNATURE)?;
        if let Some(time) = earliest(&times) {
            self.watermark = time.watermark;
            self.idle = time.idle;
            self.announces = true;
        }
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        let time = EventTimeState {
            watermark: self.watermark,
            idle: self.idle,
        };
        snapshot.save_message(TIME, SIGNATURE, &time);
        Ok(())
    }

    fn process(&mut self, batch: RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        self.announce(output);
        let latest = event_times(&batch, self.column)?.iter().max().copied();
        output.emit(batch);
        let Some(latest) = latest else {
            return Ok(());
        };
        self.seen = true;
        let possible = latest
            .saturating_sub(self.out_of_orderness)
            .saturating_sub(1);
        let watermark = self.watermark.map_or(possible, |said| said.max(possible));
        if self.watermark != Some(watermark) || self.idle {
            self.watermark = Some(watermark);
            self.idle = false;
            output.signal(TimeSignal::Watermark(watermark));
        }
        Ok(())
    }

    fn signal(&mut self, _signal: TimeSignal, _output: &mut Output) -> Result<(), OperatorError> {
        Ok(())
    }

    fn tick(
        &mut self,
        now: Instant,
        output: &mut Output,
    ) -> Result<Option<Instant>, OperatorError> {
        self.announce(output);
        let Some(timeout) = self.idle_timeout else {
            return Ok(None);
        };
        let seen = std::mem::take(&mut self.seen);
        let deadline = match self.deadline {
            Some(deadline) if !seen => deadline,
            Some(_) | None => *self.deadline.insert(now + timeout),
        };
        if self.idle {
            return Ok(None);
        }
        if now >= deadline {
            self.idle = true;
            output.signal(TimeSignal::Idle);
            return Ok(None);
        }
        Ok(Some(deadline))
    }
}

#[cfg(test)]
mod tests {
    use tanist_dataflow::Element;

    use super::TimeSignal::{Idle, Watermark};
    use super::*;
    use crate::testing::{batch, ints};

    fn watermarks(idle_timeout_ms: Option<u64>) -> Watermarks {
        let spec = operators::Watermarks {
            column: "t".into(),
            out_of_orderness_ms: 10,
            idle_timeout_ms,
        };
        Watermarks::new(&batch([("t", ints(&[]))]).schema(), &spec).expect("fits")
    }

    fn signals(output: &mut Output) -> Vec<TimeSignal> {
        let signals = output
            .take()
            .into_iter()
            .filter_map(|element| match element {
                Element::Time(signal) => Some(signal),
                Element::Batch(_) => None,
            });
        signals.collect()
    }

    fn said(watermarks: &mut Watermarks, times: &[i64]) -> Vec<TimeSignal> {
        let mut output = Output::default();
        let records = batch([("t", ints(times))]);
        watermarks.process(records, &mut output).expect("processed");
        signals(&mut output)
    }

    #[test]
    fn a_watermark_follows_the_latest_record_and_never_goes_back() {
        let mut watermarks = watermarks(None);
        assert_eq!(said(&mut watermarks, &[]), []);
        assert_eq!(said(&mut watermarks, &[100, 50]), [Watermark(89)]);
        assert_eq!(said(&mut watermarks, &[90, 100]), []);
        assert_eq!(said(&mut watermarks, &[101]), [Watermark(90)]);
    }

    #[test]
    fn what_others_said_before_is_not_passed_on() {
        let (mut watermarks, mut output) = (watermarks(None), Output::default());
        watermarks.signal(Watermark(7), &mut output).expect("taken");
        assert_eq!(signals(&mut output), []);
    }

    #[test]
    fn the_event_time_of_several_subtasks_is_the_earliest_of_those_that_are_not_idle() {
        let time = |watermark, idle| EventTimeState { watermark, idle };
        let (early, late) = (time(Some(5), false), time(Some(9), false));
        let (idle, unset) = (time(Some(1), true), time(None, false));
        assert_eq!(earliest(&[]), None);
        assert_eq!(earliest(&[late, idle, early]), Some(early));
        assert_eq!(earliest(&[late, unset]), Some(unset));
        assert_eq!(earliest(&[time(Some(3), true), idle]), Some(idle));
        let mut snapshot = Snapshot::default();
        let mut subtask = tanist_proto::v1::SubtaskSnapshot::default();
        for time in [late, early] {
            snapshot.save_message(TIME, SIGNATURE, &time);
            std::mem::take(&mut snapshot)
                .add_to(&mut subtask, "time")
                .expect("encoded");
        }
        let mut restored = watermarks(None);
        let state = Restored::of("time", &subtask);
        restored.restore(&state).expect("of two subtasks");
        let mut output = Output::default();
        restored.tick(Instant::now(), &mut output).expect("told");
        assert_eq!(signals(&mut output), [Watermark(5)]);
    }

    #[test]
    fn a_time_that_can_not_be_is_an_error_and_not_the_end_of_time() {
        let mut watermarks = watermarks(None);
        let records = batch([("t", ints(&[i64::MAX]))]);
        let error = watermarks.process(records, &mut Output::default());
        let error = error.expect_err("impossible").to_string();
        assert!(error.contains("9223372036854775807"), "{error}");
    }

    #[test]
    fn without_records_for_the_timeout_it_is_idle_until_the_next_one() {
        let mut watermarks = watermarks(Some(1_000));
        let (start, mut output) = (Instant::now(), Output::default());
        let at = |millis| start + Duration::from_millis(millis);
        let mut tick = |watermarks: &mut Watermarks, millis| {
            let next = watermarks.tick(at(millis), &mut output).expect("told");
            (next, signals(&mut output))
        };
        assert_eq!(tick(&mut watermarks, 0), (Some(at(1_000)), vec![]));
        assert_eq!(said(&mut watermarks, &[100]), [Watermark(89)]);
        assert_eq!(tick(&mut watermarks, 900), (Some(at(1_900)), vec![]));
        assert_eq!(tick(&mut watermarks, 1_900), (None, vec![Idle]));
        assert_eq!(tick(&mut watermarks, 9_000), (None, vec![]));
        // The same watermark is repeated: the subtask is active again.
        assert_eq!(said(&mut watermarks, &[100]), [Watermark(89)]);
        assert_eq!(tick(&mut watermarks, 9_100), (Some(at(10_100)), vec![]));
    }
}
