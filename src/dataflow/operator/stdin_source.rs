//! Reads this process's standard input line by line.
//!
//! There is one standard input for all tasks of a process, ever: what a task that failed had not taken is still there for its
//! next attempt. A thread of its own reads, since nobody can stop a read from a terminal; it reads no further than a few pieces
//! ahead of the task.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_schema::SchemaRef;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, Receiver, error::TryRecvError};
use tokio::time::Instant;

use super::lines::{LineBatch, LineBuffer};
use super::{OperatorContext, OperatorError, Source, SourceState};

const CHUNK: usize = 64 * 1024;
/// Pieces that wait for the task.
const PIECES: usize = 16;

static STANDARD_INPUT: Slot = Slot(Mutex::new(State::Unread));

/// Where an input is while no task reads it.
struct Slot(Mutex<State>);

enum State {
    /// Nobody has asked for it so far.
    Unread,
    Free(Inlet),
    Taken,
}

/// The end of an input that a task reads.
struct Inlet {
    pieces: Receiver<io::Result<Vec<u8>>>,
    more: Arc<Notify>,
    buffer: LineBuffer,
}

impl Inlet {
    /// Begins to read.
    fn start(mut reader: impl Read + Send + 'static) -> io::Result<Inlet> {
        let (sender, pieces) = mpsc::channel(PIECES);
        let more = Arc::new(Notify::new());
        let told = Arc::clone(&more);
        std::thread::Builder::new()
            .name("stdin".to_owned())
            .spawn(move || {
                let mut chunk = vec![0; CHUNK];
                loop {
                    let piece = match reader.read(&mut chunk) {
                        Ok(0) => break,
                        Ok(read) => Ok(chunk[..read].to_vec()),
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                        Err(error) => Err(error),
                    };
                    let failed = piece.is_err();
                    if sender.blocking_send(piece).is_err() || failed {
                        break;
                    }
                    told.notify_one();
                }
                drop(sender);
                told.notify_one();
            })?;
        Ok(Inlet {
            pieces,
            more,
            buffer: LineBuffer::default(),
        })
    }
}

pub(super) struct StdinSource {
    slot: &'static Slot,
    inlet: Option<Inlet>,
    is_of_a_command: bool,
    output: SchemaRef,
}

impl StdinSource {
    pub(super) fn new(context: &OperatorContext) -> StdinSource {
        StdinSource {
            slot: &STANDARD_INPUT,
            inlet: None,
            is_of_a_command: context.host.is_of_a_command,
            output: context.output_schema(),
        }
    }
}

/// Whether somebody is at the other end: what runs in the background has the null device there.
fn is_there() -> bool {
    let Ok(input) = rustix::fs::fstat(io::stdin()) else {
        return false;
    };
    let null = std::fs::metadata("/dev/null").map(|null| null.rdev());
    !null.is_ok_and(|null| input.st_rdev == null)
}

/// Why an input is not read. The null device is an empty input where whoever runs the job gave it to the job's own process.
fn refusal(is_there: bool, is_of_a_command: bool) -> Option<OperatorError> {
    let is_refused = !is_there && !is_of_a_command;
    is_refused.then(|| {
        OperatorError::specification(
            "the standard input of this TaskManager is the null device: `tanist local` gives a job the input of its own command",
        )
    })
}

impl Source for StdinSource {
    fn open(&mut self) -> Result<(), OperatorError> {
        let mut state = self.slot.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.inlet = Some(match std::mem::replace(&mut *state, State::Taken) {
            State::Free(inlet) => inlet,
            State::Taken => {
                return Err(OperatorError::unavailable(
                    "another task of this TaskManager reads its standard input",
                ));
            }
            State::Unread => {
                let started = match refusal(is_there(), self.is_of_a_command) {
                    None => Inlet::start(io::stdin())
                        .map_err(|error| OperatorError::io("read", "standard input", error)),
                    Some(refusal) => Err(refusal),
                };
                match started {
                    Ok(inlet) => inlet,
                    Err(error) => {
                        *state = State::Unread;
                        return Err(error);
                    }
                }
            }
        });
        Ok(())
    }

    fn next(&mut self, _now: Instant) -> Result<SourceState, OperatorError> {
        let Some(inlet) = &mut self.inlet else {
            return Ok(SourceState::End);
        };
        let mut lines = LineBatch::new();
        let mut ended = false;
        while !ended {
            lines.take_from(&mut inlet.buffer)?;
            if lines.is_full() {
                break;
            }
            match inlet.pieces.try_recv() {
                Ok(Ok(piece)) => inlet.buffer.push(&piece),
                Ok(Err(error)) => {
                    return Err(OperatorError::io("read", "standard input", error));
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    if let Some(rest) = inlet.buffer.take_rest() {
                        lines.push(&rest);
                    }
                    ended = true;
                }
            }
        }
        if !lines.is_empty() {
            return Ok(SourceState::Batch(lines.finish(&self.output)?));
        }
        Ok(match ended {
            true => SourceState::End,
            false => SourceState::WaitFor(Arc::clone(&inlet.more)),
        })
    }
}

impl Drop for StdinSource {
    fn drop(&mut self) {
        if let Some(inlet) = self.inlet.take() {
            let mut state = self.slot.0.lock().unwrap_or_else(PoisonError::into_inner);
            *state = State::Free(inlet);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use arrow_array::cast::AsArray;

    use super::super::testing::context;
    use super::*;

    /// Gives one piece at a time.
    struct Pieces(VecDeque<&'static str>);

    impl Read for Pieces {
        fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
            let piece = self.0.pop_front().unwrap_or_default().as_bytes();
            chunk[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    fn slot(pieces: &[&'static str]) -> &'static Slot {
        let inlet = Inlet::start(Pieces(pieces.iter().copied().collect())).expect("a thread");
        Box::leak(Box::new(Slot(Mutex::new(State::Free(inlet)))))
    }

    fn source(slot: &'static Slot) -> StdinSource {
        let spec = crate::job::OperatorSpec::StdinSource {};
        let output = super::super::output_schema(&spec, None).expect("a source");
        let context = OperatorContext {
            output,
            ..context(0, 1)
        };
        let mut source = StdinSource::new(&context);
        source.slot = slot;
        source
    }

    async fn next(source: &mut StdinSource) -> Option<Vec<String>> {
        loop {
            match source.next(Instant::now()).expect("read") {
                SourceState::Batch(batch) => {
                    let lines = batch.column(0).as_string::<i32>();
                    return Some(lines.iter().flatten().map(str::to_owned).collect());
                }
                SourceState::WaitFor(more) => more.notified().await,
                SourceState::Wait(_) | SourceState::Pending => {
                    panic!("waits for input, not for a moment")
                }
                SourceState::End => return None,
            }
        }
    }

    #[tokio::test]
    async fn lines_are_read_to_the_end_with_or_without_a_last_line_break() {
        let mut source = source(slot(&["a\nb", "c\r\n", "\nd"]));
        source.open().expect("free");
        let mut lines = Vec::new();
        while let Some(batch) = next(&mut source).await {
            lines.extend(batch);
        }
        assert_eq!(lines, ["a", "bc", "", "d"]);
    }

    #[test]
    fn the_null_device_is_an_empty_input_only_where_a_command_runs_its_own_job() {
        assert!(refusal(false, true).is_none());
        assert!(refusal(true, false).is_none());
        let refused = refusal(false, false).expect("nobody gave it to the job");
        assert!(refused.is_unrecoverable(), "{refused}");
    }

    #[tokio::test]
    async fn there_is_one_reader_and_the_next_one_goes_on_where_it_stopped() {
        let slot = slot(&["a\nhalf", " line\nb\n"]);
        let mut first = source(slot);
        first.open().expect("free");
        let mut second = source(slot);
        assert!(second.open().is_err(), "it is taken");
        let taken = next(&mut first).await.expect("a line");
        drop(first);
        second.open().expect("free again");
        let mut lines = taken;
        while let Some(batch) = next(&mut second).await {
            lines.extend(batch);
        }
        assert_eq!(lines, ["a", "half line", "b"]);
    }
}
