//! The effects of crash-loop detection in a term: it writes its phase into its record before it begins and when
//! all JobMasters have begun. After deaths in recovery it starts suspects group by group, and names each group
//! in the record first.
//!
//! A crash before a group is named accuses no other job than before. A crash after that and before the group's start
//! accuses the group wrongly, which costs terms, never a job by itself (`crash_loop.rs`).

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tanist_dispatcher::{Caution, DispatcherHandle, JobStore, RecoveredJob, RecoveredJobs};
use tanist_gateway::persistence::PersistError;
use tanist_ha::Result;
use tanist_ha::clock::wall_clock_ms;
use tanist_ha::election::LeaderSession;
use tanist_ha::retry::Backoff;
use tanist_ha::store::pipeline::CommitPipeline;
use tanist_proto::id::JobId;
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::adoptions::Adoptions;
use super::crash_loop::{self, FormerTerm, JobRange, Plan, Suspicion, TermPhase};
use super::history::{self, HistoryRecord, TermRecord};
use super::peers::takeover::TakeoverRecord;
use super::term::{FIRST_RETRY, SLOWEST_RETRY, TermServices};

/// Time that the process must survive after JobMasters have begun before these count as innocent. A job that
/// ends its process mostly does so at once. If leaders are killed from outside a little further apart than
/// this, no job is suspected.
const SURVIVAL_TIME: Duration = Duration::from_millis(200);
/// Timeout of a takeover for setting its culprit aside durably.
const SET_ASIDE_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads how the earlier terms ended, and makes the plan that follows from that.
pub(super) async fn plan_recovery(
    services: &TermServices,
    session: &LeaderSession,
) -> Result<Plan> {
    let mut backoff = Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
    let records = loop {
        match history::read_before(&*services.ha.store, session.epoch()).await {
            Ok(records) => break records,
            Err(error) => {
                warn!(%error, "the records of earlier terms can't be read: retrying")
            }
        }
        tokio::time::sleep(backoff.next_delay()).await;
    };
    let led_here = services.last_led.load(Ordering::Relaxed);
    let former = session.takeover();
    let former = former.map(|takeover| FormerTerm::of(takeover, led_here));
    Ok(crash_loop::plan(&records, former.as_ref()))
}

/// Prepares the precautions of the term and its record. The culprit, if there is one, is set aside durably
/// first. If the storage of its state does not accept that in time, only this term sets it aside, and its
/// record still names the deaths: the storage may wait for something that happens only once this term is
/// confirmed.
pub(super) async fn prepare(
    mut plan: Plan,
    session: &LeaderSession,
    store: &JobStore,
    pipeline: &CommitPipeline,
) -> (Caution, Arc<TermRecord>) {
    let mut caution = Caution::default();
    let phase = plan.phase();
    if let Some((job, deaths)) = &plan.culprit {
        let quarantine = crash_loop::quarantine(deaths, wall_clock_ms());
        error!(%job, terms = deaths.len(), "a job ended the processes that led it: it is quarantined");
        let setting = store.set_aside(*job, &quarantine);
        match tokio::time::timeout(SET_ASIDE_TIMEOUT, setting).await {
            Ok(Ok(())) => {}
            Ok(Err(PersistError::TermOver)) => {
                info!(%job, "the term is over: the next term quarantines the job")
            }
            Ok(Err(error)) => {
                warn!(%job, %error, "the quarantine of a job can't be written: it counts for this term only")
            }
            Err(_) => {
                warn!(%job, "the quarantine of a job was not written in time: it counts for this term only");
                plan.suspicion.died.clone_from(deaths);
            }
        }
        caution.set_aside = Some((*job, quarantine));
    }
    let suspects = plan.suspicion.suspects;
    if let Some(range) = suspects {
        let died = plan.suspicion.died.len();
        warn!(died, first = %range.first, last = %range.last, "terms died in recovery: starting crash-loop recovery");
    }
    caution.suspects = suspects.map(|range| range.first..=range.last);
    let record = HistoryRecord {
        epoch: session.epoch().get(),
        process: session.process().to_string(),
        since_ms: wall_clock_ms(),
        takeover: TakeoverRecord::of(session),
        phase: Some(phase),
        suspicion: plan.suspicion,
        ..HistoryRecord::default()
    };
    let record = Arc::new(TermRecord::new(record, pipeline.clone()));
    let write = {
        let record = record.clone();
        async move { record.note(|_| {}).await }
    };
    if plan.follows_recovered_term {
        // Not awaited: if this term ends before it is written, the successor sees that there is no record.
        tokio::spawn(write);
    } else {
        write.await;
    }
    (caution, record)
}

/// The suspects among the recovered jobs, in order.
pub(super) fn suspects(recovered: &RecoveredJobs) -> Vec<JobId> {
    let jobs = recovered.jobs.iter();
    let suspects = jobs.filter(|(_, found)| matches!(found, RecoveredJob::Suspect { .. }));
    let mut suspects: Vec<JobId> = suspects.map(|(job, _)| *job).collect();
    suspects.sort();
    suspects
}

/// Starts the suspects among `recovered` jobs. When all JobMasters have begun, sets that in the record, and then in
/// `is_finished`. Never returns: it ends with the term, by being dropped.
pub(super) async fn finish_recovery(
    recovered: usize,
    mut suspects: Vec<JobId>,
    dispatcher: &DispatcherHandle,
    adoptions: &Adoptions,
    record: &TermRecord,
    is_finished: &watch::Sender<bool>,
) -> Infallible {
    if suspects.is_empty() {
        adoptions.all_started();
    }
    adoptions.begun().await;
    let are_all_suspects = !suspects.is_empty() && suspects.len() == recovered;
    // If all are suspects, no other job has begun whose innocence the pause would show.
    if !are_all_suspects {
        tokio::time::sleep(SURVIVAL_TIME).await;
    }
    let narrowed = record.suspicion().await.narrowed;
    while !suspects.is_empty() {
        let group = crash_loop::next_group(&suspects, narrowed).to_vec();
        let (all, starting) = (JobRange::of(&suspects), JobRange::of(&group));
        let name = |record: &mut HistoryRecord| {
            record.suspicion.suspects = all;
            record.suspicion.starting = starting;
        };
        if record.note_surely(name).await.is_err() {
            return std::future::pending().await;
        }
        info!(
            jobs = group.len(),
            left = suspects.len() - group.len(),
            "starting crash suspects"
        );
        suspects.drain(..group.len());
        if dispatcher.start_crash_suspects(group).await.is_err() {
            return std::future::pending().await;
        }
        if suspects.is_empty() {
            adoptions.all_started();
        }
        adoptions.begun().await;
        tokio::time::sleep(SURVIVAL_TIME).await;
    }
    let has_recovered = |record: &mut HistoryRecord| {
        record.phase = Some(TermPhase::Leading);
        record.suspicion = Suspicion::default();
    };
    // Not only for display: until it is written, a later end of the process accuses the jobs that were started
    // last.
    let _over = record.note_surely(has_recovered).await;
    is_finished.send_replace(true);
    std::future::pending().await
}
