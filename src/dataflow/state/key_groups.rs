//! The key groups of a subtask: a contiguous range, so that its keys are one range of hashes.

use tanist_model::topology;

use crate::key::{group_of_hash, key_hash};
use crate::operator::OperatorContext;

/// A range of key groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyGroups {
    first: u32,
    end: u32,
    /// Number of all key groups.
    max_parallelism: u32,
}

impl KeyGroups {
    /// The key groups of the operator's subtask.
    pub fn of(context: &OperatorContext) -> KeyGroups {
        let vertex = topology::vertex(&context.graph, context.vertex);
        let max_parallelism = vertex.map_or(0, |vertex| vertex.max_parallelism);
        KeyGroups::of_subtask(context.subtask, context.parallelism, max_parallelism)
    }

    /// The key groups of a subtask. There are at least as many as subtasks.
    pub(crate) fn of_subtask(subtask: u32, parallelism: u32, max_parallelism: u32) -> KeyGroups {
        let groups = topology::key_groups(subtask, parallelism, max_parallelism);
        KeyGroups {
            first: groups.start,
            end: groups.end,
            max_parallelism: max_parallelism.max(parallelism.max(1)),
        }
    }

    /// The key groups from `first` up to and without `end`.
    pub(super) const fn between(first: u32, end: u32, max_parallelism: u32) -> KeyGroups {
        KeyGroups {
            first,
            end,
            max_parallelism,
        }
    }

    /// Whether they include that of a key.
    pub fn contain(&self, key: &[u8]) -> bool {
        self.contain_hash(key_hash(key))
    }

    #[inline]
    pub(super) fn contain_hash(&self, hash: u64) -> bool {
        let group = group_of_hash(hash, self.max_parallelism);
        (self.first..self.end).contains(&group)
    }

    /// The groups of both.
    pub(super) fn within(self, (first, end): (u32, u32)) -> KeyGroups {
        KeyGroups {
            first: self.first.max(first),
            end: self.end.min(end),
            ..self
        }
    }

    /// The first one, and the first one that is not included.
    pub(super) fn range(&self) -> (u32, u32) {
        (self.first, self.end)
    }

    pub(super) fn max_parallelism(&self) -> u32 {
        self.max_parallelism
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::subtask_of_group;

    proptest! {
        #[test]
        fn each_group_is_that_of_the_subtask_which_gets_its_records(
            parallelism in 1_u32..50, beyond in 0_u32..200,
        ) {
            let max = parallelism + beyond;
            for group in 0..max {
                let owner = subtask_of_group(group, parallelism, max);
                for subtask in 0..parallelism {
                    let (first, end) = KeyGroups::of_subtask(subtask, parallelism, max).range();
                    prop_assert_eq!((first..end).contains(&group), subtask == owner);
                }
            }
        }
    }
}
