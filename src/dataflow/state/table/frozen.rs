//! A table as it was when a snapshot was taken, and how it becomes a segment. Runs outside the task's loop.
//!
//! It shares its pages with the table, which copies one before it changes it. Each page is let go once it is encoded,
//! so that fewer are copied. A key of another subtask is an error.

use std::sync::OnceLock;

use tanist_proto::v1::StateSegment;
use triomphe::Arc;

use super::directory::FrozenDirectory;
use super::page::Page;
use crate::key::key_hash;
use crate::state::KeyGroups;
use crate::state::error::StateProblem;
use crate::state::segment::{SegmentWriter, Slice, Subject, seal};

/// A frozen table; see the module.
#[derive(Debug)]
pub(super) struct Frozen<V> {
    pub(super) subject: Subject,
    /// In order.
    pub(super) namespaces: Vec<(i64, FrozenDirectory<V>)>,
    /// Namespaces that were dropped since the base, in order.
    pub(super) dropped: Vec<i64>,
    pub(super) write: fn(&V, &mut Vec<u8>),
}

/// A segment that is encoded.
#[derive(Debug)]
pub(super) struct Encoded {
    content: Vec<u8>,
    slices: Vec<Slice>,
    /// It has no items.
    is_empty: bool,
}

impl Encoded {
    /// Returns the segment, and sets `known` to its slices. `None` if it changes nothing.
    pub(super) fn into_segment(
        self,
        name: &str,
        number: u64,
        groups: KeyGroups,
        known: &OnceLock<Vec<Slice>>,
    ) -> Option<StateSegment> {
        if self.is_empty && self.slices.iter().all(|slice| slice.position > 0) {
            return None;
        }
        known.get_or_init(|| self.slices);
        let (first_key_group, end_key_group) = groups.range();
        Some(StateSegment {
            name: name.to_owned(),
            length: self.content.len() as u64,
            content: self.content,
            first_key_group,
            end_key_group,
            written_in: number,
            ..StateSegment::default()
        })
    }
}

/// An item of a page: the hash of its key, the key, the number of the slice, and the value; `None`: it is a removal.
type PageItem<'p, V> = (u64, &'p [u8], usize, Option<&'p V>);

impl<V> Frozen<V> {
    /// Encodes the segment. `None`: `is_wanted` has returned false.
    pub(super) fn encode(
        self,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Encoded>, StateProblem> {
        let mut outcome = Ok(None);
        let content = seal(|bytes| outcome = self.write_to(bytes, is_wanted));
        Ok(outcome?.map(|(slices, is_empty)| Encoded {
            content,
            slices,
            is_empty,
        }))
    }

    fn write_to(
        self,
        bytes: &mut Vec<u8>,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<(Vec<Slice>, bool)>, StateProblem> {
        let begin = bytes.len();
        let subject = self.subject;
        let mut writer = SegmentWriter::new(bytes, subject.clone());
        let mut dropped = self.dropped.into_iter().peekable();
        for (namespace, directory) in self.namespaces {
            while let Some(earlier) = dropped.next_if(|it| *it < namespace) {
                writer.namespace(earlier, true);
            }
            let is_dropped = dropped.next_if_eq(&namespace).is_some();
            if is_dropped {
                writer.namespace(namespace, true);
            }
            let mut has_begun = is_dropped;
            let pages = directory.into_pages();
            let near = whole_slices_near(&pages, &subject)?;
            for (page, is_near_whole) in pages.into_iter().zip(near) {
                if !is_wanted() {
                    return Ok(None);
                }
                // Nothing of it has changed since the base, and no slice of it is written whole.
                if !is_near_whole && page.changed() < subject.base {
                    continue;
                }
                for (_, key, slice, value) in items(&page, &subject)? {
                    if !std::mem::replace(&mut has_begun, true) {
                        writer.namespace(namespace, false);
                    }
                    match value {
                        Some(value) => writer.entry(slice, key, |bytes| (self.write)(value, bytes)),
                        None => writer.removal(slice, key),
                    }
                }
            }
        }
        dropped.for_each(|namespace| writer.namespace(namespace, true));
        let is_empty = writer.length() == begin;
        Ok(Some((writer.finish(), is_empty)))
    }
}

/// For each page whether it may have keys of a slice that is written whole. The pages are in the order of hashes, so
/// its keys are between those of its neighbours: one key of each page is enough.
fn whole_slices_near<V>(
    pages: &[Arc<Page<V>>],
    subject: &Subject,
) -> Result<Vec<bool>, StateProblem> {
    let some_slice = |page: &Arc<Page<V>>| {
        let entry = page.entries().get(0);
        let slice = entry.map(|entry| slice_of(subject, key_hash(entry.key.bytes())));
        slice.transpose()
    };
    let some: Vec<Option<usize>> = pages.iter().map(some_slice).collect::<Result<_, _>>()?;
    let last = subject.slices.len() - 1;
    let mut near = vec![false; pages.len()];
    let (mut before, mut index) = (0, 0);
    while index < pages.len() {
        let behind = some.iter().skip(index + 1).position(Option::is_some);
        let behind = behind.map_or(pages.len(), |offset| index + 1 + offset);
        let after = some.get(behind).copied().flatten().unwrap_or(last);
        let is_whole = |slice: &Slice| slice.position == 0;
        let is_near = subject.slices[before..=after].iter().any(is_whole);
        near[index..behind].fill(is_near);
        before = some[index].unwrap_or(before);
        index = behind;
    }
    Ok(near)
}

/// The items of a page that the segment has, in order.
fn items<'p, V>(
    page: &'p Page<V>,
    subject: &Subject,
) -> Result<Vec<PageItem<'p, V>>, StateProblem> {
    let mut items = Vec::with_capacity(page.entries().len());
    for entry in page.entries().iter() {
        let hash = key_hash(entry.key.bytes());
        let slice = slice_of(subject, hash)?;
        if subject.slices[slice].position == 0 || entry.changed >= subject.base {
            items.push((hash, entry.key.bytes(), slice, Some(&entry.value)));
        }
    }
    for removal in page.removals() {
        let hash = key_hash(removal.key.bytes());
        let slice = slice_of(subject, hash)?;
        if subject.slices[slice].position > 0 && removal.changed >= subject.base {
            items.push((hash, removal.key.bytes(), slice, None));
        }
    }
    items.sort_unstable_by_key(|(hash, key, ..)| (*hash, *key));
    Ok(items)
}

fn slice_of(subject: &Subject, hash: u64) -> Result<usize, StateProblem> {
    let slice = subject.slice_of(hash);
    slice.ok_or_else(|| StateProblem::damaged("a key belongs to another subtask"))
}
