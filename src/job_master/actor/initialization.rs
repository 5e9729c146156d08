//! Initialization of a job: waits for its permit to start, finds its checkpoints, and builds the core and the actor.
//!
//! A job that can't be initialized is FAILED if it never had a JobMaster. If it had one, its records were good before
//! and are damaged by now: that ends no job, and the Dispatcher quarantines it.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng as _;
use tanist_gateway::{Adoption, GatewayResult, Verdict};
use tanist_ha::election::Epoch;
use tanist_ha::failpoint::failpoint_of;
use tanist_proto::v1 as pb;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::JobMasterActor;
use super::wall_clock::WallClock;
use crate::calls::Calls;
use crate::checkpointing::{self, Exchange, Unread};
use crate::core::{BuildError, JobMasterCore, RestorePoints, failed_initialization};
use crate::handle::ProgressWriter;
use crate::log;
use crate::options::{JobMasterContext, JobMasterOptions};
use crate::requests::Replies;
use crate::watch::Peers;

/// The result of building the ExecutionGraph.
pub(super) enum Begun {
    Actor(Box<JobMasterActor>),
    /// The job can't be initialized.
    Failed(Arc<pb::JobResult>, ProgressWriter),
    /// The job can't be initialized, but it could before: its records are damaged. The reason is published.
    Unfit,
    /// The JobMaster was stopped before it got its permit to start.
    Stopped,
}

/// Builds the actor, once the job has its permit to start.
pub(super) async fn begin(
    options: Arc<JobMasterOptions>,
    mut context: Box<JobMasterContext>,
    progress: ProgressWriter,
) -> GatewayResult<Begun> {
    let mut permit = None;
    if context.is_recovered {
        tokio::select! {
            biased;
            () = progress.to_stop() => return Ok(Begun::Stopped),
            acquired = context.start_limiter.acquire() => permit = Some(acquired),
        }
        failpoint_of("job.recover", &context.graph.job_id).await;
    }
    let found = {
        let mut finding = std::pin::pin!(checkpointing::find(&options.checkpoints, &context));
        loop {
            let permit_ends = async {
                match &permit {
                    Some(permit) => tokio::time::sleep_until(permit.until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = progress.to_stop() => return Ok(Begun::Stopped),
                found = &mut finding => break found,
                // An object that can't be read at present delays this job alone.
                () = permit_ends => permit = None,
            }
        }
    };
    let found = match found {
        Ok(found) => found,
        Err(Unread::TermOver) => return Ok(Begun::Stopped),
        Err(Unread::Unfit(reason)) => return Ok(unfit(&progress, reason)),
    };
    let clock = WallClock::start();
    let epoch = Epoch::new(context.sender.epoch);
    let had_a_job_master = context.is_recovered && context.state.job_incarnation > 0;
    let points = found.as_ref().map(checkpointing::Found::points);
    let core = build(&options, &mut context, points, epoch, clock.now_ms());
    match core {
        Ok(core) => {
            let (graph, now_ms) = (&context.graph, clock.now_ms());
            let is_first = !had_a_job_master;
            let warning = is_first
                .then(|| checkpointing::warning_of_no_interval(graph, &options.checkpoints))
                .flatten();
            let begun = checkpointing::begin(found, &core, graph, is_first, epoch, now_ms);
            let checkpoints = match begun {
                Ok(checkpoints) => checkpoints,
                Err(unreadable) => return Ok(unfit(&progress, unreadable.to_string())),
            };
            let calls = Calls::new(
                &options,
                &context,
                core.graph().clone(),
                core.job_incarnation(),
            )
            .await?;
            Ok(Begun::Actor(Box::new(JobMasterActor {
                calls,
                clock,
                core,
                checkpoints,
                exchange: Exchange::noting(warning),
                ending: None,
                progress,
                io: JoinSet::new(),
                peers: Peers::new(Instant::now() + first_heartbeat(options.heartbeat_interval)),
                replies: Replies::default(),
                wanted: None,
                verdict: Verdict::default(),
                is_declaring: false,
                is_registered: false,
                permit,
                options,
                on_higher_epoch: context.on_higher_epoch.clone(),
            })))
        }
        Err(unbuilt) if had_a_job_master => Ok(unfit(&progress, unbuilt.error.to_string())),
        Err(Unbuilt { result, .. }) => {
            let retained = found.and_then(|found| found.retained(result.status()));
            progress.0.change(|progress| {
                progress.reconciled = Some(Adoption::default());
                progress.retained = retained;
                progress.outcome = Some(result.clone());
            });
            Ok(Begun::Failed(result, progress))
        }
    }
}

/// Publishes why no JobMaster can be built from the job's records.
fn unfit(progress: &ProgressWriter, reason: String) -> Begun {
    progress.0.change(|progress| {
        progress.reconciled = Some(Adoption::default());
        progress.unfit = Some(reason.into());
    });
    Begun::Unfit
}

/// A job for which no ExecutionGraph can be built.
struct Unbuilt {
    error: BuildError,
    /// The job's result, used if it never had an ExecutionGraph.
    result: Arc<pb::JobResult>,
}

/// Builds the core with the state from the context.
fn build(
    options: &JobMasterOptions,
    context: &mut JobMasterContext,
    points: Option<Arc<RestorePoints>>,
    epoch: Epoch,
    now_ms: u64,
) -> Result<Box<JobMasterCore>, Unbuilt> {
    let state = Arc::new(std::mem::take(&mut context.state));
    let mut core = JobMasterCore::build_from(
        (context.graph.clone(), state.clone(), points),
        context.is_recovered,
        options.core_options(),
        (epoch, now_ms),
    );
    if let Ok(core) = &mut core {
        let lines = core.take_log();
        lines
            .into_iter()
            .for_each(|line| log::write(&context.graph.job_id, line));
    }
    core.map(Box::new).map_err(|error| {
        let cause = format!("the job can't be initialized: {error}");
        tracing::warn!(job = context.graph.job_id, %error, "job can't be initialized");
        let result = failed_initialization(&context.graph, &state, cause, epoch, now_ms);
        let result = Arc::new(result);
        Unbuilt { error, result }
    })
}

/// Delay of the first heartbeat. It is random: all jobs of a term start together, and their heartbeats would
/// otherwise coincide forever.
fn first_heartbeat(interval: Duration) -> Duration {
    interval.mul_f64(rand::rng().random_range(0.5..=1.0))
}
