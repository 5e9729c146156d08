//! One term of a JobManager: built on grant, stopped when it is over.
//!
//! Order: the pipeline proves the change number, the jobs are read, the ResourceManager and the Dispatcher start with
//! them, and only then the term is confirmed (`leader-info`). A crash between any two steps leaves what the store had
//! before: nothing of a term is told to anybody before it is confirmed, and what it writes is fenced.
//! Stopping is forgetting: nobody is told, the store knows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tanist_ha::clock::wall_clock_ms;
use tanist_ha::election::LeaderSession;
use tanist_ha::failpoint::failpoint;
use tanist_ha::jobs::store::RecordStore;
use tanist_ha::keys::Key;
use tanist_ha::retry::Backoff;
use tanist_ha::store::Write;
use tanist_ha::store::pipeline::CommitPipeline;
use tanist_ha::{Error, Result};
use tanist_proto::v1 as pb;
use tracing::{info, warn};

use super::ha::HaServices;
use super::launcher::{Launcher, LauncherServices};
use super::peers::takeover::TakeoverRecord;
use super::peers::{PeersHandle, look_for_the_deposed, record_key};
use super::settings;
use super::sinks::Sinks;
use super::view::{CurrentTerm, TermComponents};
use crate::config::ClusterOptions;
use crate::dispatcher::{
    Cleaner, Dispatcher, DispatcherContext, JobStore, JobStoreError, RecoveredJobs,
};
use crate::gateway::Connector;
use crate::gateway::blobs::{BlobFetcher, ServedBlobs};
use crate::resource_manager::{ResourceManager, ResourceManagerServices, Term};

const FIRST_RETRY: Duration = Duration::from_millis(20);
const SLOWEST_RETRY: Duration = Duration::from_secs(2);

/// What every term of a process uses.
#[derive(Debug, Clone)]
pub(super) struct TermServices {
    pub options: Arc<ClusterOptions>,
    pub ha: HaServices,
    pub connector: Arc<dyn Connector>,
    pub current: Arc<CurrentTerm>,
    /// What the confirmed leader publishes: `rpc`, `rest` and `blob`.
    pub addresses: BTreeMap<String, String>,
    /// Where TaskExecutors reach this process.
    pub rpc_address: String,
    pub sinks: Sinks,
    /// The other JobManagers; nothing where processes do not watch each other.
    pub peers: Option<PeersHandle>,
    pub blobs: ServedBlobs,
}

/// How long the parts of a takeover took.
#[derive(Debug, Default, serde::Serialize)]
struct Phases {
    pipeline_ms: f64,
    recovered_ms: f64,
    confirmed_ms: f64,
}

/// The value of `history/<epoch>`.
#[derive(Debug, serde::Serialize)]
struct HistoryRecord<'a> {
    epoch: u64,
    process: &'a str,
    since_ms: u64,
    jobs: usize,
    phases: &'a Phases,
    /// How it followed the former term; nothing for the first.
    takeover: Option<TakeoverRecord>,
}

/// Leads until the term is over. An error: this process can't lead at present, and its term, which still goes on, should
/// be given up.
pub(super) async fn lead(services: &TermServices, session: &LeaderSession) -> Result<()> {
    let reports = services.peers.as_ref().map(|peers| &peers.reports);
    if let Some(reports) = reports {
        reports.recovering(0, 0);
    }
    let ended = lead_on(services, session).await;
    if let Some(reports) = reports {
        reports.standby();
    }
    if session.is_over() { Ok(()) } else { ended }
}

async fn lead_on(services: &TermServices, session: &LeaderSession) -> Result<()> {
    let started = tokio::time::Instant::now();
    let mut phases = Phases::default();
    let pipeline = CommitPipeline::start(services.ha.store.clone(), session.clone()).await?;
    phases.pipeline_ms = millis(started);

    let records = RecordStore::new(
        services.ha.store.clone(),
        services.ha.blobs.clone(),
        settings::inline_threshold(&services.options),
    )
    .with_max_split(settings::max_graph_size(&services.options));
    let store = Arc::new(JobStore::new(records, pipeline.clone(), session.epoch()));
    let recovered = recover(&store, session).await?;
    let jobs = recovered.jobs.len();
    phases.recovered_ms = millis(started);
    failpoint("term.recovered").await;

    let term = start_components(services, session, store.clone(), recovered);
    services.current.begin(term.components.clone());
    let confirmed = services
        .ha
        .election
        .confirm(session, services.addresses.clone(), FIRST_RETRY);
    let confirmed = confirmed.await;
    phases.confirmed_ms = millis(started);

    let ended = match confirmed {
        Ok(()) => {
            info!(
                epoch = %session.epoch(),
                jobs,
                took_ms = phases.confirmed_ms,
                "leadership confirmed, all jobs recovered"
            );
            if let Some(peers) = &services.peers {
                peers.reports.leading();
            }
            let record = write_history(&pipeline, session, jobs, &phases).await;
            let peers = services.peers.as_ref();
            let looking =
                look_for_the_deposed(peers, &*services.ha.store, &pipeline, session, record);
            // Nobody waits for this, and nobody is held up by it.
            let sweep = tokio::spawn(remove_orphaned_parts(store, session.clone()));
            let ended = tokio::select! {
                () = session.over() => Ok(()),
                () = looking => Ok(()),
                () = pipeline.ended() => Err(Error::Misconfigured(
                    "the store's data contradicts this term".into(),
                )),
                () = term.components.dispatcher.ended() => {
                    Err(Error::Misconfigured("its Dispatcher broke".into()))
                }
            };
            sweep.abort();
            ended
        }
        Err(error) => Err(error),
    };
    services.current.end();
    term.components.dispatcher.stop().await;
    term.resource_manager.stop().await;
    ended
}

struct StartedTerm {
    components: TermComponents,
    resource_manager: ResourceManager,
}

fn start_components(
    services: &TermServices,
    session: &LeaderSession,
    store: Arc<JobStore>,
    recovered: RecoveredJobs,
) -> StartedTerm {
    let options = &services.options;
    let election = services.ha.election.clone();
    let on_higher_epoch: Arc<dyn Fn(_) + Send + Sync> =
        Arc::new(move |epoch| election.heard(epoch));
    let resource_manager = ResourceManager::start(
        settings::resource_manager(options),
        ResourceManagerServices {
            connector: services.connector.clone(),
            term: Term {
                cluster_id: options.ha.cluster_id.to_string(),
                incarnation: session.incarnation().clone(),
                epoch: session.epoch(),
            },
            on_higher_epoch: on_higher_epoch.clone(),
        },
    );
    let resources = Arc::new(resource_manager.handle());
    let launcher = Launcher::new(LauncherServices {
        options: settings::job_master(options),
        sender: pb::Sender {
            cluster_incarnation: session.incarnation().to_string(),
            epoch: session.epoch().get(),
            registration: 0,
        },
        rpc_address: services.rpc_address.clone(),
        store: store.clone(),
        resources: resources.clone(),
        connector: services.connector.clone(),
        committer: services.sinks.committer.clone(),
        on_higher_epoch,
        blobs: services.blobs.clone(),
    });
    let context = DispatcherContext {
        session: session.clone(),
        store,
        launcher: Arc::new(launcher),
        resources: resources.clone(),
        cleaner: Cleaner {
            sinks: services.sinks.cleaner.clone(),
            blobs: services.ha.blobs.clone(),
            initial_backoff: options.cleanup.initial_backoff,
            max_backoff: options.cleanup.max_backoff,
        },
        blobs: BlobFetcher::new(services.connector.clone(), options.rpc.ask_timeout),
    };
    let dispatcher = Dispatcher::start(settings::dispatcher(options), context, recovered);
    let components = TermComponents {
        dispatcher,
        resource_manager: resources,
    };
    StartedTerm {
        components,
        resource_manager,
    }
}

/// Reads every job; tries until it succeeds or the term is over.
async fn recover(store: &JobStore, session: &LeaderSession) -> Result<RecoveredJobs> {
    let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
    loop {
        match store.recover().await {
            Ok(recovered) => return Ok(recovered),
            Err(error) => warn!(%error, "the jobs can't be read, this is tried again"),
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_delay()) => {}
            () = session.over() => return Err(Error::Fenced { epoch: session.epoch().next() }),
        }
    }
}

/// Removes what former leaders left between the parts of a graph and the graph; tries as long as the term lasts.
async fn remove_orphaned_parts(store: Arc<JobStore>, session: LeaderSession) {
    let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
    loop {
        match store.remove_orphaned_parts().await {
            Err(JobStoreError::Refused(error)) => {
                warn!(%error, "parts without a graph can't be looked for, this is tried again");
            }
            Ok(()) | Err(JobStoreError::NotWritten | JobStoreError::Unknown) => return,
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next_delay()) => {}
            () = session.over() => return,
        }
    }
}

/// How many terms `history/` remembers.
const REMEMBERED_TERMS: u64 = 100;

async fn write_history(
    pipeline: &CommitPipeline,
    session: &LeaderSession,
    jobs: usize,
    phases: &Phases,
) -> Option<Key> {
    let record = HistoryRecord {
        epoch: session.epoch().get(),
        process: session.process().as_str(),
        since_ms: wall_clock_ms(),
        jobs,
        phases,
        takeover: TakeoverRecord::of(session),
    };
    let value = serde_json::to_vec(&record).ok()?;
    let mut writes = vec![Write::Put {
        key: record_key(record.epoch),
        value: value.into(),
    }];
    if let Some(oldest) = record.epoch.checked_sub(REMEMBERED_TERMS) {
        writes.push(Write::Delete {
            key: record_key(oldest),
        });
    }
    if let Err(error) = pipeline.commit(writes).await {
        warn!(%error, "the term's history record was not written");
        return None;
    }
    Some(record_key(record.epoch))
}

fn millis(since: tokio::time::Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}
