//! The consuming side of the network: opens a channel at its producer's TaskManager and fills the local end of
//! it. An error fails the channel, and with it the consumer's task.
//!
//! In all cases the write half is closed before the socket is. If the socket were closed with unread records,
//! the system would reset the connection. The producer takes a reset for the loss of a consumer that may not know
//! of it, and fails.

use std::convert::Infallible;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use arrow_schema::{ArrowError, SchemaRef};
use futures::FutureExt as _;
use prost::Message as _;
use tanist_gateway::fencing::EpochGate;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_net as net;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::Instant;

use super::channel::Channel;
use super::frame::{
    self, Decoder, FrameType, LARGEST_BODY, LARGEST_HELLO, read_frame, write_frame,
};
use super::hello::{Answer, Hello, Verdict};
use crate::record::{describe, same_columns};

/// How long connecting to a TaskManager is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for an answer. It is well above the server's own wait for the producer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const SHORTEST_BACKOFF: Duration = Duration::from_millis(10);
const LONGEST_BACKOFF: Duration = Duration::from_millis(200);

/// A connection. Dropping the write half closes that side.
type Connection = (OwnedReadHalf, OwnedWriteHalf);

/// Request to open a channel.
pub(super) struct Request {
    /// host:port
    pub(super) address: String,
    pub(super) hello: Hello,
    /// The term in which the consumer was deployed.
    pub(super) term: (ClusterIncarnation, Epoch),
    pub(super) gate: Arc<dyn EpochGate>,
    /// Expected schema of the records.
    pub(super) schema: SchemaRef,
}

/// Fills the channel until its end. An error fails the channel and with it the consumer.
pub(super) async fn consume(request: Request, channel: Arc<Channel>) {
    // Even after a panic the consumer must not wait forever.
    match AssertUnwindSafe(request.run(&channel)).catch_unwind().await {
        Ok(Ok(())) => channel.finish(),
        Ok(Err(cause)) => channel.fail(cause),
        Err(_) => channel.fail("reading it panicked"),
    }
}

impl Request {
    async fn run(&self, channel: &Channel) -> Result<(), String> {
        let (mut reader, mut writer) = self.open().await?;
        tokio::select! {
            ended = self.receive(&mut reader, channel) => ended,
            never = send_credit(&mut writer, channel) => match never {},
        }
    }

    fn malformed(&self, error: &dyn std::fmt::Display) -> String {
        format!("malformed records from {}: {error}", self.address)
    }

    fn connection_lost(&self, error: &io::Error) -> String {
        format!("the connection to {} was lost: {error}", self.address)
    }

    /// The hello with the term of this process: the highest known one, but at least that of the deployment.
    fn hello(&self) -> Hello {
        let (cluster, deployed) = &self.term;
        let heard = self.gate.highest().map_or(Epoch::ZERO, |(_, epoch)| epoch);
        self.hello.in_term(cluster, heard.max(*deployed))
    }

    /// Opens the connection. Waits without limit for a producer that is not there yet: the leader ends the consumer if
    /// the producer does not start.
    async fn open(&self) -> Result<Connection, String> {
        let mut backoff = SHORTEST_BACKOFF;
        let mut unreachable_since: Option<Instant> = None;
        loop {
            match self.try_open().await {
                Ok((connection, answer)) => {
                    unreachable_since = None;
                    match answer.verdict() {
                        Verdict::Accepted => return Ok(connection),
                        Verdict::Refused => return Err(format!("refused: {}", answer.reason)),
                        Verdict::NotYet | Verdict::StaleEpoch => {
                            tracing::debug!(
                                address = self.address,
                                reason = answer.reason,
                                "channel is not there yet"
                            );
                        }
                    }
                }
                Err(error) => {
                    let since = *unreachable_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= CONNECT_TIMEOUT {
                        return Err(format!("can't connect to {}: {error}", self.address));
                    }
                }
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(LONGEST_BACKOFF);
        }
    }

    async fn try_open(&self) -> io::Result<(Connection, Answer)> {
        let stream = net::connect(&self.address, CONNECT_TIMEOUT).await?;
        let mut connection = stream.into_split();
        let hello = self.hello();
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, shake_hands(&mut connection, &hello));
        let answer = answer.await??;
        Ok((connection, answer))
    }

    async fn receive(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        channel: &Channel,
    ) -> Result<(), String> {
        let mut decoder = Decoder::default();
        let mut last_barrier = 0;
        loop {
            let frame = read_frame(reader, LARGEST_BODY)
                .await
                .map_err(|error| self.connection_lost(&error))?;
            let Some(frame) = frame else {
                return Err(format!(
                    "the connection to {} was lost before the end",
                    self.address
                ));
            };
            let malformed = |error: ArrowError| self.malformed(&error);
            match frame.frame_type {
                FrameType::Schema => decoder.schema(frame.body).map_err(malformed)?,
                FrameType::Batch => {
                    let batch = decoder.batch(frame.body).map_err(malformed)?;
                    if !same_columns(batch.schema_ref(), &self.schema) {
                        let (sent, expected) =
                            (describe(batch.schema_ref()), describe(&self.schema));
                        return Err(format!("it sends ({sent}) where ({expected}) is expected"));
                    }
                    if !channel.push_on_credit(batch) {
                        return Err(format!("{} sent more than it had credit for", self.address));
                    }
                }
                FrameType::Time => {
                    let signal = frame::decode_time(&frame.body);
                    channel.signal(signal.map_err(|error| self.malformed(&error))?);
                }
                FrameType::Barrier => {
                    let barrier = frame::decode_barrier(&frame.body);
                    let barrier = barrier.map_err(|error| self.malformed(&error))?;
                    // A task takes up no number twice, and none below one that it took up.
                    if barrier.number <= last_barrier {
                        let (address, number) = (&self.address, barrier.number);
                        return Err(format!(
                            "{address} sent the barrier of {number} after that of {last_barrier}"
                        ));
                    }
                    last_barrier = barrier.number;
                    channel.barrier(barrier);
                }
                FrameType::End => return Ok(()),
                FrameType::Failed => return Err(String::from_utf8_lossy(&frame.body).into_owned()),
                FrameType::Hello | FrameType::Credit | FrameType::Answer => {
                    return Err(format!("{} sent an unexpected frame", self.address));
                }
            }
        }
    }
}

async fn shake_hands((reader, writer): &mut Connection, hello: &Hello) -> io::Result<Answer> {
    write_frame(writer, FrameType::Hello, &hello.encode_to_vec()).await?;
    match read_frame(reader, LARGEST_HELLO).await? {
        Some(frame) if frame.frame_type == FrameType::Answer => {
            Answer::decode(frame.body.as_slice()).map_err(io::Error::other)
        }
        Some(_) => Err(frame::invalid("no answer to the hello".to_owned())),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Gives credit for free places. Never returns: a lost connection is detected by the reading side, and only
/// after the last frame of the producer.
async fn send_credit(writer: &mut (impl AsyncWrite + Unpin), channel: &Channel) -> Infallible {
    loop {
        let places = u32::try_from(channel.grant().await).unwrap_or(u32::MAX);
        let written = write_frame(writer, FrameType::Credit, &places.to_le_bytes()).await;
        if let Err(error) = written {
            tracing::debug!(%error, "can't give credit");
            return std::future::pending().await;
        }
    }
}
