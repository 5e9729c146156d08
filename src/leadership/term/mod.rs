//! One term of a JobManager: built on a grant, confirmed, run, and stopped when it is over.
//!
//! ```text
//! RecoveredTerm::begin --> start --> StartedTerm::confirm --> ConfirmedTerm::run --> StartedTerm::stop
//! ```
//!
//! Order: the pipeline reads the change number; the standby's cache is proven against it and compared with the
//! names that the store lists; the ResourceManager and the Dispatcher start with the jobs; the TaskExecutors
//! that run them are dialled; and only then the term is confirmed (`leader-info`). The results of jobs that had
//! ended are read after that. A crash between any two steps leaves the store as it was: a term's writes are
//! fenced, and a TaskExecutor that was dialled knows an epoch whose leader is gone, and waits for the next one.
//! Stopping only drops state: no process is informed, the store has everything.

mod confirmed;
mod recovered;
mod started;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tanist_config::ClusterOptions;
use tanist_dispatcher::GraphChecks;
use tanist_gateway::Connector;
use tanist_gateway::blobs::ServedBlobs;
use tanist_gateway::fencing::{OnHigherEpoch, sender_of};
use tanist_ha::election::LeaderSession;
use tanist_ha::failpoint::failpoint;
use tanist_ha::store::cache::WarmCache;
use tanist_ha::{Error, Result};
use tanist_proto::v1 as pb;
use tokio::time::Instant;

use recovered::RecoveredTerm;

use super::application::Application;
use super::ending::Ending;
use super::ha::HaServices;
use super::peers::{PeersHandle, Reports};
use super::sinks::Sinks;
use super::view::CurrentTerm;
use super::workers::WorkersSetup;

pub(super) const FIRST_RETRY: Duration = Duration::from_millis(20);
pub(super) const SLOWEST_RETRY: Duration = Duration::from_secs(2);

/// What every term of a process uses.
#[derive(Debug, Clone)]
pub(super) struct TermServices {
    pub options: Arc<ClusterOptions>,
    pub ha: HaServices,
    pub connector: Arc<dyn Connector>,
    pub current: Arc<CurrentTerm>,
    /// The addresses that the confirmed leader publishes: `rpc`, `rest` and `blob`.
    pub addresses: BTreeMap<String, String>,
    /// Address at which TaskExecutors reach this process.
    pub rpc_address: String,
    pub checks: GraphChecks,
    pub sinks: Sinks,
    /// The other JobManagers; `None` if processes do not watch each other.
    pub peers: Option<PeersHandle>,
    pub blobs: ServedBlobs,
    pub application: Option<Application>,
    pub workers: Option<WorkersSetup>,
    /// Whether the process must end.
    pub ending: Ending,
    /// The last epoch that this process led.
    pub last_led: Arc<AtomicU64>,
}

impl TermServices {
    /// What the heartbeats of this process report; `None` if processes do not watch each other.
    fn reports(&self) -> Option<&Reports> {
        self.peers.as_ref().map(|peers| &*peers.reports)
    }
}

/// What a term is built on.
#[derive(Clone, Copy)]
struct Grant<'a> {
    services: &'a TermServices,
    session: &'a LeaderSession,
    /// When the process was granted leadership.
    at: Instant,
}

impl Grant<'_> {
    /// The sender that this term's messages name.
    fn sender(&self) -> pb::Sender {
        let session = self.session;
        sender_of(
            session.incarnation(),
            session.epoch(),
            session.holder(),
            session.store(),
        )
    }

    /// What components do when another process names a higher epoch.
    fn on_higher_epoch(&self) -> OnHigherEpoch {
        let election = self.services.ha.election.clone();
        Arc::new(move |epoch, sender| election.report_claim(epoch, sender.to_owned()))
    }
}

/// Leads until the term is over. An error: this process can't lead at present. Its term is not over: the caller
/// resigns.
pub(super) async fn lead(
    services: &TermServices,
    session: &LeaderSession,
    cache: &mut WarmCache,
) -> Result<()> {
    let reports = services.reports();
    if let Some(reports) = reports {
        reports.recovering(0, 0);
    }
    let grant = Grant {
        services,
        session,
        at: Instant::now(),
    };
    // On the heap: the future of a term is too large to be a part of its caller's.
    let ended = Box::pin(lead_on(grant, cache)).await;
    let epoch = session.epoch().get();
    services.last_led.fetch_max(epoch, Ordering::Relaxed);
    if let Some(reports) = reports {
        reports.standby();
    }
    if reports.and_then(Reports::stalled_term) == Some(session.epoch()) {
        return Err(Error::Misconfigured(
            format!("no progress for {:?}", services.options.ha.stall_timeout).into(),
        ));
    }
    if session.is_over() { Ok(()) } else { ended }
}

/// The states of a term, one after the other.
async fn lead_on(grant: Grant<'_>, cache: &mut WarmCache) -> Result<()> {
    let session = grant.session;
    let recovered = tokio::select! {
        begun = RecoveredTerm::begin(grant, cache) => begun?,
        () = session.over() => return Err(Error::Fenced { epoch: session.epoch().next() }),
    };
    // Before anything of the term is started, so that nothing has to be stopped.
    if recovered.hand_over_to_newer_version().await {
        return Ok(());
    }
    failpoint("term.recovered").await;
    match recovered.start().confirm().await {
        Ok(mut confirmed) => {
            let ended = confirmed.run().await;
            confirmed.started.stop().await;
            ended
        }
        Err((error, started)) => {
            started.stop().await;
            Err(error)
        }
    }
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}
