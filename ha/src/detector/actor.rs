//! The detector as an actor: feeds the [`core`](super::core) with events, and runs its effects.
//!
//! It owns the core, one heartbeat stream to the leader, the tasks that it has started, and a list of members to
//! ask. It reads that list at each change of the election's keys and every 10 s, because the store may be
//! unreachable when the leader is lost. It runs beside the election, on the election's own runtime, so that no
//! large or slow work of the process delays it.

use std::time::Duration;

use futures::StreamExt as _;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::core::{DetectorCore, Effect, Event, Target};
use super::peer_heartbeat::{Break, LivenessQuery, PeerHeartbeat, Reply};
use super::peers::HeartbeatStream;
use super::service::{DetectorServices, LinkStatus, PEER};
use crate::clock::{Clock, Moment};
use crate::election::{ElectionView, Epoch, Member, ProcessId};
use crate::error::Result;

/// Interval between reads of the members. While the store fails, the last list stays, however old.
const MEMBERS_INTERVAL: Duration = Duration::from_secs(10);
const MEMBERS_RETRY: Duration = Duration::from_secs(1);

/// The result of a task that the actor started.
#[derive(Debug)]
enum Done {
    Connected(Connection),
    Members(Result<Vec<Member>>),
    Answered { inquiry: u64, reply: Option<Reply> },
    ProvenDead { inquiry: u64 },
    Deposed { request: u64, failed: bool },
}

struct Connection(std::result::Result<HeartbeatStream, Break>);

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Connection").field(&self.0.is_ok()).finish()
    }
}

/// A depose request of the core, which a task passes to the election.
struct PendingDepose {
    /// The core's number, not the election's.
    number: u64,
    task: tokio::task::Id,
    cancelled: CancellationToken,
}

pub(super) struct DetectorActor {
    services: DetectorServices,
    clock: Clock,
    core: DetectorCore,
    stream: Option<HeartbeatStream>,
    connecting: Option<AbortHandle>,
    work: JoinSet<Done>,
    members: Vec<Member>,
    /// Time at which the list of members is read again; `None`: at once.
    members_due: Option<Moment>,
    /// The youngest epoch at the last read of the members.
    members_of: Epoch,
    /// Addresses that the leader named, to be asked in addition to the members.
    witnesses: Vec<String>,
    link_status: watch::Sender<LinkStatus>,
    last_heartbeat: watch::Sender<Option<PeerHeartbeat>>,
    /// Incarnation of the process with the same id that was last logged.
    duplicate: Option<String>,
    /// The last depose request.
    request: Option<PendingDepose>,
    /// The youngest epoch when this start first saw the keys: earlier starts of the process led in no later
    /// epoch.
    began: Option<Epoch>,
    stop: CancellationToken,
}

impl DetectorActor {
    pub(super) fn new(
        services: DetectorServices,
        link_status: watch::Sender<LinkStatus>,
        last_heartbeat: watch::Sender<Option<PeerHeartbeat>>,
        stop: CancellationToken,
    ) -> DetectorActor {
        let identity = services.identity.clone();
        let core = DetectorCore::new(
            identity.process,
            identity.incarnation,
            identity.host,
            services.options,
        );
        DetectorActor {
            clock: services.election.clock(),
            services,
            core,
            stream: None,
            connecting: None,
            work: JoinSet::new(),
            members: Vec::new(),
            members_due: None,
            members_of: Epoch::ZERO,
            witnesses: Vec::new(),
            link_status,
            last_heartbeat,
            duplicate: None,
            request: None,
            began: None,
            stop,
        }
    }

    pub(super) async fn run(mut self) {
        let mut ticks = tokio::time::interval(self.services.options.heartbeat_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut observed = self.services.election.observed();
        let mut false_alarms = self.services.false_alarms.clone();
        false_alarms.mark_changed();
        loop {
            // Heartbeats come first: a tick must not count silence while a heartbeat is waiting to be read.
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                heartbeat = next_heartbeat(&mut self.stream), if self.stream.is_some() => match heartbeat {
                    Some(heartbeat) => self.on_heartbeat(heartbeat),
                    None => {
                        self.stream = None;
                        debug!("the heartbeat stream of the leader ended");
                        self.feed(Event::Broken(Break::Ended));
                    }
                },
                Some(done) = self.work.join_next_with_id(), if !self.work.is_empty() => {
                    match done {
                        Ok((task, done)) => self.on_done(task, done),
                        Err(error) => self.on_task_without_result(&error),
                    }
                }
                changed = observed.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    observed.borrow_and_update();
                    self.members_due = None;
                    self.follow_the_keys();
                }
                Ok(()) = false_alarms.changed() => {
                    let count = *false_alarms.borrow_and_update();
                    self.feed(Event::FalseAlarms(count));
                }
                _ = ticks.tick() => {
                    self.follow_the_keys();
                    self.feed(Event::Tick);
                }
            }
            self.publish_link_status();
        }
    }

    /// Determines the process to watch.
    fn follow_the_keys(&mut self) {
        let view = self.services.election.observed().borrow().clone();
        let leads = self
            .services
            .election
            .leadership()
            .borrow()
            .session()
            .is_some();
        if let Some(view) = &view {
            self.began.get_or_insert(view.youngest());
        }
        let target = view.as_ref().and_then(|view| self.target_in(view, leads));
        let watched = self.core.target().cloned();
        let youngest = view.as_ref().map_or(Epoch::ZERO, ElectionView::youngest);
        let due = self.members_due.is_none_or(|due| self.clock.now() >= due);
        // Announcements from before this term began may come from earlier starts.
        if due || self.members_of < youngest {
            self.members_of = youngest;
            self.read_members();
        }
        if watched != target {
            if watched.map(|before| before.epoch) != target.as_ref().map(|next| next.epoch) {
                // Witnesses named by another leader: some may have lost contact together with it, and would
                // count as reaching this leader.
                self.witnesses.clear();
            }
            self.feed(Event::Watch(target));
        }
    }

    /// The process to watch, as the keys in `view` name it; `None`: this process leads, or no process does. The order
    /// of the checks counts.
    fn target_in(&self, view: &ElectionView, leads: bool) -> Option<Target> {
        if leads {
            return None;
        }
        let Some(leader) = &view.leader else {
            // Its lease is gone. Heartbeats of it still count until another process leads.
            let watched = self.core.target();
            let watched = watched.filter(|target| target.epoch == view.youngest());
            return watched.cloned().or_else(|| self.last_to_lead(view));
        };
        let own = leader.process == self.services.identity.process;
        let lease = self.services.election.lease();
        let nonce = lease.borrow().nonce().cloned();
        if own && nonce.is_none_or(|nonce| nonce == leader.nonce) {
            return None;
        }
        if own && self.began.is_none_or(|began| leader.epoch > began) {
            // Taken after this start began, so by another living process with the same id. It must not be
            // deposed as an earlier start: the two would depose each other forever.
            return None;
        }
        let info = view.info.as_ref().filter(|info| info.epoch == leader.epoch);
        let member = self
            .members
            .iter()
            .find(|member| member.process == leader.process && !own);
        let of_member = member.and_then(|member| member.addresses.get(PEER));
        let known = info.and_then(|info| info.addresses.get(PEER)).or(of_member);
        // Before the term is confirmed, the address may belong to an earlier start, and with the host a refusal there
        // would suffice as evidence.
        let host = member
            .filter(|_| info.is_some() && of_member == known)
            .and_then(|member| member.host.clone());
        // If neither `leader-info` nor the members give an address at the moment, the one that is watched stays.
        let before = self.core.target().filter(|target| {
            target.epoch == leader.epoch && target.process == leader.process && known.is_none()
        });
        match before {
            Some(before) => Some(before.clone()),
            None => Some(Target {
                epoch: leader.epoch,
                process: leader.process.clone(),
                address: known.cloned(),
                is_confirmed: info.is_some(),
                host,
            }),
        }
    }

    /// The last leader of the youngest term, if this process never saw it attached: it may be suspended and
    /// send heartbeats.
    fn last_to_lead(&self, view: &ElectionView) -> Option<Target> {
        let own = &self.services.identity.process;
        let info = view.info.as_ref()?;
        let is_last = info.epoch == view.youngest() && info.process != *own;
        is_last.then(|| Target {
            epoch: info.epoch,
            process: info.process.clone(),
            address: info.addresses.get(PEER).cloned(),
            is_confirmed: true,
            host: None,
        })
    }

    fn read_members(&mut self) {
        let now = self.clock.now();
        self.members_due = Some(now.after(MEMBERS_INTERVAL));
        let election = self.services.election.clone();
        self.work
            .spawn(async move { Done::Members(election.members().await) });
    }

    fn on_heartbeat(&mut self, heartbeat: PeerHeartbeat) {
        if heartbeat.role.epoch().is_some() {
            self.witnesses.clone_from(&heartbeat.witnesses);
        }
        self.link_status
            .send_modify(|link_status| link_status.heartbeats += 1);
        self.last_heartbeat.send_replace(Some(heartbeat.clone()));
        self.feed(Event::Heartbeat(heartbeat));
    }

    fn on_done(&mut self, task: tokio::task::Id, done: Done) {
        match done {
            Done::Connected(Connection(result)) => {
                // A task that had finished when it was aborted connected to an earlier address.
                if self.connecting.take_if(|it| it.id() == task).is_none() {
                    return;
                }
                match result {
                    Ok(stream) => self.stream = Some(stream),
                    Err(why) => {
                        debug!(?why, "the leader's heartbeat stream can't be opened");
                        self.feed(Event::Broken(why));
                    }
                }
            }
            Done::Members(Ok(members)) => {
                self.members = members;
                self.follow_the_keys();
            }
            Done::Members(Err(error)) => {
                debug!(%error, "the members can't be read");
                self.members_due = Some(self.clock.now().after(MEMBERS_RETRY));
            }
            Done::Answered { inquiry, reply } => self.feed(Event::Answered { inquiry, reply }),
            Done::ProvenDead { inquiry } => self.feed(Event::ProvenDead { inquiry }),
            Done::Deposed {
                request,
                failed: true,
            } => self.feed(Event::DeposeFailed { request }),
            Done::Deposed { failed: false, .. } => {}
        }
    }

    /// Handles the end of a task without a result. One that was aborted is not needed any more; one that panicked
    /// has failed. Nothing waits for the others: members are read again, and a missing answer counts as none.
    fn on_task_without_result(&mut self, failure: &JoinError) {
        if !failure.is_panic() {
            return;
        }
        error!(%failure, "a task of the detector panicked");
        let task = failure.id();
        if self.connecting.take_if(|it| it.id() == task).is_some() {
            self.feed(Event::Broken(Break::NoAnswer));
        } else if let Some(pending) = self.request.take_if(|it| it.task == task) {
            let request = pending.number;
            self.feed(Event::DeposeFailed { request });
        }
    }

    fn feed(&mut self, event: Event) {
        for effect in self.core.handle(self.clock.now(), event) {
            self.run_effect(effect);
        }
    }

    fn run_effect(&mut self, effect: Effect) {
        let election = &self.services.election;
        match effect {
            Effect::Connect { address, after } => self.connect(address, after),
            Effect::Disconnect => self.disconnect(),
            Effect::Inquire { inquiry } => self.send_inquiry(inquiry),
            Effect::Depose {
                request,
                epoch,
                evidence,
            } => {
                info!(
                    %epoch,
                    detection = %evidence.detection,
                    leader = evidence.former.process.as_ref().map(ProcessId::as_str),
                    "the leader is lost: deposing it"
                );
                let election = election.clone();
                let cancelled = CancellationToken::new();
                let cancel = cancelled.clone();
                let making = self.work.spawn(async move {
                    let in_election = election.new_depose_request();
                    let failed = tokio::select! {
                        deposed = election.depose_because(in_election, epoch, evidence) => deposed.is_err(),
                        // Cancelled by the same task that made the request, so that the order is kept.
                        () = cancelled.cancelled() => {
                            election.cancel_depose(in_election).await;
                            false
                        }
                    };
                    Done::Deposed { request, failed }
                });
                self.request = Some(PendingDepose {
                    number: request,
                    task: making.id(),
                    cancelled: cancel,
                });
            }
            Effect::CancelDepose { request } => {
                if let Some(pending) = self.request.take_if(|it| it.number == request) {
                    info!(
                        "heartbeats of the leader arrive again: the request to depose it is cancelled"
                    );
                    pending.cancelled.cancel();
                }
            }
            Effect::Explain(epoch, evidence) => election.explain(epoch, evidence),
            Effect::TermReachable(epoch, until) => election.report_reachable(epoch, until),
            Effect::DuplicateId(heartbeat) => {
                if self.duplicate.as_ref() != Some(&heartbeat.incarnation) {
                    warn!(
                        process = %heartbeat.process,
                        incarnation = heartbeat.incarnation,
                        "another running process leads with the id of this process: give each process its own id"
                    );
                    self.duplicate = Some(heartbeat.incarnation);
                }
            }
        }
    }

    fn disconnect(&mut self) {
        self.stream = None;
        if let Some(connecting) = self.connecting.take() {
            connecting.abort();
        }
    }

    fn connect(&mut self, address: String, after: Duration) {
        self.disconnect();
        let peers = self.services.peers.clone();
        let bound = self.services.options.inquiry_timeout;
        self.connecting = Some(self.work.spawn(async move {
            if !after.is_zero() {
                tokio::time::sleep(after).await;
            }
            let opened = timeout(bound, peers.heartbeats(&address)).await;
            Done::Connected(Connection(opened.unwrap_or(Err(Break::NoAnswer))))
        }));
    }

    fn send_inquiry(&mut self, inquiry: u64) {
        let Some(target) = self.core.target().cloned() else {
            return;
        };
        let own = &self.services.identity.process;
        let host = &self.services.identity.host;
        let members = self
            .members
            .iter()
            .filter(|member| member.process != *own && member.process != target.process)
            .filter_map(|member| {
                let address = member.addresses.get(PEER)?;
                // There the kernel itself refuses a connection if the process is gone.
                let is_here = host.is_some() && member.host == *host;
                Some((address.clone(), is_here))
            });
        let witnesses = self
            .witnesses
            .iter()
            .map(|address| (address.clone(), false));
        let recipients: Vec<(String, bool)> = members.chain(witnesses).collect();
        debug!(
            inquiry,
            recipients = recipients.len(),
            "asking the peers about the leader"
        );
        let bound = self.services.options.inquiry_timeout;
        let query = LivenessQuery {
            leader: target.process,
            epoch: target.epoch,
            address: target.address.unwrap_or_default(),
            timeout: bound * 5 / 6,
        };
        self.feed(Event::InquirySent {
            inquiry,
            count: recipients.len(),
        });
        for (address, is_here) in recipients {
            let (peers, query) = (self.services.peers.clone(), query.clone());
            self.work.spawn(async move {
                let answer = timeout(bound, peers.query(&address, &query)).await;
                debug!(inquiry, address, ?answer, "asked a peer about the leader");
                match answer {
                    Ok(Err(Break::RefusedHere)) if is_here => Done::ProvenDead { inquiry },
                    Ok(reply) => Done::Answered {
                        inquiry,
                        reply: reply.ok(),
                    },
                    Err(_) => Done::Answered {
                        inquiry,
                        reply: None,
                    },
                }
            });
        }
    }

    /// Publishes the state of the connection, for answers to other processes.
    fn publish_link_status(&self) {
        let target = self.core.target();
        let leader = target.map(|target| (target.process.clone(), target.epoch));
        let connected = self.core.is_connected();
        let opening = self.core.is_opening();
        let last_contact = self.core.last_contact().unwrap_or_default();
        let unsure = self.core.is_unsure();
        self.link_status.send_if_modified(|link_status| {
            let before = link_status.clone();
            link_status.leader = leader;
            link_status.connected = connected;
            link_status.opening = opening;
            link_status.last_contact = last_contact;
            link_status.unsure = unsure;
            before != *link_status
        });
    }
}

async fn next_heartbeat(stream: &mut Option<HeartbeatStream>) -> Option<PeerHeartbeat> {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[path = "actor_tests.rs"]
mod tests;
