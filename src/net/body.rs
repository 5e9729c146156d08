//! Request bodies: their memory is limited per process, and a body must not be silent for too long.
//!
//! Each port has a share of the limit, so that a flood of bodies on one port does not cause refusals on
//! another. An eighth of each share is reserved for small bodies: a heartbeat passes when large bodies have
//! used all they may. A handler releases memory that it no longer holds, as for an upload that goes to the blob
//! store.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep};
use tonic::Status;

use super::limits::Port;

/// Timeout for the next data of a body.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of a small body, in bytes.
const SMALL: usize = 64 << 10;
/// The error of a request whose body does not fit into memory.
pub(super) const FULL: &str =
    "the bodies of other requests use all the memory for bodies: try again";

/// Why a body is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// All bodies together have reached the limit.
    #[error("{FULL}")]
    Full(#[source] Status),
    /// No data arrived within the silence timeout (60 s).
    #[error("no part of the body arrived for {SILENCE_TIMEOUT:?}")]
    Silent,
    /// The connection or the sender broke.
    #[error(transparent)]
    Broken(#[from] hyper::Error),
}

impl BodyError {
    /// The status is for gRPC callers: tonic looks for it among the sources.
    fn full() -> BodyError {
        BodyError::Full(Status::unavailable(FULL))
    }
}

/// A port's share of the memory for bodies. Cheap to clone; clones count together.
#[derive(Debug, Clone)]
pub struct BodyShare {
    used: Arc<AtomicUsize>,
    /// Limit for large bodies together, in bytes.
    large: usize,
    /// Limit for all bodies together, in bytes.
    all: usize,
}

/// Returns the share in bytes. All shares together are 256 MiB.
fn share_of(port: Port) -> usize {
    match port {
        Port::Rest => 128 << 20,
        Port::Rpc => 96 << 20,
        Port::Peer | Port::Blob => 16 << 20,
        // It has no bodies.
        Port::Exchange => 0,
    }
}

impl BodyShare {
    /// Returns this process's share of the port. One body of the `largest` size that the port accepts always
    /// fits if it is alone.
    pub fn of_process(port: Port, largest: usize) -> BodyShare {
        static USED: LazyLock<[Arc<AtomicUsize>; 5]> = LazyLock::new(Default::default);
        BodyShare::new(USED[port as usize].clone(), share_of(port), largest)
    }

    /// Returns the share of another process that is simulated in this one.
    #[cfg(feature = "simulation")]
    pub fn of_another_process(port: Port, largest: usize) -> BodyShare {
        BodyShare::new(Arc::default(), share_of(port), largest)
    }

    fn new(used: Arc<AtomicUsize>, share: usize, largest: usize) -> BodyShare {
        let for_small = share / 8;
        let large = (share - for_small).max(largest);
        BodyShare {
            used,
            large,
            all: large.saturating_add(for_small),
        }
    }

    /// Returns a share for tests, of no port.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_a_test(largest: usize) -> BodyShare {
        BodyShare::new(Arc::default(), 0, largest)
    }

    /// Returns the used memory, in bytes.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Creates an empty reservation.
    pub(super) fn reserve(&self) -> Arc<Reservation> {
        Arc::new(Reservation {
            share: self.clone(),
            used: AtomicUsize::new(0),
        })
    }

    fn bound_for(&self, size: usize) -> usize {
        if size <= SMALL { self.all } else { self.large }
    }

    /// Whether a body of at least this size does not fit.
    pub(super) fn is_full(&self, size: &SizeHint) -> bool {
        let size = usize::try_from(size.lower()).unwrap_or(usize::MAX);
        self.used.load(Ordering::Relaxed) >= self.bound_for(size)
    }
}

/// Memory of one request's body. Returned when the request is over.
#[derive(Debug)]
pub struct Reservation {
    share: BodyShare,
    used: AtomicUsize,
}

impl Reservation {
    /// Adds before it checks: of two bodies that grow at the same time, both may be refused, but the limit holds.
    fn grow(&self, bytes: usize) -> Result<(), BodyError> {
        let own = self.used.load(Ordering::Relaxed).saturating_add(bytes);
        let before = self.share.used.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > self.share.bound_for(own) {
            self.share.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err(BodyError::full());
        }
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Gives back `bytes` of memory that the body no longer uses.
    pub fn release(&self, bytes: usize) {
        let take = |used: usize| Some(used.saturating_sub(bytes));
        let before = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let before = before.unwrap_or_else(|used| used);
        let released = bytes.min(before);
        self.share.used.fetch_sub(released, Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release(usize::MAX);
    }
}

/// A request's body.
#[derive(Debug)]
pub struct RequestBody {
    inner: Incoming,
    reservation: Arc<Reservation>,
    /// Timer, set while no data arrives.
    silence: Option<Pin<Box<Sleep>>>,
}

impl RequestBody {
    pub(super) fn new(inner: Incoming, reservation: Arc<Reservation>) -> RequestBody {
        RequestBody {
            inner,
            reservation,
            silence: None,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) else {
            let silence = self
                .silence
                .get_or_insert_with(|| Box::pin(sleep(SILENCE_TIMEOUT)));
            ready!(silence.as_mut().poll(context));
            return Poll::Ready(Some(Err(BodyError::Silent)));
        };
        if let Some(silence) = &mut self.silence {
            silence.as_mut().reset(Instant::now() + SILENCE_TIMEOUT);
        }
        let Some(frame) = frame.transpose()? else {
            return Poll::Ready(None);
        };
        if let Some(data) = frame.data_ref() {
            self.reservation.grow(data.len())?;
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share() -> BodyShare {
        BodyShare::new(Arc::default(), 8 << 20, 0)
    }

    #[test]
    fn all_shares_together_are_256_mib() {
        let ports = [
            Port::Rest,
            Port::Rpc,
            Port::Peer,
            Port::Blob,
            Port::Exchange,
        ];
        let sum: usize = ports.into_iter().map(share_of).sum();
        assert_eq!(sum, 256 << 20);
    }

    #[test]
    fn small_bodies_have_room_where_large_ones_have_none() {
        let share = share();
        let large: Vec<_> = (0..7).map(|_| share.reserve()).collect();
        for reservation in &large {
            assert!(reservation.grow(1 << 20).is_ok());
        }
        let another = share.reserve();
        assert!(another.grow(SMALL + 1).is_err());
        assert!(share.is_full(&SizeHint::with_exact(1 << 20)));
        assert!(!share.is_full(&SizeHint::default()));
        let small = share.reserve();
        assert!(small.grow(SMALL).is_ok());
        drop(large);
        assert!(another.grow(SMALL + 1).is_ok());
        drop((small, another));
        assert_eq!(share.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_was_released_is_not_given_back_twice() {
        let share = share();
        let reservation = share.reserve();
        assert!(reservation.grow(1000).is_ok());
        reservation.release(400);
        assert_eq!(share.used.load(Ordering::Relaxed), 600);
        reservation.release(1000);
        drop(reservation);
        assert_eq!(share.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_largest_body_that_is_taken_has_room_if_it_is_alone() {
        let share = BodyShare::new(Arc::default(), 8 << 20, 64 << 20);
        let reservation = share.reserve();
        assert!(reservation.grow(64 << 20).is_ok());
        assert!(reservation.grow(1).is_err());
        assert!(share.reserve().grow(1).is_ok());
    }
}
