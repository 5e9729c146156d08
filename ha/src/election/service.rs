//! The election of one process as an actor: feeds the [`core`](super::core), runs its effects on a driver, and hands
//! out leadership as a value.
//!
//! On real stores it runs on a thread of its own ([`LeaderElection::start_on_thread`]), so that nothing the process
//! does can delay the lease. One request is in flight at a time for each of read, advance, attach and resign.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, error, info, warn};

use crate::clock::{Clock, Moment, wall_clock_ms};
use crate::election::core::{Effect, ElectionCore, Event, Standing, Term, Timing};
use crate::election::driver::{
    Attempt, ClusterIncarnation, ElectionDriver, ElectionView, Epoch, LeaderInformation, Member,
    ProcessId, SessionState,
};
use crate::election::session::{LeaderSession, Leadership};
use crate::election::takeover::{Detection, Evidence, Former, Takeover};
use crate::error::{Error, Result};
use crate::store::Fence;

const MAILBOX: usize = 64;

/// What an election needs to know.
#[derive(Debug, Clone)]
pub struct ElectionOptions {
    /// The stable id of this process.
    pub process: ProcessId,
    /// How long it waits between tries.
    pub timing: Timing,
    /// The clock that bounds what this process believes.
    pub clock: Clock,
}

/// A handle to the election of this process. When the last one is dropped, the election ends without resigning.
#[derive(Debug, Clone)]
pub struct LeaderElection {
    commands: mpsc::Sender<Command>,
    leadership: watch::Receiver<Leadership>,
    observed: watch::Receiver<Option<ElectionView>>,
    driver: Arc<dyn ElectionDriver>,
    clock: Clock,
    runtime: tokio::runtime::Handle,
    /// `None` in a handle that does not keep the election running.
    _stop: Option<Arc<DropGuard>>,
}

#[derive(Debug)]
enum Command {
    Depose {
        epoch: Epoch,
        evidence: Option<Evidence>,
        reply: oneshot::Sender<Result<Epoch>>,
    },
    Explain {
        epoch: Epoch,
        evidence: Evidence,
    },
    Spare(Epoch),
    Vouched {
        epoch: Epoch,
        until: Option<Moment>,
    },
    Resign {
        reply: oneshot::Sender<()>,
    },
    Heard(Epoch),
}

/// The election has ended, so nothing can be asked of it.
fn ended() -> Error {
    Error::Misconfigured("the election of this process has ended".into())
}

impl LeaderElection {
    /// Starts the election on the present runtime.
    pub fn start(driver: Arc<dyn ElectionDriver>, options: ElectionOptions) -> LeaderElection {
        let (handle, actor) = LeaderElection::build(driver, options);
        tokio::spawn(actor.run());
        handle
    }

    /// Opens a driver and runs the election on a thread and runtime of its own, so that no work of the process delays
    /// the lease. `open` runs there too: connections belong to that runtime.
    pub async fn start_on_thread<F, D>(options: ElectionOptions, open: F) -> Result<LeaderElection>
    where
        F: FnOnce() -> D + Send + 'static,
        D: Future<Output = Result<Arc<dyn ElectionDriver>>>,
    {
        let (reply, started) = oneshot::channel();
        let thread = std::thread::Builder::new().name("election".to_owned());
        let body = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
            {
                Ok(runtime) => runtime,
                Err(error) => {
                    let reason = format!("no runtime for the election: {error}");
                    let _ = reply.send(Err(Error::Misconfigured(reason.into())));
                    return;
                }
            };
            runtime.block_on(async move {
                match open().await {
                    Ok(driver) => {
                        let (handle, actor) = LeaderElection::build(driver, options);
                        if reply.send(Ok(handle)).is_ok() {
                            actor.run().await;
                        }
                    }
                    Err(error) => {
                        let _ = reply.send(Err(error));
                    }
                }
            });
        };
        thread.spawn(body).map_err(|error| {
            Error::Misconfigured(format!("no thread for the election: {error}").into())
        })?;
        started.await.unwrap_or_else(|_| Err(ended()))
    }

    fn build(
        driver: Arc<dyn ElectionDriver>,
        options: ElectionOptions,
    ) -> (LeaderElection, ElectionActor) {
        let (commands, mailbox) = mpsc::channel(MAILBOX);
        let (leadership_out, leadership) = watch::channel(Leadership::Standby);
        let stop = CancellationToken::new();
        let core = ElectionCore::new(
            options.process.clone(),
            ClusterIncarnation::generate(),
            options.timing,
        );
        let actor = ElectionActor {
            observed: driver.observed(),
            session: driver.session(),
            driver: driver.clone(),
            core,
            options,
            mailbox,
            requests: JoinSet::new(),
            standing: watch::Sender::new(Standing::Standby),
            leadership: leadership_out,
            over: CancellationToken::new(),
            evidence: None,
            attempt: None,
            deposing: Vec::new(),
            resigning: Vec::new(),
            stop: stop.clone(),
        };
        let observed = driver.observed();
        let stop = Some(Arc::new(stop.drop_guard()));
        (
            LeaderElection {
                commands,
                leadership,
                observed,
                driver,
                clock: actor.options.clock,
                runtime: tokio::runtime::Handle::current(),
                _stop: stop,
            },
            actor,
        )
    }

    /// How this process stands.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// This process's lease or session.
    pub fn lease(&self) -> watch::Receiver<SessionState> {
        self.driver.session()
    }

    /// What the election's keys hold, as watched.
    pub fn observed(&self) -> watch::Receiver<Option<ElectionView>> {
        self.observed.clone()
    }

    /// The same election, in a handle that does not keep it running: for what lives beside it.
    #[must_use]
    pub fn detached(&self) -> LeaderElection {
        LeaderElection {
            _stop: None,
            ..self.clone()
        }
    }

    /// The runtime that the election runs on: on a real store one of its own, for what must be as prompt as the lease.
    pub fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// The clock of all moments of this election.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Ends the term of `epoch` through the store and leads instead: somebody invited this process to. Returns the youngest epoch once that term is over,
    /// whoever ended it; an error if it could not be tried.
    pub async fn depose(&self, epoch: Epoch) -> Result<Epoch> {
        self.request_depose(epoch, None).await
    }

    /// As [`LeaderElection::depose`], for a reason that the next term's [`Takeover`] tells.
    pub async fn depose_because(&self, epoch: Epoch, evidence: Evidence) -> Result<Epoch> {
        self.request_depose(epoch, Some(evidence)).await
    }

    async fn request_depose(&self, epoch: Epoch, evidence: Option<Evidence>) -> Result<Epoch> {
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(Command::Depose {
                epoch,
                evidence,
                reply,
            })
            .await
            .map_err(|_| ended())?;
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    /// The reason to depose that term is gone: it is not tried any more. A request that is on its way may still be applied.
    pub async fn spare(&self, epoch: Epoch) {
        let _ = self.commands.send(Command::Spare(epoch)).await;
    }

    /// If the term of `epoch` ends without anybody deposing it, this is why. What was said first counts.
    pub fn explain(&self, epoch: Epoch, evidence: Evidence) {
        // A full mailbox loses little: each beat says it again, and only the record of the next term tells it.
        let _ = self.commands.try_send(Command::Explain { epoch, evidence });
    }

    /// The term of `epoch` is heard to live, which counts until then; `None`: it is not heard any more. Holds this process
    /// off from taking leadership that came free by trouble of the store ([`Timing::suspended_holdoff`]).
    pub fn vouch(&self, epoch: Epoch, until: Option<Moment>) {
        // A full mailbox loses little: the next beat vouches again.
        let _ = self.commands.try_send(Command::Vouched { epoch, until });
    }

    /// Ends the own term, if there is one, and lets another process lead. Returns when the store has taken note.
    pub async fn resign(&self) {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Resign { reply }).await.is_ok() {
            let _ = answer.await;
        }
    }

    /// A message of this epoch arrived: if it is younger than the own term, that is over.
    pub fn heard(&self, epoch: Epoch) {
        // A full mailbox loses nothing: the epoch also comes from the store.
        let _ = self.commands.try_send(Command::Heard(epoch));
    }

    /// Publishes where the leader of this term is reached: the term is confirmed. Repeats until the answer is definite.
    /// `Fenced` if the term is over.
    pub async fn confirm(
        &self,
        session: &LeaderSession,
        addresses: BTreeMap<String, String>,
        retry_interval: Duration,
    ) -> Result<()> {
        let information = LeaderInformation {
            epoch: session.epoch(),
            process: session.process().clone(),
            addresses,
            since_ms: wall_clock_ms(),
        };
        loop {
            match self
                .driver
                .publish(session.fence().token, &information)
                .await
            {
                Ok(Attempt::Applied(_)) => return Ok(()),
                Ok(Attempt::Refused(view)) if view.youngest() > session.epoch() => {
                    self.heard(view.youngest());
                    return Err(Error::Fenced {
                        epoch: view.youngest(),
                    });
                }
                // `leader` is gone for the moment; the election attaches again.
                Ok(Attempt::Refused(_)) => {}
                Err(error) => debug!(%error, "publishing the leader's addresses is repeated"),
            }
            tokio::select! {
                () = tokio::time::sleep(retry_interval) => {}
                () = session.over() => return Err(Error::Fenced { epoch: session.epoch().next() }),
            }
        }
    }

    /// Keeps this process listed among the members.
    pub async fn announce(&self, member: &Member) -> Result<()> {
        self.driver.announce(member).await
    }

    /// Every process that contends.
    pub async fn members(&self) -> Result<Vec<Member>> {
        self.driver.members().await
    }

    /// A linearizable read of the election's keys.
    pub async fn read(&self) -> Result<ElectionView> {
        self.driver.read().await
    }

    /// Gives the lease or session back at the end of the process. Resign first.
    pub async fn close(&self) {
        self.driver.close().await;
    }
}

struct ElectionActor {
    driver: Arc<dyn ElectionDriver>,
    observed: watch::Receiver<Option<ElectionView>>,
    session: watch::Receiver<SessionState>,
    core: ElectionCore,
    options: ElectionOptions,
    mailbox: mpsc::Receiver<Command>,
    requests: JoinSet<Event>,
    standing: watch::Sender<Standing>,
    leadership: watch::Sender<Leadership>,
    /// Ends with the present term.
    over: CancellationToken,
    /// Why the term of that epoch is to be deposed.
    evidence: Option<(Epoch, Evidence)>,
    /// How the term of that epoch came about, if the last request for it was applied.
    attempt: Option<(Epoch, Option<(Epoch, Evidence)>)>,
    deposing: Vec<(Epoch, oneshot::Sender<Result<Epoch>>)>,
    resigning: Vec<oneshot::Sender<()>>,
    stop: CancellationToken,
}

impl ElectionActor {
    async fn run(mut self) {
        let mut wake: Option<Moment> = None;
        self.session.mark_changed();
        self.observed.mark_changed();
        loop {
            let clock = self.options.clock;
            let sleep = wake.map(|at| at.since(clock.now()));
            let event = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                Some(done) = self.requests.join_next(), if !self.requests.is_empty() => match done {
                    Ok(event) => event,
                    Err(failure) => {
                        error!(%failure, "a request of the election panicked");
                        Event::Wake
                    }
                },
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
            for effect in self.core.handle(clock.now(), event) {
                match effect {
                    Effect::WakeAt(at) => wake = Some(at),
                    other => self.run_effect(other),
                }
            }
            self.answer_waiting();
        }
        self.over.cancel();
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
                epoch,
                evidence,
                reply,
            } => {
                let reason = evidence
                    .as_ref()
                    .map_or(Detection::Invited, |e| e.detection);
                info!(%epoch, %reason, "deposing the leader");
                self.evidence = evidence.map(|evidence| (epoch, evidence));
                self.deposing.push((epoch, reply));
                Event::Depose(epoch)
            }
            Command::Explain { epoch, evidence } => {
                if self.evidence.as_ref().is_none_or(|(of, _)| *of != epoch) {
                    self.evidence = Some((epoch, evidence));
                }
                Event::Wake
            }
            Command::Spare(epoch) => {
                info!(%epoch, "the leader is heard again and is not deposed");
                let (spared, waiting) = std::mem::take(&mut self.deposing)
                    .into_iter()
                    .partition(|(of, _)| *of == epoch);
                self.deposing = waiting;
                for (_, reply) in spared {
                    let text = "the wish to depose was withdrawn";
                    let _: Result<_, _> = reply.send(Err(Error::Misconfigured(text.into())));
                }
                Event::Spare(epoch)
            }
            Command::Vouched { epoch, until } => Event::Vouched { epoch, until },
            Command::Resign { reply } => {
                self.resigning.push(reply);
                Event::Resign
            }
            Command::Heard(epoch) => Event::Heard(epoch),
        }
    }

    fn run_effect(&mut self, effect: Effect) {
        let driver = self.driver.clone();
        match effect {
            Effect::Read => {
                self.requests
                    .spawn(async move { Event::ReadReply(driver.read().await) });
            }
            Effect::Advance { seen, next, leader } => {
                debug!(epoch = %next.epoch, "taking leadership");
                self.attempt = Some((next.epoch, self.reason_to_take(&seen)));
                self.requests.spawn(async move {
                    Event::AdvanceReply(driver.advance(&seen, &next, &leader).await)
                });
            }
            Effect::Attach { token, leader } => {
                info!(epoch = %leader.epoch, "attaching the term to a new lease or session");
                self.requests.spawn(async move {
                    let reply = driver.attach(token, &leader).await;
                    Event::AttachReply { token, reply }
                });
            }
            Effect::Resign { token } => {
                self.requests
                    .spawn(async move { Event::ResignReply(driver.resign(token).await) });
            }
            Effect::Publish(standing) => self.publish(standing),
            Effect::WakeAt(_) => {}
        }
    }

    fn publish(&mut self, standing: Standing) {
        self.standing.send_replace(standing.clone());
        let leadership = match standing {
            Standing::Standby => Leadership::Standby,
            Standing::Leading(term) => match self.present_session(&term) {
                Some(session) => {
                    info!(epoch = %term.epoch, "leading again, the store confirmed the term");
                    Leadership::Granted(session)
                }
                None => {
                    info!(epoch = %term.epoch, "leadership granted");
                    Leadership::Granted(self.begin_session(&term))
                }
            },
            Standing::Suspended(term) => {
                warn!(epoch = %term.epoch, "leadership suspended: the store does not confirm it");
                let session = self.present_session(&term);
                Leadership::Suspended(session.unwrap_or_else(|| self.begin_session(&term)))
            }
            Standing::Over(epoch) => {
                info!(%epoch, "the term is over");
                self.over.cancel();
                Leadership::Over(epoch)
            }
            Standing::Refused { expected, found } => {
                self.over.cancel();
                let expected = expected.to_string();
                let found = found.map_or_else(|| "none".to_owned(), |found| found.to_string());
                let refusal = Error::OtherIncarnation { expected, found };
                error!(%refusal, "this process stops taking part");
                Leadership::Refused(refusal.to_string())
            }
        };
        self.leadership.send_replace(leadership);
    }

    /// Why leadership as in `seen` is taken. `None` if nobody led before.
    fn reason_to_take(&self, seen: &ElectionView) -> Option<(Epoch, Evidence)> {
        let former = seen.youngest();
        if former == Epoch::ZERO {
            return None;
        }
        if let Some(known) = self.evidence.clone().filter(|(epoch, _)| *epoch == former) {
            return Some(known);
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
            None if self.core.was_resigned(seen) => Detection::Resigned,
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
            last_beat: None,
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
            .unwrap_or_else(|| ClusterIncarnation::new(""));
        LeaderSession::new(
            self.options.process.clone(),
            Fence {
                epoch: term.epoch,
                token: term.token,
                incarnation,
            },
            self.options.clock,
            self.driver.session(),
            self.standing.subscribe(),
            self.over.clone(),
            takeover,
        )
    }

    fn answer_waiting(&mut self) {
        let highest = self.core.highest();
        let (over, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.deposing)
            .into_iter()
            .partition(|(epoch, _)| highest > *epoch);
        self.deposing = waiting;
        for (_, reply) in over {
            let _ = reply.send(Ok(highest));
        }
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
