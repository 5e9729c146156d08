//! The election of one process as an actor: feeds the [`core`](super::core), runs its effects on a driver,
//! and publishes leadership as a value.
//!
//! It owns the core, the requests in flight, and the callers that wait for a deposition or a resignation. At most
//! one request of each kind is in flight: read, advance, attach and resign. When it ends, the current term counts
//! as over in this process, although the store has not ended it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::clock::{Moment, wall_clock_ms};
use crate::election::claims::{self, Claim};
use crate::election::core::{Effect, ElectionCore, ElectionStatus, Event, Refusal, Term};
use crate::election::deposing::{DeposeRequest, DeposeRequests};
use crate::election::driver::{
    Attempt, ClusterIncarnation, ElectionDriver, ElectionView, Epoch, SessionState,
};
use crate::election::service::ElectionOptions;
use crate::election::session::{LeaderSession, Leadership};
use crate::election::takeover::{Detection, Evidence, Former, Takeover};
use crate::error::{Error, Result};
use crate::store::Fence;

/// Requests to a running election.
#[derive(Debug)]
pub(super) enum Command {
    Depose {
        request: DeposeRequest,
        epoch: Epoch,
        evidence: Option<Evidence>,
        reply: oneshot::Sender<Result<Epoch>>,
    },
    /// See [`LeaderElection::explain`](super::LeaderElection::explain).
    Explain {
        epoch: Epoch,
        evidence: Evidence,
    },
    CancelDepose(DeposeRequest),
    /// See [`LeaderElection::report_reachable`](super::LeaderElection::report_reachable).
    TermReachable {
        epoch: Epoch,
        until: Option<Moment>,
    },
    Resign {
        reply: oneshot::Sender<()>,
    },
    EpochClaimed {
        epoch: Epoch,
        sender: String,
    },
    /// The store's content, as a refusal of another request of this process showed it.
    Seen(Box<ElectionView>),
}

/// Feeds the core and runs its effects; see the module documentation.
pub(super) struct ElectionActor {
    driver: Arc<dyn ElectionDriver>,
    observed: watch::Receiver<Option<ElectionView>>,
    session: watch::Receiver<SessionState>,
    core: ElectionCore,
    options: ElectionOptions,
    mailbox: mpsc::Receiver<Command>,
    requests: JoinSet<Event>,
    status: watch::Sender<ElectionStatus>,
    leadership: watch::Sender<Leadership>,
    claims: watch::Sender<Vec<Claim>>,
    /// Time of the last logged claim.
    last_claim_logged: Option<Moment>,
    /// The last published reason why `epoch` can't be read.
    unreadable: watch::Sender<Option<String>>,
    /// Cancelled when the current term ends.
    over: CancellationToken,
    /// The reason that was given in advance for the end of that epoch's term.
    explanation: Option<(Epoch, Evidence)>,
    /// The epoch that the last request takes, and what its takeover records: the epoch of the former term, and why
    /// that term ended.
    attempt: Option<(Epoch, Option<(Epoch, Evidence)>)>,
    depose_requests: DeposeRequests,
    /// The callers that wait for the end of a resignation.
    resigning: Vec<oneshot::Sender<()>>,
    /// Time of the last warning that leadership can't be taken.
    last_warning: Option<Moment>,
    stop: CancellationToken,
}

/// The actor's outputs.
pub(super) struct Published {
    pub(super) leadership: watch::Sender<Leadership>,
    pub(super) claims: watch::Sender<Vec<Claim>>,
    pub(super) unreadable: watch::Sender<Option<String>>,
}

/// Minimum interval between logged claims: each names its sender, and there may be many.
const CLAIM_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the warning that leadership can't be taken.
const WARNING_INTERVAL: Duration = Duration::from_secs(30);

impl ElectionActor {
    pub(super) fn new(
        driver: Arc<dyn ElectionDriver>,
        options: ElectionOptions,
        mailbox: mpsc::Receiver<Command>,
        published: Published,
        stop: CancellationToken,
    ) -> ElectionActor {
        let core = ElectionCore::new(
            options.holder(),
            ClusterIncarnation::generate(),
            options.timing,
        );
        ElectionActor {
            observed: driver.observed(),
            session: driver.session(),
            driver,
            core,
            options,
            mailbox,
            requests: JoinSet::new(),
            status: watch::Sender::new(ElectionStatus::Standby),
            leadership: published.leadership,
            claims: published.claims,
            last_claim_logged: None,
            unreadable: published.unreadable,
            over: CancellationToken::new(),
            explanation: None,
            attempt: None,
            depose_requests: DeposeRequests::default(),
            resigning: Vec::new(),
            last_warning: None,
            stop,
        }
    }

    pub(super) async fn run(mut self) {
        let mut wake: Option<Moment> = None;
        self.session.mark_changed();
        self.observed.mark_changed();
        loop {
            let clock = self.options.clock;
            let sleep = wake.map(|at| at.since(clock.now()));
            // The store's answers come before commands: a full mailbox must not delay them. The wake comes last,
            // because every event does what a wake does.
            let event = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                Some(Ok(event)) = self.requests.join_next(), if !self.requests.is_empty() => event,
                Ok(()) = self.session.changed() => {
                    Event::Session(self.session.borrow_and_update().clone())
                }
                Ok(()) = self.observed.changed() => {
                    match self.observed.borrow_and_update().clone() {
                        Some(view) => Event::View(view),
                        None => continue,
                    }
                }
                Some(command) = self.mailbox.recv() => self.take_command(command),
                () = sleep_for(sleep) => Event::Wake,
                else => break,
            };
            wake = None;
            if let Event::AdvanceReply(reply) = &event {
                self.warn_if_refused(reply);
            }
            for effect in self.core.handle(clock.now(), event) {
                match effect {
                    Effect::WakeAt(at) => wake = Some(at),
                    other => self.run_effect(other),
                }
            }
            self.publish_unreadable();
            self.answer_waiting();
        }
        // No election confirms the term any more: its session must not decide.
        self.over.cancel();
    }

    /// Warns that leadership can't be taken: at the first failure and then at intervals.
    fn warn_if_refused(&mut self, reply: &Result<Attempt>) {
        let error = match reply {
            Ok(_) => {
                self.last_warning = None;
                return;
            }
            // Errors after which the request is repeated shortly, and may even have been applied.
            Err(error) if !matches!(error, Error::OutOfSpace { .. } | Error::Denied { .. }) => {
                return;
            }
            Err(error) => error,
        };
        let now = self.options.clock.now();
        let since_warning = self.last_warning.map(|at| now.since(at));
        if since_warning.is_none_or(|since| since >= WARNING_INTERVAL) {
            self.last_warning = Some(now);
            warn!(%error, "leadership can't be taken: the store refuses it, and no process can lead until it accepts");
        }
    }

    fn take_command(&mut self, command: Command) -> Event {
        match command {
            Command::Depose { epoch, reply, .. }
                if self.core.term().is_some_and(|term| term.epoch == epoch) =>
            {
                let text = "a process does not depose itself: it resigns";
                let _ = reply.send(Err(Error::Misconfigured(text.into())));
                Event::Wake
            }
            Command::Depose {
                request,
                epoch,
                evidence,
                reply,
            } => {
                let reason = evidence
                    .as_ref()
                    .map_or(Detection::Invited, |e| e.detection);
                info!(%epoch, %reason, "deposing the leader");
                self.depose_requests.add(request, epoch, evidence, reply);
                Event::Depose(epoch)
            }
            Command::Explain { epoch, evidence } => {
                if self.explanation.as_ref().is_none_or(|(of, _)| *of != epoch) {
                    self.explanation = Some((epoch, evidence));
                }
                Event::Wake
            }
            Command::CancelDepose(request) => match self.depose_requests.withdraw(request) {
                Some(epoch) => {
                    info!(%epoch, "the request to depose the leader was cancelled");
                    Event::CancelDepose(epoch)
                }
                None => Event::Wake,
            },
            Command::TermReachable { epoch, until } => Event::TermReachable { epoch, until },
            Command::Resign { reply } => {
                self.resigning.push(reply);
                Event::Resign
            }
            Command::EpochClaimed { epoch, sender } => Event::EpochClaimed { epoch, sender },
            Command::Seen(view) => Event::View(*view),
        }
    }

    fn run_effect(&mut self, effect: Effect) {
        let driver = self.driver.clone();
        match effect {
            Effect::Read => {
                self.request(async move { driver.read().await }, Event::ReadReply);
            }
            Effect::Advance { seen, next, leader } => {
                debug!(epoch = %next.epoch, "taking leadership");
                self.attempt = Some((next.epoch, self.reason_to_take(&seen)));
                let request = async move { driver.advance(&seen, &next, &leader).await };
                self.request(request, Event::AdvanceReply);
            }
            Effect::Attach { token, leader } => {
                info!(epoch = %leader.epoch, "attaching the term to a new lease or session");
                let request = async move { driver.attach(token, &leader).await };
                self.request(request, move |reply| Event::AttachReply { token, reply });
            }
            Effect::Resign { token } => {
                let request = async move { driver.resign(token).await };
                self.request(request, Event::ResignReply);
            }
            Effect::Refute {
                sender,
                epoch,
                found,
            } => self.refute(sender, epoch, found),
            Effect::Publish(status) => self.publish(status),
            Effect::WakeAt(_) => {}
        }
    }

    /// Sends a request to the store. The answer of one that panics is lost: it may have been applied.
    fn request<T: Send + 'static>(
        &mut self,
        request: impl Future<Output = Result<T>> + Send + 'static,
        event: impl FnOnce(Result<T>) -> Event + Send + 'static,
    ) {
        self.requests.spawn(async move {
            let answer = AssertUnwindSafe(request).catch_unwind().await;
            event(answer.unwrap_or_else(|_| {
                error!("a request of the election panicked");
                Err(Error::NoAnswer {
                    store: "the store",
                    reason: "the request panicked".to_owned(),
                })
            }))
        });
    }

    /// Records the sender of an epoch that the store does not have, and logs each pair of sender and epoch once.
    fn refute(&mut self, sender: String, epoch: Epoch, found: Epoch) {
        let claim = Claim {
            sender: sender.clone(),
            epoch,
            found,
            at_ms: wall_clock_ms(),
        };
        let mut is_new = false;
        self.claims
            .send_modify(|known| is_new = claims::record(known, claim));
        let now = self.options.clock.now();
        let since_logged = self.last_claim_logged.map(|at| now.since(at));
        if is_new && since_logged.is_none_or(|since| since >= CLAIM_INTERVAL) {
            self.last_claim_logged = Some(now);
            warn!(
                ?sender,
                claimed = %epoch,
                %found,
                "a message names an epoch that the store of this process does not have: the message is refused; its sender may use a \
                 restored copy of the store, or be an attacker"
            );
        }
    }

    /// Logs and publishes when `epoch` becomes unreadable or readable again.
    fn publish_unreadable(&mut self) {
        let now = self.core.unreadable();
        if self.unreadable.borrow().as_deref() == now {
            return;
        }
        match now {
            Some(reason) => error!(
                reason,
                "no process can lead: the key that fences every write was overwritten by hand; docs/guides/trouble/store-changed.md says how to repair it"
            ),
            None => info!("the key that fences every write can be read again"),
        }
        self.unreadable.send_replace(now.map(str::to_owned));
    }

    fn publish(&mut self, status: ElectionStatus) {
        self.status.send_replace(status.clone());
        let leadership = match status {
            ElectionStatus::Standby => Leadership::Standby,
            ElectionStatus::Leading(term) => match self.present_session(&term) {
                Some(session) => {
                    info!(epoch = %term.epoch, "leading again, the store confirmed the term");
                    Leadership::Granted(session)
                }
                None => {
                    info!(epoch = %term.epoch, "leadership granted");
                    Leadership::Granted(self.begin_session(&term))
                }
            },
            ElectionStatus::Suspended(term) => {
                warn!(epoch = %term.epoch, "leadership suspended: the store does not confirm it");
                let session = self.present_session(&term);
                Leadership::Suspended(session.unwrap_or_else(|| self.begin_session(&term)))
            }
            ElectionStatus::Over(epoch) => {
                info!(%epoch, "the term is over");
                self.over.cancel();
                Leadership::Over(epoch)
            }
            ElectionStatus::Refused(refusal) => {
                self.over.cancel();
                let refusal = match refusal {
                    Refusal::OtherIncarnation { expected, found } => Error::OtherIncarnation {
                        expected: expected.to_string(),
                        found: found.map_or_else(|| "none".to_owned(), |found| found.to_string()),
                    },
                    Refusal::WentBack { known, found } => Error::WentBack { known, found },
                    Refusal::Copied { recorded, found } => Error::Copied {
                        recorded: recorded.to_string(),
                        found: found.to_string(),
                    },
                };
                error!(%refusal, "the store is refused: this process no longer takes part in the election");
                Leadership::Refused(refusal.to_string())
            }
        };
        self.leadership.send_replace(leadership);
    }

    /// The epoch of the former term, and why leadership as in `seen` is taken from it: the evidence of a request, else
    /// the reason given in advance, else what the keys show. `None` if no process led before.
    fn reason_to_take(&self, seen: &ElectionView) -> Option<(Epoch, Evidence)> {
        let former = seen.youngest();
        if former == Epoch::ZERO {
            return None;
        }
        let explanation = self.explanation.as_ref();
        let explanation = explanation.filter(|(epoch, _)| *epoch == former);
        let known = match self.depose_requests.reason(former) {
            Some(reason) => reason,
            None => explanation.map(|(_, evidence)| evidence),
        };
        // A leader that the detector found gone had resigned before: the store knows better than the
        // detector.
        let resigned = self.core.was_resigned(seen);
        if let Some(known) = known {
            let mut evidence = known.clone();
            if resigned && evidence.detection.may_be_a_false_alarm() {
                evidence.detection = Detection::Resigned;
            }
            return Some((former, evidence));
        }
        let leases_end = matches!(
            &*self.session.borrow(),
            SessionState::Alive {
                deadline: Some(_),
                ..
            }
        );
        let detection = match &seen.leader {
            Some(leader) if leader.process == self.options.process => {
                Detection::OwnEarlierIncarnation
            }
            Some(_) => Detection::Invited,
            None if resigned => Detection::Resigned,
            None if leases_end => Detection::LeaseExpired,
            None => Detection::ProcessGone,
        };
        let process = match (&seen.leader, &seen.info) {
            (Some(leader), _) => Some(leader.process.clone()),
            (None, Some(info)) if info.epoch == former => Some(info.process.clone()),
            (None, _) => None,
        };
        let evidence = Evidence {
            detection,
            former: Former {
                process,
                ..Former::default()
            },
            last_heartbeat: None,
            detected: self.options.clock.now(),
        };
        Some((former, evidence))
    }

    fn present_session(&self, term: &Term) -> Option<LeaderSession> {
        let leadership = self.leadership.borrow();
        leadership
            .session()
            .filter(|session| session.epoch() == term.epoch)
            .cloned()
    }

    fn begin_session(&mut self, term: &Term) -> LeaderSession {
        self.over = CancellationToken::new();
        let attempt = self
            .attempt
            .take()
            .filter(|(epoch, _)| *epoch == term.epoch);
        let takeover = attempt
            .and_then(|(_, reason)| reason)
            .map(|(former_epoch, evidence)| Takeover {
                former_epoch,
                evidence,
                granted: self.options.clock.now(),
                granted_ms: wall_clock_ms(),
            });
        let incarnation = self
            .core
            .incarnation()
            .cloned()
            // Never: the core knows the incarnation before it grants a term. This one would match no store.
            .unwrap_or_else(|| ClusterIncarnation::new(""));
        LeaderSession::new(
            (self.options.holder(), self.core.store().cloned()),
            Fence {
                epoch: term.epoch,
                token: term.token,
                incarnation,
            },
            self.options.clock,
            self.driver.session(),
            self.status.subscribe(),
            self.over.clone(),
            takeover,
        )
    }

    fn answer_waiting(&mut self) {
        let highest = self.core.highest();
        self.depose_requests.answer(highest);
        if !self.core.is_resigning() {
            for reply in self.resigning.drain(..) {
                let _ = reply.send(());
            }
        }
    }
}

async fn sleep_for(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
    }
}
