//! Writes log lines to a sink that may hang, from a thread of its own: nobody who logs ever waits for who reads.
//!
//! `tanist jobmanager 2>&1 | less` is enough to fill a pipe: whoever wrote to it directly would stand still, the thread that keeps
//! the lease as well. Lines wait in memory up to a bound; what does not fit is dropped and counted, and the count is
//! written in its place once lines are read again. Not here: formats and filters.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a line takes beside its text.
const OVERHEAD: usize = 64;

/// How a line about dropped lines looks.
pub(super) type Report = fn(u64) -> String;

/// See the module. Each call of `write` is a line; it never waits and never fails. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct LogWriter {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    /// What they take, and how much they may take.
    size: usize,
    capacity: usize,
    /// Dropped, and not told of yet; and all.
    untold: u64,
    dropped: u64,
    /// The thread has taken lines and not written them all yet.
    writing: bool,
}

impl State {
    fn has_work(&self) -> bool {
        !self.lines.is_empty() || self.untold > 0
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogWriter {
    /// Starts the thread. At most `capacity` bytes wait.
    pub(super) fn start(
        sink: impl Write + Send + 'static,
        capacity: usize,
        report: Report,
    ) -> io::Result<LogWriter> {
        let shared = Arc::new(Shared::default());
        shared.state().capacity = capacity;
        let thread = std::thread::Builder::new().name("log".to_owned());
        let of_thread = shared.clone();
        thread.spawn(move || write_all(&of_thread, sink, report))?;
        Ok(LogWriter { shared })
    }

    /// How many lines were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.shared.state().dropped
    }

    /// From now on no line is dropped: few follow, and the last says why the process ends.
    pub(super) fn make_room(&self) {
        self.shared.state().capacity = usize::MAX;
    }

    /// Waits until all lines are written, for at most `bound`. Whether they are.
    pub(super) fn flush(&self, bound: Duration) -> bool {
        let state = self.shared.state();
        let waited = self
            .shared
            .changed
            .wait_timeout_while(state, bound, |state| state.writing || state.has_work());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !(state.writing || state.has_work())
    }
}

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.shared.state();
        let size = line.len() + OVERHEAD;
        if state.size.saturating_add(size) > state.capacity {
            state.untold += 1;
            state.dropped += 1;
        } else {
            state.size += size;
            state.lines.push_back(line.to_vec());
        }
        self.shared.changed.notify_all();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The thread: ends with the process.
fn write_all(shared: &Shared, mut sink: impl Write, report: Report) {
    loop {
        let state = shared.state();
        let waited = shared.changed.wait_while(state, |state| !state.has_work());
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let lines = std::mem::take(&mut state.lines);
        // They were dropped when these were waiting.
        let untold = std::mem::take(&mut state.untold);
        state.size = 0;
        state.writing = true;
        drop(state);
        // Where nobody can be told anything, there is nobody to tell that.
        for line in &lines {
            let _ = sink.write_all(line);
        }
        if untold > 0 {
            let _ = sink.write_all(report(untold).as_bytes());
        }
        let _ = sink.flush();
        shared.state().writing = false;
        shared.changed.notify_all();
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

    /// Takes lines only while it is let.
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
        // The last words find room whatever waits before them.
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
