//! Frames between exchange servers and consumers: four bytes of length, one byte of type, a body.
//!
//! The length is checked before memory is allocated. The type defines the body: handshake messages are
//! protobuf; records are messages of one Arrow IPC stream per channel, which starts with the schema.

use std::io;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, Schema};
use tanist_proto::v1::CheckpointBarrier;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::time::TimeSignal;

/// Maximum body size in bytes, sent or accepted: enough for a batch of one record of the largest size that a
/// source accepts.
pub(super) const LARGEST_BODY: usize = 64 * 1024 * 1024;
/// Maximum body size in bytes before a channel is open.
pub(super) const LARGEST_HELLO: usize = 64 * 1024;
/// Bodies up to this size in bytes are copied behind their header.
const SMALL_BODY: usize = 16 * 1024;

/// Type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameType {
    /// Consumer: the channel that it requests.
    Hello = 1,
    /// Consumer: number of further batches that it takes (u32).
    Credit = 2,
    /// Producer: the answer to the hello.
    Answer = 3,
    /// Producer: the schema of all batches.
    Schema = 4,
    /// Producer: records.
    Batch = 5,
    /// Producer: the end; all records were sent.
    End = 6,
    /// Producer: there will be no more records, for this reason (text).
    Failed = 7,
    /// Producer: event time, a watermark (i64) or an empty body for idle. Needs no credit.
    Time = 8,
    /// Producer: the barrier of a checkpoint, its three numbers and its flags (u64 each). Needs no credit.
    Barrier = 9,
}

impl FrameType {
    fn of(byte: u8) -> io::Result<FrameType> {
        use FrameType::{Answer, Barrier, Batch, Credit, End, Failed, Hello, Schema, Time};
        let types = [
            Hello, Credit, Answer, Schema, Batch, End, Failed, Time, Barrier,
        ];
        let found = types.into_iter().find(|frame| *frame as u8 == byte);
        found.ok_or_else(|| invalid(format!("frame of unknown type {byte}")))
    }
}

/// A frame that was read.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) frame_type: FrameType,
    pub(super) body: Vec<u8>,
}

/// Reads a frame; `None` if the other side closed the connection between frames.
pub(super) async fn read_frame(
    reader: &mut (impl AsyncRead + Unpin),
    largest: usize,
) -> io::Result<Option<Frame>> {
    let mut header = [0; 5];
    let first = reader.read(&mut header).await?;
    if first == 0 {
        return Ok(None);
    }
    reader.read_exact(&mut header[first..]).await?;
    let [a, b, c, d, frame_type] = header;
    let length = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    let frame_type = FrameType::of(frame_type)?;
    if length > largest {
        return Err(invalid(format!(
            "frame of {length} bytes, {largest} are allowed"
        )));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await?;
    Ok(Some(Frame { frame_type, body }))
}

/// Writes a frame.
pub(super) async fn write_frame(
    writer: &mut (impl AsyncWrite + Unpin),
    frame_type: FrameType,
    body: &[u8],
) -> io::Result<()> {
    if body.len() > LARGEST_BODY {
        let length = body.len();
        return Err(invalid(format!(
            "a batch of {length} bytes is larger than {LARGEST_BODY}"
        )));
    }
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let [a, b, c, d] = length.to_le_bytes();
    let header = [a, b, c, d, frame_type as u8];
    if body.len() <= SMALL_BODY {
        // One write: one packet, and the connection is not closed in the middle of a frame if the writer is dropped.
        writer.write_all(&[&header, body].concat()).await?;
    } else {
        writer.write_all(&header).await?;
        writer.write_all(body).await?;
    }
    writer.flush().await
}

/// Encodes the body of a [`FrameType::Time`].
pub(super) fn encode_time(signal: TimeSignal) -> Vec<u8> {
    match signal {
        TimeSignal::Watermark(watermark) => watermark.to_le_bytes().to_vec(),
        TimeSignal::Idle => Vec::new(),
    }
}

/// Decodes the body of a [`FrameType::Time`].
pub(super) fn decode_time(body: &[u8]) -> io::Result<TimeSignal> {
    match body.try_into() {
        Ok(watermark) => Ok(TimeSignal::Watermark(i64::from_le_bytes(watermark))),
        Err(_) if body.is_empty() => Ok(TimeSignal::Idle),
        Err(_) => Err(invalid(format!("a time of {} bytes", body.len()))),
    }
}

/// Encodes the body of a [`FrameType::Barrier`].
pub(super) fn encode_barrier(barrier: CheckpointBarrier) -> Vec<u8> {
    let CheckpointBarrier {
        number,
        newest,
        floor,
        savepoint,
        pause,
    } = barrier;
    let flags = u64::from(savepoint) | u64::from(pause) << 1;
    [number, newest, floor, flags]
        .map(u64::to_le_bytes)
        .concat()
}

/// Decodes the body of a [`FrameType::Barrier`]. Numbers are given out from 1 on, and what a barrier says about
/// earlier ones can't be above its own.
pub(super) fn decode_barrier(body: &[u8]) -> io::Result<CheckpointBarrier> {
    let (words, []) = body.as_chunks::<8>() else {
        return Err(invalid(format!("a barrier of {} bytes", body.len())));
    };
    let &[number, newest, floor, flags] = words else {
        return Err(invalid(format!("a barrier of {} bytes", body.len())));
    };
    let [number, newest, floor, flags] = [number, newest, floor, flags].map(u64::from_le_bytes);
    if newest >= number || floor > number || flags > 3 {
        return Err(invalid(format!(
            "a barrier of checkpoint {number} with snapshot {newest}, floor {floor} and flags \
             {flags:#x}"
        )));
    }
    Ok(CheckpointBarrier {
        number,
        newest,
        floor,
        savepoint: flags & 1 != 0,
        pause: flags & 2 != 0,
    })
}

pub(super) fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Encodes batches as bodies.
pub(super) struct Encoder {
    writer: StreamWriter<Vec<u8>>,
}

impl Encoder {
    /// Returns the encoder and the body with the schema.
    pub(super) fn new(schema: &Schema) -> Result<(Encoder, Vec<u8>), ArrowError> {
        let mut writer = StreamWriter::try_new(Vec::new(), schema)?;
        let schema = std::mem::take(writer.get_mut());
        Ok((Encoder { writer }, schema))
    }

    pub(super) fn encode(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, ArrowError> {
        self.writer.write(batch)?;
        Ok(std::mem::take(self.writer.get_mut()))
    }
}

/// Decodes bodies to batches.
#[derive(Default)]
pub(super) struct Decoder {
    decoder: StreamDecoder,
}

impl Decoder {
    /// Takes the body with the schema. An invalid one is only detected with the first batch: Arrow reads a
    /// message without a body when the next message begins.
    pub(super) fn schema(&mut self, body: Vec<u8>) -> Result<(), ArrowError> {
        match self.decode_one(body)? {
            None => Ok(()),
            Some(_) => Err(ArrowError::IpcError("a schema was expected".to_owned())),
        }
    }

    /// Decodes the body of a batch.
    pub(super) fn batch(&mut self, body: Vec<u8>) -> Result<RecordBatch, ArrowError> {
        let batch = self.decode_one(body)?;
        batch.ok_or_else(|| ArrowError::IpcError("a batch was expected".to_owned()))
    }

    fn decode_one(&mut self, body: Vec<u8>) -> Result<Option<RecordBatch>, ArrowError> {
        let mut buffer = Buffer::from_vec(body);
        let batch = self.decoder.decode(&mut buffer)?;
        if !buffer.is_empty() {
            return Err(ArrowError::IpcError(
                "more than one message in a frame".to_owned(),
            ));
        }
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{batch, ints, texts};

    #[tokio::test]
    async fn frames_round_trip_and_end_at_the_close() {
        let (mut near, mut far) = tokio::io::duplex(64);
        let writing = async {
            write_frame(&mut near, FrameType::Credit, &[1; 100])
                .await
                .expect("written");
            write_frame(&mut near, FrameType::End, &[])
                .await
                .expect("written");
            drop(near);
        };
        let reading = async {
            let credit = read_frame(&mut far, 100)
                .await
                .expect("read")
                .expect("there");
            assert_eq!(
                (credit.frame_type, credit.body),
                (FrameType::Credit, vec![1; 100])
            );
            let end = read_frame(&mut far, 100)
                .await
                .expect("read")
                .expect("there");
            assert_eq!((end.frame_type, end.body), (FrameType::End, vec![]));
            assert!(read_frame(&mut far, 100).await.expect("closed").is_none());
        };
        tokio::join!(writing, reading);
    }

    #[tokio::test]
    async fn a_frame_that_is_too_long_or_unknown_or_cut_is_refused() {
        let too_long = [255, 255, 255, 255, FrameType::Batch as u8];
        let error = read_frame(&mut too_long.as_slice(), LARGEST_BODY)
            .await
            .expect_err("too long");
        assert!(error.to_string().contains("4294967295"), "{error}");
        let unknown = [0, 0, 0, 0, 99];
        assert!(
            read_frame(&mut unknown.as_slice(), LARGEST_BODY)
                .await
                .is_err()
        );
        let cut = [3, 0, 0, 0, FrameType::Batch as u8, 1];
        let error = read_frame(&mut cut.as_slice(), LARGEST_BODY)
            .await
            .expect_err("cut");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn times_round_trip() {
        for signal in [TimeSignal::Idle, TimeSignal::Watermark(-5)] {
            assert_eq!(decode_time(&encode_time(signal)).expect("a time"), signal);
        }
        assert!(decode_time(&[1, 2]).is_err());
    }

    #[test]
    fn barriers_round_trip_and_impossible_ones_are_refused() {
        let barrier = |number, newest, floor| CheckpointBarrier {
            number,
            newest,
            floor,
            ..CheckpointBarrier::default()
        };
        for valid in [barrier(1, 0, 0), barrier(1, 0, 1), barrier(u64::MAX, 7, 3)] {
            let decoded = decode_barrier(&encode_barrier(valid));
            assert_eq!(decoded.expect("a barrier"), valid);
        }
        for (savepoint, pause) in [(true, false), (false, true), (true, true)] {
            let flagged = CheckpointBarrier {
                savepoint,
                pause,
                ..barrier(3, 2, 1)
            };
            let decoded = decode_barrier(&encode_barrier(flagged));
            assert_eq!(decoded.expect("a barrier"), flagged);
        }
        for invalid in [barrier(0, 0, 0), barrier(3, 3, 0), barrier(3, 2, 4)] {
            assert!(decode_barrier(&encode_barrier(invalid)).is_err());
        }
        let body = encode_barrier(barrier(3, 2, 1));
        // An unknown flag changes what the barrier means.
        for flags in [4_u64, 7, 1 << 8, 1 << 63] {
            let unknown = [&body[..24], &flags.to_le_bytes()].concat();
            let error = decode_barrier(&unknown).expect_err("unknown flags");
            assert!(
                error.to_string().contains(&format!("{flags:#x}")),
                "{error}"
            );
        }
        for cut in [
            &body[..16],
            &body[..23],
            &[],
            &[&body[..], &[0; 8]].concat(),
        ] {
            assert!(decode_barrier(cut).is_err());
        }
    }

    #[test]
    fn batches_round_trip_and_slices_travel_alone() {
        let whole = batch([
            ("w", texts("w", &["a", "bc", "d"]).column(0).clone()),
            ("n", ints(&[1, 2, 3])),
        ]);
        let (mut encoder, schema) = Encoder::new(&whole.schema()).expect("encoder");
        let mut decoder = Decoder::default();
        decoder.schema(schema).expect("schema");
        for sent in [whole.clone(), whole.slice(1, 1), whole.slice(2, 1)] {
            let body = encoder.encode(&sent).expect("encoded");
            assert_eq!(decoder.batch(body).expect("decoded"), sent);
        }
    }

    #[test]
    fn garbage_is_an_error() {
        let batch = texts("w", &["a"]);
        let (mut encoder, schema) = Encoder::new(&batch.schema()).expect("encoder");
        let body = encoder.encode(&batch).expect("encoded");
        assert!(Decoder::default().batch(body.clone()).is_err(), "no schema");
        assert!(
            Decoder::default().batch(vec![0xff; 64]).is_err(),
            "no message"
        );
        let mut decoder = Decoder::default();
        decoder.schema(schema.clone()).expect("schema");
        assert!(decoder.batch(schema).is_err(), "two schemas");
        let mut decoder = Decoder::default();
        assert!(
            decoder.batch(body[..body.len() - 1].to_vec()).is_err(),
            "cut"
        );
    }
}
