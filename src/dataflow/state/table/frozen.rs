//! A table as it was when a snapshot was taken, and how it becomes a segment. Runs outside the task's loop.

use std::sync::Arc;

use super::page::Page;
use crate::key::key_hash;
use crate::state::error::StateProblem;
use crate::state::segment::{SegmentWriter, Subject, seal};

/// See the module.
#[derive(Debug)]
pub(super) struct Frozen<V> {
    pub(super) subject: Subject,
    /// In order, each with its pages in the order of hashes.
    pub(super) namespaces: Vec<(i64, Vec<Arc<Page<V>>>)>,
    /// Namespaces that were dropped since the base, in order.
    pub(super) dropped: Vec<i64>,
    pub(super) write: fn(&V, &mut Vec<u8>),
}

/// An item of a page: the hash of its key, the key, and the entry; `None`: it is a removal.
type PageItem<'p, V> = (u64, &'p [u8], usize, Option<&'p V>);

impl<V> Frozen<V> {
    /// Encodes the segment. `None`: it is not wanted any more, as `is_wanted` says.
    pub(super) fn encode(
        self,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<u8>>, StateProblem> {
        let mut outcome = Ok(false);
        let content = seal(|bytes| outcome = self.write_to(bytes, is_wanted));
        Ok(outcome?.then_some(content))
    }

    fn write_to(
        self,
        bytes: &mut Vec<u8>,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<bool, StateProblem> {
        let subject = self.subject;
        let mut writer = SegmentWriter::new(bytes, subject.clone());
        let mut dropped = self.dropped.into_iter().peekable();
        for (namespace, pages) in self.namespaces {
            while let Some(earlier) = dropped.next_if(|it| *it < namespace) {
                writer.namespace(earlier, true);
            }
            let is_dropped = dropped.next_if_eq(&namespace).is_some();
            if is_dropped {
                writer.namespace(namespace, true);
            }
            let mut has_begun = is_dropped;
            for page in pages {
                if !is_wanted() {
                    return Ok(false);
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
        writer.finish();
        Ok(true)
    }
}

/// What the segment has of a page, in order.
fn items<'p, V>(
    page: &'p Page<V>,
    subject: &Subject,
) -> Result<Vec<PageItem<'p, V>>, StateProblem> {
    let is_whole = subject.slices.iter().any(|slice| slice.position == 0);
    if !is_whole && page.changed() < subject.base {
        return Ok(Vec::new());
    }
    let mut items = Vec::with_capacity(page.entries().len());
    for entry in page.entries() {
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
