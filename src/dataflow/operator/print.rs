//! Sinks that keep nothing: one writes each record as a line to standard output, one drops it.

use std::io::{self, Write};

use arrow_array::RecordBatch;

use super::{Operator, OperatorError, Output};
use crate::dataflow::record;

pub(super) struct Print<W> {
    prefix: String,
    writer: W,
    lines: Vec<u8>,
}

impl Print<io::Stdout> {
    pub(super) fn stdout(prefix: &str) -> Print<io::Stdout> {
        Print {
            prefix: prefix.to_owned(),
            writer: io::stdout(),
            lines: Vec::new(),
        }
    }
}

impl<W: Write + Send> Operator for Print<W> {
    fn process(&mut self, batch: RecordBatch, _output: &mut Output) -> Result<(), OperatorError> {
        self.lines.clear();
        record::write_lines(&batch, &self.prefix, &mut self.lines);
        // One write a batch, so that the lines of several tasks don't mix.
        let written = self
            .writer
            .write_all(&self.lines)
            .and_then(|()| self.writer.flush());
        written.map_err(|error| OperatorError::io("write to", "standard output", error))
    }
}

/// Counting is the task's: its metrics say how many records came in.
#[derive(Default)]
pub(super) struct Discard {}

impl Operator for Discard {
    fn process(&mut self, _batch: RecordBatch, _output: &mut Output) -> Result<(), OperatorError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{batch, ints, texts};
    use super::*;

    #[test]
    fn each_record_is_printed_as_a_line_with_the_prefix() {
        let mut print = Print {
            prefix: "> ".into(),
            writer: Vec::new(),
            lines: Vec::new(),
        };
        let mut output = Output::default();
        print
            .process(texts("word", &["a", "b"]), &mut output)
            .expect("written");
        print
            .process(batch([("n", ints(&[7])), ("m", ints(&[8]))]), &mut output)
            .expect("written");
        assert_eq!(String::from_utf8_lossy(&print.writer), "> a\n> b\n> 7 8\n");
        assert!(output.into_batches().is_empty());
    }

    #[test]
    fn discard_emits_nothing() {
        let mut output = Output::default();
        Discard::default()
            .process(texts("word", &["a"]), &mut output)
            .expect("dropped");
        assert!(output.into_batches().is_empty());
    }
}
