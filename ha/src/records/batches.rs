//! Groups records into batches that are decoded together. Pure.
//!
//! The threads of the control runtime decode the small batches, because they also use and free that memory later.
//! A small batch occupies one of them for about a millisecond. A record that takes longer, by its claimed decoded
//! size (not its compressed size), gets its own batch for a blocking thread.

use bytes::Bytes;

use super::record;
use crate::keys::Name;

/// Maximum number of records in a batch.
const MOST: usize = 64;
/// Maximum of their decoded bytes; a larger record is alone in its batch.
const MOST_BYTES: usize = 128 * 1024;

/// Records that are decoded together; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) records: Vec<(Name, Bytes)>,
    /// Their decoded size in bytes, as the records claim.
    claimed: usize,
}

impl Batch {
    /// Whether a thread of the control runtime may decode it.
    pub(super) fn is_small(&self) -> bool {
        self.claimed <= MOST_BYTES
    }

    fn has_room_for(&self, size: usize) -> bool {
        self.records.len() < MOST && self.claimed.saturating_add(size) <= MOST_BYTES
    }
}

/// Splits the records into batches, in their order.
pub(super) fn batches<'a>(records: impl Iterator<Item = (&'a Name, &'a Bytes)>) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for (name, value) in records {
        let size = record::claimed_size(value);
        if !batches.last().is_some_and(|batch| batch.has_room_for(size)) {
            batches.push(Batch::default());
        }
        if let Some(batch) = batches.last_mut() {
            batch.records.push((name.clone(), value.clone()));
            batch.claimed = batch.claimed.saturating_add(size);
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::record::{Encoded, encode};

    fn record(size: usize) -> Bytes {
        match encode(1, &vec![0; size], MOST_BYTES) {
            Ok(Encoded::Inline(record)) => record,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn records_are_decoded_together_by_what_they_hold_and_not_by_what_it_is_compressed_to() {
        let (large, small) = (record(1024 * 1024), record(1024));
        assert!(large.len() < 1024, "{} bytes", large.len());
        let values = [&large, &small, &large].into_iter().chain([&small; 200]);
        let names = (0..203).map(|at| Name::new(format!("r{at}")).expect("a name"));
        let names: Vec<Name> = names.collect();
        let batches = batches(names.iter().zip(values));
        let told = batches.iter().map(|it| (it.records.len(), it.is_small()));
        let told: Vec<(usize, bool)> = told.collect();
        let expected = [
            (1, false),
            (1, true),
            (1, false),
            (MOST, true),
            (MOST, true),
            (MOST, true),
            (8, true),
        ];
        assert_eq!(told, expected);
        let decoded = batches.iter().flat_map(|batch| &batch.records);
        assert!(decoded.map(|(name, _)| name).eq(&names));
    }
}
