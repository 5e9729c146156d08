//! How many records are decoded in one go.

use bytes::Bytes;

use crate::keys::Name;

/// How many records are decoded in one go, and how many bytes of them in a task of the control runtime: a fraction of a millisecond. What
/// very many jobs are made of is so made by the threads that later use, and free, memory for them; more goes to blocking threads.
const DECODE_BATCH: usize = 64;
pub(super) const SMALL_BATCH: usize = 32 * 1024;

/// Of at most [`DECODE_BATCH`] records and [`SMALL_BATCH`] bytes each, but for those of one large record.
pub(super) fn batches<'a>(
    records: impl Iterator<Item = (&'a Name, &'a Bytes)>,
) -> Vec<Vec<(Name, Bytes)>> {
    let mut batches: Vec<Vec<(Name, Bytes)>> = Vec::new();
    let mut room = 0;
    for (name, value) in records {
        let (size, record) = (value.len(), (name.clone(), value.clone()));
        match batches.last_mut().filter(|_| size <= room) {
            Some(batch) if batch.len() < DECODE_BATCH => batch.push(record),
            Some(_) | None => {
                batches.push(vec![record]);
                room = SMALL_BATCH;
            }
        }
        room = room.saturating_sub(size);
    }
    batches
}
