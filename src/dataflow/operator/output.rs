//! What comes out of an operator in one call, in order, and the count of what it drops. Whoever calls hands it on.

use arrow_array::RecordBatch;

use crate::dataflow::time::{Element, TimeSignal};

/// What an operator emits in one call, and how much it drops.
#[derive(Debug, Default)]
pub struct Output {
    elements: Vec<Element>,
    late: u64,
    skipped: u64,
}

impl Output {
    /// Hands a batch on; an empty one vanishes.
    pub fn emit(&mut self, batch: RecordBatch) {
        self.put(Element::Batch(batch));
    }

    /// Says how far event time has come.
    pub fn signal(&mut self, signal: TimeSignal) {
        self.put(Element::Time(signal));
    }

    /// Counts records that were dropped because they came too late.
    pub fn count_late(&mut self, records: u64) {
        self.late += records;
    }

    /// Counts records that were left out because they can't be read.
    pub fn count_skipped(&mut self, records: u64) {
        self.skipped += records;
    }

    pub(in crate::dataflow) fn put(&mut self, element: Element) {
        match element {
            Element::Batch(batch) if batch.num_rows() == 0 => {}
            Element::Batch(_) | Element::Time(_) => self.elements.push(element),
        }
    }

    /// Adds what another one dropped.
    pub(in crate::dataflow) fn count(&mut self, other: &Output) {
        self.late += other.late;
        self.skipped += other.skipped;
    }

    /// How many records were dropped: those that were late, and those that were left out.
    pub fn dropped(&self) -> (u64, u64) {
        (self.late, self.skipped)
    }

    /// Whether nothing was emitted and nothing dropped.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty() && self.dropped() == (0, 0)
    }

    /// What was emitted, in order.
    pub(in crate::dataflow) fn take(&mut self) -> Vec<Element> {
        std::mem::take(&mut self.elements)
    }

    /// The batches that were emitted, in order.
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
