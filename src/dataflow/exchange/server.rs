//! The producing side of the network: answers hellos and sends batches while the consumer has given credit.
//!
//! One connection carries one channel. A channel has only one consumer: when the connection ends, the rest of
//! the channel is never served again. A consumer that ends by itself closes its side first (see `client`): its
//! task has ended, and the leader gets the reason from there. Any other loss of the connection may be unknown
//! to the consumer, which would then wait forever: so the channel fails, with it the producer, and their region
//! is restarted.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tanist_gateway::fencing::{EpochGate, Refused};
use tanist_ha::election::Epoch;
use tanist_net::{Accepted, Connection, HANDSHAKE_TIMEOUT, Listener};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use super::blocking_output::Kept;
use super::channel::{Channel, PLACES, Popped};
use super::frame::{self, Encoder, FrameType, LARGEST_HELLO, read_frame, write_frame};
use super::hello::{Answer, Hello, PROTOCOL_VERSION, Verdict};
use super::partition::Partitions;

/// How long a hello waits here for its producer before the consumer must ask again.
const PRODUCER_WAIT: Duration = Duration::from_millis(500);
/// Timeout for a consumer to read up to the end that was sent.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(60);

/// Identity of the server, and the partitions that it serves.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) resource_id: String,
    pub(super) incarnation: String,
    pub(super) gate: Arc<dyn EpochGate>,
    pub(super) partitions: Arc<Partitions>,
}

/// The channel for a consumer.
struct Found {
    channel: Arc<Channel>,
    readable: Arc<Notify>,
    /// The complete output that the channel is filled with, if there is one.
    kept: Option<Arc<Kept>>,
}

/// Normal end of a connection.
enum Ended {
    /// Everything was sent.
    Sent,
    /// The consumer closed its side.
    Closed,
}

/// Accepts connections until dropped.
pub(super) async fn serve(server: Arc<Server>, mut listener: Listener) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = listener.accept().await;
        let server = Arc::clone(&server);
        connections.spawn(async move {
            let peer = accepted.peer;
            if let Err(error) = server.connection(accepted).await {
                tracing::debug!(%peer, %error, "exchange connection ended");
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Reads the hello of a connection. Until it arrives, the connection is dropped if another one needs its place.
async fn read_hello(
    reader: &mut (impl AsyncRead + Unpin),
    connection: &Connection,
) -> io::Result<Hello> {
    let hello = tokio::time::timeout(HANDSHAKE_TIMEOUT, read_frame(reader, LARGEST_HELLO));
    let hello = tokio::select! {
        biased;
        hello = hello => hello??,
        () = connection.evicted() => {
            return Err(io::Error::other("it sent no hello, and its place was needed for another connection"));
        }
    };
    let hello = match hello {
        Some(frame) if frame.frame_type == FrameType::Hello => frame.body,
        _ => return Err(frame::invalid("no hello".to_owned())),
    };
    connection.establish();
    Hello::decode(hello.as_slice()).map_err(io::Error::other)
}

impl Server {
    async fn connection(&self, accepted: Accepted) -> io::Result<()> {
        let Accepted {
            stream,
            peer,
            connection,
        } = accepted;
        let (mut reader, mut writer) = tokio::io::split(stream);
        let hello = read_hello(&mut reader, &connection).await?;
        // A consumer that disconnects while it waits must not get the channel: it is served once, and the consumer's
        // next try needs it. So the disconnect is looked at first.
        let found = tokio::select! {
            biased;
            _ = read_frame(&mut reader, 0) => return Ok(()),
            found = self.find(&hello) => found,
        };
        // A kept output is read for this consumer only, while the connection lasts.
        let mut filling = JoinSet::new();
        let (answer, found) = match found {
            Ok(Found {
                channel,
                readable,
                kept,
            }) => {
                let target = hello.target_subtask;
                if let Some(kept) = kept {
                    filling.spawn(kept.fill(target, Arc::clone(&channel)));
                }
                (Answer::accepted(), Some((channel, readable)))
            }
            Err(answer) => (answer, None),
        };
        let answer = answer.encode_to_vec();
        let Some((channel, readable)) = found else {
            return write_frame(&mut writer, FrameType::Answer, &answer).await;
        };
        let credit = Semaphore::new(0);
        let mut receiving = pin!(receive_credit(&credit, &mut reader));
        let sending = async {
            write_frame(&mut writer, FrameType::Answer, &answer).await?;
            send(&channel, &readable, &credit, &mut writer).await
        };
        let ended = tokio::select! {
            sent = sending => sent.map(|()| Ended::Sent),
            received = &mut receiving => received.map(|()| Ended::Closed),
        };
        match ended {
            Ok(Ended::Sent) => {}
            Ok(Ended::Closed) => return Ok(()),
            Err(error) => {
                if !is_closed_by_consumer(&error) {
                    channel.fail(format!(
                        "the connection to its consumer at {peer} was lost: {error}"
                    ));
                }
                return Err(error);
            }
        }
        // If the socket were closed with credit unread, the system would drop what the consumer has not read. So wait
        // until the consumer closes its side.
        writer.shutdown().await?;
        tokio::time::timeout(GOODBYE_TIMEOUT, receiving).await??;
        let (partition, _) = hello.partition().map_err(frame::invalid)?;
        self.partitions
            .consumed(partition, hello.target_subtask, &channel);
        Ok(())
    }

    async fn find(&self, hello: &Hello) -> Result<Found, Answer> {
        if hello.protocol_version != PROTOCOL_VERSION {
            let theirs = hello.protocol_version;
            return Err(Answer::refused(format!(
                "exchange protocol {theirs} is refused: this TaskManager speaks {PROTOCOL_VERSION}"
            )));
        }
        let (cluster, epoch) = hello.term();
        self.admit(&cluster, epoch).await?;
        if (&hello.resource_id, &hello.incarnation) != (&self.resource_id, &self.incarnation) {
            return Err(Answer::refused(format!(
                "this is TaskManager {} in incarnation {}, not {} in {}",
                self.resource_id, self.incarnation, hello.resource_id, hello.incarnation
            )));
        }
        let (partition, attempt) = hello.partition().map_err(Answer::refused)?;
        let readable = Arc::new(Notify::new());
        if hello.is_kept {
            let (generation, target) = (attempt.generation, hello.target_subtask);
            let kept = self.partitions.find_kept(partition, generation, target);
            let kept = kept.map_err(Answer::refused)?;
            return Ok(Found {
                channel: Channel::read_by(&readable, self.partitions.budget()),
                readable,
                kept: Some(kept),
            });
        }
        let waiting = self
            .partitions
            .wait_for(partition, attempt, hello.target_subtask);
        let channel = match tokio::time::timeout(PRODUCER_WAIT, waiting).await {
            Ok(found) => found.map_err(Answer::refused)?,
            Err(_) => {
                return Err(Answer::new(
                    Verdict::NotYet,
                    "the producer is not there yet",
                ));
            }
        };
        // A younger term may have begun during the wait.
        self.admit(&cluster, epoch).await?;
        if !channel.attach(&readable) {
            return Err(Answer::refused("it already has a consumer"));
        }
        Ok(Found {
            channel,
            readable,
            kept: None,
        })
    }

    async fn admit(
        &self,
        cluster: &tanist_ha::election::ClusterIncarnation,
        epoch: Epoch,
    ) -> Result<(), Answer> {
        self.gate.admit(cluster, epoch).await.map_err(|refused| {
            let verdict = match refused {
                Refused::Stale { .. } => Verdict::StaleEpoch,
                Refused::OtherCluster { .. } => Verdict::Refused,
                Refused::Unproven(_) => Verdict::NotYet,
            };
            Answer::new(verdict, refused.to_string())
        })
    }
}

/// Whether the error means that the consumer closed its side. A connection that breaks without that is reset or
/// times out; it is no broken pipe.
fn is_closed_by_consumer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof
    )
}

/// Sends a channel to its end.
async fn send(
    channel: &Channel,
    readable: &Notify,
    credit: &Semaphore,
    writer: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut encoder: Option<Encoder> = None;
    loop {
        // An end needs no credit, and a failure is sent even if the consumer takes nothing.
        let batch = loop {
            match channel.pop_with(credit) {
                Some(Popped::Batch(batch)) => break batch,
                Some(Popped::Time(signal)) => {
                    write_frame(writer, FrameType::Time, &frame::encode_time(signal)).await?;
                }
                Some(Popped::Barrier(barrier)) => {
                    let body = frame::encode_barrier(barrier);
                    write_frame(writer, FrameType::Barrier, &body).await?;
                }
                Some(Popped::Finished) => return write_frame(writer, FrameType::End, &[]).await,
                Some(Popped::Failed(cause)) => {
                    return write_frame(writer, FrameType::Failed, cause.as_bytes()).await;
                }
                Some(Popped::Empty) => readable.notified().await,
                None => tokio::select! {
                    () = readable.notified() => {}
                    permit = credit.acquire() => drop(permit.map_err(io::Error::other)?),
                },
            }
        };
        let encoder = match &mut encoder {
            Some(encoder) => encoder,
            none => {
                let (created, schema) =
                    Encoder::new(batch.schema_ref()).map_err(io::Error::other)?;
                write_frame(writer, FrameType::Schema, &schema).await?;
                none.insert(created)
            }
        };
        let body = encoder.encode(&batch).map_err(io::Error::other)?;
        if body.len() > frame::LARGEST_BODY {
            let cause = format!("a batch of {} bytes is too large to be sent", body.len());
            return write_frame(writer, FrameType::Failed, cause.as_bytes()).await;
        }
        write_frame(writer, FrameType::Batch, &body).await?;
    }
}

/// Receives credit until the consumer closes its side.
async fn receive_credit(
    credit: &Semaphore,
    reader: &mut (impl AsyncRead + Unpin),
) -> io::Result<()> {
    loop {
        let Some(frame) = read_frame(reader, LARGEST_HELLO).await? else {
            return Ok(());
        };
        let given: Option<[u8; 4]> = frame.body.as_slice().try_into().ok();
        let (FrameType::Credit, Some(given)) = (frame.frame_type, given) else {
            return Err(frame::invalid("credit was expected".to_owned()));
        };
        let given = usize::try_from(u32::from_le_bytes(given)).unwrap_or(usize::MAX);
        if given > PLACES * 1024 {
            return Err(frame::invalid(format!("credit for {given} batches")));
        }
        credit.add_permits(given);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tanist_ha::election::ClusterIncarnation;
    use tanist_proto::id::{Generation, JobId, JobVertexId};
    use tokio::net::TcpStream;

    use tanist_net::Port;

    use super::super::channel::Closed;
    use super::super::partition::{Attempt, PartitionId};
    use super::*;
    use crate::testing::{HighestEpochSeen, texts};

    /// Returns what a producer gets after its consumer disconnected with `go`, with records unread in its
    /// socket.
    async fn found_after(go: impl FnOnce(TcpStream)) -> Result<(), Closed> {
        let partitions = Arc::new(Partitions::default());
        let partition = PartitionId {
            job: JobId::from_bits(1),
            vertex: JobVertexId::from_bits(2),
            subtask: 0,
            edge: 0,
        };
        let attempt = Attempt {
            job_incarnation: 1,
            generation: Generation::new(1),
        };
        let writer = partitions.register(partition, attempt, [0]);
        let writer = writer.expect("nothing newer is there");
        let server = Server {
            resource_id: "tm".to_owned(),
            incarnation: "first".to_owned(),
            gate: Arc::new(HighestEpochSeen::default()),
            partitions,
        };
        let listener = Listener::bind("127.0.0.1:0", Port::Exchange).await;
        let mut listener = listener.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let serving = async {
            let accepted = listener.accept().await;
            server.connection(accepted).await.ok();
        };
        let consuming = async {
            let mut stream = TcpStream::connect(address).await.expect("connected");
            let hello = Hello::new(partition, attempt, 0, ("tm", "first"));
            let hello = hello.in_term(&ClusterIncarnation::new("test"), Epoch::new(1));
            let hello = hello.encode_to_vec();
            let written = write_frame(&mut stream, FrameType::Hello, &hello).await;
            written.expect("there is room");
            let answer = read_frame(&mut stream, LARGEST_HELLO).await;
            let answer = answer.expect("read").expect("it is there");
            assert_eq!(answer.frame_type, FrameType::Answer);
            let written = write_frame(&mut stream, FrameType::Credit, &1_u32.to_le_bytes()).await;
            written.expect("there is room");
            stream.peek(&mut [0]).await.expect("records come");
            go(stream);
        };
        writer.push(0, texts("w", &["a"])).await.expect("a place");
        tokio::join!(serving, consuming);
        let pushed = writer.push(0, texts("w", &["b"])).now_or_never();
        pushed.expect("there is a place")
    }

    #[tokio::test]
    async fn a_consumer_that_is_lost_fails_its_producer_and_one_that_goes_away_does_not() {
        // As the consumer does it, see `client`.
        let left = found_after(|stream| drop(stream.into_split())).await;
        assert_eq!(left, Ok(()));
        // As when its process is killed.
        let Closed(cause) = found_after(drop).await.expect_err("it was reset");
        assert!(cause.contains("connection to its consumer"), "{cause}");
    }
}
