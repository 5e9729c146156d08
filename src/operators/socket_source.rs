//! Reads lines from a TCP server, and connects again when the connection ends.
//!
//! A task of the runtime connects and reads, at most a few pieces ahead of the operator. Text after the last
//! line break of a connection counts as a line if the server closed it, and is dropped if the connection broke.
//! A source that is stopped reads no more, and emits the complete lines that it has.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arrow_schema::SchemaRef;
use tanist_dataflow::{Built, OperatorContext, OperatorError, Peers, Source, SourceState, Stopped};
use tanist_model::operators;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, Receiver, Sender, error::TryRecvError};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::factory::{Runtime, Setup, source};
use super::lines::{LineBatch, LineBuffer};

const CHUNK: usize = 64 * 1024;
/// Pieces that may wait for the operator.
const PIECES: usize = 16;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
pub(super) const SHORTEST_BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);

impl Runtime for operators::SocketSource {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        source(SocketSource::new(self, setup.context))
    }
}

pub(super) struct SocketSource {
    spec: operators::SocketSource,
    output: SchemaRef,
    peers: Peers,
    connection: Option<Connection>,
}

/// What the reading task and the operator share.
struct Connection {
    pieces: Receiver<Piece>,
    more: Arc<Notify>,
    buffer: LineBuffer,
    /// Stops reading. Pieces that were read are still passed on.
    stop: CancellationToken,
    _reading: JoinSet<()>,
}

/// State of the reading task.
struct Reading {
    spec: operators::SocketSource,
    pieces: Sender<Piece>,
    more: Arc<Notify>,
    peers: Peers,
    stop: CancellationToken,
}

enum Piece {
    Bytes(Vec<u8>),
    /// The server closed the connection.
    Closed,
    /// The connection broke or could not be made.
    Broken(io::Error),
}

impl SocketSource {
    pub(super) fn new(spec: &operators::SocketSource, context: &OperatorContext) -> SocketSource {
        SocketSource {
            spec: spec.clone(),
            output: context.output_schema(),
            peers: context.peers.clone(),
            connection: None,
        }
    }
}

/// Connects, retrying without limit; meanwhile the peer counts as unreachable. Shared with the sink.
pub(super) async fn connect_until_it_works(
    address: &str,
    backoff: &mut Duration,
    peers: &Peers,
) -> TcpStream {
    let mut away = None;
    loop {
        match connect(address).await {
            Ok(stream) => return stream,
            Err(error) => tracing::warn!(address, %error, retry_in = ?backoff, "can't connect"),
        }
        away.get_or_insert_with(|| peers.away());
        wait(backoff).await;
    }
}

/// Waits for the backoff and doubles it.
pub(super) async fn wait(backoff: &mut Duration) {
    tokio::time::sleep(*backoff).await;
    *backoff = (*backoff * 2).min(LONGEST_BACKOFF);
}

async fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl Reading {
    /// Reads until it is stopped, or until the first connection ends if it must not reconnect.
    async fn run(self) {
        self.read().await;
        drop(self.pieces);
        // Wakes the operator, which waits for pieces: there will be no more.
        self.more.notify_one();
    }

    async fn read(&self) {
        let mut backoff = SHORTEST_BACKOFF;
        let mut chunk = vec![0; CHUNK];
        loop {
            let Some(connected) = self.unless_stopped(self.connect(&mut backoff)).await else {
                return;
            };
            let ended = match connected {
                Err(error) => Piece::Broken(error),
                Ok(mut stream) => loop {
                    // Only reading stops: a piece that was read is sent, or its lines would be lost.
                    let read = self.unless_stopped(stream.read(&mut chunk)).await;
                    let piece = match read {
                        None => return,
                        Some(Ok(0)) => break Piece::Closed,
                        Some(Ok(read)) => Piece::Bytes(chunk[..read].to_vec()),
                        Some(Err(error)) => break Piece::Broken(error),
                    };
                    backoff = SHORTEST_BACKOFF;
                    if !self.send(piece).await {
                        return;
                    }
                },
            };
            if !self.send(ended).await || !self.spec.reconnect {
                return;
            }
            if self.unless_stopped(wait(&mut backoff)).await.is_none() {
                return;
            }
        }
    }

    async fn connect(&self, backoff: &mut Duration) -> io::Result<TcpStream> {
        let address = &self.spec.address;
        match self.spec.reconnect {
            true => Ok(connect_until_it_works(address, backoff, &self.peers).await),
            false => connect(address).await,
        }
    }

    /// Sends a piece. Returns false if the operator is gone.
    async fn send(&self, piece: Piece) -> bool {
        let sent = self.pieces.send(piece).await;
        self.more.notify_one();
        sent.is_ok()
    }

    /// Result of the work; `None` if it was stopped before.
    async fn unless_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.stop.run_until_cancelled(work).await
    }
}

impl Source for SocketSource {
    fn open(&mut self) -> Result<(), OperatorError> {
        let (sender, pieces) = mpsc::channel(PIECES);
        let more = Arc::new(Notify::new());
        let stop = CancellationToken::new();
        let reading = Reading {
            spec: self.spec.clone(),
            pieces: sender,
            more: Arc::clone(&more),
            peers: self.peers.clone(),
            stop: stop.clone(),
        };
        let mut task = JoinSet::new();
        task.spawn_on(reading.run(), &Handle::current());
        self.connection = Some(Connection {
            pieces,
            more,
            buffer: LineBuffer::default(),
            stop,
            _reading: task,
        });
        Ok(())
    }

    fn next(&mut self, _now: Instant) -> Result<SourceState, OperatorError> {
        let address = &self.spec.address;
        let Some(connection) = &mut self.connection else {
            return Ok(SourceState::End);
        };
        let mut lines = LineBatch::new();
        let mut ended = false;
        while !ended {
            lines.take_from(&mut connection.buffer)?;
            if lines.is_full() {
                break;
            }
            match connection.pieces.try_recv() {
                Ok(Piece::Bytes(bytes)) => connection.buffer.push(&bytes),
                Ok(Piece::Closed) => {
                    if let Some(rest) = connection.buffer.take_rest() {
                        lines.push(&rest);
                    }
                    tracing::info!(address, "the server closed the connection");
                }
                Ok(Piece::Broken(error)) if self.spec.reconnect => {
                    connection.buffer.clear();
                    tracing::warn!(address, %error, "the connection broke");
                }
                Ok(Piece::Broken(error)) => {
                    return Err(OperatorError::io("read from", address, error));
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => ended = true,
            }
        }
        if !lines.is_empty() {
            return Ok(SourceState::Batch(lines.finish(&self.output)?));
        }
        Ok(match ended {
            true => SourceState::End,
            false => SourceState::WaitFor(Arc::clone(&connection.more)),
        })
    }

    /// An incomplete line is dropped.
    fn stop(&mut self) -> Stopped {
        match &self.connection {
            Some(connection) => {
                connection.stop.cancel();
                Stopped::Soon
            }
            None => Stopped::AtOnce,
        }
    }
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
