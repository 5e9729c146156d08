//! Splits bytes that arrive in pieces into lines, and collects lines into batches. Also writes records as lines, one
//! line each. Each source and sink owns its buffers. A line that is too long, or a record with a line break, is an
//! error that shows it.

use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;
use tanist_dataflow::OperatorError;
use tanist_dataflow::record::{self, BATCH_BYTES, shorten};

use super::file_source::LONGEST_LINE;

const ROWS: usize = 2048;

/// Bytes that are not split into lines yet.
#[derive(Debug, Default)]
pub(super) struct LineBuffer {
    bytes: Vec<u8>,
    /// Where the next line starts.
    start: usize,
    /// There is no line break before this index.
    searched: usize,
}

impl LineBuffer {
    /// Appends bytes that have arrived.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.searched -= self.start;
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete line, without its line break. A line without end is an error, as in a file.
    pub(super) fn next_line(&mut self) -> Result<Option<&[u8]>, OperatorError> {
        let found = self.bytes[self.searched..]
            .iter()
            .position(|byte| *byte == b'\n');
        let end = found.map_or(self.bytes.len(), |found| self.searched + found);
        let line = &self.bytes[self.start..end];
        // Without a line break so far, the last byte may be the first half of one.
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() as u64 > LONGEST_LINE {
            return Err(OperatorError::Record {
                message: format!("a line has more than {LONGEST_LINE} bytes"),
                record: shorten(&String::from_utf8_lossy(&line[..1024])),
            });
        }
        if found.is_none() {
            self.searched = end;
            return Ok(None);
        }
        self.start = end + 1;
        self.searched = self.start;
        Ok(Some(line))
    }

    /// Number of bytes behind the last line that was returned.
    pub(super) fn rest(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Returns the text after the last line break, when no line break will follow; `None` if there is none.
    pub(super) fn take_rest(&mut self) -> Option<Vec<u8>> {
        let rest = self.bytes.split_off(self.start);
        self.clear();
        (!rest.is_empty()).then_some(rest)
    }

    /// Clears the buffer.
    pub(super) fn clear(&mut self) {
        *self = LineBuffer::default();
    }
}

/// Appends each record as a line, for consumers that split lines. A record with a line break is an error, and
/// then nothing of the batch is written.
pub(super) fn write_lines(batch: &RecordBatch, lines: &mut Vec<u8>) -> Result<(), OperatorError> {
    if let Some(row) = record::find_line_break(batch) {
        let message = "it has a line break, so it is no line: put a `format-json` before it, which escapes it";
        return Err(OperatorError::Record {
            message: message.to_owned(),
            record: record::show_record(batch, row),
        });
    }
    record::write_lines(batch, "", lines);
    Ok(())
}

/// Collects lines into a batch.
pub(super) struct LineBatch {
    lines: StringBuilder,
    rows: usize,
}

impl LineBatch {
    pub(super) fn new() -> LineBatch {
        LineBatch {
            lines: StringBuilder::new(),
            rows: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.rows >= ROWS || self.lines.values_slice().len() >= BATCH_BYTES
    }

    pub(super) fn push(&mut self, line: &[u8]) {
        self.lines.append_value(String::from_utf8_lossy(line));
        self.rows += 1;
    }

    /// Takes complete lines while there is room.
    pub(super) fn take_from(&mut self, buffer: &mut LineBuffer) -> Result<(), OperatorError> {
        while !self.is_full() {
            match buffer.next_line()? {
                Some(line) => self.push(line),
                None => break,
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self, schema: &SchemaRef) -> Result<RecordBatch, OperatorError> {
        let column: ArrayRef = Arc::new(self.lines.finish());
        Ok(RecordBatch::try_new(Arc::clone(schema), vec![column])?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lines_do_not_depend_on_the_pieces_that_they_come_in(
            text in "[ab\r\n]{0,60}", cuts in prop::collection::vec(0_usize..60, 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let (mut buffer, mut lines) = (LineBuffer::default(), Vec::new());
            for pair in cuts.windows(2) {
                buffer.push(&text.as_bytes()[pair[0]..pair[1]]);
                while let Some(line) = buffer.next_line().expect("short") {
                    lines.push(String::from_utf8_lossy(line).into_owned());
                }
            }
            let rest = buffer.take_rest();
            lines.extend(rest.map(|rest| String::from_utf8_lossy(&rest).into_owned()));
            prop_assert_eq!(lines, text.lines().map(str::to_owned).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_line_without_end_is_an_error() {
        let longest = usize::try_from(LONGEST_LINE).expect("fits");
        let mut buffer = LineBuffer::default();
        buffer.push(&vec![b'x'; longest]);
        buffer.push(b"\r");
        assert_eq!(buffer.next_line().expect("it may end"), None);
        buffer.push(b"\n");
        let line = buffer.next_line().expect("it has ended");
        assert_eq!(line.map(<[u8]>::len), Some(longest));
        for end in ["", "\n"] {
            let mut buffer = LineBuffer::default();
            buffer.push(&vec![b'x'; longest + 1]);
            buffer.push(end.as_bytes());
            assert!(buffer.next_line().is_err());
        }
    }
}
