//! What the Dispatcher does with the JobMasters of its term: starts them, passes requests on, removes broken ones, and
//! releases those whose result is written.

use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::{GatewayError, GatewayResult, JobMasterControl, JobMasterGateway};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::{Calls, Event};
use crate::broken_job_masters;
use crate::handle::Reply;

impl Calls {
    /// Returns the JobMaster that was started for the job.
    pub(crate) fn job_master(&self, job: JobId) -> Option<Arc<dyn JobMasterControl>> {
        self.job_masters.get(&job).cloned()
    }

    pub(super) fn start_job_master(
        &mut self,
        job: JobId,
        graph: pb::JobGraph,
        state: pb::JobState,
        is_recovered: bool,
    ) {
        let control = self.context.launcher.launch(graph, state, is_recovered);
        self.job_masters.insert(job, control.clone());
        self.spawn(async move {
            match control.ended().await {
                Some(result) => Event::JobEnded {
                    job,
                    result: Box::new(result),
                },
                None => Event::JobMasterBroke {
                    job,
                    unfit: control.unfit(),
                },
            }
        });
    }

    pub(super) fn answer_job_master(
        &self,
        reply: Reply<Arc<dyn JobMasterGateway>>,
        answer: GatewayResult<JobId>,
    ) {
        let job_master = answer.and_then(|job| started(job, self.job_master(job)));
        drop(reply.send(job_master.map(|control| control.gateway())));
    }

    pub(super) fn answer_job_masters(
        &self,
        reply: Reply<Vec<Option<Arc<dyn JobMasterGateway>>>>,
        jobs: Vec<Option<JobId>>,
    ) {
        let gateway = |job| Some(self.job_master(job?)?.gateway());
        drop(reply.send(Ok(jobs.into_iter().map(gateway).collect())));
    }

    pub(super) fn cancel_by_job_master(&mut self, job: JobId, reply: Reply<pb::Ack>) {
        let job_master = self.job_master(job);
        self.spawn_reply(reply, async move {
            started(job, job_master)?.cancel().await?;
            Ok(pb::Ack {})
        });
    }

    pub(super) fn stop_by_job_master(&mut self, job: JobId, reply: Reply<pb::Ack>) {
        let job_master = self.job_master(job);
        self.spawn_reply(reply, async move {
            started(job, job_master)?.stop_job().await?;
            Ok(pb::Ack {})
        });
    }

    pub(super) fn trigger_savepoint(
        &mut self,
        job: JobId,
        request: pb::TriggerSavepointRequest,
        reply: Reply<pb::Ack>,
    ) {
        let job_master = self.job_master(job);
        self.spawn_reply(reply, async move {
            let job_master = started(job, job_master)?;
            job_master.trigger_savepoint(request).await?;
            Ok(pb::Ack {})
        });
    }

    pub(super) fn remove_job_master(
        &mut self,
        job: JobId,
        broken: u32,
        unfit: Option<String>,
        pause: Option<Duration>,
    ) {
        let control = self.job_masters.remove(&job);
        let (context, is_fit) = (self.context.clone(), unfit.is_none());
        self.spawn(async move {
            let removing = broken_job_masters::remove(job, broken, is_fit, control, context, pause);
            Event::JobMasterRemoved {
                job,
                broken,
                unfit,
                found: removing.await,
            }
        });
    }

    pub(super) fn release_job_master(&mut self, job: JobId) {
        if let Some(control) = self.job_masters.remove(&job) {
            self.tasks.spawn(async move {
                control.result_written().await;
                None
            });
        }
    }
}

/// Returns the JobMaster, which the core expects to exist. An error if it does not.
pub(crate) fn started(
    job: JobId,
    job_master: Option<Arc<dyn JobMasterControl>>,
) -> GatewayResult<Arc<dyn JobMasterControl>> {
    job_master.ok_or_else(|| GatewayError::gone(format!("the JobMaster of job {job}")))
}
