//! Writes what tasks print to the process's standard output, in a thread of its own: if no process reads
//! standard output, neither the runtime's threads nor other tasks wait.
//!
//! The pieces of one task are written in order, each without interruption. A task checks how many of its bytes
//! are unwritten and stops at its own limit. When it is dropped, its unwritten pieces are discarded.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use parking_lot::Mutex;
use tanist_telemetry::backlog::Backlog;

/// A thread and its queue. Cheap to clone.
#[derive(Clone)]
pub(super) struct Printer {
    backlog: Arc<Backlog<VecDeque<Piece>>>,
}

struct Piece {
    lines: Bytes,
    of: Arc<Mutex<Progress>>,
}

/// How much of a task's output is written.
#[derive(Default)]
struct Progress {
    /// The pieces that are not written, in order, and their bytes together.
    pieces: VecDeque<Bytes>,
    unwritten: usize,
    failed: Option<io::Error>,
    waker: Option<Waker>,
}

impl Printer {
    /// The process's own printer, started on first use.
    pub(super) fn stdout() -> io::Result<Printer> {
        static STDOUT: Mutex<Option<Printer>> = Mutex::new(None);
        let mut stdout = STDOUT.lock();
        match &*stdout {
            Some(printer) => Ok(printer.clone()),
            None => Ok(stdout.insert(Printer::start(io::stdout())?).clone()),
        }
    }

    pub(super) fn start(sink: impl Write + Send + 'static) -> io::Result<Printer> {
        let work = move |backlog: &Backlog<_>| write_all(backlog, sink);
        let backlog = Backlog::start("print", VecDeque::new(), work)?;
        Ok(Printer { backlog })
    }

    /// Creates a handle for one task.
    pub(super) fn printing(&self) -> Printing {
        Printing {
            printer: self.clone(),
            progress: Arc::default(),
        }
    }
}

/// The body of the thread; it ends with the process.
fn write_all(backlog: &Backlog<VecDeque<Piece>>, mut sink: impl Write) {
    loop {
        let Piece { lines, of } = backlog.take(VecDeque::pop_front);
        let written = sink.write_all(&lines).and_then(|()| sink.flush());
        let mut progress = of.lock();
        progress.pieces.pop_front();
        progress.unwritten -= lines.len();
        if let Err(error) = written {
            progress.failed.get_or_insert(error);
        }
        if let Some(waker) = progress.waker.take() {
            waker.wake();
        }
    }
}

/// The output of one task.
pub(super) struct Printing {
    printer: Printer,
    progress: Arc<Mutex<Progress>>,
}

impl Printing {
    /// Queues lines to be written; never waits.
    pub(super) fn print(&self, lines: Vec<u8>) {
        let lines = Bytes::from(lines);
        {
            let mut progress = self.progress.lock();
            progress.unwritten += lines.len();
            progress.pieces.push_back(lines.clone());
        }
        let of = self.progress.clone();
        let backlog = &self.printer.backlog;
        backlog.lock().push_back(Piece { lines, of });
        backlog.changed();
    }

    /// Returns the lines that are not written yet, or not known to be.
    pub(super) fn unwritten(&self) -> Vec<u8> {
        let progress = self.progress.lock();
        progress.pieces.iter().flatten().copied().collect()
    }

    /// Returns the number of unwritten bytes; the task is woken when it decreases. An error is returned once.
    pub(super) fn poll_unwritten(&self, cx: &mut Context<'_>) -> io::Result<usize> {
        let mut progress = self.progress.lock();
        if let Some(error) = progress.failed.take() {
            return Err(error);
        }
        progress.waker = (progress.unwritten > 0).then(|| cx.waker().clone());
        Ok(progress.unwritten)
    }

    /// Whether everything is written and no error is pending.
    pub(super) fn is_done(&self) -> bool {
        let progress = self.progress.lock();
        progress.unwritten == 0 && progress.failed.is_none()
    }
}

impl Drop for Printing {
    fn drop(&mut self) {
        let mut pieces = self.printer.backlog.lock();
        pieces.retain(|piece| !Arc::ptr_eq(&piece.of, &self.progress));
    }
}

#[cfg(test)]
pub(super) mod testing {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// Accepts a piece only when the test allows it.
    struct Reader {
        let_through: Receiver<()>,
        read: SyncSender<String>,
    }

    impl Write for Reader {
        fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
            let _ = self.let_through.recv();
            let _ = self.read.send(String::from_utf8_lossy(lines).into_owned());
            Ok(lines.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Reads one piece per message on the sender, and everything once the sender is dropped.
    pub(crate) fn hanging() -> (Printer, SyncSender<()>, Receiver<String>) {
        let (let_out, let_through) = sync_channel(0);
        let (read, lines) = sync_channel(10_000);
        let reader = Reader { let_through, read };
        (Printer::start(reader).expect("a thread"), let_out, lines)
    }

    /// A standard output that was closed.
    pub(crate) struct Closed;

    impl Write for Closed {
        fn write(&mut self, _lines: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
