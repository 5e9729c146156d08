//! A map that is the same in each subtask of an operator. The operator owns it.

use std::collections::BTreeMap;

use tanist_proto::v1::{StateMap, StateRedistribution};

use super::keyed::{restored_map, saved_map};
use super::value::StateValue;
use crate::operator::OperatorError;
use crate::state::{Restored, Snapshot};

/// A map that each subtask has completely, since its input goes to each: rules, or a table to look things up. If the
/// parallelism changes, each subtask gets the map that one of them has saved. So the content must depend on the records
/// of that input alone, and not on their order among several sources.
#[derive(Debug)]
pub struct BroadcastState<K, V> {
    name: &'static str,
    signature: String,
    map: BTreeMap<K, V>,
}

impl<K: StateValue + Ord, V: StateValue> BroadcastState<K, V> {
    /// Creates an empty map. `name` is its name in snapshots; `signature` says what the keys and values are.
    pub fn new(name: &'static str, signature: &str) -> BroadcastState<K, V> {
        BroadcastState {
            name,
            signature: format!("broadcast map of {signature}"),
            map: BTreeMap::new(),
        }
    }

    /// Takes the map from the snapshot that the task is restored from.
    pub fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        let saved: Option<StateMap> = restored.message(self.name, &self.signature)?;
        let map = restored_map(&saved.unwrap_or_default());
        self.map = map.map_err(|reason| Restored::damaged(self.name, reason))?;
        Ok(())
    }

    /// Saves the map.
    pub fn snapshot(&self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        snapshot.begin(self.name)?;
        let (name, map) = (self.name.to_owned(), saved_map(&self.map));
        snapshot.add_divided(name, StateRedistribution::Broadcast, &self.signature, &map);
        Ok(())
    }

    /// The map.
    pub fn map(&self) -> &BTreeMap<K, V> {
        &self.map
    }

    /// The map, to be changed.
    pub fn map_mut(&mut self) -> &mut BTreeMap<K, V> {
        &mut self.map
    }
}
