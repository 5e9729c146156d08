//! Tests of [`super`]: connections that send nothing, or too little.

use axum::Router;
use axum::body::{Bytes as Content, to_bytes};
use axum::extract::Request as Asked;
use axum::routing::{any, get};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::{BodyError, Connections, Port};

/// Answers with the body that was sent, or with its error.
async fn echo(request: Asked) -> Result<Content, (StatusCode, String)> {
    let read = to_bytes(request.into_body(), usize::MAX).await;
    read.map_err(|error| {
        let first: &(dyn std::error::Error + 'static) = &error;
        let mut causes = std::iter::successors(Some(first), |error| error.source());
        let status = match causes.find_map(|cause| cause.downcast_ref::<BodyError>()) {
            Some(BodyError::Full(_)) => StatusCode::SERVICE_UNAVAILABLE,
            Some(BodyError::Silent) => StatusCode::REQUEST_TIMEOUT,
            Some(BodyError::Broken(_)) | None => StatusCode::BAD_REQUEST,
        };
        (status, error.to_string())
    })
}

/// Limit for all bodies, in bytes.
const LARGEST: usize = 1 << 20;

async fn listen() -> Listener {
    let listener = Listener::bind("127.0.0.1:0", Port::Rest).await;
    listener.expect("a free port")
}

/// Returns the address of an echo server and its body memory.
async fn served(protocol: Protocol) -> (String, BodyShare) {
    served_on(listen().await, protocol)
}

fn served_on(listener: Listener, protocol: Protocol) -> (String, BodyShare) {
    let address = listener.local_addr().expect("bound").to_string();
    let bodies = BodyShare::of_a_test(LARGEST);
    let large = get(async || Content::from(vec![b'x'; LARGE_ANSWER]));
    let router = Router::new().fallback(any(echo)).route("/large", large);
    let never = CancellationToken::new();
    tokio::spawn(serve(listener, router, protocol, bodies.clone(), never));
    (address, bodies)
}

/// More than sockets buffer until it is read, in bytes.
const LARGE_ANSWER: usize = 32 << 20;

/// Returns the address of such a server with at most one connection.
async fn served_to_one(protocol: Protocol) -> String {
    let listener = listen().await.within(Connections::within(2));
    served_on(listener, protocol).0
}

struct Client(TcpStream);

impl Client {
    async fn to(address: &str) -> Client {
        Client(TcpStream::connect(address).await.expect("connected"))
    }

    async fn send(&mut self, text: &str) {
        let sent = self.0.write_all(text.as_bytes()).await;
        sent.expect("there is room");
    }

    /// Reads until the connection is closed.
    async fn read_to_end(&mut self) -> String {
        let mut answer = Vec::new();
        self.0.read_to_end(&mut answer).await.ok();
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Returns the status of the next answer, which has no body.
    async fn status(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.expect("an answer"));
        }
        String::from_utf8_lossy(&head[9..12]).into_owned()
    }
}

/// Measures the duration of `what`.
async fn time_of<T>(what: impl Future<Output = T>) -> (Duration, T) {
    let begun = Instant::now();
    let done = what.await;
    (begun.elapsed(), done)
}

const GET: &str = "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[tokio::test(start_paused = true)]
async fn a_connection_that_has_not_said_what_it_wants_is_closed_after_ten_seconds() {
    let (http1, _) = served(Protocol::Http1).await;
    let calls = Protocol::Http2 {
        streams: 10,
        resets: 10,
    };
    let (http2, _) = served(calls).await;
    for (address, begun) in [
        (&http1, ""),
        (&http1, "GET / HTTP/1.1\r\nhost: "),
        (&http2, ""),
        (&http2, "PRI * HTTP/2.0\r\n"),
        (&http2, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ] {
        let mut client = Client::to(address).await;
        client.send(begun).await;
        let (took, _) = time_of(client.read_to_end()).await;
        let bound = HANDSHAKE_TIMEOUT..HANDSHAKE_TIMEOUT + Duration::from_secs(1);
        assert!(bound.contains(&took), "{begun:?}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_kept_between_requests_for_a_while_and_not_when_it_asks_slowly() {
    let (address, _) = served(Protocol::Http1).await;
    let mut client = Client::to(&address).await;
    client.send(GET).await;
    assert_eq!(client.status().await, "200");
    tokio::time::sleep(KEPT_IDLE / 2).await;
    client.send(GET).await;
    assert_eq!(client.status().await, "200");
    let mut slow = Client::to(&address).await;
    slow.send(GET).await;
    assert_eq!(slow.status().await, "200");
    slow.send("GET ").await;
    let (took, _) = time_of(slow.read_to_end()).await;
    assert!(took <= HANDSHAKE_TIMEOUT * 2, "{took:?}");
    let (took, _) = time_of(client.read_to_end()).await;
    assert!(took <= KEPT_IDLE, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_of_which_nothing_comes_is_given_up_after_a_minute() {
    let (address, _) = served(Protocol::Http1).await;
    let mut client = Client::to(&address).await;
    let head = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nsome";
    client.send(head).await;
    let (took, answer) = time_of(client.read_to_end()).await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(took >= Duration::from_secs(60), "{took:?}");
    assert!(took < Duration::from_secs(62), "{took:?}");
}

#[tokio::test]
async fn a_body_for_which_there_is_no_memory_is_answered_503_and_others_go_on() {
    let (address, bodies) = served(Protocol::Http1).await;
    let head = format!(
        "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        2 * LARGEST
    );
    let mut first = Client::to(&address).await;
    first.send(&head).await;
    first.send(&"x".repeat(LARGEST)).await;
    let reading = async {
        while bodies.used() < LARGEST {
            tokio::task::yield_now().await;
        }
    };
    let read = tokio::time::timeout(Duration::from_secs(30), reading).await;
    read.expect("all that was sent is read");
    let mut second = Client::to(&address).await;
    second.send(&head).await;
    let answer = second.read_to_end().await.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 503 "), "{answer}");
    assert!(answer.contains("retry-after: 1"), "{answer}");
    let mut other = Client::to(&address).await;
    other.send(GET).await;
    assert_eq!(other.status().await, "200");
    // With one more byte the first request exceeds the limit.
    first.send("x").await;
    let answer = first.read_to_end().await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert_eq!(bodies.used(), 0);
}

/// Checks that the only allowed connection is kept for its answer.
async fn check_another_one_is_closed(address: &str) {
    let mut another = Client::to(address).await;
    another.0.write_all(GET.as_bytes()).await.ok();
    assert_eq!(another.read_to_end().await, "");
}

#[tokio::test]
async fn a_slow_reader_of_a_large_answer_makes_no_room_for_another_connection() {
    let address = served_to_one(Protocol::Http1).await;
    let mut slow = Client::to(&address).await;
    slow.send("GET /large HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await;
    // When the head arrives, the server has produced the whole body.
    assert_eq!(slow.status().await, "200");
    check_another_one_is_closed(&address).await;
    assert_eq!(slow.read_to_end().await.len(), LARGE_ANSWER);
}

#[tokio::test]
async fn a_slow_reader_over_http2_makes_no_room_either() {
    let (streams, resets) = (10, 10);
    let address = served_to_one(Protocol::Http2 { streams, resets }).await;
    let stream = TcpStream::connect(&address).await.expect("connected");
    let client = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut asking, connection) = client.await.expect("it is spoken there");
    tokio::spawn(connection);
    let request = Request::get("/large").body(Full::new(Bytes::new()));
    let answer = asking.send_request(request.expect("valid")).await;
    let mut body = answer.expect("an answer").into_body();
    let first = body.frame().await.expect("a body").expect("nothing broke");
    check_another_one_is_closed(&address).await;
    let rest = body.collect().await.expect("nothing broke").to_bytes();
    let first = first.into_data().expect("data");
    assert_eq!(first.len() + rest.len(), LARGE_ANSWER);
}
