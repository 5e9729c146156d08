//! Writes log lines to a sink that may block, from a thread of its own: logging never waits for the reader.
//!
//! `tanist jobmanager 2>&1 | less` is enough to fill a pipe. A thread that wrote to it directly would block, the one
//! that keeps the lease as well. Lines wait in memory up to a limit. Lines beyond it are dropped and counted, and the
//! count is written in their place once lines are read again. Not here: formats and filters.
//!
//! `tracing-appender` does not replace it: its queue is bounded by lines and not by bytes, it writes no count of
//! dropped lines, it can drop the last line of a process, and its only flush is the drop of a guard, which calls
//! `println!` where the queue stays full.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use super::backlog::Backlog;

/// Memory of a line besides its text.
const OVERHEAD: usize = 64;

/// Formats the line about dropped lines.
pub(super) type Report = fn(u64) -> String;

/// See the module. Each call of `write` is a line; it never waits and never fails. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct LogWriter {
    backlog: Arc<Backlog<LogQueue>>,
}

#[derive(Debug, Default)]
struct LogQueue {
    lines: VecDeque<Vec<u8>>,
    /// Size of the waiting lines, and its limit, in bytes.
    size: usize,
    capacity: usize,
    /// Dropped lines that are not reported yet; and all dropped lines.
    unreported: u64,
    dropped: u64,
    /// The thread has taken lines and not written all of them yet: a flush has to wait for these, too.
    writing: bool,
}

impl LogQueue {
    fn has_work(&self) -> bool {
        !self.lines.is_empty() || self.unreported > 0
    }
}

/// The lines that the thread has taken.
struct Taken {
    lines: VecDeque<Vec<u8>>,
    /// Number of lines that were dropped while these waited.
    unreported: u64,
}

impl LogWriter {
    /// Starts the thread. At most `capacity` bytes wait.
    pub(super) fn start(
        sink: impl Write + Send + 'static,
        capacity: usize,
        report: Report,
    ) -> io::Result<LogWriter> {
        let state = LogQueue {
            capacity,
            ..LogQueue::default()
        };
        let backlog = Backlog::start("log", state, move |backlog| {
            write_all(backlog, sink, report)
        })?;
        Ok(LogWriter { backlog })
    }

    /// Number of dropped lines.
    pub(super) fn dropped(&self) -> u64 {
        self.backlog.lock().dropped
    }

    /// No line is dropped after this: only a few follow, and the last one says why the process ends.
    pub(super) fn make_room(&self) {
        self.backlog.lock().capacity = usize::MAX;
    }

    /// Waits until all lines are written, for at most `bound`. Returns whether they are.
    pub(super) fn flush(&self, bound: Duration) -> bool {
        let is_done = |state: &LogQueue| !(state.writing || state.has_work());
        self.backlog.wait_until(bound, is_done)
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.backlog.lock();
        let size = line.len() + OVERHEAD;
        if state.size.saturating_add(size) > state.capacity {
            state.unreported += 1;
            state.dropped += 1;
        } else {
            state.size += size;
            state.lines.push_back(line.to_vec());
        }
        drop(state);
        self.backlog.changed();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The thread; it ends with the process.
fn write_all(backlog: &Backlog<LogQueue>, mut sink: impl Write, report: Report) {
    loop {
        let taken = backlog.take(|state| {
            if !state.has_work() {
                return None;
            }
            state.size = 0;
            state.writing = true;
            Some(Taken {
                lines: std::mem::take(&mut state.lines),
                unreported: std::mem::take(&mut state.unreported),
            })
        });
        // A failure to write the log can't be reported anywhere.
        for line in &taken.lines {
            let _ = sink.write_all(line);
        }
        if taken.unreported > 0 {
            let _ = sink.write_all(report(taken.unreported).as_bytes());
        }
        let _ = sink.flush();
        backlog.lock().writing = false;
        backlog.changed();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    const BOUND: Duration = Duration::from_secs(30);

    fn report(dropped: u64) -> String {
        format!("{dropped} dropped\n")
    }

    /// Takes a line only when the test allows it.
    struct Reader {
        let_through: Receiver<()>,
        read: SyncSender<String>,
    }

    impl Write for Reader {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.let_through.recv();
            let _ = self.read.send(String::from_utf8_lossy(line).into_owned());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn hanging(capacity: usize) -> (LogWriter, SyncSender<()>, Receiver<String>) {
        let (let_out, let_through) = sync_channel(0);
        let (read, lines) = sync_channel(10_000);
        let reader = Reader { let_through, read };
        let writer = LogWriter::start(reader, capacity, report).expect("a thread");
        (writer, let_out, lines)
    }

    fn log(writer: &LogWriter, line: &str) {
        let mut writer = writer.clone();
        writer.write_all(line.as_bytes()).expect("it never fails");
    }

    #[test]
    fn lines_come_in_order_and_a_flush_waits_for_them() {
        let (writer, let_out, lines) = hanging(1 << 20);
        drop(let_out);
        for line in 0..100 {
            log(&writer, &format!("{line}\n"));
        }
        assert!(writer.flush(BOUND));
        let lines: Vec<String> = lines.try_iter().collect();
        let expected: Vec<String> = (0..100).map(|line| format!("{line}\n")).collect();
        assert_eq!(lines, expected);
        assert_eq!(writer.dropped(), 0);
    }

    #[test]
    fn nobody_waits_for_a_reader_that_hangs_and_what_was_dropped_is_told() {
        let (writer, let_out, lines) = hanging(10 * (OVERHEAD + 5));
        for _ in 0..1000 {
            log(&writer, "line\n");
        }
        assert!(!writer.flush(Duration::from_millis(1)));
        let dropped = writer.dropped();
        assert!(dropped >= 1000 - 2 * 10, "{dropped}");
        // The last lines fit, even if the queue is full.
        writer.make_room();
        log(&writer, "last words\n");
        drop(let_out);
        assert!(writer.flush(BOUND));
        let lines: Vec<String> = lines.try_iter().collect();
        assert!(lines.contains(&"last words\n".to_owned()), "{lines:?}");
        let told = lines
            .iter()
            .filter_map(|line| line.strip_suffix(" dropped\n")?.parse::<u64>().ok());
        assert_eq!(told.sum::<u64>(), dropped);
    }
}
