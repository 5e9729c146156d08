//! Socket source and socket sink against real sockets.

use arrow_array::cast::AsArray;
use tanist_dataflow::{Operator as _, Output, Restored, Snapshot};
use tanist_proto::v1::SubtaskSnapshot;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use super::*;
use crate::socket_sink::SocketSink;
use crate::testing::{context, texts};

fn source(address: &str, reconnect: bool) -> SocketSource {
    source_that_tells(address, reconnect, &Peers::default())
}

fn source_that_tells(address: &str, reconnect: bool, peers: &Peers) -> SocketSource {
    let spec = operators::SocketSource {
        address: address.to_owned(),
        reconnect,
    };
    let output = tanist_model::OperatorSpec::SocketSource(spec.clone());
    let context = OperatorContext {
        output: crate::schema::output_schema(&output, None).expect("a source"),
        peers: peers.clone(),
        ..context(0, 1)
    };
    let mut source = SocketSource::new(&spec, &context);
    source.open().expect("opened");
    source
}

async fn take(source: &mut SocketSource, lines: usize) -> Vec<String> {
    let mut taken = Vec::new();
    while taken.len() < lines {
        match source.next(Instant::now()).expect("read") {
            SourceState::Batch(batch) => {
                let column = batch.column(0).as_string::<i32>();
                taken.extend(column.iter().flatten().map(str::to_owned));
            }
            SourceState::WaitFor(more) => more.notified().await,
            SourceState::Wait(_) | SourceState::Pending | SourceState::End => break,
        }
    }
    taken
}

/// Waits until a peer is reported as unreachable, or none is.
async fn until_away(peers: &Peers, is_away: bool) {
    for _ in 0..10_000 {
        if (peers.away_since_ms() > 0) == is_away {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("the state of a peer was not reported in time: {peers:?}");
}

async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    (listener, address)
}

#[tokio::test]
async fn a_source_connects_again_when_its_server_goes_away() {
    let (listener, address) = listener().await;
    let mut source = source(&address, true);
    for round in ["a", "b"] {
        let (mut stream, _) = listener.accept().await.expect("it comes");
        let text = format!("{round}1\n{round}2\n{round}3");
        stream.write_all(text.as_bytes()).await.expect("sent");
        drop(stream);
        let lines = take(&mut source, 3).await;
        assert_eq!(
            lines,
            ["1", "2", "3"].map(|number| format!("{round}{number}"))
        );
    }
}

#[tokio::test]
async fn a_source_tells_that_its_server_is_away_until_it_is_there() {
    let (listener, address) = listener().await;
    let peers = Peers::default();
    let mut source = source_that_tells(&address, true, &peers);
    let (stream, _) = listener.accept().await.expect("it comes");
    until_away(&peers, false).await;
    drop((stream, listener));
    until_away(&peers, true).await;
    let listener = TcpListener::bind(&address).await.expect("its port again");
    let (mut stream, _) = listener.accept().await.expect("it comes back");
    stream.write_all(b"a\n").await.expect("sent");
    assert_eq!(take(&mut source, 1).await, ["a"]);
    until_away(&peers, false).await;
}

#[tokio::test]
async fn a_source_that_does_not_reconnect_ends_with_its_connection() {
    let (listener, address) = listener().await;
    let mut source = source(&address, false);
    let (mut stream, _) = listener.accept().await.expect("it comes");
    stream.write_all(b"a\n").await.expect("sent");
    drop(stream);
    assert_eq!(take(&mut source, usize::MAX).await, ["a"]);
    assert!(matches!(source.next(Instant::now()), Ok(SourceState::End)));

    drop(listener);
    let mut source = self::source(&address, false);
    loop {
        match source.next(Instant::now()) {
            Ok(SourceState::WaitFor(more)) => more.notified().await,
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert!(error.to_string().contains(&address), "{error}");
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_source_that_is_stopped_hands_on_the_lines_that_it_has_read() {
    let (listener, address) = listener().await;
    let mut source = source(&address, true);
    let (mut stream, _) = listener.accept().await.expect("it comes");
    let text: String = (0..5_000).map(|number| format!("{number}\n")).collect();
    let text = format!("{text}half");
    stream.write_all(text.as_bytes()).await.expect("sent");
    let mut lines = take(&mut source, 1).await;
    assert!(lines.len() < 5_000, "a batch holds them all");
    assert_eq!(source.stop(), Stopped::Soon);
    lines.extend(take(&mut source, usize::MAX).await);
    let numbers: Vec<String> = (0..5_000).map(|number| number.to_string()).collect();
    assert_eq!(lines, numbers);
    assert!(matches!(source.next(Instant::now()), Ok(SourceState::End)));
}

#[tokio::test]
async fn a_source_that_waits_for_its_server_ends_when_it_is_stopped() {
    let peers = Peers::default();
    let mut source = source_that_tells("127.0.0.1:1", true, &peers);
    until_away(&peers, true).await;
    assert_eq!(source.stop(), Stopped::Soon);
    assert!(take(&mut source, usize::MAX).await.is_empty());
    until_away(&peers, false).await;
}

async fn line(reader: &mut (impl tokio::io::AsyncBufRead + Unpin)) -> Option<String> {
    let mut line = String::new();
    let read = reader.read_line(&mut line).await.expect("read");
    (read > 0).then(|| line.trim_end().to_owned())
}

#[tokio::test]
async fn a_sink_writes_again_what_a_broken_connection_may_have_lost() {
    let (listener, address) = listener().await;
    let mut sink = SocketSink::new(&address, &Peers::default());
    sink.open().expect("opened");
    sink.process(texts("w", &["a", "b"]), &mut Output::default())
        .expect("queued");
    let (stream, _) = listener.accept().await.expect("it comes");
    let mut reader = BufReader::new(stream);
    assert_eq!(line(&mut reader).await.as_deref(), Some("a"));
    // The server closes with a line unread.
    drop(reader);
    let (stream, _) = listener.accept().await.expect("it comes back");
    sink.process(texts("w", &["c"]), &mut Output::default())
        .expect("queued");
    let finishing = tokio::task::spawn_blocking(sink.prepare_commit().expect("it has to finish"));
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    while let Some(line) = line(&mut reader).await {
        lines.push(line);
    }
    assert_eq!(lines, ["a", "b", "c"]);
    drop(reader);
    let output = finishing.await.expect("no panic").expect("written");
    assert!(output.committables.is_empty());
}

/// A sink whose records are all queued, and the task that waits for its end.
fn finishing(
    address: &str,
    batches: usize,
    lines: &[&str],
) -> (
    SocketSink,
    tokio::task::JoinHandle<Result<usize, OperatorError>>,
) {
    let mut sink = SocketSink::new(address, &Peers::default());
    sink.open().expect("opened");
    for _ in 0..batches {
        sink.process(texts("w", lines), &mut Output::default())
            .expect("queued");
    }
    let finish = sink.prepare_commit().expect("it has to finish");
    let finishing =
        tokio::task::spawn_blocking(|| finish().map(|output| output.committables.len()));
    (sink, finishing)
}

#[tokio::test]
async fn a_sink_has_written_its_end_when_its_server_has_read_it_and_answered() {
    let (listener, address) = listener().await;
    let (_sink, finishing) = finishing(&address, 50, &["a line"; 1_000]);
    let (stream, _) = listener.accept().await.expect("it comes");
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::with_capacity(64, reader);
    let mut lines = 0;
    while let Some(line) = line(&mut reader).await {
        assert_eq!(line, "a line");
        lines += 1;
        writer.write_all(b"taken\n").await.expect("it is heard");
    }
    assert_eq!(lines, 50_000);
    assert!(
        !finishing.is_finished(),
        "the server has not closed its side"
    );
    drop(writer);
    finishing.await.expect("no panic").expect("written");
}

#[tokio::test]
async fn a_sink_whose_connection_breaks_after_its_last_line_writes_that_again() {
    let (listener, address) = listener().await;
    let (_sink, finishing) = finishing(&address, 1, &["a", "b"]);
    let (stream, _) = listener.accept().await.expect("it comes");
    let mut reader = BufReader::new(stream);
    while line(&mut reader).await.is_some() {}
    // A connection is reset if one side has unread data, or by this.
    reader.get_ref().set_zero_linger().expect("set");
    drop(reader);
    let (stream, _) = listener.accept().await.expect("it comes back");
    let mut reader = BufReader::new(stream);
    for expected in [Some("a"), Some("b"), None] {
        assert_eq!(line(&mut reader).await.as_deref(), expected);
    }
    drop(reader);
    finishing.await.expect("no panic").expect("written");
}

#[tokio::test]
async fn a_sink_reads_what_its_server_says_so_that_that_goes_on_reading() {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(32 * 1024).expect("set");
    socket.set_send_buffer_size(32 * 1024).expect("set");
    let any = "127.0.0.1:0".parse().expect("an address");
    socket.bind(any).expect("a free port");
    let listener = socket.listen(1).expect("listening");
    let address = listener.local_addr().expect("bound").to_string();
    let long = "x".repeat(1024 * 1024 - 1);
    let (_sink, finishing) = finishing(&address, 32, &[&long]);
    let (stream, _) = listener.accept().await.expect("it comes");
    let (mut reader, mut writer) = stream.into_split();
    let echo = async {
        let mut chunk = vec![0; 16 * 1024];
        let mut bytes = 0;
        loop {
            match reader.read(&mut chunk).await.expect("read") {
                0 => return bytes,
                read => {
                    bytes += read;
                    writer.write_all(&chunk[..read]).await.expect("it is read");
                }
            }
        }
    };
    let echoed = tokio::time::timeout(Duration::from_secs(120), echo).await;
    assert_eq!(
        echoed.expect("neither waits for the other"),
        32 * 1024 * 1024
    );
    drop(writer);
    finishing.await.expect("no panic").expect("written");
}

#[test]
fn a_sink_refuses_a_record_with_a_line_break() {
    let mut sink = SocketSink::new("127.0.0.1:1", &Peers::default());
    let refused = sink.process(texts("w", &["a", "b\nc"]), &mut Output::default());
    let refused = refused.expect_err("it is no line").to_string();
    assert!(refused.contains("it has a line break"), "{refused}");
    assert!(refused.ends_with("at record [b\\nc]"), "{refused}");
}

#[tokio::test]
async fn a_sink_that_nobody_reads_has_no_room_and_can_be_dropped() {
    let peers = Peers::default();
    let mut sink = SocketSink::new("127.0.0.1:1", &peers);
    sink.open().expect("opened");
    assert!(sink.without_room().is_none());
    let long = "x".repeat(1024 * 1024);
    sink.process(texts("w", &[&long]), &mut Output::default())
        .expect("queued");
    let room = sink.without_room().expect("it is full");
    until_away(&peers, true).await;
    let finishing = tokio::task::spawn_blocking(sink.prepare_commit().expect("it has to finish"));
    drop(sink);
    assert!(finishing.await.expect("no panic").is_err());
    until_away(&peers, false).await;
    drop(room);
}

#[tokio::test]
async fn a_sink_writes_again_after_a_restore_what_may_be_lost() {
    let (listener, address) = listener().await;
    let mut first = SocketSink::new(&address, &Peers::default());
    first.open().expect("open");
    let process = |sink: &mut SocketSink, word: &str| {
        let processed = sink.process(texts("word", &[word]), &mut Output::default());
        processed.expect("taken");
    };
    process(&mut first, "written");
    let (stream, _) = listener.accept().await.expect("it connects");
    let mut reader = BufReader::new(stream);
    assert_eq!(line(&mut reader).await.as_deref(), Some("written"));
    process(&mut first, "waiting");
    let mut snapshot = Snapshot::default();
    first.snapshot(&mut snapshot).expect("saved");
    let mut subtask = SubtaskSnapshot::default();
    snapshot.add_to(&mut subtask, "out").expect("encoded");
    drop((first, reader));

    let mut second = SocketSink::new(&address, &Peers::default());
    let restored = Restored::of("out", &subtask);
    second.restore(&restored).expect("its own state");
    second.open().expect("open");
    process(&mut second, "later");
    let (stream, _) = listener.accept().await.expect("it connects");
    let mut reader = BufReader::new(stream);
    for expected in ["written", "waiting", "later"] {
        assert_eq!(line(&mut reader).await.as_deref(), Some(expected));
    }
}
