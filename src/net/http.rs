//! Serves HTTP on a [`Listener`], independent of the messages: REST over HTTP/1, calls and bulk data over HTTP/2.
//!
//! Every port has the same limits: ten seconds for a connection to send its request, also when it starts the
//! next one; an idle timeout; a timeout for silent bodies; memory for bodies from the port's [`BodyShare`]. A
//! connection that must make room for another one is dropped.

use std::convert::Infallible;
use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tower_service::Service;
use tracing::debug;

use super::body::{BodyShare, FULL, RequestBody};
use super::limits::{Busy, Connection, HANDSHAKE_TIMEOUT};
use super::listener::{Accepted, Listener};
use super::observed_stream::{ObservedStream, StreamObserver};

/// Time for which an HTTP/1 connection is kept without a request.
pub(crate) const KEPT_IDLE: Duration = Duration::from_secs(75);
/// The same for HTTP/2, whose client is notified before.
const KEPT_IDLE_MULTIPLEXED: Duration = Duration::from_secs(600);
/// Flow control window: bytes that an HTTP/2 sender may send before they are read, per request and per connection.
const WINDOW: u32 = 1 << 20;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Protocol of a port's connections.
#[derive(Debug, Clone, Copy)]
pub enum Protocol {
    /// HTTP/1: one request after the other.
    Http1,
    /// HTTP/2.
    Http2 {
        /// Maximum number of requests in progress on a connection.
        streams: u32,
        /// Maximum number of requests cancelled before they were handled; with more the connection ends.
        resets: usize,
    },
}

/// Serves until `stop`. Then accepts no connections and finishes the requests in progress. Connections that are
/// left end when this future is dropped.
pub async fn serve<S, B>(
    mut listener: Listener,
    service: S,
    protocol: Protocol,
    bodies: BodyShare,
    stop: CancellationToken,
) where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
{
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let serving = Serving {
            service: service.clone(),
            bodies: bodies.clone(),
            stop: stop.clone(),
        };
        connections.spawn(serving.connection(accepted, protocol));
        while connections.try_join_next().is_some() {}
    }
    // From here on a new connection is refused and does not wait.
    drop(listener);
    while connections.join_next().await.is_some() {}
}

struct Serving<S> {
    service: S,
    bodies: BodyShare,
    stop: CancellationToken,
}

impl<S, B> Serving<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
{
    async fn connection(self, accepted: Accepted, protocol: Protocol) {
        let Accepted {
            stream,
            peer,
            connection,
        } = accepted;
        let connection = Arc::new(connection);
        let stop = self.stop;
        let (service, bodies, of) = (self.service, self.bodies, connection.clone());
        let answering =
            service_fn(move |request| answer(service.clone(), request, of.begin(), bodies.clone()));
        let ended = match protocol {
            Protocol::Http1 => {
                let watched = ObservedStream::new(stream, connection.clone());
                let mut builder = http1::Builder::new();
                builder.timer(TokioTimer::new()).header_read_timeout(None);
                let serving = builder.serve_connection(TokioIo::new(watched), answering);
                drive(serving, &connection, KEPT_IDLE, &stop).await
            }
            Protocol::Http2 { streams, resets } => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder
                    .timer(TokioTimer::new())
                    .max_concurrent_streams(streams)
                    .max_pending_accept_reset_streams(resets)
                    .initial_stream_window_size(WINDOW)
                    .initial_connection_window_size(WINDOW);
                let serving = builder.serve_connection(TokioIo::new(stream), answering);
                drive(serving, &connection, KEPT_IDLE_MULTIPLEXED, &stop).await
            }
        };
        if let Err(error) = ended {
            debug!(%peer, %error, "a connection ended");
        }
    }
}

/// Runs a connection until it ends, is evicted, or exceeds a timeout.
async fn drive<C>(
    serving: C,
    connection: &Connection,
    idle: Duration,
    stop: &CancellationToken,
) -> Result<(), C::Error>
where
    C: GracefulConnection,
{
    let mut serving = pin!(serving);
    let mut is_closing = false;
    // Deadline for an idle connection to send what was in transit when it was requested to close.
    let mut gone_by = None;
    loop {
        // A busy connection has no deadline: it is checked again later, as it may be idle by then.
        let check_at = Instant::now() + HANDSHAKE_TIMEOUT;
        let deadline = connection.deadline(idle).map(|at| gone_by.unwrap_or(at));
        let check_at = deadline.map_or(check_at, |deadline| deadline.min(check_at));
        tokio::select! {
            ended = serving.as_mut() => return ended,
            () = connection.evicted() => return Ok(()),
            () = stop.cancelled(), if !is_closing => {
                is_closing = true;
                serving.as_mut().graceful_shutdown();
            }
            () = sleep_until(check_at) => {
                let deadline = connection.deadline(idle).map(|at| gone_by.unwrap_or(at));
                if deadline.is_none_or(|deadline| deadline > Instant::now()) {
                    continue;
                }
                if is_closing || !connection.is_idle() {
                    return Ok(());
                }
                // The client receives this before it sends the next request.
                is_closing = true;
                gone_by = Some(Instant::now() + HANDSHAKE_TIMEOUT);
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Answers one request.
async fn answer<S, B>(
    mut service: S,
    request: Request<Incoming>,
    busy: Busy,
    bodies: BodyShare,
) -> Result<Response<AnswerBody<B>>, Infallible>
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    B: Body<Data = Bytes> + Unpin,
{
    let has_body = !request.body().is_end_stream();
    let answer = if has_body && bodies.is_full(&request.body().size_hint()) {
        full().map(Either::Right)
    } else {
        let reservation = bodies.reserve();
        let held = reservation.clone();
        let mut request = request.map(|body| RequestBody::new(body, reservation.clone()));
        request.extensions_mut().insert(reservation);
        std::future::poll_fn(|context| service.poll_ready(context)).await?;
        let answer = service.call(request).await?;
        drop(held);
        answer.map(Either::Left)
    };
    let busy = Arc::new(busy);
    Ok(answer.map(|body| AnswerBody { body, busy }))
}

/// Answer to a request whose body does not fit into memory.
fn full() -> Response<Full<Bytes>> {
    let text = format!(r#"{{"errors":["{FULL}"]}}"#);
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    let headers = answer.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// Body of an answer: its request is in progress until the body is sent.
#[derive(Debug)]
struct AnswerBody<B> {
    body: Either<B, Full<Bytes>>,
    busy: Arc<Busy>,
}

/// Piece of an answer. The server drops the body once it has taken the last piece, and a piece once the socket
/// has taken it.
#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    _busy: Arc<Busy>,
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.bytes.chunks_vectored(slices)
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

impl<B> Body for AnswerBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Piece;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let piece = |bytes| Piece {
            bytes,
            _busy: self.busy.clone(),
        };
        Poll::Ready(frame.map(|frame| Ok(frame?.map_data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Records reads: between two HTTP/1 requests, only a read shows that the next one begins.
impl StreamObserver for Arc<Connection> {
    fn note_read(&self) {
        Connection::note_read(self);
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
