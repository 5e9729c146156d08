//! A JobManager without servers and without a client of the store: contends for leadership and leads one term
//! after another.
//!
//! It owns what outlives a term: the warm cache, the process's part among its peers, and the state behind the view for
//! REST. The process around it opens the store and brings connections, servers and the work on sinks. Each term owns
//! its own state ([`super::term`]).
//!
//! The process ends on request, if its election or its store refuses it ([`ExitCode::Refused`]), or if a term decides
//! so ([`Ending`]). A term that ends with an error only resigns, and this process waits before it leads again.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tanist_config::ClusterOptions;
use tanist_dispatcher::GraphChecks;
use tanist_gateway::blobs::ServedBlobs;
use tanist_gateway::{Components, Connector};
use tanist_ha::detector::Identity;
use tanist_ha::election::{
    HostIdentity, LeaderElection, LeaderSession, Leadership, Member, ProcessId,
};
use tanist_ha::failpoint::{NEWER, is_armed};
use tanist_ha::retrieval::{self, LeaderView};
use tanist_ha::retry::Backoff;
use tanist_ha::store::CoordinationStore;
use tanist_ha::store::cache::{CacheStatus, WarmCache};
use tanist_telemetry::{ExitCode, VERSION_AND_REVISION};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::application::Application;
use super::ending::Ending;
use super::ha::HaServices;
use super::peers::{self, Finding, PeersHandle, PeersSetup};
use super::permissions::{self, MissingPermissions};
use super::settings;
use super::sinks::Sinks;
use super::standby;
use super::term::{self, TermServices};
use super::view::{CurrentTerm, JobManagerView, ViewInner};
use super::workers::WorkersSetup;

/// The newest record format that this version reads. Raise it when a record type gets a newer format.
const READS_FORMAT: u16 = 1;
/// Timeout, before the first term, for asking the leader that the store names whether it uses the same store.
const SAME_STORE_TIMEOUT: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// The newest record format that this process reads.
pub(super) fn reads_format() -> u16 {
    READS_FORMAT + u16::from(is_armed(NEWER))
}

/// Identity of a contender, what it leads with, and how it reaches other processes.
#[derive(Debug, Clone)]
pub struct ContenderOptions {
    /// The configuration of the process.
    pub options: Arc<ClusterOptions>,
    /// Its id among the contenders.
    pub process: ProcessId,
    /// The store's name, for display.
    pub store: &'static str,
    /// Addresses of the process, which the confirmed leader publishes; contains at least `rpc`.
    pub addresses: BTreeMap<String, String>,
    /// Reaches other processes.
    pub connector: Arc<dyn Connector>,
    /// The checks of submitted graphs.
    pub checks: GraphChecks,
    /// The work on the output of sinks.
    pub sinks: Sinks,
    /// How it takes part among its peers; without peers only leases show which process is alive.
    pub peers: Option<PeersSetup>,
    /// The blobs that its blob server serves.
    pub blobs: ServedBlobs,
    /// The application that owns this cluster; `None` in a session.
    pub application: Option<Application>,
    /// Starts TaskManagers; `None` if they are started from outside.
    pub workers: Option<WorkersSetup>,
}

/// See the module.
#[derive(Debug)]
pub struct Contender {
    options: ContenderOptions,
    current: Arc<CurrentTerm>,
    election: watch::Sender<Option<LeaderElection>>,
    leaders: watch::Sender<LeaderView>,
    records: watch::Sender<Option<Arc<dyn CoordinationStore>>>,
    cache: watch::Sender<CacheStatus>,
    peers: watch::Sender<Option<PeersHandle>>,
    missing_permissions: watch::Sender<MissingPermissions>,
    ending: Ending,
}

impl Contender {
    /// A contender that does not contend yet.
    pub fn new(options: ContenderOptions) -> Contender {
        Contender {
            options,
            current: Arc::default(),
            election: watch::Sender::new(None),
            leaders: watch::Sender::new(LeaderView::default()),
            records: watch::Sender::new(None),
            cache: watch::Sender::default(),
            peers: watch::Sender::new(None),
            missing_permissions: watch::Sender::new(None),
            ending: Ending::default(),
        }
    }

    /// How its application ended, once that is decided.
    pub fn ending(&self) -> Ending {
        self.ending.clone()
    }

    /// The components of the term that it leads, at each moment.
    pub fn components(&self) -> Arc<dyn Components> {
        self.current.clone()
    }

    /// Its addresses, by name.
    pub fn addresses(&self) -> &BTreeMap<String, String> {
        &self.options.addresses
    }

    /// Its view of the cluster.
    pub fn view(&self) -> JobManagerView {
        JobManagerView {
            inner: Arc::new(ViewInner {
                process: self.options.process.clone(),
                store: self.options.store,
                current: self.current.clone(),
                connector: self.options.connector.clone(),
                blobs: self.options.blobs.clone(),
                inline_threshold: settings::inline_deployment_threshold(&self.options.options),
                election: self.election.subscribe(),
                leaders: self.leaders.subscribe(),
                records: self.records.subscribe(),
                cache: self.cache.subscribe(),
                peers: self.peers.subscribe(),
                missing_permissions: self.missing_permissions.subscribe(),
            }),
        }
    }

    /// Contends, leads and stands by until `stop`; then resigns, so that another process leads at once. If it
    /// is dropped, it ends without resigning.
    pub async fn run(&self, opened: HaServices, stop: &CancellationToken) -> ExitCode {
        self.election.send_replace(Some(opened.election.clone()));
        self.records.send_replace(Some(opened.store.clone()));
        tokio::spawn(forward(
            retrieval::follow(opened.election.observed()),
            self.leaders.clone(),
        ));
        let of = &self.options;
        let identity = Identity {
            process: of.process.clone(),
            incarnation: opened.election.holder().start.clone(),
            host: HostIdentity::own(),
        };
        let started = of.peers.as_ref().map(|setup| {
            let (store, current) = (opened.store.clone(), self.current.clone());
            let leaders = self.leaders.subscribe();
            peers::start(
                setup,
                &of.options,
                identity.clone(),
                &opened.election,
                store,
                current,
                leaders,
            )
        });
        let (peers, _upkeep) = started.unzip();
        self.peers.send_replace(peers.clone());
        let member = Member {
            process: identity.process,
            incarnation: identity.incarnation,
            addresses: of.addresses.clone(),
            reads_format: reads_format(),
            version: VERSION_AND_REVISION.to_owned(),
            cache: None,
            host: identity.host,
        };
        if let Err(error) = opened.election.announce(&member).await {
            warn!(%error, "this process could not be listed among the members yet");
        }
        let announcing =
            standby::announce_cache(opened.election.clone(), member, self.cache.subscribe());
        // These tasks end when the set is dropped.
        let mut tasks = JoinSet::new();
        tasks.spawn(announcing);
        let missing = self.missing_permissions.clone();
        tasks.spawn(permissions::follow(opened.store.clone(), missing));
        if let Some(peers) = &peers {
            let (reports, status) = (peers.reports.clone(), self.cache.subscribe());
            tasks.spawn(standby::report(reports, status));
        }
        let mut cache = standby::cache(&of.options, opened.store.clone(), self.cache.clone());
        let terms = TermServices {
            rpc_address: of.addresses["rpc"].clone(),
            options: of.options.clone(),
            ha: opened.clone(),
            connector: of.connector.clone(),
            current: self.current.clone(),
            addresses: of.addresses.clone(),
            checks: of.checks,
            sinks: of.sinks.clone(),
            peers: peers.clone(),
            blobs: of.blobs.clone(),
            application: of.application.clone(),
            workers: of.workers.clone(),
            ending: self.ending.clone(),
            last_led: Arc::default(),
        };
        let code = lead_term_after_term(&terms, &opened, &mut cache, stop).await;
        if let Some(peers) = peers {
            peers.close();
        }
        opened.election.close().await;
        code
    }
}

/// Leads one term after another. A grant that arrives while the last term stops waits for the end of that term.
async fn lead_term_after_term(
    services: &TermServices,
    opened: &HaServices,
    cache: &mut WarmCache,
    stop: &CancellationToken,
) -> ExitCode {
    let mut leadership = opened.election.leadership();
    let mut pause = Backoff::new(FIRST_PAUSE, MAX_PAUSE);
    loop {
        let session = tokio::select! {
            next = next_session(&mut leadership) => match next {
                Ok(session) => session,
                Err(refusal) => {
                    ExitCode::Refused.log_final_message(&refusal);
                    return ExitCode::Refused;
                }
            },
            never = cache.follow() => match never {},
            refusal = until_other_store(services.peers.as_ref()) => {
                ExitCode::Refused.log_final_message(&refusal);
                return ExitCode::Refused;
            }
            () = stop.cancelled() => return ExitCode::Ended,
        };
        if let Some(refusal) = refusal_of_store(services.peers.as_ref()).await {
            resign_and_stop(services, opened, std::future::ready(())).await;
            ExitCode::Refused.log_final_message(&refusal);
            return ExitCode::Refused;
        }
        let mut leading = pin!(term::lead(services, &session, cache));
        let ended = tokio::select! {
            ended = &mut leading => ended,
            () = stop.cancelled() => {
                info!(epoch = %session.epoch(), "this process was requested to end");
                // It leads until it is deposed; it resigns only if no process takes over.
                if let Some(peers) = &services.peers {
                    tokio::select! {
                        _ = &mut leading => {
                            resign_and_stop(services, opened, std::future::ready(())).await;
                            return exit_code_on_request(services);
                        }
                        _ = peers.leave() => {}
                    }
                }
                services.current.end();
                resign_and_stop(services, opened, leading).await;
                return exit_code_on_request(services);
            }
        };
        if let Some(end) = services.ending.decided() {
            resign_and_stop(services, opened, std::future::ready(())).await;
            end.code.log_final_message(&end.cause);
            return end.code;
        }
        match ended {
            Ok(()) => pause.reset(),
            Err(error) => {
                warn!(epoch = %session.epoch(), %error, "the term ends with an error: resigning");
                tokio::select! {
                    () = async {
                        opened.election.resign().await;
                        tokio::time::sleep(pause.next_delay()).await;
                    } => {}
                    () = stop.cancelled() => {
                        resign_and_stop(services, opened, std::future::ready(())).await;
                        return ExitCode::Ended;
                    }
                }
            }
        }
    }
}

/// Why this process must not lead in its store; checked before it does anything in its first term. A process
/// that has just started first asks the leader that its store names, if that one answers.
async fn refusal_of_store(peers: Option<&PeersHandle>) -> Option<String> {
    let mut found = peers?.belonging.clone();
    let finding = found.wait_for(|finding| *finding != Finding::Open);
    let finding = tokio::time::timeout(SAME_STORE_TIMEOUT, finding).await;
    match &*finding.ok()?.ok()? {
        Finding::OtherStore(reason) => Some(reason.clone()),
        Finding::Open | Finding::Nothing => None,
    }
}

/// Waits until it is proven that the leader named in the store uses another store.
async fn until_other_store(peers: Option<&PeersHandle>) -> String {
    let Some(peers) = peers else {
        return std::future::pending().await;
    };
    let mut found = peers.belonging.clone();
    loop {
        if let Finding::OtherStore(reason) = &*found.borrow_and_update() {
            return reason.clone();
        }
        if found.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// The exit code of a process that was asked to end: that of its application, if the application has ended
/// meanwhile.
fn exit_code_on_request(services: &TermServices) -> ExitCode {
    match services.ending.decided() {
        Some(end) => {
            end.code.log_final_message(&end.cause);
            end.code
        }
        None => ExitCode::Ended,
    }
}

/// Resigns and lets the term's components end, but waits only for a limited time: a lease ends by itself, and
/// components end with their process.
async fn resign_and_stop<T>(
    services: &TermServices,
    opened: &HaServices,
    term: impl Future<Output = T>,
) {
    let timeout = services.options.process.shutdown_timeout / 2;
    let resigned = tokio::time::timeout(timeout, opened.election.resign());
    let ended = tokio::time::timeout(timeout, term);
    let (resigned, ended) = tokio::join!(resigned, ended);
    if resigned.is_err() {
        warn!(
            ?timeout,
            "the resignation is not confirmed by the store; the lease will expire by itself"
        );
    }
    if ended.is_err() {
        let leadership = opened.election.leadership();
        let current = leadership.borrow();
        warn!(
            ?timeout,
            leadership = ?current,
            "the term's components did not end in time"
        );
    }
}

/// Waits for the session of the next term. An error means that this process is refused for good.
async fn next_session(
    leadership: &mut watch::Receiver<Leadership>,
) -> Result<LeaderSession, String> {
    loop {
        match &*leadership.borrow_and_update() {
            Leadership::Granted(session) if !session.is_over() => return Ok(session.clone()),
            Leadership::Refused(reason) => return Err(reason.clone()),
            Leadership::Granted(_)
            | Leadership::Standby
            | Leadership::Suspended(_)
            | Leadership::Over(_) => {}
        }
        if leadership.changed().await.is_err() {
            return Err("the election of this process has ended".to_owned());
        }
    }
}

async fn forward(mut from: watch::Receiver<LeaderView>, to: watch::Sender<LeaderView>) {
    loop {
        to.send_replace(from.borrow_and_update().clone());
        if from.changed().await.is_err() {
            return;
        }
    }
}
