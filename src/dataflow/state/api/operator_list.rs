//! State without keys: a list of elements, which each subtask of an operator has for itself. The operator owns it.

use tanist_proto::v1::{StateElement, StateRedistribution};

use super::value::{StateValue, written};
use crate::operator::OperatorError;
use crate::state::{Restored, Snapshot};

/// Elements of a subtask, such as the partitions that it reads, each with its offset. If the parallelism changes, they
/// are divided among the subtasks, or each subtask gets all of them.
#[derive(Debug)]
pub struct OperatorList<V> {
    name: &'static str,
    signature: String,
    redistribution: StateRedistribution,
    elements: Vec<V>,
}

impl<V: StateValue> OperatorList<V> {
    /// Creates an empty list. If the parallelism changes, its elements are divided: each goes to one subtask, in turns.
    /// `name` is its name in snapshots; `signature` says what the elements are.
    pub fn new(name: &'static str, signature: &str) -> OperatorList<V> {
        OperatorList {
            name,
            signature: format!("operator list of {signature}"),
            redistribution: StateRedistribution::List,
            elements: Vec::new(),
        }
    }

    /// Creates an empty list. After a restore with another parallelism each subtask receives the elements of all
    /// subtasks, and takes its own. With an unchanged parallelism it receives what it has saved.
    pub fn union(name: &'static str, signature: &str) -> OperatorList<V> {
        OperatorList {
            redistribution: StateRedistribution::Union,
            ..OperatorList::new(name, signature)
        }
    }

    /// Takes the elements from the snapshot that the task is restored from.
    pub fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        let saved: Vec<StateElement> = restored.messages(self.name, &self.signature)?;
        let elements = saved.iter().map(|element| V::read(&element.content));
        let elements: Result<Vec<V>, String> = elements.collect();
        self.elements = elements.map_err(|reason| Restored::damaged(self.name, reason))?;
        Ok(())
    }

    /// Saves the elements.
    pub fn snapshot(&self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        snapshot.begin(self.name)?;
        for element in &self.elements {
            let element = StateElement {
                content: written(element),
            };
            let name = self.name.to_owned();
            snapshot.add_divided(name, self.redistribution, &self.signature, &element);
        }
        Ok(())
    }

    /// The elements.
    pub fn elements(&self) -> &[V] {
        &self.elements
    }

    /// The elements, to be changed.
    pub fn elements_mut(&mut self) -> &mut Vec<V> {
        &mut self.elements
    }
}
