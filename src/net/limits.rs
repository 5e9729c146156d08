//! Number of connections per port, and which connection is closed when another one arrives.
//!
//! Half of the process's file descriptors are for incoming connections; the rest is for outgoing ones, the
//! store and files. The kinds of ports that the process serves share that half by fixed weights, so a flood on
//! one port takes nothing from another.
//!
//! A connection is *fresh* until it has sent a request, then *busy* while a request is in progress, else
//! *idle*. When a port has used its share, a new connection replaces the oldest fresh one, else the one that
//! has been idle longest; if all are busy, the new one is closed. So a flood of silent connections displaces
//! itself, and a connection that sends its request at once is served.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::log_limiter::LogLimiter;

/// Timeout for a connection's first bytes: an HTTP head, the preface of HTTP/2, a hello.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit if the system sets none.
const MANY_DESCRIPTORS: u64 = 1 << 17;
/// Timeout for an evicted connection to close; this takes microseconds.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Kind of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// HTTP for people and clients.
    Rest,
    /// Calls between components.
    Rpc,
    /// Heartbeats of JobManagers.
    Peer,
    /// Bulk data.
    Blob,
    /// Records between tasks.
    Exchange,
}

impl Port {
    const ALL: [Port; 5] = [
        Port::Rest,
        Port::Rpc,
        Port::Peer,
        Port::Blob,
        Port::Exchange,
    ];

    /// Weight of its share among the ports that the process serves.
    fn weight(self) -> usize {
        match self {
            Port::Rest => 2,
            // One connection per TaskManager, or per JobManager.
            Port::Rpc => 4,
            Port::Peer | Port::Blob => 1,
            // One connection per channel.
            Port::Exchange => 8,
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }

    /// Name for logs.
    pub fn name(self) -> &'static str {
        match self {
            Port::Rest => "REST",
            Port::Rpc => "RPC",
            Port::Peer => "peer",
            Port::Blob => "blob",
            Port::Exchange => "exchange",
        }
    }
}

/// Incoming connections of a process.
#[derive(Debug)]
pub struct Connections {
    /// Maximum number of open connections.
    bound: usize,
    /// Bit set of the ports that the process serves.
    served: AtomicU8,
    ports: [Arc<PortConnections>; Port::ALL.len()],
}

impl Connections {
    /// Returns those of this process. Their limit follows from its descriptor limit at the first call.
    pub fn of_process() -> Arc<Connections> {
        static OF_PROCESS: LazyLock<Arc<Connections>> = LazyLock::new(|| {
            let limit = getrlimit(Resource::Nofile).current;
            let descriptors = limit.unwrap_or(MANY_DESCRIPTORS).min(MANY_DESCRIPTORS);
            Connections::within(usize::try_from(descriptors).unwrap_or(usize::MAX))
        });
        OF_PROCESS.clone()
    }

    /// Returns those of a process with this number of descriptors.
    pub fn within(descriptors: usize) -> Arc<Connections> {
        Arc::new(Connections {
            bound: descriptors / 2,
            served: AtomicU8::new(0),
            ports: Port::ALL.map(|port| Arc::new(PortConnections::new(port))),
        })
    }

    /// Adds a port that the process serves.
    pub(super) fn serve(&self, port: Port) {
        self.served.fetch_or(port.bit(), Ordering::Relaxed);
    }

    /// Returns the number of connections that a port may have.
    pub fn share(&self, port: Port) -> usize {
        let served = self.served.load(Ordering::Relaxed) | port.bit();
        let weights = Port::ALL.iter().filter(|other| served & other.bit() != 0);
        let weights: usize = weights.map(|other| other.weight()).sum();
        (self.bound * port.weight() / weights).max(1)
    }

    /// Admits one more connection, if necessary by closing another one; `None` if all others are busy.
    pub(super) async fn admit(&self, port: Port) -> Option<Connection> {
        let of_port = &self.ports[port as usize];
        let admitted = of_port.admit(self.share(port)).await;
        if admitted.is_none() {
            of_port.log_limit("the new connection was closed: all others are busy");
        }
        admitted
    }
}

/// The connections of all ports of one kind.
struct PortConnections {
    port: Port,
    open: Mutex<Open>,
    /// Notified when a connection has closed.
    released: Notify,
    over: LogLimiter,
}

#[derive(Default)]
struct Open {
    next: u64,
    slots: HashMap<u64, Arc<Slot>>,
}

struct Slot {
    activity: Mutex<Activity>,
    /// Notified when the connection is evicted.
    evicted: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Activity {
    phase: Phase,
    /// Start time of the phase.
    since: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It has not sent a request.
    Fresh,
    /// It was served, and its next request is being received.
    Receiving,
    /// It was served.
    Idle,
    /// Number of requests in progress.
    Busy(u32),
    /// It was requested to close.
    Evicted,
}

impl Slot {
    /// Eviction order: the smallest rank goes first; `None`: it stays.
    fn rank(&self) -> Option<(u8, Instant)> {
        let Activity { phase, since } = *self.activity.lock();
        match phase {
            Phase::Fresh | Phase::Receiving => Some((0, since)),
            Phase::Idle => Some((1, since)),
            Phase::Busy(_) | Phase::Evicted => None,
        }
    }

    /// Evicts it, unless it has become busy.
    fn evict(&self) -> bool {
        let mut activity = self.activity.lock();
        if matches!(activity.phase, Phase::Busy(_) | Phase::Evicted) {
            return false;
        }
        activity.phase = Phase::Evicted;
        self.evicted.notify_one();
        true
    }
}

impl PortConnections {
    fn new(port: Port) -> PortConnections {
        PortConnections {
            port,
            open: Mutex::default(),
            released: Notify::new(),
            over: LogLimiter::default(),
        }
    }

    fn log_limit(&self, became: &str) {
        if let Some(count) = self.over.note() {
            let port = self.port.name();
            warn!(
                port,
                count, "more connections than this port's share of the descriptors: {became}"
            );
        }
    }

    fn insert(self: &Arc<Self>, open: &mut Open) -> Connection {
        let number = open.next;
        open.next += 1;
        let slot = Arc::new(Slot {
            activity: Mutex::new(Activity {
                phase: Phase::Fresh,
                since: Instant::now(),
            }),
            evicted: Notify::new(),
        });
        open.slots.insert(number, slot.clone());
        Connection {
            number,
            slot,
            of: self.clone(),
        }
    }

    async fn admit(self: &Arc<Self>, share: usize) -> Option<Connection> {
        let closed = self.released.notified();
        tokio::pin!(closed);
        {
            let mut open = self.open.lock();
            if open.slots.len() < share {
                return Some(self.insert(&mut open));
            }
            let ranked = open.slots.values();
            let ranked = ranked.filter_map(|slot| slot.rank().map(|rank| (rank, slot)));
            let first = ranked.min_by_key(|(rank, _)| *rank);
            // Before the eviction, so that no release after it is missed.
            closed.as_mut().enable();
            if !first.is_some_and(|(_, slot)| slot.evict()) {
                return None;
            }
        }
        self.log_limit("the oldest ones without a request were closed");
        // Its descriptor must be free before another one is used.
        let _is_there_room = timeout(CLOSE_TIMEOUT, closed).await;
        let mut open = self.open.lock();
        (open.slots.len() < share).then(|| self.insert(&mut open))
    }
}

impl fmt::Debug for PortConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.open.lock().slots.len();
        write!(f, "{open} connections of the {} port", self.port.name())
    }
}

/// Slot of one connection. Dropped when the connection is closed.
pub struct Connection {
    number: u64,
    slot: Arc<Slot>,
    of: Arc<PortConnections>,
}

impl Connection {
    /// Begins a request. It is in progress until the returned value is dropped.
    pub fn begin(self: &Arc<Self>) -> Busy {
        let mut activity = self.slot.activity.lock();
        activity.phase = match activity.phase {
            Phase::Busy(requests) => Phase::Busy(requests.saturating_add(1)),
            Phase::Fresh | Phase::Receiving | Phase::Idle | Phase::Evicted => Phase::Busy(1),
        };
        activity.since = Instant::now();
        Busy(self.clone())
    }

    /// Marks the connection as in use: its hello was read, and it counts as busy until it is closed.
    pub fn establish(&self) {
        let mut activity = self.slot.activity.lock();
        activity.phase = Phase::Busy(u32::MAX);
        activity.since = Instant::now();
    }

    /// Records a read. The first one after an answer begins another request.
    pub(super) fn note_read(&self) {
        let mut activity = self.slot.activity.lock();
        if activity.phase == Phase::Idle {
            activity.phase = Phase::Receiving;
            activity.since = Instant::now();
        }
    }

    /// Completes when the connection is evicted.
    pub async fn evicted(&self) {
        self.slot.evicted.notified().await;
    }

    /// Returns the time by which it must have sent more, given its idle timeout; `None` while it is busy.
    pub(super) fn deadline(&self, idle: Duration) -> Option<Instant> {
        let Activity { phase, since } = *self.slot.activity.lock();
        match phase {
            Phase::Fresh | Phase::Receiving => Some(since + HANDSHAKE_TIMEOUT),
            Phase::Idle => Some(since + idle),
            Phase::Busy(_) => None,
            Phase::Evicted => Some(since),
        }
    }

    /// Whether it was served before and sends no request now.
    pub(super) fn is_idle(&self) -> bool {
        self.slot.activity.lock().phase == Phase::Idle
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.of.open.lock().slots.remove(&self.number);
        self.of.released.notify_waiters();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("activity", &*self.slot.activity.lock())
            .finish_non_exhaustive()
    }
}

/// A request in progress.
#[derive(Debug)]
pub struct Busy(Arc<Connection>);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut activity = self.0.slot.activity.lock();
        activity.phase = match activity.phase {
            Phase::Busy(requests) if requests > 1 => Phase::Busy(requests - 1),
            Phase::Busy(_) => Phase::Idle,
            other => other,
        };
        activity.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_share_half_of_the_descriptors_whatever_ports_there_are() {
        let jobmanager = Connections::within(1024);
        let ports = [Port::Rest, Port::Rpc, Port::Peer, Port::Blob];
        for port in ports {
            jobmanager.serve(port);
        }
        let shares = ports.map(|port| jobmanager.share(port));
        assert_eq!(shares, [128, 256, 64, 64]);
        let taskmanager = Connections::within(1024);
        let ports = [Port::Rpc, Port::Exchange];
        for port in ports {
            taskmanager.serve(port);
        }
        assert_eq!(ports.map(|port| taskmanager.share(port)), [170, 341]);
        assert_eq!(Connections::within(8).share(Port::Rest), 4);
        assert!(Connections::of_process().bound > 0);
    }

    /// At most three connections.
    fn three() -> Arc<PortConnections> {
        Arc::new(PortConnections::new(Port::Rest))
    }

    async fn admit(of: &Arc<PortConnections>) -> Option<Arc<Connection>> {
        of.admit(3).await.map(Arc::new)
    }

    /// Closes when it is evicted, like the task of a connection.
    fn obey(connection: Arc<Connection>) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move { connection.evicted().await })
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_that_said_nothing_goes_first_then_the_longest_idle() {
        let port = three();
        let busy = admit(&port).await.expect("there is room");
        let _request = busy.begin();
        let idle = admit(&port).await.expect("there is room");
        drop(idle.begin());
        tokio::time::advance(Duration::from_secs(1)).await;
        let fresh = admit(&port).await.expect("there is room");
        let (idle, fresh) = (obey(idle), obey(fresh));
        let another = admit(&port).await.expect("the fresh one goes");
        assert!(fresh.is_finished() && !idle.is_finished());
        let _request = another.begin();
        let _last = admit(&port).await.expect("the idle one goes");
        assert!(idle.is_finished());
        assert_eq!(port.open.lock().slots.len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_that_is_busy_goes_and_the_new_one_is_closed() {
        let port = three();
        let mut requests = Vec::new();
        for _ in 0..3 {
            let connection = admit(&port).await.expect("there is room");
            requests.push(connection.begin());
        }
        assert!(admit(&port).await.is_none());
        requests.pop();
        assert!(admit(&port).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_never_more_than_may_be_though_one_does_not_go() {
        let port = three();
        let _deaf = [
            admit(&port).await.expect("there is room"),
            admit(&port).await.expect("there is room"),
            admit(&port).await.expect("there is room"),
        ];
        for _ in 0..3 {
            assert!(admit(&port).await.is_none());
        }
        assert!(admit(&port).await.is_none());
        assert_eq!(port.open.lock().slots.len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_it_may_take_depends_on_what_it_does() {
        let idle = Duration::from_secs(75);
        let port = three();
        let connection = admit(&port).await.expect("there is room");
        let now = Instant::now();
        assert_eq!(connection.deadline(idle), Some(now + HANDSHAKE_TIMEOUT));
        let (first, second) = (connection.begin(), connection.begin());
        drop(first);
        assert_eq!(connection.deadline(idle), None);
        drop(second);
        assert_eq!(connection.deadline(idle), Some(now + idle));
        connection.note_read();
        assert_eq!(connection.deadline(idle), Some(now + HANDSHAKE_TIMEOUT));
        connection.establish();
        assert_eq!(connection.deadline(idle), None);
    }
}
