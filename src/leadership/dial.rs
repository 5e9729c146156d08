//! Dials, for a leader that was just granted its term, the TaskExecutors that its jobs' records name, so that
//! they register at once and refuse late messages of the former leader, even if the store has not informed them
//! yet.
//!
//! Nothing waits for it: a TaskExecutor that does not answer is dialled again until the time is over for which the
//! JobMasters await its tasks. An answer can shorten that wait: if another incarnation answers at its address, or no
//! process is there, the incarnation of the record is lost. Silence proves nothing.
//!
//! A JobMaster that replaces a broken one in the same term is announced in the same way, to the TaskExecutors
//! of its job.
//!
//! It ends with its term, by being dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tanist_dispatcher::RecoveredJobs;
use tanist_gateway::fencing::OnHigherEpoch;
use tanist_gateway::{Connector, GatewayError};
use tanist_ha::election::Epoch;
use tanist_ha::retry::Backoff;
use tanist_job_master::JobMasterHandle;
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, info};

/// Maximum number of concurrent calls. Large, so that calls without an answer do not delay the others.
const CONCURRENT: usize = 256;
/// Timeout of the first call; it doubles with each further one.
const FIRST_TIMEOUT: Duration = Duration::from_millis(500);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(4);
const FIRST_RETRY: Duration = Duration::from_millis(100);
const SLOWEST_RETRY: Duration = Duration::from_secs(2);

/// An incarnation of a TaskManager.
type Incarnation = (ResourceId, String);

/// The TaskExecutors to dial: incarnations that the records name, by RPC address.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Placements {
    by_address: BTreeMap<String, BTreeSet<Incarnation>>,
}

impl Placements {
    /// All TaskExecutors on which recovered jobs were placed.
    pub(super) fn of(recovered: &RecoveredJobs) -> Placements {
        Placements::of_states(recovered.jobs.iter().filter_map(|(_, job)| job.state()))
    }

    /// All TaskExecutors on which these jobs were placed.
    pub(super) fn of_states<'a>(states: impl Iterator<Item = &'a pb::JobState>) -> Placements {
        let regions = states.flat_map(|state| &state.regions);
        let mut placements = Placements::default();
        for placement in regions.flat_map(|region| &region.placements) {
            let Some(location) = &placement.location else {
                continue;
            };
            if let Ok(id) = location.resource_id.parse() {
                let at = &mut placements.by_address;
                at.entry(location.rpc_address.clone())
                    .or_default()
                    .insert((id, location.incarnation.clone()));
            }
        }
        placements
    }
}

/// What dialling needs.
#[derive(Clone)]
pub(super) struct DialServices {
    pub connector: Arc<dyn Connector>,
    /// The term, as its messages name it.
    pub sender: pb::Sender,
    /// Address at which TaskExecutors reach this process.
    pub rpc_address: String,
    pub process: String,
    /// The JobMasters that replaced others in this term.
    pub jobs: Vec<pb::JobScope>,
    /// `heartbeat.timeout`: the time for which the tasks of a missing TaskExecutor are awaited.
    pub timeout: Duration,
    pub on_higher_epoch: OnHigherEpoch,
    pub awaiting: Awaiting,
}

/// The JobMasters that may await tasks, to inform them of lost TaskManagers; a JobMaster that starts later
/// receives what was found out before.
#[derive(Debug, Clone, Default)]
pub(super) struct Awaiting {
    inner: Arc<Mutex<AwaitingInner>>,
}

#[derive(Debug, Default)]
struct AwaitingInner {
    job_masters: BTreeMap<String, JobMasterHandle>,
    lost: BTreeSet<Incarnation>,
    is_over: bool,
}

impl Awaiting {
    /// Adds a JobMaster that was started for a recovered job.
    pub(super) fn started(&self, job_id: &str, job_master: &JobMasterHandle) {
        let mut inner = self.inner.lock();
        for (id, incarnation) in &inner.lost {
            job_master.report_task_manager_lost(id.clone(), incarnation.clone());
        }
        if !inner.is_over {
            let job_master = job_master.clone();
            inner.job_masters.insert(job_id.to_owned(), job_master);
        }
    }

    fn report_lost(&self, (id, incarnation): Incarnation) {
        info!(task_manager = %id, incarnation, "a TaskManager that ran tasks is lost");
        let mut inner = self.inner.lock();
        for job_master in inner.job_masters.values() {
            job_master.report_task_manager_lost(id.clone(), incarnation.clone());
        }
        inner.lost.insert((id, incarnation));
    }

    /// Dialling is over, so no handle is kept.
    fn end(&self) {
        let mut inner = self.inner.lock();
        inner.job_masters.clear();
        inner.is_over = true;
    }
}

/// Dials all concurrently, until each has answered or is known to be gone, or the timeout has passed.
pub(super) async fn dial(placements: Placements, services: DialServices) {
    let started = Instant::now();
    let number = placements.by_address.len();
    let services = Arc::new(services);
    let calls = Arc::new(Semaphore::new(CONCURRENT));
    let mut dialling = JoinSet::new();
    for (address, named) in placements.by_address {
        let (services, calls) = (services.clone(), calls.clone());
        dialling.spawn(async move {
            let until = started + services.timeout;
            let answered = timeout_at(until, dial_one(&services, &calls, &address, named)).await;
            if answered.is_err() {
                info!(
                    address,
                    "a TaskManager that ran tasks did not answer in time"
                );
            }
        });
    }
    while dialling.join_next().await.is_some() {}
    services.awaiting.end();
    if number > 0 {
        debug!(task_managers = number, took = ?started.elapsed(), "dialled");
    }
}

async fn dial_one(
    services: &DialServices,
    calls: &Semaphore,
    address: &str,
    named: BTreeSet<Incarnation>,
) {
    let gateway = services.connector.task_executor(address);
    let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
    let mut bound = FIRST_TIMEOUT;
    let mut was_refused = false;
    loop {
        let request = pb::AnnounceLeaderRequest {
            sender: Some(services.sender.clone()),
            leader_rpc_address: services.rpc_address.clone(),
            process: services.process.clone(),
            jobs: services.jobs.clone(),
        };
        let answer = {
            let _permit = calls.acquire().await;
            timeout(bound, gateway.announce_leader(request)).await
        };
        match answer {
            Ok(Ok(answer)) => {
                for other in named {
                    if (other.0.as_str(), other.1.as_str())
                        != (answer.resource_id.as_str(), answer.incarnation.as_str())
                    {
                        services.awaiting.report_lost(other);
                    }
                }
                return;
            }
            Ok(Err(GatewayError::Outdated { epoch, reason })) => {
                info!(address, epoch, reason, "a TaskManager refuses this term");
                if epoch > services.sender.epoch {
                    let sender = format!("the TaskManager at {address}");
                    (services.on_higher_epoch)(Epoch::new(epoch), &sender);
                }
                return;
            }
            Ok(Err(GatewayError::NotYet(reason))) => {
                if !std::mem::replace(&mut was_refused, true) {
                    info!(
                        address,
                        reason, "a TaskManager does not follow this term yet"
                    );
                }
            }
            Ok(Err(GatewayError::Unreachable { .. }))
                if services.connector.is_abandoned(address).await =>
            {
                for other in named {
                    services.awaiting.report_lost(other);
                }
                return;
            }
            Ok(Err(error)) => debug!(address, %error, "a TaskManager could not be dialled"),
            Err(_late) => bound = (bound * 2).min(LONGEST_TIMEOUT),
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}
