//! How many connections each port may have, and which of them goes when another one comes.
//!
//! Half of the process's descriptors are for connections that come in; the rest is kept back for those that go out, for the store and for files.
//! The kinds of ports that the process serves share that half by fixed weights: what one port is flooded with takes nothing from another.
//!
//! A connection is *fresh* until it has asked for something, then *busy* while a request of it is in progress, else *idle*. When a port has all
//! that it may have, the oldest fresh connection is closed in favour of a new one, else the one that has been idle for longest; if all are busy,
//! the new one is. A flood of connections that say nothing so displaces itself: one that asks at once what it wants is served.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::minutely::Minutely;

/// How long a connection may take until it has said what it wants: a head of HTTP, the preface of HTTP/2, a hello.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Where the system sets no limit.
const MANY_DESCRIPTORS: u64 = 1 << 17;
/// A connection that was told to go is gone within microseconds.
const GONE_TIMEOUT: Duration = Duration::from_millis(500);

/// What a port serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// HTTP for people and clients.
    Rest,
    /// Calls between components.
    Rpc,
    /// Signs of life of JobManagers.
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

    /// Its share, relative to the others that the process serves.
    fn weight(self) -> usize {
        match self {
            Port::Rest => 2,
            // One of each TaskManager, or of each JobManager.
            Port::Rpc => 4,
            Port::Peer | Port::Blob => 1,
            // One of each channel.
            Port::Exchange => 8,
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }

    /// A word for logs.
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

/// The connections that came into a process.
#[derive(Debug)]
pub struct Connections {
    /// All that may be open.
    bound: usize,
    /// Which ports the process serves.
    served: AtomicU8,
    ports: [Arc<PortConnections>; Port::ALL.len()],
}

impl Connections {
    /// Those of this process, bounded by its limit of descriptors as it was when they were first asked for.
    pub fn of_process() -> Arc<Connections> {
        static OF_PROCESS: LazyLock<Arc<Connections>> = LazyLock::new(|| {
            let limit = getrlimit(Resource::Nofile).current;
            let descriptors = limit.unwrap_or(MANY_DESCRIPTORS).min(MANY_DESCRIPTORS);
            Connections::within(usize::try_from(descriptors).unwrap_or(usize::MAX))
        });
        OF_PROCESS.clone()
    }

    /// Those of a process with so many descriptors.
    pub fn within(descriptors: usize) -> Arc<Connections> {
        Arc::new(Connections {
            bound: descriptors / 2,
            served: AtomicU8::new(0),
            ports: Port::ALL.map(|port| Arc::new(PortConnections::new(port))),
        })
    }

    /// From here on the process serves that port as well.
    pub(super) fn serve(&self, port: Port) {
        self.served.fetch_or(port.bit(), Ordering::Relaxed);
    }

    /// How many connections a port may have.
    pub fn share(&self, port: Port) -> usize {
        let served = self.served.load(Ordering::Relaxed) | port.bit();
        let weights = Port::ALL.iter().filter(|other| served & other.bit() != 0);
        let weights: usize = weights.map(|other| other.weight()).sum();
        (self.bound * port.weight() / weights).max(1)
    }

    /// Room for one more connection, made by closing another one if need be; none if all others are busy.
    pub(super) async fn admit(&self, port: Port) -> Option<Connection> {
        let of_port = &self.ports[port as usize];
        let admitted = of_port.admit(self.share(port)).await;
        if admitted.is_none() {
            of_port.say("closed at once: all others are busy");
        }
        admitted
    }
}

/// The connections of all ports of one kind.
struct PortConnections {
    port: Port,
    open: Mutex<Open>,
    /// One has gone.
    released: Notify,
    over: Minutely,
}

#[derive(Default)]
struct Open {
    next: u64,
    slots: HashMap<u64, Arc<Slot>>,
}

struct Slot {
    activity: Mutex<Activity>,
    /// It has to go.
    evicted: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Activity {
    phase: Phase,
    /// When the phase began.
    since: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It has not said what it wants.
    Fresh,
    /// It was served, and has begun to ask again.
    Asking,
    /// It was served.
    Idle,
    /// So many requests are in progress.
    Busy(u32),
    /// It was told to go.
    Evicted,
}

impl Slot {
    fn activity(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who goes first: smaller goes before. None: it stays.
    fn rank(&self) -> Option<(u8, Instant)> {
        let Activity { phase, since } = *self.activity();
        match phase {
            Phase::Fresh | Phase::Asking => Some((0, since)),
            Phase::Idle => Some((1, since)),
            Phase::Busy(_) | Phase::Evicted => None,
        }
    }

    /// Tells it to go, unless it has become busy.
    fn evict(&self) -> bool {
        let mut activity = self.activity();
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
            over: Minutely::default(),
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, became: &str) {
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
        let is_gone = self.released.notified();
        tokio::pin!(is_gone);
        {
            let mut open = self.open();
            if open.slots.len() < share {
                return Some(self.insert(&mut open));
            }
            let ranked = open.slots.values();
            let ranked = ranked.filter_map(|slot| slot.rank().map(|rank| (rank, slot)));
            let first = ranked.min_by_key(|(rank, _)| *rank);
            // Before it is told to go: whatever goes from here on is heard.
            is_gone.as_mut().enable();
            if !first.is_some_and(|(_, slot)| slot.evict()) {
                return None;
            }
        }
        self.say("the oldest that asked for nothing were closed");
        // Its descriptor is free before another one is used.
        let _is_there_room = timeout(GONE_TIMEOUT, is_gone).await;
        let mut open = self.open();
        (open.slots.len() < share).then(|| self.insert(&mut open))
    }
}

impl fmt::Debug for PortConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.open().slots.len();
        write!(f, "{open} connections of the {} port", self.port.name())
    }
}

/// The place of one connection. Dropped when it is closed.
pub struct Connection {
    number: u64,
    slot: Arc<Slot>,
    of: Arc<PortConnections>,
}

impl Connection {
    /// A request has come. In progress until what is returned is dropped.
    pub fn begin(self: &Arc<Self>) -> Busy {
        let mut activity = self.slot.activity();
        activity.phase = match activity.phase {
            Phase::Busy(requests) => Phase::Busy(requests.saturating_add(1)),
            Phase::Fresh | Phase::Asking | Phase::Idle | Phase::Evicted => Phase::Busy(1),
        };
        activity.since = Instant::now();
        Busy(self.clone())
    }

    /// It has said what it wants, and is busy with that until it is closed.
    pub fn establish(&self) {
        let mut activity = self.slot.activity();
        activity.phase = Phase::Busy(u32::MAX);
        activity.since = Instant::now();
    }

    /// Something was read. The first of what comes after an answer begins another request.
    pub(super) fn note_read(&self) {
        let mut activity = self.slot.activity();
        if activity.phase == Phase::Idle {
            activity.phase = Phase::Asking;
            activity.since = Instant::now();
        }
    }

    /// Completes when it has to go.
    pub async fn evicted(&self) {
        self.slot.evicted.notified().await;
    }

    /// By when it has to have said more, if it may be idle for that time; none while it is busy.
    pub(super) fn deadline(&self, idle: Duration) -> Option<Instant> {
        let Activity { phase, since } = *self.slot.activity();
        match phase {
            Phase::Fresh | Phase::Asking => Some(since + HANDSHAKE_TIMEOUT),
            Phase::Idle => Some(since + idle),
            Phase::Busy(_) => None,
            Phase::Evicted => Some(since),
        }
    }

    /// Whether it was served before, and asks for nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.slot.activity().phase == Phase::Idle
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.of.open().slots.remove(&self.number);
        self.of.released.notify_waiters();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("activity", &*self.slot.activity())
            .finish_non_exhaustive()
    }
}

/// A request in progress.
#[derive(Debug)]
pub struct Busy(Arc<Connection>);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut activity = self.0.slot.activity();
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

    /// Three connections at most.
    fn three() -> Arc<PortConnections> {
        Arc::new(PortConnections::new(Port::Rest))
    }

    async fn admit(of: &Arc<PortConnections>) -> Option<Arc<Connection>> {
        of.admit(3).await.map(Arc::new)
    }

    /// Goes as soon as it is told to, as the task of a connection does.
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
        assert_eq!(port.open().slots.len(), 3);
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
        assert_eq!(port.open().slots.len(), 3);
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
