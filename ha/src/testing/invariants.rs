//! Invariants of every history of a cluster, as predicates: used by the conformance suite, simulations and
//! checkers.
//!
//! A history contains the events of several processes, each in its own order. The order between processes
//! means nothing, so no predicate relies on it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::election::{Epoch, LeaderSession, Leadership, ProcessId};
use crate::keys::Key;
use crate::store::{Change, Touched};

/// An event that a process recorded.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// It was granted leadership: for the first time in this term, or again.
    Granted {
        /// The process.
        process: ProcessId,
        /// The start of the process: a restarted process is granted its term again.
        start: u64,
        /// The term.
        session: LeaderSession,
    },
    /// Its term is over.
    Over {
        /// The process.
        process: ProcessId,
        /// The start of the process.
        start: u64,
        /// The epoch of the term.
        epoch: Epoch,
    },
    /// A commit of it was acknowledged.
    Committed {
        /// The transaction.
        change: Change,
        /// The keys that it wrote.
        keys: Vec<Key>,
    },
}

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(String);

/// Events of several processes. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct History {
    events: Arc<Mutex<Vec<Event>>>,
}

impl History {
    /// Adds an event.
    pub fn note(&self, event: Event) {
        self.events.lock().push(event);
    }

    /// Adds an event for a leadership status that matters.
    pub fn note_leadership(&self, process: &ProcessId, start: u64, leadership: &Leadership) {
        let process = process.clone();
        match leadership {
            Leadership::Granted(session) => self.note(Event::Granted {
                process,
                start,
                session: session.clone(),
            }),
            Leadership::Over(epoch) => self.note(Event::Over {
                process,
                start,
                epoch: *epoch,
            }),
            Leadership::Standby | Leadership::Suspended(_) | Leadership::Refused(_) => {}
        }
    }

    /// The events so far.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }

    /// Checks all invariants that a history alone can show.
    pub fn check(&self) -> Result<(), Violation> {
        let events = self.events();
        at_most_one_leader_per_epoch(&events)?;
        epochs_of_a_process_only_grow(&events)?;
        no_term_comes_back(&events)?;
        no_number_is_acknowledged_for_two_epochs(&events)
    }
}

/// No two processes, and no two starts of one, are granted the same epoch.
pub fn at_most_one_leader_per_epoch(events: &[Event]) -> Result<(), Violation> {
    let mut leaders: HashMap<Epoch, (&ProcessId, u64)> = HashMap::new();
    for event in events {
        let Event::Granted {
            process,
            start,
            session,
        } = event
        else {
            continue;
        };
        let epoch = session.epoch();
        let (leader, of_start) = *leaders.entry(epoch).or_insert((process, *start));
        if (leader, of_start) != (process, *start) {
            return Err(Violation(format!(
                "epoch {epoch} was granted to start {of_start} of {leader} and to start {start} of {process}"
            )));
        }
    }
    Ok(())
}

/// A process is never granted an older epoch than before.
pub fn epochs_of_a_process_only_grow(events: &[Event]) -> Result<(), Violation> {
    let mut youngest: HashMap<(&ProcessId, u64), Epoch> = HashMap::new();
    for event in events {
        let Event::Granted {
            process,
            start,
            session,
        } = event
        else {
            continue;
        };
        let youngest = youngest.entry((process, *start)).or_default();
        if session.epoch() < *youngest {
            let epoch = session.epoch();
            return Err(Violation(format!(
                "{process} was granted epoch {epoch} after {youngest}"
            )));
        }
        *youngest = session.epoch();
    }
    Ok(())
}

/// A term that was reported over is not granted again.
pub fn no_term_comes_back(events: &[Event]) -> Result<(), Violation> {
    let mut over: HashMap<(&ProcessId, u64), Epoch> = HashMap::new();
    for event in events {
        match event {
            Event::Over {
                process,
                start,
                epoch,
            } => {
                over.insert((process, *start), *epoch);
            }
            Event::Granted {
                process,
                start,
                session,
            } => {
                if over.get(&(process, *start)) == Some(&session.epoch()) {
                    let epoch = session.epoch();
                    return Err(Violation(format!(
                        "epoch {epoch} was over for {process} and was granted again"
                    )));
                }
            }
            Event::Committed { .. } => {}
        }
    }
    Ok(())
}

/// A transaction number belongs to one term, and numbers and epochs grow together.
pub fn no_number_is_acknowledged_for_two_epochs(events: &[Event]) -> Result<(), Violation> {
    let mut epochs: BTreeMap<u64, Epoch> = BTreeMap::new();
    for event in events {
        let Event::Committed { change, .. } = event else {
            continue;
        };
        let epoch = *epochs.entry(change.number).or_insert(change.epoch);
        if epoch != change.epoch {
            return Err(Violation(format!(
                "transaction {} was acknowledged in epoch {epoch} and in epoch {}",
                change.number, change.epoch
            )));
        }
    }
    epochs_grow_with_numbers(epochs.into_iter())
}

/// Every acknowledged commit is in the store's ring, with its epoch and its keys; and the ring's epochs grow
/// with its numbers. `ring` is the whole history of the store, from number 1.
pub fn acknowledged_commits_are_there(events: &[Event], ring: &[Touched]) -> Result<(), Violation> {
    let numbers = ring.iter().map(|touched| touched.change.number);
    if !numbers.eq(1..=ring.len() as u64) {
        return Err(Violation("the ring's numbers have gaps".to_owned()));
    }
    epochs_grow_with_numbers(
        ring.iter()
            .map(|touched| (touched.change.number, touched.change.epoch)),
    )?;
    for event in events {
        let Event::Committed { change, keys } = event else {
            continue;
        };
        let found = ring.iter().find(|touched| touched.change == *change);
        let has_all = |touched: &Touched| {
            keys.iter()
                .all(|key| touched.keys.contains(&key.to_string()))
        };
        if !found.is_some_and(has_all) {
            return Err(Violation(format!(
                "the acknowledged transaction {change:?} is not in the store: {found:?}"
            )));
        }
    }
    Ok(())
}

fn epochs_grow_with_numbers(changes: impl Iterator<Item = (u64, Epoch)>) -> Result<(), Violation> {
    let mut youngest = Epoch::ZERO;
    for (number, epoch) in changes {
        if epoch < youngest {
            return Err(Violation(format!(
                "transaction {number} was committed in epoch {epoch}, after one of epoch {youngest}"
            )));
        }
        youngest = epoch;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Name;
    use crate::testing::kinds::ITEMS;

    fn over(process: &str, epoch: u64) -> Event {
        Event::Over {
            process: ProcessId::new(process),
            start: 0,
            epoch: Epoch::new(epoch),
        }
    }

    fn change(number: u64, epoch: u64) -> Change {
        Change {
            number,
            epoch: Epoch::new(epoch),
        }
    }

    fn committed(number: u64, epoch: u64) -> Event {
        let key = Key::new(ITEMS, Name::new("item").expect("a name"));
        Event::Committed {
            change: change(number, epoch),
            keys: vec![key],
        }
    }

    #[test]
    fn a_number_of_two_epochs_and_epochs_that_fall_are_found() {
        let good = [committed(1, 1), over("a", 1), committed(2, 2)];
        assert_eq!(no_number_is_acknowledged_for_two_epochs(&good), Ok(()));
        let twice = [committed(1, 1), committed(1, 2)];
        assert!(no_number_is_acknowledged_for_two_epochs(&twice).is_err());
        let falling = [committed(1, 2), committed(2, 1)];
        assert!(no_number_is_acknowledged_for_two_epochs(&falling).is_err());
    }

    #[test]
    fn an_acknowledged_commit_that_the_store_does_not_have_is_found() {
        let ring = |epochs: &[u64]| -> Vec<Touched> {
            let entry = |(index, epoch): (usize, &u64)| Touched {
                change: change(index as u64 + 1, *epoch),
                keys: vec!["items/item".to_owned()],
            };
            epochs.iter().enumerate().map(entry).collect()
        };
        let events = [committed(2, 2)];
        assert_eq!(
            acknowledged_commits_are_there(&events, &ring(&[1, 2])),
            Ok(())
        );
        assert!(acknowledged_commits_are_there(&events, &ring(&[1, 1])).is_err());
        assert!(acknowledged_commits_are_there(&events, &ring(&[1])).is_err());
        assert!(acknowledged_commits_are_there(&[], &ring(&[2, 1])).is_err());
    }
}
