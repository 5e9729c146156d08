//! The Dispatcher's loop: feeds the core and runs its effects. It decides nothing about jobs.
//!
//! Handlers are synchronous. Each effect that waits is a task of this actor ([`super::calls`]), whose outcome comes
//! back as an event. All tasks end with the actor.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::blobs::BlobFetcher;
use tanist_gateway::{JobMasterLauncher, ResourceRequirementsGateway};
use tanist_ha::clock::{Started, wall_clock_ms};
use tanist_ha::election::LeaderSession;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::calls::{Calls, Effect, Event};
use super::cleanup::Cleaner;
use super::core::{DispatcherCore, Now, Term};
use super::graph_checks::GraphChecks;
use super::handle::{Channels, DispatcherHandle, Message};
use super::job_store::JobStore;
use super::options::DispatcherOptions;
use super::recovery::RecoveredJobs;
use super::term_clock::TermClock;
use super::{kept_results, log};

/// What a Dispatcher gets from its term.
#[derive(Clone)]
pub struct DispatcherContext {
    /// Proof of leadership of the term.
    pub session: LeaderSession,
    /// Records of the jobs.
    pub store: Arc<JobStore>,
    /// Starts JobMasters.
    pub launcher: Arc<dyn JobMasterLauncher>,
    /// ResourceManager of the term.
    pub resources: Arc<dyn ResourceRequirementsGateway>,
    /// Removes what ended jobs leave behind.
    pub cleaner: Cleaner,
    /// Fetches graphs that submissions only refer to.
    pub blobs: BlobFetcher,
    /// Checks of graphs.
    pub checks: GraphChecks,
}

impl fmt::Debug for DispatcherContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DispatcherContext")
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

/// Starts Dispatchers.
#[derive(Debug)]
pub struct Dispatcher;

impl Dispatcher {
    /// Starts a term's Dispatcher with the jobs from the store. They are recovered before any request is answered.
    pub fn start(
        options: DispatcherOptions,
        context: DispatcherContext,
        recovered: RecoveredJobs,
    ) -> DispatcherHandle {
        let (commands, mailbox) = mpsc::channel(options.mailbox);
        let (store_timeout, max_uploaded) = (options.store_timeout, options.max_uploaded);
        let (blobs, checks) = (context.blobs.clone(), context.checks);
        let clock = TermClock::start(&context.session, options.result_retention);
        let actor = DispatcherActor::recover(options, context, clock.clone(), recovered);
        let stopped = CancellationToken::new();
        let guard = stopped.clone().drop_guard();
        tokio::spawn(async move {
            let _guard = guard;
            // Dropped before the guard: when `stopped` is signalled, the core and the requests in it are gone.
            let mut actor = actor;
            actor.run(mailbox).await;
            actor.calls.stop().await;
        });
        DispatcherHandle {
            commands,
            stopped,
            blobs,
            store_timeout,
            max_uploaded,
            checks,
            clock,
        }
    }
}

struct DispatcherActor {
    core: DispatcherCore<Channels>,
    calls: Calls,
    session: LeaderSession,
    expiration_interval: Duration,
    /// Start of this actor: the core's uptime counts from here.
    started: Started,
    clock: TermClock,
}

impl DispatcherActor {
    fn recover(
        options: DispatcherOptions,
        context: DispatcherContext,
        clock: TermClock,
        mut recovered: RecoveredJobs,
    ) -> DispatcherActor {
        let (session, checks) = (context.session.clone(), context.checks);
        let term = Term {
            epoch: session.epoch(),
            process: session.process().to_string(),
        };
        let expiration_interval = options.expiration_interval;
        let started = Started::now();
        let now = now(&session, started, &clock);
        let kept = std::mem::take(&mut recovered.kept);
        let unread = kept_results::jobs_of(&kept);
        let (core, effects) =
            DispatcherCore::recover(options, checks, term, now, unread, recovered);
        let mut actor = DispatcherActor {
            core,
            calls: Calls::new(context, kept),
            session,
            expiration_interval,
            started,
            clock,
        };
        actor.run_effects(effects);
        actor
    }

    /// Returns when the term is over, a stop is requested, all handles are gone, or a task panicked.
    async fn run(&mut self, mut mailbox: mpsc::Receiver<Message>) {
        let mut expiration = tokio::time::interval(self.expiration_interval);
        expiration.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let session = self.session.clone();
        loop {
            let event = tokio::select! {
                biased;
                () = session.over() => return,
                next = self.calls.next() => match next {
                    Ok(event) => event,
                    // The lost event is unknown, so this state can't be trusted any more.
                    Err(failure) => {
                        error!(%failure, "a task of the Dispatcher panicked");
                        return;
                    }
                },
                message = mailbox.recv() => match message {
                    Some(Message::Command(command)) => Event::Asked(command),
                    Some(Message::Stop) | None => return,
                },
                _ = expiration.tick() => Event::ExpirationDue,
            };
            let now = now(&self.session, self.started, &self.clock);
            let effects = self.core.handle(now, event);
            self.run_effects(effects);
        }
    }

    fn run_effects(&mut self, effects: Vec<Effect>) {
        self.core.take_log().into_iter().for_each(log::write);
        for effect in effects {
            self.calls.run(effect);
        }
    }
}

fn now(session: &LeaderSession, started: Started, clock: &TermClock) -> Now {
    Now {
        uptime: started.uptime(),
        wall_ms: wall_clock_ms(),
        times: clock.times(),
        standing: session.check(),
    }
}
