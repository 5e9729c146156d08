//! Sinks that keep nothing: one writes each record as a line to standard output, one drops it.
//!
//! Lines that standard output has not taken when a snapshot is taken are part of it: they are written again after a
//! restore.

use std::io;
use std::task::Context;

use arrow_array::RecordBatch;
use tanist_dataflow::{
    Built, EndOfInput, External, ExternalStatus, Operator, OperatorError, Output, Restored,
    Snapshot, record,
};
use tanist_model::operators;
use tanist_proto::v1::RepeatedLines;

use super::factory::{Runtime, Setup, operator};
use super::printer::{Printer, Printing};

/// Bytes of a task that may wait for the reader of standard output; one more batch may exceed them.
const MOST_WAITING: usize = 256 * 1024;

/// Name and signature of its saved state.
const UNWRITTEN: &str = "unwritten-lines";
const SIGNATURE: &str = "print";

pub(super) struct Print {
    prefix: String,
    /// Restored lines that were not written when the snapshot was taken.
    again: Vec<u8>,
    /// `None` before it is open.
    printing: Option<Printing>,
    has_ended: bool,
}

impl Print {
    /// Prints to the process's standard output.
    pub(super) fn new(prefix: &str) -> Print {
        Print {
            prefix: prefix.to_owned(),
            again: Vec::new(),
            printing: None,
            has_ended: false,
        }
    }

    fn print_to(&mut self, printing: Printing) {
        if !self.again.is_empty() {
            printing.print(std::mem::take(&mut self.again));
        }
        self.printing = Some(printing);
    }
}

impl Runtime for operators::Print {
    fn build(&self, _setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(Print::new(&self.prefix))
    }
}

/// Closed standard output stays closed: a restart can't fix it.
fn unwritten(error: io::Error) -> OperatorError {
    if error.kind() == io::ErrorKind::BrokenPipe {
        let text = format!("the standard output of this process was closed: {error}");
        return OperatorError::Unrecoverable(text.into());
    }
    OperatorError::io("write to", "standard output", error)
}

impl Operator for Print {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        let states: Vec<RepeatedLines> = restored.messages(UNWRITTEN, SIGNATURE)?;
        self.again = states.into_iter().flat_map(|state| state.lines).collect();
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        let lines = self.printing.as_ref().map(Printing::unwritten);
        let state = RepeatedLines {
            lines: lines.unwrap_or_default(),
        };
        snapshot.save_message(UNWRITTEN, SIGNATURE, &state);
        Ok(())
    }

    fn open(&mut self) -> Result<(), OperatorError> {
        let printing = Printer::stdout().map_err(unwritten)?.printing();
        self.print_to(printing);
        Ok(())
    }

    fn process(&mut self, batch: RecordBatch, _output: &mut Output) -> Result<(), OperatorError> {
        let mut lines = Vec::new();
        record::write_lines(&batch, &self.prefix, &mut lines);
        if let Some(printing) = &self.printing {
            // One piece per batch, so that the lines of several tasks don't mix.
            printing.print(lines);
        }
        Ok(())
    }

    fn end_input(&mut self, _output: &mut Output) -> Result<EndOfInput, OperatorError> {
        self.has_ended = true;
        let is_done = self.printing.as_ref().is_none_or(Printing::is_done);
        Ok(if is_done {
            EndOfInput::Done
        } else {
            EndOfInput::More
        })
    }

    fn external(&mut self) -> Option<&mut dyn External> {
        Some(self)
    }
}

impl External for Print {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        _may_emit: bool,
        _output: &mut Output,
    ) -> Result<ExternalStatus, OperatorError> {
        let waiting = match &self.printing {
            Some(printing) => printing.poll_unwritten(cx).map_err(unwritten)?,
            None => 0,
        };
        Ok(match waiting {
            0 if self.has_ended => ExternalStatus::Done,
            MOST_WAITING.. => ExternalStatus::Full,
            _ => ExternalStatus::Room,
        })
    }
}

/// The task counts the records; its metrics show them.
#[derive(Default)]
pub(super) struct Discard {}

impl Runtime for operators::Discard {
    fn build(&self, _setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(Discard::default())
    }
}

impl Operator for Discard {
    fn process(&mut self, _batch: RecordBatch, _output: &mut Output) -> Result<(), OperatorError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;
    use std::time::Duration;

    use futures::FutureExt as _;
    use tanist_proto::v1::SubtaskSnapshot;

    use super::*;
    use crate::printer::testing::{Closed, hanging};
    use crate::testing::{batch, ints, texts};

    const BOUND: Duration = Duration::from_secs(30);

    fn print_to(printer: &Printer, prefix: &str) -> Print {
        Print {
            printing: Some(printer.printing()),
            ..Print::new(prefix)
        }
    }

    fn process(print: &mut Print, batch: RecordBatch) {
        let mut output = Output::default();
        print.process(batch, &mut output).expect("it never waits");
        assert!(output.into_batches().is_empty());
    }

    /// Waits until the sink has this status.
    async fn until(print: &mut Print, wanted: ExternalStatus) {
        let polled = poll_fn(|cx| match print.poll(cx, true, &mut Output::default()) {
            Ok(status) if status == wanted => Poll::Ready(()),
            Ok(_) => Poll::Pending,
            Err(error) => panic!("it failed: {error}"),
        });
        let reached = tokio::time::timeout(BOUND, polled).await;
        reached.unwrap_or_else(|_| panic!("it is not {wanted:?}"));
    }

    fn is_now(print: &mut Print, wanted: ExternalStatus) -> bool {
        until(print, wanted).now_or_never().is_some()
    }

    fn end(print: &mut Print) -> EndOfInput {
        let ended = print.end_input(&mut Output::default());
        ended.expect("the input's end is taken")
    }

    #[tokio::test]
    async fn each_record_is_printed_as_a_line_with_the_prefix() {
        let (printer, let_out, lines) = hanging();
        drop(let_out);
        let mut print = print_to(&printer, "> ");
        process(&mut print, texts("word", &["a", "b"]));
        let pair = batch([("n", ints(&[7])), ("m", ints(&[8]))]);
        process(&mut print, pair);
        end(&mut print);
        until(&mut print, ExternalStatus::Done).await;
        let lines: Vec<String> = lines.try_iter().collect();
        assert_eq!(lines, ["> a\n> b\n", "> 7 8\n"]);
    }

    #[tokio::test]
    async fn lines_that_were_not_written_are_written_after_a_restore() {
        let (printer, let_out, lines) = hanging();
        let mut first = print_to(&printer, "");
        process(&mut first, texts("word", &["written"]));
        let_out.send(()).expect("it reads");
        assert_eq!(lines.recv().expect("it was read"), "written\n");
        poll_fn(|cx| match first.poll(cx, true, &mut Output::default()) {
            Ok(_) if first.printing.as_ref().is_some_and(Printing::is_done) => Poll::Ready(()),
            _ => Poll::Pending,
        })
        .await;
        process(&mut first, texts("word", &["a", "b"]));
        process(&mut first, texts("word", &["c"]));
        let mut snapshot = Snapshot::default();
        first.snapshot(&mut snapshot).expect("saved");
        let mut subtask = SubtaskSnapshot::default();
        snapshot.add_to(&mut subtask, "out").expect("encoded");
        drop((first, let_out));

        let (printer, let_out, lines) = hanging();
        drop(let_out);
        let mut second = Print::new("");
        second
            .restore(&Restored::of("out", &subtask))
            .expect("its own state");
        second.print_to(printer.printing());
        process(&mut second, texts("word", &["d"]));
        end(&mut second);
        until(&mut second, ExternalStatus::Done).await;
        let lines: Vec<String> = lines.try_iter().collect();
        assert_eq!(lines.concat(), "a\nb\nc\nd\n");
    }

    #[tokio::test]
    async fn who_prints_is_told_to_wait_and_ends_when_all_is_read() {
        let (printer, let_out, lines) = hanging();
        let mut print = print_to(&printer, "");
        let long = "x".repeat(MOST_WAITING / 2);
        process(&mut print, texts("line", &[&long]));
        assert!(is_now(&mut print, ExternalStatus::Room));
        process(&mut print, texts("line", &[&long]));
        assert!(is_now(&mut print, ExternalStatus::Full));
        let_out.send(()).expect("it reads");
        until(&mut print, ExternalStatus::Room).await;
        assert_eq!(end(&mut print), EndOfInput::More);
        assert!(!is_now(&mut print, ExternalStatus::Done));
        drop(let_out);
        until(&mut print, ExternalStatus::Done).await;
        assert_eq!(end(&mut print), EndOfInput::Done);
        assert_eq!(lines.try_iter().count(), 2);
    }

    #[tokio::test]
    async fn what_a_cancelled_task_has_left_is_not_written_and_others_go_on() {
        let (printer, let_out, lines) = hanging();
        let mut cancelled = print_to(&printer, "");
        for word in ["first", "second", "third"] {
            process(&mut cancelled, texts("word", &[word]));
        }
        let mut other = print_to(&printer, "");
        process(&mut other, texts("word", &["other"]));
        let_out.send(()).expect("it reads");
        assert_eq!(lines.recv().expect("it was read"), "first\n");
        drop(cancelled);
        drop(let_out);
        end(&mut other);
        until(&mut other, ExternalStatus::Done).await;
        let lines: Vec<String> = lines.try_iter().collect();
        // The second one may already have been written.
        assert!(!lines.contains(&"third\n".to_owned()), "{lines:?}");
        assert!(lines.contains(&"other\n".to_owned()), "{lines:?}");
    }

    #[tokio::test]
    async fn an_output_that_was_closed_fails_the_job_at_once() {
        let printer = Printer::start(Closed).expect("a thread");
        let mut print = print_to(&printer, "");
        process(&mut print, texts("word", &["a"]));
        let failed = poll_fn(|cx| match print.poll(cx, true, &mut Output::default()) {
            Ok(_) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        });
        let failed = tokio::time::timeout(BOUND, failed).await.expect("it fails");
        assert!(failed.is_unrecoverable(), "{failed}");
        assert!(failed.to_string().contains("standard output"), "{failed}");
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
