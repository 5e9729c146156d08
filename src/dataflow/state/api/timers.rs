//! Timers by key: of event time, and of processing time.
//!
//! They are keyed state: a table whose namespaces are the times. A timer is due once the watermark or the clock has
//! reached its time, and then removed from the table with all timers of that time. The watermark is saved beside those
//! of event time, so that a restored operator takes the same records for late as before.

use std::collections::BTreeSet;
use std::time::Duration;

use tanist_ha::clock::wall_clock_ms;
use tanist_proto::v1::{EventTimeState, StateRedistribution};
use tokio::time::Instant;

use super::keyed::{CheckedKeys, KeyedStates};
use crate::operator::OperatorError;
use crate::state::{Restored, Snapshot, StateTable};
use crate::time::TimeSignal;

/// Timers by time and key. The caller says what the time is.
#[derive(Debug)]
struct Timers {
    name: &'static str,
    signature: String,
    keys: CheckedKeys,
    table: StateTable<()>,
    /// The timers of one time that is due, which the table does not have any more: the time, and the keys that are not
    /// yet taken.
    due: Option<(i64, BTreeSet<Box<[u8]>>)>,
}

impl Timers {
    fn new(states: &KeyedStates, name: &'static str, of: &str) -> Timers {
        let signature = states.signature(of);
        Timers {
            name,
            keys: CheckedKeys::new(states),
            table: StateTable::new(name, signature.clone(), states.groups, |(), _| {}),
            signature,
            due: None,
        }
    }

    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        self.table.restore(restored, |entry| {
            self.keys.check(entry.key())?;
            match entry.value() {
                [] => Ok(()),
                _ => Err("a timer has no value".to_owned()),
            }
        })?;
        Ok(())
    }

    /// Checks the name and the keys. Called before anything is added to the snapshot.
    fn check(&self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        snapshot.begin(self.name)?;
        self.keys.all_valid(self.name)
    }

    fn freeze(&mut self, snapshot: &mut Snapshot) {
        // Timers that the operator has not taken go back into the table, so that they are due after a restore.
        if let Some((time, keys)) = self.due.take() {
            keys.iter().for_each(|key| self.set(time, key));
        }
        self.table.freeze(snapshot);
    }

    fn set(&mut self, time: i64, key: &[u8]) {
        let due = self.due.as_ref().filter(|(due, _)| *due == time);
        let is_due = due.is_some_and(|(_, keys)| keys.contains(key));
        // A timer that is set already is not set again: a change would be written with the next checkpoint.
        if !is_due && self.table.get(time, key).is_none() {
            self.keys.note(key);
            self.table.insert(time, key, ());
        }
    }

    fn remove(&mut self, time: i64, key: &[u8]) {
        self.table.remove(time, key);
        if let Some((due, keys)) = &mut self.due
            && *due == time
        {
            keys.remove(key);
        }
    }

    /// The time of the first timer that is not taken.
    fn first(&self) -> Option<i64> {
        let due = self.due.as_ref().filter(|(_, keys)| !keys.is_empty());
        let due = due.map(|(time, _)| *time);
        due.into_iter().chain(self.table.namespaces().next()).min()
    }

    /// Takes the next timer that is at or before `now`.
    fn next_due(&mut self, now: Option<i64>) -> Option<(i64, Box<[u8]>)> {
        loop {
            if let Some((time, keys)) = &mut self.due {
                match keys.pop_first() {
                    Some(key) => return Some((*time, key)),
                    None => self.due = None,
                }
            }
            let first = self.table.namespaces().next();
            let first = first.filter(|time| Some(*time) <= now)?;
            let keys = self.table.take(first);
            let keys = keys.map(|(key, ())| key.bytes().into()).collect();
            self.due = Some((first, keys));
        }
    }
}

/// Timers of event time: at most one for each key and time.
#[derive(Debug)]
pub struct EventTimers {
    timers: Timers,
    /// Name of the state with the watermark.
    watermark_name: String,
    watermark: Option<i64>,
}

impl EventTimers {
    pub(super) fn new(states: &KeyedStates, name: &'static str) -> EventTimers {
        EventTimers {
            timers: Timers::new(states, name, "timers of event time"),
            watermark_name: format!("{name}.watermark"),
            watermark: None,
        }
    }

    /// Takes the timers from the snapshot that the task is restored from.
    pub fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        // Each subtask has the event time of all inputs. Of several the earliest counts.
        let times: Vec<EventTimeState> =
            restored.messages(&self.watermark_name, &self.timers.signature)?;
        let watermarks = times.into_iter().map(|time| time.watermark);
        self.watermark = watermarks.min().flatten();
        self.timers.restore(restored)
    }

    /// Memory of the timers, in bytes. For [`Operator::state_bytes`](crate::Operator::state_bytes).
    pub fn memory(&self) -> u64 {
        self.timers.table.memory()
    }

    /// Saves the timers.
    pub fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        self.timers.check(snapshot)?;
        let time = EventTimeState {
            watermark: self.watermark,
            idle: false,
        };
        let (name, signature) = (self.watermark_name.clone(), &self.timers.signature);
        snapshot.add_divided(name, StateRedistribution::Union, signature, &time);
        self.timers.freeze(snapshot);
        Ok(())
    }

    /// The event time of the input, in milliseconds since 1970: no record at or before it is to come. `None`: not known
    /// yet.
    pub fn watermark(&self) -> Option<i64> {
        self.watermark
    }

    /// Sets a timer. One that is set already stays set once. One of a time that has passed is due at once.
    pub fn set(&mut self, time: i64, key: &[u8]) {
        self.timers.set(time, key);
    }

    /// Removes a timer, if it is set and not yet taken.
    pub fn remove(&mut self, time: i64, key: &[u8]) {
        self.timers.remove(time, key);
    }

    /// Takes a signal of the input: what is at or before a watermark is due.
    pub fn advance(&mut self, signal: TimeSignal) {
        match signal {
            TimeSignal::Watermark(watermark) => {
                self.watermark = self.watermark.max(Some(watermark))
            }
            TimeSignal::Idle => {}
        }
    }

    /// The input has ended: all timers are due, also those that are set from now on. An operator that sets the next
    /// timer whenever one is due must not do so after this.
    pub fn end(&mut self) {
        self.advance(TimeSignal::Watermark(i64::MAX));
    }

    /// Takes the next timer that is due: its time and its key. Call it until there is none. Times are in order, and
    /// keys within a time. A timer that is set meanwhile is among them if it is due, after those of the time that is
    /// being taken.
    pub fn next_due(&mut self) -> Option<(i64, Box<[u8]>)> {
        self.timers.next_due(self.watermark)
    }
}

/// Timers of processing time: at most one for each key and time.
///
/// The clock is that of the host when the operator was built, and goes on with the task's time: it does not jump, and
/// stands still while the task is paused behind a barrier. What was due while nothing ran is due after a restore.
#[derive(Debug)]
pub struct ProcessingTimers {
    timers: Timers,
    /// The moment of creation, by the monotonic clock and in milliseconds since 1970.
    began: (Instant, i64),
    /// The time of the last tick.
    now: Option<i64>,
}

impl ProcessingTimers {
    pub(super) fn new(states: &KeyedStates, name: &'static str) -> ProcessingTimers {
        let wall_clock = i64::try_from(wall_clock_ms()).unwrap_or(i64::MAX);
        ProcessingTimers {
            timers: Timers::new(states, name, "timers of processing time"),
            began: (Instant::now(), wall_clock),
            now: None,
        }
    }

    /// Takes the timers from the snapshot that the task is restored from.
    pub fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        self.timers.restore(restored)
    }

    /// Memory of the timers, in bytes. For [`Operator::state_bytes`](crate::Operator::state_bytes).
    pub fn memory(&self) -> u64 {
        self.timers.table.memory()
    }

    /// Saves the timers.
    pub fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        self.timers.check(snapshot)?;
        self.timers.freeze(snapshot);
        Ok(())
    }

    /// The time, in milliseconds since 1970: a record that is processed now is processed at this time.
    pub fn now(&self) -> i64 {
        self.time_of(Instant::now())
    }

    /// Sets a timer, in milliseconds since 1970. One that is set already stays set once. One of a time that has passed
    /// is due with the next tick.
    pub fn set(&mut self, time: i64, key: &[u8]) {
        self.timers.set(time, key);
    }

    /// Removes a timer, if it is set and not yet taken.
    pub fn remove(&mut self, time: i64, key: &[u8]) {
        self.timers.remove(time, key);
    }

    /// Takes the time that [`Operator::tick`](crate::Operator::tick) has got: what is at or before it is due.
    pub fn advance(&mut self, now: Instant) {
        self.now = self.now.max(Some(self.time_of(now)));
    }

    /// Takes the next timer that is due: its time and its key, in the order of
    /// [`EventTimers::next_due`]. Call it until there is none.
    pub fn next_due(&mut self) -> Option<(i64, Box<[u8]>)> {
        self.timers.next_due(self.now)
    }

    /// When the first timer is due, for [`Operator::tick`](crate::Operator::tick) to return.
    pub fn next_tick(&self) -> Option<Instant> {
        let (began, wall_clock) = self.began;
        let wait = self.timers.first()?.saturating_sub(wall_clock);
        let wait = Duration::from_millis(u64::try_from(wait).unwrap_or_default());
        // A later time could not be added to the moment: a timer that is centuries away gets an earlier tick.
        Some(began + wait.min(LONGEST_WAIT))
    }

    fn time_of(&self, now: Instant) -> i64 {
        let (began, wall_clock) = self.began;
        let passed = now.saturating_duration_since(began).as_millis();
        wall_clock.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX))
    }
}

/// A time that can be added to any moment.
const LONGEST_WAIT: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
