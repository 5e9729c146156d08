//! One term of a JobManager: built on grant, stopped when it is over.
//!
//! Order: the pipeline reads the change number; the standby's cache is proven against it and compared with the
//! names that the store lists; the ResourceManager and the Dispatcher start with the jobs; the TaskExecutors
//! that run them are dialled; and only then the term is confirmed (`leader-info`). The results of jobs that had
//! ended are read after that. A crash between any two steps leaves the store as it was: a term's writes are
//! fenced, and a TaskExecutor that was dialled knows an epoch whose leader is gone, and waits for the next one.
//! Stopping only drops state: no process is informed, the store has everything.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tanist_ha::clock::wall_clock_ms;
use tanist_ha::election::LeaderSession;
use tanist_ha::failpoint::failpoint;
use tanist_ha::keys::Kind;
use tanist_ha::store::cache::{Records, WarmCache};
use tanist_ha::store::pipeline::CommitPipeline;
use tanist_ha::{Error, Result};
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, info};

use super::adoptions::Adoptions;
use super::application::{ApplicationSetup, Ending, FoundApplication};
use super::application_term::{attend_application, find_application};
use super::dial::{self, Awaiting, DialServices, Placements};
use super::ha::HaServices;
use super::history::{HistoryRecord, Phases, Recovery, TermRecord};
use super::launcher::{Launcher, LauncherServices};
use super::orphan_gc;
use super::peers::{
    HandOverOptions, PeersHandle, hand_over_when_cut_off, keep_pulse, look_for_the_deposed,
    refusals,
};
use super::record_recovery::{job_store, recover};
use super::recovery_phases;
use super::settings;
use super::sinks::Sinks;
use super::standby;
use super::version_handover;
use super::view::{CurrentTerm, TermComponents};
use super::workers;
use crate::config::ClusterOptions;
use crate::dispatcher::{Dispatcher, DispatcherContext, JobStore, RecoveredJobs, StorageUser};
use crate::gateway::Connector;
use crate::gateway::blobs::{BlobFetcher, ServedBlobs};
use crate::gateway::fencing::{OnHigherEpoch, sender_of};
use crate::gateway::refusals::Refusals;
use crate::resource_manager::drains::{DrainRecord, DrainTarget, DrainsServices, recorded_drains};
use crate::resource_manager::workers::{ResourceManagerDriver, WorkerRecord, recorded_workers};
use crate::resource_manager::{ResourceManager, ResourceManagerServices, Term};

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
    pub sinks: Sinks,
    /// The other JobManagers; `None` if processes do not watch each other.
    pub peers: Option<PeersHandle>,
    pub blobs: ServedBlobs,
    pub application: Option<ApplicationSetup>,
    pub driver: Option<Arc<dyn ResourceManagerDriver>>,
    /// Whether the process must end.
    pub ending: Ending,
    /// The last epoch that this process led.
    pub last_led: Arc<AtomicU64>,
}

/// Leads until the term is over. An error: this process can't lead at present, and should give up its term,
/// which still goes on.
pub(super) async fn lead(
    services: &TermServices,
    session: &LeaderSession,
    cache: &mut WarmCache,
) -> Result<()> {
    let reports = services.peers.as_ref().map(|peers| &peers.reports);
    if let Some(reports) = reports {
        reports.recovering(0, 0);
    }
    let ended = lead_on(services, session, cache).await;
    let epoch = session.epoch().get();
    services.last_led.fetch_max(epoch, Ordering::Relaxed);
    if let Some(reports) = reports {
        reports.standby();
    }
    if reports.and_then(|reports| reports.gave_up()) == Some(session.epoch()) {
        return Err(Error::Misconfigured(
            format!("nothing moved for {:?}", services.options.ha.stall_timeout).into(),
        ));
    }
    if session.is_over() { Ok(()) } else { ended }
}

/// What a term begins with.
struct Begun {
    pipeline: CommitPipeline,
    store: Arc<JobStore>,
    recovered: RecoveredJobs,
    recovery: Recovery,
    phases: Phases,
    found_application: FoundApplication,
    record: Arc<TermRecord>,
    recorded: Recorded,
}

/// The store's records about TaskManagers.
struct Recorded {
    /// TaskManagers that drivers of former terms have started.
    workers: Vec<(ResourceId, WorkerRecord)>,
    /// Drained targets.
    drains: Vec<(DrainTarget, DrainRecord)>,
}

impl Recorded {
    fn of(records: &Records) -> Recorded {
        Recorded {
            workers: recorded_workers(records),
            drains: recorded_drains(records),
        }
    }
}

/// Proves and decodes the records, and writes the term's record with its phase. May be dropped at any point.
async fn begin(
    services: &TermServices,
    session: &LeaderSession,
    cache: &mut WarmCache,
    started: tokio::time::Instant,
) -> Result<Begun> {
    let reports = services.peers.as_ref().map(|peers| &*peers.reports);
    let mut phases = Phases::default();
    let pipeline = CommitPipeline::start(services.ha.store.clone(), session.clone()).await?;
    phases.pipeline_ms = millis(started);
    if let Some(reports) = reports {
        reports.moved();
    }
    // Nothing has been committed yet: the proven records are the state at the term's begin. Decisions use
    // nothing else.
    let (proven, plan) = tokio::try_join!(
        standby::prove(cache, &*services.ha.store, &pipeline, session),
        recovery_phases::look_back(services, session),
    )?;
    phases.cache_proven_ms = Some(millis(started));
    let records = &proven.records;
    let found_application = find_application(services, records)?;
    let (store, decoded) = job_store(services, session, &pipeline);
    store.expect_storage(records).await;
    let plan = if has_jobs(records) {
        plan
    } else {
        plan.without_jobs()
    };
    let (caution, record) = recovery_phases::prepare(plan, session, &store, &pipeline).await;
    let recovered = recover(&store, records, &caution, session, decoded, reports).await?;
    phases.recovered_ms = millis(started);
    Ok(Begun {
        recorded: Recorded::of(records),
        recovery: Recovery::from(&proven),
        pipeline,
        store,
        recovered,
        phases,
        found_application,
        record,
    })
}

/// Whether there is a job that has not ended, or may not have.
fn has_jobs(records: &Records) -> bool {
    let mut kinds = [Kind::Graphs, Kind::States].into_iter();
    kinds.any(|kind| records.of(kind).next().is_some())
}

async fn lead_on(
    services: &TermServices,
    session: &LeaderSession,
    cache: &mut WarmCache,
) -> Result<()> {
    let started = tokio::time::Instant::now();
    let begun = tokio::select! {
        begun = begin(services, session, cache, started) => begun?,
        () = session.over() => return Err(Error::Fenced { epoch: session.epoch().next() }),
    };
    let Begun {
        pipeline,
        store,
        recovered,
        recovery,
        mut phases,
        found_application,
        record,
        recorded,
    } = begun;
    if version_handover::give_way_first(services, session, &store).await {
        return Ok(());
    }
    let suspects = recovery_phases::suspects(&recovered);
    let jobs = recovered.jobs.len();
    failpoint("term.recovered").await;

    let reports = services.peers.as_ref().map(|peers| &*peers.reports);
    if let Some(reports) = reports {
        reports.recovering(0, jobs as u64);
    }
    let placements = Placements::of(&recovered);
    let (refusals, mut refused) = refusals(services.peers.is_some());
    let dial_services = dial_services(services, session);
    let term = start_components(
        services,
        session,
        store.clone(),
        recovered,
        dial_services.clone(),
        refusals,
        recorded,
    );
    services.current.begin(term.components.clone());
    // Ends with the term.
    let mut dialling = JoinSet::new();
    dialling.spawn(dial::dial(placements, dial_services));
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
                from_cache = recovery.from_cache,
                read = recovery.read,
                took_ms = phases.confirmed_ms,
                "leadership confirmed, all jobs recovered"
            );
            if let Some(peers) = &services.peers {
                peers.reports.leading();
            }
            let confirmed = |record: &mut HistoryRecord| {
                record.since_ms = wall_clock_ms();
                record.jobs = jobs;
                record.phases = phases;
                record.recovery = Some(recovery);
            };
            record.note(confirmed).await;
            let looking = look_for_the_deposed(
                services.peers.as_ref(),
                session,
                &*services.ha.store,
                &record,
            );
            let resources = term.resource_manager.handle();
            let hand_over = HandOverOptions {
                interval: services.options.heartbeat.interval,
                timeout: services.options.heartbeat.timeout,
            };
            // Without jobs the record says so from the beginning.
            let has_recovered = watch::Sender::new(jobs == 0);
            let attending = attend_application(
                services,
                &term.components,
                resources.clone(),
                &store,
                found_application,
                has_recovered.subscribe(),
            );
            // In the background: nothing waits for these, and they delay nothing.
            tokio::spawn({
                let (record, store) = (record.clone(), services.ha.store.clone());
                async move { record.forget_older(&*store).await }
            });
            let grace = services.options.ha.blob_orphan_grace;
            let user = StorageUser::of(session, services.options.ha.cluster_id.as_str());
            let watching = orphan_gc::watch_storage(store.clone(), session.clone(), user, grace);
            let watching = tokio::spawn(watching);
            let sweep = tokio::spawn({
                let dispatcher = term.components.dispatcher.clone();
                let sweeping = orphan_gc::sweep(store.clone(), session.clone(), grace);
                async move {
                    // Objects that results name must not be swept, so results are read first; an error: the
                    // term is over.
                    if dispatcher.read_results().await.is_ok() {
                        sweeping.await;
                    }
                }
            });
            let ended = tokio::select! {
                () = session.over() => Ok(()),
                never = tell_adoption(&term.adoptions, session, started, &record) => match never {},
                () = looking => Ok(()),
                () = attending => Ok(()),
                never = version_handover::give_way_when_possible(services, session, &store) => match never {},
                never = recovery_phases::finish_recovery(
                    jobs,
                    suspects,
                    &term.components.dispatcher,
                    &term.adoptions,
                    &record,
                    &has_recovered,
                ) => match never {},
                never = keep_pulse(
                    reports,
                    &term.components.dispatcher,
                    &resources,
                    services.options.ha.stall_timeout,
                ) => match never {},
                never = hand_over_when_cut_off(
                    services.peers.as_ref(),
                    &resources,
                    session,
                    hand_over,
                    &mut refused,
                ) => match never {},
                () = pipeline.ended() => Err(Error::Misconfigured(
                    "the store's data contradicts this term".into(),
                )),
                () = term.components.dispatcher.ended() => {
                    Err(Error::Misconfigured("its Dispatcher broke".into()))
                }
            };
            sweep.abort();
            watching.abort();
            ended
        }
        Err(error) => Err(error),
    };
    services.current.end();
    let stopping = tokio::time::Instant::now();
    tokio::join!(
        term.components.dispatcher.stop(),
        term.resource_manager.stop(),
    );
    debug!(epoch = %session.epoch(), took_ms = millis(stopping), "the term's components have ended");
    ended
}

struct StartedTerm {
    components: TermComponents,
    resource_manager: ResourceManager,
    adoptions: Adoptions,
}

/// Logs when all running tasks of recovered jobs are accounted for, and writes it into the term's record. Ends
/// with the term, by being dropped.
async fn tell_adoption(
    adoptions: &Adoptions,
    session: &LeaderSession,
    started: tokio::time::Instant,
    record: &TermRecord,
) -> Infallible {
    let adoption = adoptions.reconciled().await;
    info!(
        epoch = %session.epoch(),
        adopted = adoption.tasks_adopted,
        restarted = adoption.tasks_restarted,
        first_at_ms = adoption.first_adopted_at_ms,
        last_at_ms = adoption.last_adopted_at_ms,
        took_ms = millis(started),
        "running tasks accounted for"
    );
    if adoption.tasks_adopted + adoption.tasks_restarted > 0 {
        let granted_at_ms =
            Duration::from_millis(wall_clock_ms()).saturating_sub(started.elapsed());
        let since_grant = |at_ms: u64| {
            let since = Duration::from_millis(at_ms).saturating_sub(granted_at_ms);
            since.as_secs_f64() * 1000.0
        };
        let of_adoption = |record: &mut HistoryRecord| {
            record.tasks_adopted = usize::try_from(adoption.tasks_adopted).ok();
            record.tasks_restarted = usize::try_from(adoption.tasks_restarted).ok();
            record.phases.first_adopted_ms = adoption.first_adopted_at_ms.map(since_grant);
            record.phases.last_adopted_ms = adoption.last_adopted_at_ms.map(since_grant);
        };
        record.note(of_adoption).await;
    }
    std::future::pending().await
}

fn start_components(
    services: &TermServices,
    session: &LeaderSession,
    store: Arc<JobStore>,
    recovered: RecoveredJobs,
    dial: DialServices,
    refusals: Arc<dyn Refusals>,
    recorded: Recorded,
) -> StartedTerm {
    let options = &services.options;
    let workers = workers::services(services, store.pipeline(), recorded.workers);
    let on_higher_epoch = on_higher_epoch(services);
    let resource_manager = ResourceManager::start(
        settings::resource_manager(options),
        ResourceManagerServices {
            connector: services.connector.clone(),
            refusals: refusals.clone(),
            term: Term {
                cluster_id: options.ha.cluster_id.to_string(),
                incarnation: session.incarnation().clone(),
                epoch: session.epoch(),
                holder: session.holder().clone(),
                store: session.store().cloned(),
            },
            on_higher_epoch: on_higher_epoch.clone(),
            workers,
            drains: DrainsServices {
                pipeline: Some(store.pipeline().clone()),
                recorded: recorded.drains,
            },
        },
    );
    let resources = Arc::new(resource_manager.handle());
    let adoptions = Adoptions::default();
    let launcher = Arc::new(Launcher::new(LauncherServices {
        options: Arc::new(settings::job_master(options)),
        sender: Arc::new(sender(session)),
        rpc_address: services.rpc_address.as_str().into(),
        store: store.clone(),
        resources: resources.clone(),
        connector: services.connector.clone(),
        refusals,
        committer: services.sinks.committer.clone(),
        on_higher_epoch,
        dial,
        blobs: services.blobs.clone(),
        adoptions: adoptions.clone(),
        reports: services.peers.as_ref().map(|peers| peers.reports.clone()),
    }));
    let pipeline = store.pipeline().clone();
    let (blobs, storage_trouble) = (store.blobs().cloned(), store.storage_trouble());
    let context = DispatcherContext {
        session: session.clone(),
        store,
        launcher: launcher.clone(),
        resources: resources.clone(),
        cleaner: settings::cleaner(&options.cleanup, services.sinks.cleaner.clone(), blobs),
        blobs: BlobFetcher::new(services.connector.clone(), options.rpc.ask_timeout),
    };
    let mut dispatcher_options = settings::dispatcher(options);
    if services.application.is_some() {
        // If a result were removed, the program's next run would submit its job once more.
        dispatcher_options.result_retention = Duration::MAX;
    }
    let dispatcher = Dispatcher::start(dispatcher_options, context, recovered);
    launcher.all_recovered();
    let components = TermComponents {
        storage_trouble,
        dispatcher,
        resource_manager: resources,
        pipeline,
    };
    StartedTerm {
        components,
        resource_manager,
        adoptions,
    }
}

fn dial_services(services: &TermServices, session: &LeaderSession) -> DialServices {
    DialServices {
        connector: services.connector.clone(),
        sender: sender(session),
        rpc_address: services.rpc_address.clone(),
        process: session.process().to_string(),
        timeout: services.options.heartbeat.timeout,
        on_higher_epoch: on_higher_epoch(services),
        jobs: Vec::new(),
        awaiting: Awaiting::default(),
    }
}

/// The sender that this term's messages name.
fn sender(session: &LeaderSession) -> pb::Sender {
    sender_of(
        session.incarnation(),
        session.epoch(),
        session.holder(),
        session.store(),
    )
}

fn on_higher_epoch(services: &TermServices) -> OnHigherEpoch {
    let election = services.ha.election.clone();
    Arc::new(move |epoch, teller| election.told(epoch, teller.to_owned()))
}

fn millis(since: tokio::time::Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}
