//! Reads text files line by line; subtasks share the files.
//!
//! A range of a file owns the lines that *start* in it, so that each line is read exactly once. The coordinator gives
//! a subtask its ranges, one split after the other (`file_splits.rs`), with the sizes that the files had when they were
//! cut. What was appended later is not read, and a file that became shorter is an error.
//!
//! Its position is the number of its last request, and the ranges of that split which are not read yet. A restored
//! subtask reads these, and requests the splits behind that number. At another parallelism it may have the ranges of
//! several subtasks or none, and requests from the start: the coordinator gives out again what no position covers.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;
use tanist_dataflow::record::BATCH_BYTES;
use tanist_dataflow::{
    Built, OperatorContext, OperatorError, Restored, Snapshot, Source, SourceState,
};
use tanist_model::files::{Look, unreadable};
use tanist_model::operators;
use tanist_proto::v1 as pb;
use tanist_proto::v1::FileSourcePosition;
use tokio::time::Instant;

use super::factory::{Runtime, Setup, source};
use super::file_splits::{More, Splits};

const ROWS: usize = 2048;
const BUFFER: usize = 128 * 1024;
/// Signature of its saved position.
pub(super) const SIGNATURE: &str = "file-source";
/// A longer line means that the file is not a text file.
pub(super) const LONGEST_LINE: u64 = 16 * 1024 * 1024;

impl Runtime for operators::FileSource {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        source(FileSource::new(setup.context)?)
    }
}

pub(super) struct FileSource {
    splits: Splits,
    output: SchemaRef,
    /// Ranges that are still to be read, the next one last.
    ranges: Vec<FileRange>,
    reading: Option<LineReader>,
    /// How a missing file is treated: before this task has read any, it means that the files are not on this
    /// host.
    look: Look,
}

/// The part of a file that a subtask owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileRange {
    pub(super) path: PathBuf,
    pub(super) start: u64,
    pub(super) end: u64,
    /// The size of the file when the range was cut: the file has it at least, and nothing beyond is read.
    pub(super) size: u64,
}

impl From<pb::FileRange> for FileRange {
    fn from(range: pb::FileRange) -> FileRange {
        FileRange {
            path: PathBuf::from(OsString::from_vec(range.path)),
            start: range.start,
            end: range.end.max(range.start),
            size: range.size,
        }
    }
}

impl From<FileRange> for pb::FileRange {
    fn from(range: FileRange) -> pb::FileRange {
        pb::FileRange {
            path: range.path.into_os_string().into_vec(),
            start: range.start,
            end: range.end,
            size: range.size,
        }
    }
}

impl FileSource {
    pub(super) fn new(context: &OperatorContext) -> Result<FileSource, OperatorError> {
        Ok(FileSource {
            splits: Splits::new(context)?,
            output: context.output_schema(),
            ranges: Vec::new(),
            reading: None,
            look: Look::at_start_of(context.generation),
        })
    }

    /// Bytes of its ranges that are still to be read.
    fn left(&self) -> u64 {
        let reading = self.reading.as_ref().map_or(0, LineReader::left);
        let ranges = self.ranges.iter().map(|range| range.end - range.start);
        reading + ranges.sum::<u64>()
    }
}

impl Source for FileSource {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        let positions: Vec<FileSourcePosition> = restored.position_messages(SIGNATURE)?;
        let ranges = positions.into_iter().flat_map(|position| position.left);
        self.ranges = ranges.map(FileRange::from).collect();
        self.ranges.reverse();
        let request = restored.request();
        self.splits.continue_behind(request, self.left());
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        let reading = self.reading.as_ref().and_then(LineReader::rest);
        let ranges = self.ranges.iter().rev().cloned();
        let left = reading.into_iter().chain(ranges);
        let position = FileSourcePosition {
            left: left.map(pb::FileRange::from).collect(),
        };
        snapshot.save_position_message(SIGNATURE, &position);
        snapshot.save_request(self.splits.taken());
        Ok(())
    }

    fn open(&mut self) -> Result<(), OperatorError> {
        self.splits.ask_ahead(self.left());
        Ok(())
    }

    fn next(&mut self, _now: Instant) -> Result<SourceState, OperatorError> {
        let mut lines = StringBuilder::with_capacity(ROWS, BUFFER);
        let mut rows = 0;
        let mut is_over = false;
        while rows < ROWS && lines.values_slice().len() < BATCH_BYTES {
            let reader = match self.reading.as_mut() {
                Some(reader) => reader,
                None => match self.ranges.pop() {
                    Some(range) => {
                        let reader = LineReader::open(range, self.look)?;
                        self.look = Look::Later;
                        self.reading.insert(reader)
                    }
                    None => match self.splits.next()? {
                        More::Ranges(mut ranges) => {
                            ranges.reverse();
                            self.ranges = ranges;
                            continue;
                        }
                        More::NotYet => break,
                        More::Never => {
                            is_over = true;
                            break;
                        }
                    },
                },
            };
            match reader.next_line()? {
                Some(line) => {
                    lines.append_value(String::from_utf8_lossy(line));
                    rows += 1;
                }
                None => self.reading = None,
            }
        }
        self.splits.ask_ahead(self.left());
        if rows == 0 {
            return Ok(match is_over {
                true => SourceState::End,
                false => SourceState::Pending,
            });
        }
        let column: ArrayRef = Arc::new(lines.finish());
        Ok(SourceState::Batch(RecordBatch::try_new(
            Arc::clone(&self.output),
            vec![column],
        )?))
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.splits.poll_ready(cx)
    }
}

/// Reads the lines that start in a range of a file.
struct LineReader {
    path: PathBuf,
    reader: BufReader<File>,
    position: u64,
    end: u64,
    /// See [`FileRange::size`].
    size: u64,
    line: Vec<u8>,
}

impl LineReader {
    fn open(range: FileRange, look: Look) -> Result<LineReader, OperatorError> {
        let FileRange {
            path,
            start,
            end,
            size,
        } = range;
        let fail = |error| unreadable(&path, error, look);
        let mut file = File::open(&path).map_err(fail)?;
        // A line starts here if the byte before is a line break; else the rest of the line belongs to the range
        // before.
        let position = start.saturating_sub(1);
        file.seek(SeekFrom::Start(position)).map_err(fail)?;
        let reader = BufReader::with_capacity(BUFFER, file);
        let mut lines = LineReader {
            path,
            reader,
            position,
            end,
            size,
            line: Vec::new(),
        };
        if start > 0 {
            lines.read_line()?;
        }
        Ok(lines)
    }

    /// Bytes of the range that are not read yet.
    fn left(&self) -> u64 {
        self.end.saturating_sub(self.position)
    }

    /// The part of the range that is not read yet, from the start of a line; `None` if all is read.
    fn rest(&self) -> Option<FileRange> {
        (self.left() > 0).then(|| FileRange {
            path: self.path.clone(),
            start: self.position,
            end: self.end,
            size: self.size,
        })
    }

    /// Reads to the end of the line. Returns false at the end of the file.
    fn read_line(&mut self) -> Result<bool, OperatorError> {
        self.line.clear();
        let available = self.size.saturating_sub(self.position);
        // A line break of two bytes does not count as part of the line.
        let mut limited = self.reader.by_ref().take(available.min(LONGEST_LINE + 2));
        let read = limited.read_until(b'\n', &mut self.line);
        let read = read.map_err(|error| OperatorError::io("read", &self.path, error))? as u64;
        if without_line_break(&self.line).len() as u64 > LONGEST_LINE {
            return Err(OperatorError::Record {
                message: format!(
                    "{:?} has a line of more than {LONGEST_LINE} bytes at byte {}",
                    self.path, self.position
                ),
                record: tanist_dataflow::record::shorten(&String::from_utf8_lossy(
                    &self.line[..1024],
                )),
            });
        }
        self.position += read;
        if self.position < self.size && !self.line.ends_with(b"\n") {
            let size = self.size;
            let shorter = io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!(
                    "it had {size} bytes when the job looked at its files, and ends before that"
                ),
            );
            return Err(OperatorError::io("read", &self.path, shorter));
        }
        Ok(read > 0)
    }

    fn next_line(&mut self) -> Result<Option<&[u8]>, OperatorError> {
        if self.position >= self.end || !self.read_line()? {
            return Ok(None);
        }
        Ok(Some(without_line_break(&self.line)))
    }
}

fn without_line_break(line: &[u8]) -> &[u8] {
    match line.strip_suffix(b"\n") {
        Some(line) => line.strip_suffix(b"\r").unwrap_or(line),
        None => line,
    }
}

#[cfg(test)]
#[path = "file_source_tests.rs"]
mod tests;
