//! The election of one process as callers use it: [`LeaderElection`], a handle to the `actor` that runs it.
//!
//! On real stores the actor runs on its own thread ([`LeaderElection::start_on_thread`]), so that no other
//! work of the process can delay the lease.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, warn};

use crate::ask::ask;
use crate::clock::{Clock, Moment, wall_clock_ms};
use crate::election::actor::{Command, ElectionActor, Published};
use crate::election::claims::Claim;
use crate::election::confirming;
use crate::election::core::Timing;
use crate::election::deposing::DeposeRequest;
use crate::election::driver::{
    Attempt, ElectionDriver, ElectionView, Epoch, LeaderInformation, Member, ProcessId,
    SessionState, TermHolder,
};
use crate::election::session::{LeaderSession, Leadership};
use crate::election::takeover::Evidence;
use crate::error::{Error, Result};

const MAILBOX: usize = 64;

/// Options of an election.
#[derive(Debug, Clone)]
pub struct ElectionOptions {
    /// The stable id of this process.
    pub process: ProcessId,
    /// Identifies this start of the process: [`random_start`](super::driver::random_start).
    pub start: String,
    /// Timeouts and intervals.
    pub timing: Timing,
    /// The clock that limits how long this process treats its lease as valid.
    pub clock: Clock,
}

impl ElectionOptions {
    /// This start of the process, as recorded in the terms that it takes.
    pub fn holder(&self) -> TermHolder {
        TermHolder {
            process: self.process.clone(),
            start: self.start.clone(),
        }
    }
}

/// A handle to the election of this process. When the last one is dropped, the election ends without
/// resigning.
#[derive(Debug, Clone)]
pub struct LeaderElection {
    commands: mpsc::Sender<Command>,
    leadership: watch::Receiver<Leadership>,
    claims: watch::Receiver<Vec<Claim>>,
    unreadable: watch::Receiver<Option<String>>,
    observed: watch::Receiver<Option<ElectionView>>,
    driver: Arc<dyn ElectionDriver>,
    holder: Arc<TermHolder>,
    clock: Clock,
    depose_requests: Arc<AtomicU64>,
    runtime: tokio::runtime::Handle,
    /// `None` in a handle that does not keep the election running.
    _stop: Option<Arc<DropGuard>>,
}

/// The error of a request to an election that has ended.
fn ended() -> Error {
    Error::Misconfigured("the election of this process has ended".into())
}

impl LeaderElection {
    /// Starts the election on the current runtime.
    pub fn start(driver: Arc<dyn ElectionDriver>, options: ElectionOptions) -> LeaderElection {
        let (handle, actor) = LeaderElection::build(driver, options);
        tokio::spawn(actor.run());
        handle
    }

    /// Opens a driver and runs the election on its own thread and runtime, so that no other work of the
    /// process delays the lease. `open` runs there too, because connections belong to that runtime.
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
        let published = Published {
            leadership: leadership_out,
            claims: watch::Sender::default(),
            unreadable: watch::Sender::default(),
        };
        let (claims, unreadable) = (
            published.claims.subscribe(),
            published.unreadable.subscribe(),
        );
        let stop = CancellationToken::new();
        let clock = options.clock;
        let holder = Arc::new(options.holder());
        let actor = ElectionActor::new(driver.clone(), options, mailbox, published, stop.clone());
        let observed = driver.observed();
        let stop = Some(Arc::new(stop.drop_guard()));
        (
            LeaderElection {
                commands,
                leadership,
                claims,
                unreadable,
                observed,
                driver,
                holder,
                clock,
                depose_requests: Arc::default(),
                runtime: tokio::runtime::Handle::current(),
                _stop: stop,
            },
            actor,
        )
    }

    /// This start of this process, as recorded in the terms that it takes.
    pub fn holder(&self) -> &TermHolder {
        &self.holder
    }

    /// Leadership of this process.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// The latest refuted claims, the newest at the end, each sender and epoch once.
    pub fn claims(&self) -> watch::Receiver<Vec<Claim>> {
        self.claims.clone()
    }

    /// The reason why the key `epoch` can't be read; `None` if it can. While it can't, no process can lead.
    pub fn unreadable(&self) -> watch::Receiver<Option<String>> {
        self.unreadable.clone()
    }

    /// This process's lease or session.
    pub fn lease(&self) -> watch::Receiver<SessionState> {
        self.driver.session()
    }

    /// The watched content of the election's keys.
    pub fn observed(&self) -> watch::Receiver<Option<ElectionView>> {
        self.observed.clone()
    }

    /// A handle to the same election that does not keep it running, for tasks that run beside it.
    #[must_use]
    pub fn detached(&self) -> LeaderElection {
        LeaderElection {
            _stop: None,
            ..self.clone()
        }
    }

    /// The runtime of the election, on a real store one of its own. For work that must be as prompt as lease
    /// renewal.
    pub fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// The clock of all moments of this election.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// A new number for a depose request, which can be cancelled by it.
    pub fn new_depose_request(&self) -> DeposeRequest {
        DeposeRequest(self.depose_requests.fetch_add(1, Ordering::Relaxed))
    }

    /// Ends the term of `epoch` through the store and leads instead, for a caller that was invited. Returns the
    /// youngest epoch once that term is over, no matter which process ended it; an error if the election has ended,
    /// or this process leads in that term.
    pub async fn depose(&self, epoch: Epoch) -> Result<Epoch> {
        self.request_depose(self.new_depose_request(), epoch, None)
            .await
    }

    /// Same as [`LeaderElection::depose`], with evidence that the next term's [`Takeover`](super::Takeover)
    /// records. Also an error if the request was cancelled.
    pub async fn depose_because(
        &self,
        request: DeposeRequest,
        epoch: Epoch,
        evidence: Evidence,
    ) -> Result<Epoch> {
        self.request_depose(request, epoch, Some(evidence)).await
    }

    async fn request_depose(
        &self,
        request: DeposeRequest,
        epoch: Epoch,
        evidence: Option<Evidence>,
    ) -> Result<Epoch> {
        let command = |reply| Command::Depose {
            request,
            epoch,
            evidence,
            reply,
        };
        let answer = ask(&self.commands, command).await;
        answer.unwrap_or_else(|_| Err(ended()))
    }

    /// Cancels a depose request: unless another request for the term is pending, it is not tried again. A
    /// request that is already in flight may still be applied.
    pub async fn cancel_depose(&self, request: DeposeRequest) {
        let _ = self.commands.send(Command::CancelDepose(request)).await;
    }

    /// Sets the reason to record if the term of `epoch` ends without a depose request. The first reason
    /// counts.
    pub fn explain(&self, epoch: Epoch, evidence: Evidence) {
        // A full mailbox loses little: each heartbeat sends it again, and only the record of the next term
        // uses it.
        let _ = self.commands.try_send(Command::Explain { epoch, evidence });
    }

    /// Reports that the term of `epoch` is reachable until the given moment; `None`: its heartbeats no longer
    /// arrive. While it is reachable, this process does not take leadership that became free by a store problem
    /// ([`Timing::suspended_hold_off`]).
    pub fn report_reachable(&self, epoch: Epoch, until: Option<Moment>) {
        // A full mailbox loses little: the next heartbeat reports it again.
        let _ = self
            .commands
            .try_send(Command::TermReachable { epoch, until });
    }

    /// Ends the own term, if there is one, and lets another process lead. Returns when the store has
    /// confirmed it.
    pub async fn resign(&self) {
        // An election that has ended has no term.
        let _ = ask(&self.commands, |reply| Command::Resign { reply }).await;
    }

    /// Reports that a message of `sender` claims this epoch. The epoch counts once this process's own store
    /// shows it.
    pub fn report_claim(&self, epoch: Epoch, sender: String) {
        // A full mailbox loses nothing: the epoch also arrives from the store.
        let _ = self
            .commands
            .try_send(Command::EpochClaimed { epoch, sender });
    }

    /// Publishes the addresses of this term's leader, which confirms the term. Repeats until the answer is
    /// definite. `Fenced` if the term is over. During the term, a deleted or overwritten `leader-info` is
    /// published again.
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
        let mut warned = None;
        loop {
            match self
                .driver
                .publish(session.fence().token, &information)
                .await
            {
                Ok(Attempt::Applied(_)) => {
                    let keeping = confirming::keep(
                        self.driver.clone(),
                        session.clone(),
                        information,
                        retry_interval,
                    );
                    self.runtime.spawn(keeping);
                    return Ok(());
                }
                Ok(Attempt::Refused(view)) if view.youngest() > session.epoch() => {
                    let epoch = view.youngest();
                    // A full mailbox loses nothing: the watch reports it as well.
                    let _ = self.commands.try_send(Command::Seen(Box::new(view)));
                    return Err(Error::Fenced { epoch });
                }
                // `leader` is missing at the moment; the election attaches again.
                Ok(Attempt::Refused(_)) => {}
                Err(error) => {
                    let kind = Some(std::mem::discriminant(&error));
                    if std::mem::replace(&mut warned, kind) == kind {
                        debug!(%error, "the leader's addresses could not be published: retrying");
                    } else {
                        warn!(%error, "no client finds this leader: its addresses can't be published: retrying");
                    }
                }
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
