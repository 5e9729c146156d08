//! Processes with an election and a detector each, on a network that a test breaks. Runs on paused time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::detector::core::DetectorOptions;
use crate::detector::peer_heartbeat::{
    Break, Invitation, LivenessQuery, PeerHeartbeat, Progress, Reply, Role, SchedulingAges,
};
use crate::detector::peers::{HeartbeatStream, Peers};
use crate::detector::service::{Detector, DetectorServices, Identity, PEER};
use crate::election::core::Timing;
use crate::election::{
    ElectionOptions, Epoch, HostIdentity, LeaderElection, LeaderSession, Leadership, Member,
    ProcessId, random_start,
};
use crate::memory::MemoryCluster;

const LONG: Duration = Duration::from_secs(600);

/// The way in which a connection between two processes is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    Silent,
    Refused,
}

#[derive(Debug, Default)]
struct NetworkState {
    nodes: BTreeMap<String, Node>,
    dead: BTreeSet<String>,
    frozen: BTreeSet<String>,
    cuts: BTreeMap<(String, String), Cut>,
    cached: BTreeMap<String, u64>,
    stalled_term: BTreeMap<String, Epoch>,
    panics: BTreeSet<String>,
}

/// The process at an address: a candidate, or a witness only.
#[derive(Debug, Clone)]
struct Node {
    identity: Identity,
    candidate: Option<(watch::Receiver<Leadership>, Detector)>,
}

/// A scripted network; see the module documentation. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Network {
    pub store: MemoryCluster,
    state: Arc<Mutex<NetworkState>>,
    changed: Arc<watch::Sender<u64>>,
    witnesses: Arc<Mutex<Vec<String>>>,
}

/// One process.
pub(super) struct Process {
    pub election: LeaderElection,
    pub detector: Detector,
}

impl Network {
    fn change(&self, change: impl FnOnce(&mut NetworkState)) {
        change(&mut self.state.lock());
        self.changed.send_modify(|count| *count += 1);
    }

    /// Starts the candidate `name` on a host.
    pub(super) async fn start(&self, name: &str, host: &str) -> Process {
        let clock = Clock::tokio();
        let process = ProcessId::new(name);
        let driver = self.store.election(process.clone(), clock);
        let options = ElectionOptions {
            process: process.clone(),
            start: random_start(),
            timing: Timing {
                deposes_earlier_self: false,
                no_contact_hold_off: Duration::from_millis(1100),
                ..Timing::default()
            },
            clock,
        };
        let election = LeaderElection::start(Arc::new(driver), options);
        let identity = Identity {
            process: process.clone(),
            incarnation: format!("{name}-{:08x}", rand::random::<u32>()),
            host: Some(HostIdentity::new(host)),
        };
        let detector = Detector::start(DetectorServices {
            identity: identity.clone(),
            election: election.clone(),
            peers: Arc::new(From {
                name: name.to_owned(),
                network: self.clone(),
            }),
            options: DetectorOptions::default(),
            false_alarms: watch::channel(0).1,
        });
        let member = Member {
            process,
            incarnation: identity.incarnation.clone(),
            addresses: BTreeMap::from([(PEER.to_owned(), name.to_owned())]),
            reads_format: 1,
            version: String::new(),
            host: identity.host.clone(),
            cache: None,
        };
        let node = Node {
            identity,
            candidate: Some((election.leadership(), detector.clone())),
        };
        self.change(|state| {
            state.nodes.insert(name.to_owned(), node);
            state.dead.remove(name);
        });
        election
            .announce(&member)
            .await
            .expect("the store is there");
        Process { election, detector }
    }

    /// Adds a process that only answers questions.
    pub(super) fn add_witness(&self, name: &str) {
        let identity = Identity {
            process: ProcessId::new(name),
            incarnation: String::new(),
            host: None,
        };
        let node = Node {
            identity,
            candidate: None,
        };
        self.change(|state| {
            state.nodes.insert(name.to_owned(), node);
        });
        let mut witnesses = self.witnesses.lock();
        witnesses.push(name.to_owned());
    }

    /// Sets the change number of its copy of the records, as it reports it.
    pub(super) fn caches(&self, name: &str, change: u64) {
        self.change(|state| {
            state.cached.insert(name.to_owned(), change);
        });
    }

    /// Makes it report that it gives its term up because it makes no progress.
    pub(super) fn gives_up(&self, name: &str, epoch: Epoch) {
        self.change(|state| {
            state.stalled_term.insert(name.to_owned(), epoch);
        });
    }

    /// Ends its connections; its port refuses.
    pub(super) fn kill(&self, name: &str) {
        self.change(|state| {
            state.dead.insert(name.to_owned());
        });
    }

    /// Freezes it: connections to it exist and are silent.
    pub(super) fn freeze(&self, name: &str) {
        self.change(|state| {
            state.frozen.insert(name.to_owned());
        });
    }

    pub(super) fn thaw(&self, name: &str) {
        self.change(|state| {
            state.frozen.remove(name);
        });
    }

    /// Restores all connections.
    pub(super) fn mend(&self) {
        self.change(|state| state.cuts.clear());
    }

    /// Cuts the connection from `from` to `to`.
    pub(super) fn cut(&self, from: &str, to: &str, cut: Cut) {
        self.change(|state| {
            state.cuts.insert((from.to_owned(), to.to_owned()), cut);
        });
    }

    /// Makes the next task of `from` that opens a heartbeat stream panic.
    pub(super) fn panic_once(&self, from: &str) {
        self.change(|state| {
            state.panics.insert(from.to_owned());
        });
    }

    /// Whether that panic is still to come.
    pub(super) fn will_panic(&self, from: &str) -> bool {
        self.state.lock().panics.contains(from)
    }

    /// `Ok(None)`: it is silent.
    fn reach(&self, from: &str, to: &str) -> Result<Option<Node>, Break> {
        let state = self.state.lock();
        let cut = state.cuts.get(&(from.to_owned(), to.to_owned()));
        let node = state.nodes.get(to).filter(|_| !state.dead.contains(to));
        match (cut, node) {
            (Some(Cut::Refused), _) | (None, None) => {
                let host = |name: &str| state.nodes.get(name)?.identity.host.clone();
                let here = host(from).is_some_and(|own| Some(own) == host(to));
                Err(if here {
                    Break::RefusedHere
                } else {
                    Break::Refused
                })
            }
            (Some(Cut::Silent), _) => Ok(None),
            (None, Some(_)) if state.frozen.contains(to) => Ok(None),
            (None, Some(node)) => Ok(Some(node.clone())),
        }
    }

    async fn reach_or_wait(&self, from: &str, to: &str) -> Result<Node, Break> {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(node) = self.reach(from, to)? {
                return Ok(node);
            }
            let _ = changed.changed().await;
        }
    }

    fn heartbeat(&self, node: &Node) -> Option<PeerHeartbeat> {
        let (leadership, _) = node.candidate.as_ref()?;
        let role = match &*leadership.borrow() {
            Leadership::Granted(session) => Role::Leading(session.epoch()),
            Leadership::Suspended(session) => Role::Suspended(session.epoch()),
            Leadership::Standby | Leadership::Over(_) | Leadership::Refused(_) => Role::Standby,
        };
        let witnesses = self.witnesses.lock();
        let state = self.state.lock();
        Some(PeerHeartbeat {
            process: node.identity.process.clone(),
            incarnation: node.identity.incarnation.clone(),
            role,
            host: node.identity.host.clone(),
            progress: Progress::default(),
            since_ms: None,
            scheduling_ages: SchedulingAges::default(),
            stalled_term: state
                .stalled_term
                .get(node.identity.process.as_str())
                .copied(),
            cached_change: state
                .cached
                .get(node.identity.process.as_str())
                .copied()
                .unwrap_or(0),
            witnesses: witnesses.clone(),
        })
    }
}

/// The network as one process sees it.
#[derive(Debug)]
struct From {
    name: String,
    network: Network,
}

#[async_trait]
impl Peers for From {
    async fn heartbeats(&self, address: &str) -> Result<HeartbeatStream, Break> {
        let panics = self.network.state.lock().panics.remove(&self.name);
        assert!(!panics, "the test wants this panic");
        self.network.reach_or_wait(&self.name, address).await?;
        let (network, from, to) = (self.network.clone(), self.name.clone(), address.to_owned());
        let changed = network.changed.subscribe();
        let ticks = tokio::time::interval(Duration::from_millis(100));
        let next =
            move |(mut ticks, mut changed): (tokio::time::Interval, watch::Receiver<u64>)| {
                let (network, from, to) = (network.clone(), from.clone(), to.clone());
                async move {
                    loop {
                        let ticked = tokio::select! {
                            _ = ticks.tick() => true,
                            _ = changed.changed() => false,
                        };
                        match network.reach(&from, &to) {
                            Err(_) => return None,
                            Ok(Some(node)) if ticked => {
                                let heartbeat = network.heartbeat(&node)?;
                                return Some((heartbeat, (ticks, changed)));
                            }
                            Ok(_) => {}
                        }
                    }
                }
            };
        Ok(futures::stream::unfold((ticks, changed), next).boxed())
    }

    async fn probe(&self, address: &str) -> Result<PeerHeartbeat, Break> {
        let node = self.network.reach_or_wait(&self.name, address).await?;
        self.network.heartbeat(&node).ok_or(Break::Ended)
    }

    async fn query(&self, address: &str, query: &LivenessQuery) -> Result<Reply, Break> {
        let node = self.network.reach_or_wait(&self.name, address).await?;
        if let Some((_, detector)) = &node.candidate {
            return Ok(detector.answer(query).await);
        }
        let witness = From {
            name: address.to_owned(),
            network: self.network.clone(),
        };
        let probed = tokio::time::timeout(query.timeout, witness.probe(&query.address));
        Ok(match probed.await {
            Ok(Ok(_)) => Reply::Reachable,
            Ok(Err(_)) | Err(_) => Reply::Lost {
                since: Duration::ZERO,
            },
        })
    }

    async fn count_reached(
        &self,
        address: &str,
        query: &LivenessQuery,
        of: &[String],
    ) -> Result<usize, Break> {
        let node = self.network.reach_or_wait(&self.name, address).await?;
        let (_, detector) = node.candidate.ok_or(Break::Ended)?;
        Ok(detector.count_reached(query, of).await)
    }

    async fn invite(
        &self,
        address: &str,
        leader: &ProcessId,
        epoch: Epoch,
        invitation: Invitation,
        bound: Duration,
    ) -> Result<(), String> {
        let node = self.network.reach_or_wait(&self.name, address).await;
        let node = node.map_err(|why| format!("{why:?}"))?;
        let (_, detector) = node.candidate.ok_or("not a candidate")?;
        detector
            .accept(leader.clone(), epoch, invitation, bound)
            .await
    }
}

impl Process {
    /// Waits until its leadership is as wanted.
    pub(super) async fn until(
        &self,
        what: &str,
        wanted: impl Fn(&Leadership) -> bool,
    ) -> Leadership {
        let mut leadership = self.election.leadership();
        let reached = tokio::time::timeout(LONG, leadership.wait_for(|now| wanted(now))).await;
        match reached {
            Ok(Ok(now)) => now.clone(),
            Ok(Err(_)) => panic!("the election ended before {what}"),
            Err(_) => panic!("never {what}: {:?}", self.election.leadership().borrow()),
        }
    }

    /// Waits until it leads in that epoch.
    pub(super) async fn leads(&self, epoch: u64) -> LeaderSession {
        let wanted = |now: &Leadership| matches!(now, Leadership::Granted(session) if session.epoch() == Epoch::new(epoch));
        let now = self
            .until(&format!("leading in epoch {epoch}"), wanted)
            .await;
        now.session().expect("granted").clone()
    }

    /// Whether it leads or may still lead in that epoch.
    pub(super) fn holds(&self, epoch: u64) -> bool {
        let leadership = self.election.leadership();
        let now = leadership.borrow();
        now.session()
            .is_some_and(|session| session.epoch() == Epoch::new(epoch))
    }
}
