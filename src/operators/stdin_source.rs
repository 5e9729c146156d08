//! Reads this process's standard input line by line.
//!
//! All tasks of a process share one standard input: what a failed task had not taken is still there for its
//! next attempt. A separate thread reads, since a read from a terminal can't be cancelled; it reads at most a
//! few pieces ahead of the task.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use parking_lot::Mutex;
use tanist_dataflow::{Built, OperatorContext, OperatorError, Source, SourceState, Stopped};
use tanist_model::operators;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, Receiver, error::TryRecvError};
use tokio::time::Instant;

use super::factory::{Runtime, Setup, source};
use super::host::TaskHost;
use super::lines::{LineBatch, LineBuffer};

const CHUNK: usize = 64 * 1024;
/// Pieces that may wait for the task.
const PIECES: usize = 16;

static STANDARD_INPUT: Slot = Slot(Mutex::new(StandardInput::Unread));

/// Holds an input while no task reads it.
struct Slot(Mutex<StandardInput>);

enum StandardInput {
    /// No task has opened it yet.
    Unread,
    Free(Inlet),
    Taken,
}

/// The end of an input that a task reads.
struct Inlet {
    pieces: Receiver<io::Result<Vec<u8>>>,
    more: Arc<Notify>,
    buffer: LineBuffer,
    /// Why reading failed. Later readers get the same error: otherwise they would take it for the end of the
    /// input.
    failed: Option<(io::ErrorKind, String)>,
}

impl Inlet {
    /// Starts to read.
    fn start(mut reader: impl Read + Send + 'static) -> io::Result<Inlet> {
        let (sender, pieces) = mpsc::channel(PIECES);
        let more = Arc::new(Notify::new());
        let wake = Arc::clone(&more);
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
                    wake.notify_one();
                }
                drop(sender);
                wake.notify_one();
            })?;
        Ok(Inlet {
            pieces,
            more,
            buffer: LineBuffer::default(),
            failed: None,
        })
    }

    /// The error that ended reading before the end of the input.
    fn failure(&self) -> Option<OperatorError> {
        let (kind, text) = self.failed.as_ref()?;
        let error = io::Error::new(*kind, text.clone());
        Some(OperatorError::io("read", "standard input", error))
    }
}

pub(super) struct StdinSource {
    slot: &'static Slot,
    inlet: Option<Inlet>,
    /// It ends with what has been read by now.
    is_stopped: bool,
    is_of_a_command: bool,
    output: SchemaRef,
}

impl StdinSource {
    pub(super) fn new(context: &OperatorContext, host: &TaskHost) -> StdinSource {
        StdinSource {
            slot: &STANDARD_INPUT,
            inlet: None,
            is_stopped: false,
            is_of_a_command: host.is_of_a_command,
            output: context.output_schema(),
        }
    }
}

impl Runtime for operators::StdinSource {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        source(StdinSource::new(setup.context, setup.host))
    }
}

/// Whether standard input is not the null device, as it is for background processes.
fn has_input() -> bool {
    let Ok(input) = rustix::fs::fstat(io::stdin()) else {
        return false;
    };
    let null = std::fs::metadata("/dev/null").map(|null| null.rdev());
    !null.is_ok_and(|null| input.st_rdev == null)
}

/// Returns why an input is refused. The null device is accepted as an empty input if a command started this
/// process for its job.
fn refusal(has_input: bool, is_of_a_command: bool) -> Option<OperatorError> {
    let is_refused = !has_input && !is_of_a_command;
    is_refused.then(|| {
        OperatorError::specification(
            "the standard input of this TaskManager is the null device: `tanist local` gives a job the input of its own command",
        )
    })
}

impl Source for StdinSource {
    fn open(&mut self) -> Result<(), OperatorError> {
        let mut state = self.slot.0.lock();
        self.inlet = Some(match std::mem::replace(&mut *state, StandardInput::Taken) {
            StandardInput::Free(inlet) => inlet,
            StandardInput::Taken => {
                return Err(OperatorError::unavailable(
                    "another task of this TaskManager reads its standard input",
                ));
            }
            StandardInput::Unread => {
                let started = match refusal(has_input(), self.is_of_a_command) {
                    None => Inlet::start(io::stdin())
                        .map_err(|error| OperatorError::io("read", "standard input", error)),
                    Some(refusal) => Err(refusal),
                };
                match started {
                    Ok(inlet) => inlet,
                    Err(error) => {
                        *state = StandardInput::Unread;
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
                Ok(Err(error)) => inlet.failed = Some((error.kind(), error.to_string())),
                Err(_) if inlet.failed.is_some() => break,
                Err(TryRecvError::Empty) => {
                    ended = self.is_stopped;
                    break;
                }
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
        if let Some(failure) = inlet.failure() {
            return Err(failure);
        }
        Ok(match ended {
            true => SourceState::End,
            false => SourceState::WaitFor(Arc::clone(&inlet.more)),
        })
    }

    /// Later input is not read.
    fn stop(&mut self) -> Stopped {
        self.is_stopped = true;
        Stopped::Soon
    }
}

impl Drop for StdinSource {
    fn drop(&mut self) {
        if let Some(inlet) = self.inlet.take() {
            let mut state = self.slot.0.lock();
            *state = StandardInput::Free(inlet);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use arrow_array::cast::AsArray;

    use super::*;
    use crate::testing::context;

    /// Returns one piece at a time.
    struct Pieces(VecDeque<&'static str>);

    impl Read for Pieces {
        fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
            let piece = self.0.pop_front().unwrap_or_default().as_bytes();
            chunk[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    fn slot(pieces: &[&'static str]) -> &'static Slot {
        slot_of(Pieces(pieces.iter().copied().collect()))
    }

    fn slot_of(reader: impl Read + Send + 'static) -> &'static Slot {
        let inlet = Inlet::start(reader).expect("a thread");
        Box::leak(Box::new(Slot(Mutex::new(StandardInput::Free(inlet)))))
    }

    fn source(slot: &'static Slot) -> StdinSource {
        let spec = operators::StdinSource {}.into();
        let output = crate::schema::output_schema(&spec, None).expect("a source");
        let context = OperatorContext {
            output,
            ..context(0, 1)
        };
        let mut source = StdinSource::new(&context, &crate::testing::host());
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
        let refused = refusal(false, false).expect("no command passed it to the job");
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

    /// Fails to read after its first line.
    struct Broken(bool);

    impl Read for Broken {
        fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.0, true) {
                return Err(io::Error::from_raw_os_error(5));
            }
            chunk[..4].copy_from_slice(b"a\nha");
            Ok(4)
        }
    }

    #[tokio::test]
    async fn an_input_that_could_not_be_read_to_its_end_fails_each_later_attempt_too() {
        let slot = slot_of(Broken(false));
        let mut lines = Vec::new();
        for _ in 0..2 {
            let mut source = source(slot);
            source.open().expect("free");
            let failed = loop {
                match source.next(Instant::now()) {
                    Ok(SourceState::Batch(batch)) => {
                        let batch = batch.column(0).as_string::<i32>();
                        lines.extend(batch.iter().flatten().map(str::to_owned));
                    }
                    Ok(SourceState::WaitFor(more)) => more.notified().await,
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => break error.to_string(),
                }
            };
            let expected = "can't read \"standard input\": ";
            assert!(failed.starts_with(expected), "{failed}");
            assert!(failed.contains("os error 5"), "{failed}");
        }
        assert_eq!(lines, ["a"]);
    }

    #[tokio::test]
    async fn a_source_that_is_stopped_ends_with_the_lines_that_were_read() {
        /// Returns lines once, and then waits for the end.
        struct Endless(Option<String>, std::sync::mpsc::Receiver<()>);

        impl Read for Endless {
            fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
                let Some(text) = self.0.take() else {
                    return Ok(self.1.recv().map_or(0, |()| 0));
                };
                chunk[..text.len()].copy_from_slice(text.as_bytes());
                Ok(text.len())
            }
        }

        let text: String = (0..5_000).map(|number| format!("{number}\n")).collect();
        let (_ended, end) = std::sync::mpsc::sync_channel(1);
        let mut source = source(slot_of(Endless(Some(text + "half"), end)));
        source.open().expect("free");
        let mut lines = next(&mut source).await.expect("lines");
        assert_eq!(source.stop(), Stopped::Soon);
        while let Some(batch) = next(&mut source).await {
            lines.extend(batch);
        }
        let numbers: Vec<String> = (0..5_000).map(|number| number.to_string()).collect();
        assert_eq!(lines, numbers);
    }
}
