//! Memory of a table: counted for pages and entries, estimated for what keys have beside their entries.
//!
//! Memory that values have beside their entries is not counted: their size is only known by encoding them, and the task
//! would do nothing else meanwhile.

use super::directory::Directory;
use super::entries::Entry;
use super::page::Page;

/// Entries that an estimate looks at.
const SAMPLE: usize = 64;
/// What an entry has in the index of its page: slots of two bytes, filled to about three quarters.
const INDEX_BYTES: usize = 3;
/// Half a piece of entries, which is free in a page on average, and what the page itself and its place in lists have.
const PAGE_BYTES: usize = 1024 + 256;

/// The memory of these namespaces, without what values have beside their entries.
pub(super) fn memory<'d, V: Clone + 'd>(
    namespaces: impl Iterator<Item = &'d Directory<V>> + Clone,
) -> u64 {
    let (mut entries, mut pages) = (0_usize, 0_usize);
    for directory in namespaces.clone() {
        entries += directory.len();
        pages += directory.page_count();
    }
    let fixed = entries * (size_of::<Entry<V>>() + INDEX_BYTES) + pages * PAGE_BYTES;
    // Namespaces of one page each are many: then some of them are looked at.
    let (every, mut passed) = (pages.div_ceil(SAMPLE).max(1), 0_usize);
    let (mut sampled, mut beside) = (0_u64, 0_u64);
    for directory in namespaces {
        let first = passed.div_ceil(every) * every - passed;
        passed += directory.page_count();
        let at = (first..directory.page_count()).step_by(every);
        for page in at.map(|at| directory.page_at(at)) {
            for entry in some(page, pages) {
                sampled += 1;
                beside += entry.key.beside() as u64;
            }
        }
    }
    let estimated = u128::from(beside) * entries as u128 / u128::from(sampled.max(1));
    (fixed as u64).saturating_add(u64::try_from(estimated).unwrap_or(u64::MAX))
}

/// Some entries of a page, spread over it: the fewer, the more pages there are.
fn some<V>(page: &Page<V>, pages: usize) -> impl Iterator<Item = &Entry<V>> {
    let wanted = SAMPLE.div_ceil(pages.max(1)).max(1);
    let entries = page.entries();
    let every = entries.len().div_ceil(wanted).max(1);
    let at = (0..entries.len()).step_by(every);
    at.filter_map(|at| entries.get(at))
}

#[cfg(test)]
mod tests {
    use crate::state::{KeyGroups, StateTable};

    fn groups() -> KeyGroups {
        KeyGroups::of_subtask(0, 1, 128)
    }

    #[test]
    fn entries_of_a_fixed_size_are_counted_with_their_index() {
        let mut table = StateTable::new("n", "s".to_owned(), groups(), |value: &i64, bytes| {
            bytes.extend_from_slice(&value.to_le_bytes());
        });
        assert_eq!(table.memory(), 0);
        for key in 0..100_000_i64 {
            table.insert(0, &key.to_le_bytes(), key);
        }
        // ADR 62 has what an entry takes in resident memory.
        let entry = table.memory() as f64 / 100_000.0;
        assert!((43.0..49.0).contains(&entry), "{entry} bytes an entry");
        for key in 0..100_000_i64 {
            table.remove(0, &key.to_le_bytes());
        }
        assert_eq!(table.memory(), 0);
    }

    #[test]
    fn what_keys_have_beside_their_entries_is_estimated_over_all_namespaces() {
        let mut table = StateTable::new("n", "s".to_owned(), groups(), |text: &String, bytes| {
            bytes.extend_from_slice(text.as_bytes());
        });
        let mut beside = 0.0;
        for key in 0..20_000_i64 {
            let (name, length) = (format!("{key:040}"), 100 + (key % 200) as usize);
            beside += name.len() as f64;
            table.insert(key % 300, name.as_bytes(), "x".repeat(length));
        }
        let estimated = table.memory() as f64;
        let entries = 20_000.0 * size_of::<super::Entry<String>>() as f64;
        let expected = beside + entries;
        let ratio = estimated / expected;
        assert!((0.85..1.35).contains(&ratio), "{estimated} of {expected}");
    }
}
