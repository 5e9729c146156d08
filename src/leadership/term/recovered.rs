//! A term whose records are proven and decoded. Nothing of it is started yet.

use std::sync::Arc;

use tanist_dispatcher::{JobStore, RecoveredJobs};
use tanist_gateway::kinds;
use tanist_ha::Result;
use tanist_ha::store::cache::{Records, WarmCache};
use tanist_ha::store::pipeline::CommitPipeline;
use tanist_proto::id::ResourceId;
use tanist_resource_manager::{DrainRecord, DrainTarget, recorded_drains};
use tanist_resource_manager::{WorkerRecord, recorded_workers};

use super::started::StartedTerm;
use super::{Grant, millis};
use crate::application::FoundApplication;
use crate::application_term::find_application;
use crate::history::{Phases, Recovery, TermRecord};
use crate::record_recovery::{job_store, recover};
use crate::{recovery_phases, standby, version_handover};

/// See the module.
pub(super) struct RecoveredTerm<'a> {
    pub grant: Grant<'a>,
    pub pipeline: CommitPipeline,
    pub store: Arc<JobStore>,
    pub jobs: RecoveredJobs,
    pub recovery: Recovery,
    pub phases: Phases,
    pub found_application: FoundApplication,
    pub record: Arc<TermRecord>,
    pub recorded: Recorded,
}

/// The store's records about TaskManagers.
pub(super) struct Recorded {
    /// TaskManagers that drivers of former terms have started.
    pub workers: Vec<(ResourceId, WorkerRecord)>,
    /// Drained targets.
    pub drains: Vec<(DrainTarget, DrainRecord)>,
}

impl Recorded {
    fn of(records: &Records) -> Recorded {
        Recorded {
            workers: recorded_workers(records),
            drains: recorded_drains(records),
        }
    }
}

impl<'a> RecoveredTerm<'a> {
    /// Proves and decodes the records, and writes the term's record with its phase. May be dropped at any point.
    pub(super) async fn begin(
        grant: Grant<'a>,
        cache: &mut WarmCache,
    ) -> Result<RecoveredTerm<'a>> {
        let Grant {
            services, session, ..
        } = grant;
        let reports = services.reports();
        let mut phases = Phases::default();
        let pipeline = CommitPipeline::start(services.ha.store.clone(), session.clone()).await?;
        phases.pipeline_ms = millis(grant.at);
        if let Some(reports) = reports {
            reports.moved();
        }
        // Nothing has been committed yet: the proven records are the state at the term's begin. Decisions use
        // nothing else.
        let (proven, plan) = tokio::try_join!(
            standby::prove(cache, &*services.ha.store, &pipeline, session),
            recovery_phases::plan_recovery(services, session),
        )?;
        phases.cache_proven_ms = Some(millis(grant.at));
        let records = &proven.records;
        let found_application = find_application(services, records)?;
        let (store, decoded) = job_store(services, session, &pipeline);
        store.storage().load(records).await;
        let plan = if has_jobs(records) {
            plan
        } else {
            plan.without_jobs()
        };
        let (caution, record) = recovery_phases::prepare(plan, session, &store, &pipeline).await;
        let jobs = recover(&store, records, &caution, session, decoded, reports).await?;
        phases.recovered_ms = millis(grant.at);
        Ok(RecoveredTerm {
            grant,
            recorded: Recorded::of(records),
            recovery: Recovery::from(&proven),
            pipeline,
            store,
            jobs,
            phases,
            found_application,
            record,
        })
    }

    /// Hands over to a newer process if there are records that this one can't read. True: the term is over.
    pub(super) async fn hand_over_to_newer_version(&self) -> bool {
        let Grant {
            services, session, ..
        } = self.grant;
        version_handover::hand_over_before_start(services, session, &self.store).await
    }

    /// Starts the components with the jobs, and dials the TaskExecutors that run them.
    pub(super) fn start(self) -> StartedTerm<'a> {
        StartedTerm::start(self)
    }
}

/// Whether there is a job that has not ended, or may not have.
fn has_jobs(records: &Records) -> bool {
    let mut kinds = [kinds::GRAPHS, kinds::STATES].into_iter();
    kinds.any(|kind| records.of(kind).next().is_some())
}
