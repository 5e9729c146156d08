//! The output of an operator in one call: batches and event-time signals in order, and the counts of dropped records.
//! The caller owns it and passes the elements on.

use arrow_array::RecordBatch;

use crate::time::{Element, TimeSignal};

/// What an operator emits in one call, and how many records it drops.
#[derive(Debug, Default)]
pub struct Output {
    elements: Vec<Element>,
    late: u64,
    skipped: u64,
}

impl Output {
    /// Emits a batch; an empty one is discarded.
    pub fn emit(&mut self, batch: RecordBatch) {
        self.put(Element::Batch(batch));
    }

    /// Emits an event-time signal.
    pub fn signal(&mut self, signal: TimeSignal) {
        self.put(Element::Time(signal));
    }

    /// Counts records that were dropped because they were late.
    pub fn count_late(&mut self, records: u64) {
        self.late += records;
    }

    /// Counts records that were skipped because they can't be read.
    pub fn count_skipped(&mut self, records: u64) {
        self.skipped += records;
    }

    pub(crate) fn put(&mut self, element: Element) {
        match element {
            Element::Batch(batch) if batch.num_rows() == 0 => {}
            Element::Batch(_) | Element::Time(_) => self.elements.push(element),
        }
    }

    /// Adds the counts of another output.
    pub(crate) fn count(&mut self, other: &Output) {
        self.late += other.late;
        self.skipped += other.skipped;
    }

    /// Number of dropped records: late ones and skipped ones.
    pub fn dropped(&self) -> (u64, u64) {
        (self.late, self.skipped)
    }

    /// Whether nothing was emitted and nothing dropped.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty() && self.dropped() == (0, 0)
    }

    /// Takes the emitted elements, in order.
    pub fn take(&mut self) -> Vec<Element> {
        std::mem::take(&mut self.elements)
    }

    /// Returns the emitted batches, in order.
    pub fn into_batches(self) -> Vec<RecordBatch> {
        let batches = self
            .elements
            .into_iter()
            .filter_map(|element| match element {
                Element::Batch(batch) => Some(batch),
                Element::Time(_) => None,
            });
        batches.collect()
    }
}
