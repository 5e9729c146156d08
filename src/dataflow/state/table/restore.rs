//! Loads the segments of a state into a table: those of each key group from the oldest to the newest.

use std::collections::BTreeSet;

use super::StateTable;
use super::directory::Directory;
use crate::state::error::{StateError, StateProblem};
use crate::state::segment::{Item, Segment};
use crate::state::{KeyGroups, Restored};

/// A segment, and the own key groups for which it counts.
struct Counting<'s> {
    /// `None`: its subtask had ended, so there are no entries.
    segment: Option<Segment<'s>>,
    groups: KeyGroups,
}

impl<V: Clone + Send + Sync + 'static> StateTable<V> {
    /// Loads what a snapshot has of the state, into an empty table. `read` reads a value, or says why it can't. Nothing
    /// is loaded if the state was not saved.
    pub fn restore(
        &mut self,
        restored: &Restored<'_>,
        read: impl Fn(&[u8]) -> Result<V, String>,
    ) -> Result<(), StateError> {
        self.load_all(restored, read)
            .map_err(|problem| problem.of(self.name))
    }

    fn load_all(
        &mut self,
        restored: &Restored<'_>,
        read: impl Fn(&[u8]) -> Result<V, String>,
    ) -> Result<(), StateProblem> {
        let mut counting = Vec::new();
        for saved in restored.segments(self.name) {
            let groups = (saved.first_key_group, saved.end_key_group);
            let segment = match saved.length {
                0 => None,
                _ => {
                    let max_parallelism = self.groups.max_parallelism();
                    let content = &saved.content;
                    Some(Segment::open(content, &self.signature, max_parallelism)?)
                }
            };
            counting.push(Counting {
                segment,
                groups: self.groups.within(groups),
            });
        }
        check(self.groups, &counting)?;
        for Counting { segment, groups } in &counting {
            if let Some(segment) = segment {
                self.load(segment, *groups, &read)?;
            }
        }
        Ok(())
    }

    /// Applies a segment to the key groups for which it counts.
    fn load(
        &mut self,
        segment: &Segment<'_>,
        groups: KeyGroups,
        read: &impl Fn(&[u8]) -> Result<V, String>,
    ) -> Result<(), StateProblem> {
        let range = self.range;
        segment.each(|item| {
            match item {
                Item::Dropped(namespace) => self.unload(namespace, groups),
                Item::Entry {
                    namespace,
                    hash,
                    key,
                    value,
                } if groups.contain_hash(hash) => {
                    let mut value = Some(read(value).map_err(StateProblem::Damaged)?);
                    let directory = self.namespaces.entry(namespace);
                    let directory = directory.or_insert_with(|| Directory::with_room(range, 0));
                    let make = || value.take().expect("it is made at most once");
                    let place = directory.change(hash, key, 0, make);
                    if let Some(value) = value {
                        *place = value;
                    }
                }
                Item::Removal {
                    namespace,
                    hash,
                    key,
                } if groups.contain_hash(hash) => {
                    if let Some(directory) = self.namespaces.get_mut(&namespace) {
                        directory.remove(hash, key, 0, false);
                    }
                }
                Item::Entry { .. } | Item::Removal { .. } => {}
            }
            Ok(())
        })
    }

    /// Removes the entries of a namespace that are of these key groups.
    fn unload(&mut self, namespace: i64, groups: KeyGroups) {
        if groups == self.groups {
            self.namespaces.remove(&namespace);
            return;
        }
        let Some(directory) = self.namespaces.get_mut(&namespace) else {
            return;
        };
        let keys = directory.pages().flat_map(|page| page.entries());
        let keys = keys.map(|entry| entry.key.bytes());
        let keys: BTreeSet<Vec<u8>> = keys
            .filter(|key| groups.contain(key))
            .map(<[u8]>::to_vec)
            .collect();
        for key in keys {
            directory.remove(crate::key::key_hash(&key), &key, 0, false);
        }
    }
}

/// Checks that each own key group is in exactly one segment, which has all entries.
fn check(own: KeyGroups, counting: &[Counting<'_>]) -> Result<(), StateProblem> {
    let segments = counting.iter().filter_map(|it| it.segment.as_ref());
    let mut slices = segments.flat_map(|it| &it.subject().slices);
    if slices.any(|slice| slice.position > 0) {
        return Err(StateProblem::damaged(
            "it goes on from a segment that is missing",
        ));
    }
    let ranges: Vec<(u32, u32)> = counting.iter().map(|it| it.groups.range()).collect();
    if counting.is_empty() || own.are_covered_by(ranges) {
        return Ok(());
    }
    Err(StateProblem::damaged(
        "not each key group is in exactly one segment",
    ))
}
