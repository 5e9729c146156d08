//! Timers of event time, by key.
//!
//! They are keyed state: a table whose namespaces are the times. A timer is due once the watermark has reached its
//! time, and then removed from the table with all timers of that time. The watermark is saved beside them, so that a
//! restored operator takes the same records for late as before.

use std::collections::BTreeSet;

use tanist_proto::v1::{EventTimeState, StateRedistribution};

use super::keyed::{CheckedKeys, KeyedStates};
use crate::operator::OperatorError;
use crate::state::{Restored, Snapshot, StateTable};
use crate::time::TimeSignal;

/// What an operator is to do at a time, for each key at most once a time.
#[derive(Debug)]
pub struct EventTimers {
    name: &'static str,
    /// Name of the state with the watermark.
    watermark_name: String,
    signature: String,
    keys: CheckedKeys,
    table: StateTable<()>,
    watermark: Option<i64>,
    /// The time of timers that are due, and their keys that are not yet taken.
    due: Option<(i64, BTreeSet<Box<[u8]>>)>,
}

impl EventTimers {
    pub(super) fn new(states: &KeyedStates, name: &'static str) -> EventTimers {
        let signature = states.signature("timers of event time");
        EventTimers {
            name,
            watermark_name: format!("{name}.watermark"),
            keys: CheckedKeys::new(states),
            table: StateTable::new(name, signature.clone(), states.groups, |(), _| {}),
            signature,
            watermark: None,
            due: None,
        }
    }

    /// Takes the timers from the snapshot that the task is restored from.
    pub fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        // Each subtask has the event time of all inputs.
        let times: Vec<EventTimeState> =
            restored.messages(&self.watermark_name, &self.signature)?;
        let watermarks = times.into_iter().map(|time| time.watermark);
        self.watermark = watermarks.min().flatten();
        self.table.restore(restored, |entry| {
            self.keys.check(entry.key())?;
            match entry.value() {
                [] => Ok(()),
                _ => Err("a timer has no value".to_owned()),
            }
        })?;
        Ok(())
    }

    /// Memory of the timers, in bytes. For [`Operator::state_bytes`](crate::Operator::state_bytes).
    pub fn memory(&self) -> u64 {
        self.table.memory()
    }

    /// Saves the timers.
    pub fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        snapshot.begin(self.name)?;
        self.keys.all_valid(self.name)?;
        // What a call of the operator has left is due again.
        if let Some((time, keys)) = self.due.take() {
            keys.iter().for_each(|key| self.set(time, key));
        }
        let time = EventTimeState {
            watermark: self.watermark,
            idle: false,
        };
        let (name, signature) = (self.watermark_name.clone(), &self.signature);
        snapshot.add_divided(name, StateRedistribution::Union, signature, &time);
        self.table.freeze(snapshot);
        Ok(())
    }

    /// The event time of the input, in milliseconds since 1970: no record at or before it is to come. `None`: not known
    /// yet.
    pub fn watermark(&self) -> Option<i64> {
        self.watermark
    }

    /// Sets a timer. One that is set already stays set once. One of a time that has passed is due at once.
    pub fn set(&mut self, time: i64, key: &[u8]) {
        let due = self.due.as_ref().filter(|(due, _)| *due == time);
        let is_due = due.is_some_and(|(_, keys)| keys.contains(key));
        // One that is set is not touched: it would be written again with the next checkpoint.
        if !is_due && self.table.get(time, key).is_none() {
            self.keys.note(key);
            self.table.insert(time, key, ());
        }
    }

    /// Removes a timer, if it is set and not yet taken.
    pub fn remove(&mut self, time: i64, key: &[u8]) {
        self.table.remove(time, key);
        if let Some((due, keys)) = &mut self.due
            && *due == time
        {
            keys.remove(key);
        }
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
        loop {
            if let Some((time, keys)) = &mut self.due {
                match keys.pop_first() {
                    Some(key) => return Some((*time, key)),
                    None => self.due = None,
                }
            }
            let first = self.table.namespaces().next();
            let first = first.filter(|time| Some(*time) <= self.watermark)?;
            let keys = self.table.take(first);
            let keys = keys.map(|(key, ())| key.bytes().into()).collect();
            self.due = Some((first, keys));
        }
    }
}
