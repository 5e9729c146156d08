//! Runs a program as a transformation, a source or a sink.
//!
//! Standard input and output are moved at the same time, each as far as the program allows, so that a program
//! that waits for one never deadlocks with the operator. Unread input of the program holds the operator's input
//! back; unconsumed output holds the program's output back.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_array::RecordBatch;
use bytes::{Buf as _, BytesMut};
use tanist_dataflow::record::BATCH_BYTES;
use tanist_dataflow::{
    Built, EndOfInput, External, ExternalStatus, Operator, OperatorContext, OperatorError, Output,
    Source, SourceState, Stopped, TimeSignal,
};
use tanist_model::{ExecSpec, input_ends, operators};
use tokio::io::{AsyncWrite as _, ReadBuf};
use tokio::time::Instant;

use super::codec::{Decoder, encode};
use super::environment;
use super::program::{Environment, Program, ProgramError};
use crate::factory::{Runtime, Setup, operator, source};
use crate::host::TaskHost;

/// Bytes that wait for the program up to which it accepts another batch.
const ROOM: usize = 64 * 1024;
/// Bytes that are read at once.
const PIECE: usize = 64 * 1024;

impl Runtime for operators::Exec {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(Exec::new(
            self.program(),
            Role::Between,
            setup.context,
            setup.host,
        ))
    }
}

impl Runtime for operators::ExecSink {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(Exec::new(
            self.program(),
            Role::Sink,
            setup.context,
            setup.host,
        ))
    }
}

impl Runtime for operators::ExecSource {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        source(ExecSource::new(self.program(), setup.context, setup.host))
    }
}

/// The program's role in the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Between,
    Source,
    Sink,
}

/// A program between a task's records. As an operator it has input.
struct Exec {
    spec: ExecSpec,
    role: Role,
    context: OperatorContext,
    host: Arc<TaskHost>,
    program: Option<Program>,
    decoder: Option<Decoder>,
    /// Bytes that were not written to the program yet.
    pending: BytesMut,
    input_has_ended: bool,
    /// Its input ends even if the job is not stopped.
    input_ends: bool,
    /// Why the output can't be read further. Returned after the program, which is asked to end, has ended.
    unreadable: Option<OperatorError>,
}

impl Exec {
    fn new(spec: &ExecSpec, role: Role, context: &OperatorContext, host: &Arc<TaskHost>) -> Exec {
        let decoder = match role {
            Role::Sink => None,
            Role::Between | Role::Source => {
                Some(Decoder::new(spec.output, context.output_schema()))
            }
        };
        Exec {
            spec: spec.clone(),
            role,
            context: context.clone(),
            host: Arc::clone(host),
            program: None,
            decoder,
            pending: BytesMut::new(),
            input_has_ended: role == Role::Source,
            input_ends: true,
            unreadable: None,
        }
    }

    fn start(&mut self) -> Result<(), OperatorError> {
        let logs_output = self.role == Role::Sink;
        let (request, around): (_, Environment) =
            environment::prepare(&self.spec, &self.context, &self.host, logs_output)?;
        let binary = around.binary.clone();
        let program = Program::start(&request, around)
            .map_err(|error| OperatorError::io("start a program by", binary, error))?;
        self.program = Some(program);
        self.input_ends = input_ends(&self.context.graph, self.context.vertex);
        Ok(())
    }

    /// Whether the program ended successfully and all its output was consumed.
    fn is_done(&self) -> bool {
        let ended = |program: &Program| program.has_ended() && program.stdout.is_none();
        self.program.as_ref().is_some_and(ended)
            && self.decoder.as_ref().is_none_or(Decoder::is_empty)
    }

    fn too_soon() -> OperatorError {
        ProgramError::TooSoon.into()
    }

    /// Whether a program that has ended left input unread. A program that has read all input may end before it
    /// gets the end of input, if no more can follow: whether it gets the end in time is a race.
    fn has_more_to_read(&self) -> bool {
        let has_unread = |program: &Program| program.has_unread_input();
        !self.pending.is_empty()
            || self.program.as_ref().is_some_and(has_unread)
            || !(self.input_has_ended || self.input_ends)
    }

    /// Writes as much as the program accepts.
    fn write(&mut self, cx: &mut Context<'_>) {
        let Some(program) = &mut self.program else {
            return;
        };
        while let Some(stdin) = &mut program.stdin
            && !self.pending.is_empty()
        {
            match Pin::new(stdin).poll_write(cx, &self.pending) {
                Poll::Ready(Ok(written)) if written > 0 => self.pending.advance(written),
                Poll::Pending => return,
                // The program reads no more: how it ends decides whether that is an error.
                Poll::Ready(Ok(_) | Err(_)) => program.stdin = None,
            }
        }
        if self.input_has_ended && self.pending.is_empty() {
            program.stdin = None;
        }
    }

    /// Reads the program's output until a batch can be emitted.
    fn read(&mut self, cx: &mut Context<'_>, output: &mut Output) -> Result<(), OperatorError> {
        let (Some(program), Some(decoder)) = (&mut self.program, &mut self.decoder) else {
            return Ok(());
        };
        loop {
            if let Some(batch) = decoder.next_batch()? {
                output.emit(batch);
                return Ok(());
            }
            let Some(stdout) = &mut program.stdout else {
                return Ok(());
            };
            let mut fresh = 0;
            // Several pieces at once make larger batches.
            while fresh < BATCH_BYTES {
                match read_piece(stdout, cx, decoder.buffer()) {
                    Poll::Ready(Ok(0)) | Poll::Ready(Err(_)) => {
                        program.stdout = None;
                        decoder.end();
                        break;
                    }
                    Poll::Ready(Ok(length)) => fresh += length,
                    Poll::Pending if fresh == 0 => return Ok(()),
                    Poll::Pending => break,
                }
            }
        }
    }
}

fn read_piece(
    stdout: &mut tokio::net::unix::pipe::Receiver,
    cx: &mut Context<'_>,
    into: &mut BytesMut,
) -> Poll<std::io::Result<usize>> {
    use tokio::io::AsyncRead as _;
    let before = into.len();
    into.resize(before + PIECE, 0);
    let mut piece = ReadBuf::new(&mut into[before..]);
    let polled = Pin::new(stdout).poll_read(cx, &mut piece);
    let length = piece.filled().len();
    into.truncate(before + length);
    polled.map_ok(|()| length)
}

impl External for Exec {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        may_emit: bool,
        output: &mut Output,
    ) -> Result<ExternalStatus, OperatorError> {
        self.write(cx);
        if may_emit
            && self.unreadable.is_none()
            && let Err(error) = self.read(cx, output)
        {
            // The rest of its output can't be used, and the program may run forever.
            self.unreadable = Some(error);
            if let Some(program) = &mut self.program {
                (program.stdin, program.stdout) = (None, None);
                program.ask_to_end();
            }
        }
        let Some(program) = &mut self.program else {
            return Ok(ExternalStatus::Room);
        };
        match program.poll_ended(cx) {
            Some(Err(error)) => return Err(self.unreadable.take().unwrap_or(error.into())),
            Some(Ok(())) => {
                if let Some(error) = self.unreadable.take() {
                    return Err(error);
                }
                if self.has_more_to_read() {
                    return Err(Exec::too_soon());
                }
            }
            None => {}
        }
        Ok(if self.is_done() {
            ExternalStatus::Done
        } else if self.pending.len() < ROOM {
            ExternalStatus::Room
        } else {
            ExternalStatus::Full
        })
    }
}

impl Operator for Exec {
    fn open(&mut self) -> Result<(), OperatorError> {
        self.start()
    }

    fn process(&mut self, batch: RecordBatch, _output: &mut Output) -> Result<(), OperatorError> {
        if self.program.as_ref().is_some_and(Program::has_ended) {
            return Err(Exec::too_soon());
        }
        encode(self.spec.input, &batch, &mut self.pending)
    }

    /// Event time ends here: it would overtake records that are in the program.
    fn signal(&mut self, _signal: TimeSignal, _output: &mut Output) -> Result<(), OperatorError> {
        Ok(())
    }

    fn end_input(&mut self, _output: &mut Output) -> Result<EndOfInput, OperatorError> {
        self.input_has_ended = true;
        Ok(if self.is_done() {
            EndOfInput::Done
        } else {
            EndOfInput::More
        })
    }

    fn external(&mut self) -> Option<&mut dyn External> {
        Some(self)
    }
}

/// A program that produces records.
struct ExecSource {
    exec: Exec,
    ready: VecDeque<RecordBatch>,
    failure: Option<OperatorError>,
}

impl ExecSource {
    fn new(spec: &ExecSpec, context: &OperatorContext, host: &Arc<TaskHost>) -> ExecSource {
        ExecSource {
            exec: Exec::new(spec, Role::Source, context, host),
            ready: VecDeque::new(),
            failure: None,
        }
    }
}

impl Source for ExecSource {
    fn open(&mut self) -> Result<(), OperatorError> {
        self.exec.start()
    }

    fn next(&mut self, _now: Instant) -> Result<SourceState, OperatorError> {
        if let Some(batch) = self.ready.pop_front() {
            return Ok(SourceState::Batch(batch));
        }
        match self.failure.take() {
            Some(failure) => Err(failure),
            None if self.exec.is_done() => Ok(SourceState::End),
            None => Ok(SourceState::Pending),
        }
    }

    /// The program gets SIGTERM; its output is read until it ends.
    fn stop(&mut self) -> Stopped {
        match &self.exec.program {
            Some(program) => {
                program.ask_to_end();
                Stopped::Soon
            }
            None => Stopped::AtOnce,
        }
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut output = Output::default();
        let polled = self.exec.poll(cx, true, &mut output);
        self.ready.extend(output.into_batches());
        match polled {
            Err(failure) => self.failure = Some(failure),
            Ok(ExternalStatus::Room | ExternalStatus::Full) if self.ready.is_empty() => {
                return Poll::Pending;
            }
            Ok(ExternalStatus::Room | ExternalStatus::Full | ExternalStatus::Done) => {}
        }
        Poll::Ready(())
    }
}
