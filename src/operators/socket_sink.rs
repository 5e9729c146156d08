//! Writes records as lines to a TCP server, and connects again when the connection breaks.
//!
//! The operator queues lines, a task of the runtime writes them; a full queue blocks the operator's task. Lines
//! that a broken connection may have lost are written again to the next one, up to a limit: at least once as
//! far as TCP knows, which knows the other side's system and not its program. A snapshot has these lines, and those
//! that wait: they are written again after a restore.
//!
//! The server's output is read all the time and discarded. A server that answers each line would otherwise
//! block on its answers and read no more; and closing a connection with unread data resets it, which loses data
//! in flight.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use bytes::Bytes;
use parking_lot::Mutex;
use tanist_dataflow::{
    Built, Operator, OperatorError, Output, Peers, PrepareCommit, Restored, SinkOutput, Snapshot,
};
use tanist_model::operators;
use tanist_proto::v1::RepeatedLines;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use super::factory::{Runtime, Setup, operator};
use super::lines::write_lines;
use super::socket_source::{SHORTEST_BACKOFF, connect_until_it_works, wait};

/// Bytes that may wait to be written; one more batch may exceed them.
const MOST_WAITING: usize = 1024 * 1024;
/// Bytes that are written again after a connection broke.
const MOST_REPEATED: usize = 1024 * 1024;
/// Timeout for a server to close its side after the end, counted from its last output: not every server closes
/// it.
const LONGEST_SILENCE: Duration = Duration::from_secs(30);
const CHUNK: usize = 16 * 1024;

/// Name and signature of its saved state.
const REPEATED: &str = "repeated-lines";
const SIGNATURE: &str = "socket-sink";

impl Runtime for operators::SocketSink {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(SocketSink::new(&self.address, &setup.context.peers))
    }
}

pub(super) struct SocketSink {
    address: String,
    peers: Peers,
    queue: Arc<Queue>,
    /// Sent when everything has been written.
    written: Option<oneshot::Receiver<()>>,
    writing: JoinSet<()>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<SocketState>,
    /// The writer waits here for lines.
    more: Notify,
    /// The operator waits here for room.
    room: Arc<Notify>,
}

#[derive(Default)]
struct SocketState {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    ended: bool,
    repeated: Repeated,
}

impl Queue {
    fn push(&self, lines: Vec<u8>) {
        let mut state = self.state.lock();
        state.bytes += lines.len();
        state.waiting.push_back(lines.into());
        drop(state);
        self.more.notify_one();
    }

    /// Returns the next lines, which stay in the queue; `None` if there will be no more.
    async fn first(&self) -> Option<Bytes> {
        loop {
            {
                let state = self.state.lock();
                match state.waiting.front() {
                    Some(lines) => return Some(lines.clone()),
                    None if state.ended => return None,
                    None => {}
                }
            }
            self.more.notified().await;
        }
    }

    /// The first lines were written.
    fn remove_first(&self) {
        let mut state = self.state.lock();
        if let Some(lines) = state.waiting.pop_front() {
            state.bytes -= lines.len();
            state.repeated.add(lines);
        }
        drop(state);
        self.room.notify_one();
    }
}

/// Runs until everything is written.
async fn write(address: String, queue: Arc<Queue>, done: oneshot::Sender<()>, peers: Peers) {
    let mut backoff = SHORTEST_BACKOFF;
    loop {
        let stream = connect_until_it_works(&address, &mut backoff, &peers).await;
        match write_to(stream, &queue).await {
            Ok(()) => {
                // There is no receiver if the task was stopped.
                let _ = done.send(());
                return;
            }
            Err(error) => tracing::warn!(address, %error, "the connection broke"),
        }
        wait(&mut backoff).await;
    }
}

/// The lines that were written last.
#[derive(Default)]
struct Repeated {
    lines: VecDeque<Bytes>,
    bytes: usize,
}

impl Repeated {
    fn add(&mut self, lines: Bytes) {
        self.bytes += lines.len();
        self.lines.push_back(lines);
        while self.bytes > MOST_REPEATED && self.lines.len() > 1 {
            let first = self.lines.pop_front();
            self.bytes -= first.map_or(0, |first| first.len());
        }
    }
}

/// Writes until everything is written and the server has read it, as far as it lets us know.
async fn write_to(stream: TcpStream, queue: &Queue) -> io::Result<()> {
    let (mut reader, mut writer) = stream.into_split();
    let write = async {
        let repeated = queue.state.lock().repeated.lines.clone();
        for lines in &repeated {
            writer.write_all(lines).await?;
        }
        while let Some(lines) = queue.first().await {
            writer.write_all(&lines).await?;
            queue.remove_first();
        }
        writer.shutdown().await
    };
    let mut write = pin!(write);
    let mut chunk = vec![0; CHUNK];
    loop {
        tokio::select! {
            written = &mut write => break written?,
            // A closing server is detected by reading.
            read = reader.read(&mut chunk) => if read? == 0 {
                return Err(io::ErrorKind::ConnectionReset.into());
            },
        }
    }
    read_to_close(&mut reader, &mut chunk).await
}

/// Reads the server's output until it closes its side: then it has read everything. An error if the connection
/// breaks before.
async fn read_to_close(reader: &mut (impl AsyncRead + Unpin), chunk: &mut [u8]) -> io::Result<()> {
    loop {
        match tokio::time::timeout(LONGEST_SILENCE, reader.read(chunk)).await {
            Ok(read) => {
                if read? == 0 {
                    return Ok(());
                }
            }
            Err(_) => {
                tracing::debug!("the server does not close its side of the connection");
                return Ok(());
            }
        }
    }
}

impl SocketSink {
    pub(super) fn new(address: &str, peers: &Peers) -> SocketSink {
        SocketSink {
            address: address.to_owned(),
            peers: peers.clone(),
            queue: Arc::default(),
            written: None,
            writing: JoinSet::new(),
        }
    }
}

impl Operator for SocketSink {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        let states: Vec<RepeatedLines> = restored.messages(REPEATED, SIGNATURE)?;
        let lines: Vec<u8> = states.into_iter().flat_map(|state| state.lines).collect();
        if !lines.is_empty() {
            self.queue.push(lines);
        }
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        let state = self.queue.state.lock();
        let lines = state.repeated.lines.iter().chain(&state.waiting);
        let lines: Vec<&[u8]> = lines.map(|lines| &**lines).collect();
        let lines = lines.concat();
        snapshot.save_message(REPEATED, SIGNATURE, &RepeatedLines { lines });
        Ok(())
    }

    fn open(&mut self) -> Result<(), OperatorError> {
        let (done, written) = oneshot::channel();
        let (address, queue) = (self.address.clone(), Arc::clone(&self.queue));
        let writing = write(address, queue, done, self.peers.clone());
        self.writing.spawn_on(writing, &Handle::current());
        self.written = Some(written);
        Ok(())
    }

    fn process(&mut self, batch: RecordBatch, _output: &mut Output) -> Result<(), OperatorError> {
        let mut lines = Vec::new();
        write_lines(&batch, &mut lines)?;
        self.queue.push(lines);
        Ok(())
    }

    fn without_room(&self) -> Option<Arc<Notify>> {
        let full = self.queue.state.lock().bytes >= MOST_WAITING;
        full.then(|| Arc::clone(&self.queue.room))
    }

    fn prepare_commit(&mut self) -> Option<PrepareCommit> {
        let (written, queue) = (self.written.take()?, Arc::clone(&self.queue));
        let address = self.address.clone();
        Some(Box::new(move || {
            queue.state.lock().ended = true;
            queue.more.notify_one();
            // A task that is stopped also drops the writer, which ends this wait.
            let ended = written.blocking_recv();
            ended.map(|()| SinkOutput::default()).map_err(|_| {
                OperatorError::unavailable(format!("writing to {address} was stopped"))
            })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_closes_its_side_is_waited_for_while_it_says_something() {
        let (mut server, mut sink) = tokio::io::duplex(64);
        let hearing = async { read_to_close(&mut sink, &mut [0; 16]).await };
        let saying = async {
            for _ in 0..3 {
                tokio::time::sleep(LONGEST_SILENCE * 2 / 3).await;
                server.write_all(b"ok\n").await.expect("it is read");
            }
        };
        let began = tokio::time::Instant::now();
        let (heard, ()) = tokio::join!(hearing, saying);
        heard.expect("it is enough");
        assert_eq!(began.elapsed(), LONGEST_SILENCE * 3);
    }
}
