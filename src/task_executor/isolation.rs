//! Keeps attempts of an isolated job apart on the side of the TaskExecutor (`isolation: stop-first`,
//! `docs/adr/0020`). Pure except for its clock, a part of [`super::core`].
//!
//! - A task of such a job starts only after the store has confirmed, in answer to a question that began after the
//!   deployment arrived, that the deployment's generation is the job's.
//! - Its tasks are cancelled when the last confirming question *began* longer ago than the job's timeout, and have
//!   ended the job's cancellation time later; otherwise the process ends ([`Fatal::Stuck`], and [`IsolationGuard`]
//!   if nothing in the process runs).
//! - Only the store's answers count. A JobMaster that sends messages may have been deposed without knowing it.
//! - Time is `CLOCK_BOOTTIME`, which continues while the process is stopped or its host suspended, and is read at
//!   the moment of action.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tanist_ha::clock::{Clock, Moment};
use tanist_proto::id::{Generation, JobId};
use tanist_proto::v1 as pb;
use tokio::time::Instant;

use super::actor::{Actor, Called, Reply, answer};
use super::core::{Core, Effect, cancel};
use super::executions::CancellationTimeouts;
use crate::gateway::{GatewayResult, NoAnswer, StoredGenerations, StoredJobs};

/// How often the clock is read while isolated tasks run: a timer would not count the time of a suspended host.
const TICK: Duration = Duration::from_millis(100);

/// Time by which isolated tasks must have ended, for a watchdog that ends a hanging process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct IsolationGuard {
    clock: Clock,
    /// Milliseconds of the clock. [`NEVER`]: no isolated task runs.
    ended_by_ms: Arc<AtomicU64>,
}

const NEVER: u64 = u64::MAX;

impl IsolationGuard {
    /// Without running tasks.
    pub fn new(clock: Clock) -> IsolationGuard {
        IsolationGuard {
            clock,
            ended_by_ms: Arc::new(AtomicU64::new(NEVER)),
        }
    }

    /// Whether tasks run that should have ended.
    pub fn is_overdue(&self) -> bool {
        self.clock.now().as_millis() > self.ended_by_ms.load(Ordering::SeqCst)
    }

    pub(super) fn set(&self, ended_by: Option<Moment>) {
        let ended_by_ms = ended_by.map_or(NEVER, Moment::as_millis);
        self.ended_by_ms.store(ended_by_ms, Ordering::SeqCst);
    }
}

impl Default for IsolationGuard {
    fn default() -> IsolationGuard {
        IsolationGuard::new(Clock::Boottime)
    }
}

/// Isolation state of a job.
#[derive(Debug, Clone)]
pub(super) struct Isolation {
    timeout: Duration,
    pub(super) cancellation: Duration,
    /// When the last question began whose answer confirmed the running generations.
    confirmed: Moment,
    /// Whether its tasks were cancelled since then.
    has_lapsed: bool,
}

impl Isolation {
    fn lapses_at(&self) -> Moment {
        self.confirmed.after(self.timeout)
    }

    fn ended_by(&self) -> Moment {
        self.lapses_at().after(self.cancellation)
    }

    fn confirm(&mut self, asked: Moment) {
        self.confirmed = self.confirmed.max(asked);
        self.has_lapsed = false;
    }
}

/// The store's answer before tasks start: when the question began, and the regions' generations.
#[derive(Debug, Clone)]
pub(super) struct Confirmation {
    pub(super) asked: Moment,
    pub(super) regions: Vec<Generation>,
}

/// A deployment whose generation the store is being asked for.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    request: pb::SubmitTasksRequest,
    reply: Reply<pb::SubmitTasksResponse>,
    asked: Moment,
}

impl Core {
    /// The clock by which isolated tasks end.
    pub(super) fn isolation_clock(&self) -> Clock {
        self.guard.clock
    }

    /// Extends the time of a job's tasks, after the store confirmed that their generations are the job's.
    pub(super) fn confirm_isolated(&mut self, job: JobId, asked: Moment) {
        let known = self.jobs.get_mut(&job);
        if let Some(isolation) = known.and_then(|known| known.isolation.as_mut()) {
            isolation.confirm(asked);
            self.effects.push(Effect::Extend(job, isolation.ended_by()));
        }
    }

    /// Whether the store must be asked about an isolated job although its JobMaster sends heartbeats.
    pub(super) fn is_to_be_confirmed(&self, known: &super::job::Job) -> bool {
        let Some(isolation) = &known.isolation else {
            return false;
        };
        let asked_again_at = isolation.confirmed.after(isolation.timeout / 3);
        known.executions.is_running() && self.guard.clock.now() >= asked_again_at
    }

    /// Timeout of a question to the store. With isolated jobs it leaves time for a second question.
    pub(super) fn question_timeout(&self) -> Duration {
        let isolations = self
            .jobs
            .values()
            .filter_map(|known| known.isolation.as_ref());
        let shortest = isolations.map(|isolation| isolation.timeout / 3).min();
        let all = self.options.rpc_timeout;
        shortest.map_or(all, |shortest| shortest.min(all))
    }

    /// Cancels isolated tasks whose generation the store has not confirmed within the timeout.
    pub(super) fn review_isolation(&mut self, now: Instant) {
        let at = self.guard.clock.now();
        let timeouts = self.cancellation_timeouts(now);
        let mut ended_by = None;
        for (&job, known) in &mut self.jobs {
            let Some(isolation) = &mut known.isolation else {
                continue;
            };
            if !known.executions.is_running() {
                continue;
            }
            if at >= isolation.lapses_at() && !isolation.has_lapsed {
                isolation.has_lapsed = true;
                // The rest of the cancellation time, if this process or its host stood still.
                let end = isolation.ended_by();
                let told = known.executions.cancel_all(CancellationTimeouts {
                    deadline: now + end.since(at),
                    ..timeouts
                });
                tracing::warn!(
                    %job,
                    tasks = told.len(),
                    since = ?at.since(isolation.confirmed),
                    "the store was not heard for too long, stopping tasks: another attempt may be about to start"
                );
                self.effects
                    .extend(told.into_iter().map(|key| cancel(job, key)));
            }
            let end = isolation.ended_by();
            ended_by = ended_by.into_iter().chain([end]).min();
        }
        self.guard.set(ended_by);
    }

    /// When [`Core::review_isolation`] must be called next.
    pub(super) fn isolation_deadline(&self) -> Option<Instant> {
        let at = self.guard.clock.now();
        let running = self
            .jobs
            .values()
            .filter(|known| known.executions.is_running());
        let isolated = running.filter_map(|known| known.isolation.as_ref());
        let left = isolated.map(|isolation| match isolation.has_lapsed {
            true => TICK,
            false => isolation.lapses_at().since(at).min(TICK),
        });
        left.min().map(|left| Instant::now() + left)
    }

    /// Sets the timeouts of a deployment. The store's confirmation of its generation extends the time of all
    /// running tasks, unless some of these are `outlived` by younger generations.
    pub(super) fn note_confirmation(
        &mut self,
        job: JobId,
        bounds: pb::StopFirst,
        confirmation: &Confirmation,
        outlived: bool,
    ) {
        let Some(known) = self.jobs.get_mut(&job) else {
            return;
        };
        let confirmed = confirmation.asked;
        let isolation = known.isolation.get_or_insert(Isolation {
            timeout: Duration::ZERO,
            cancellation: Duration::ZERO,
            confirmed,
            has_lapsed: false,
        });
        isolation.timeout = Duration::from_millis(bounds.timeout_ms);
        isolation.cancellation = Duration::from_millis(bounds.cancellation_ms);
        if !outlived {
            isolation.confirm(confirmed);
            self.effects.push(Effect::Extend(job, isolation.ended_by()));
        }
    }

    /// The confirmation of a deployment, if the store's answer has one.
    fn confirmation(
        &mut self,
        request: &pb::SubmitTasksRequest,
        asked: Moment,
        stored_jobs: StoredJobs,
    ) -> Result<Confirmation, String> {
        let observed = self
            .highest
            .observe(&stored_jobs.incarnation, stored_jobs.epoch);
        if let Err(error) = observed {
            return Err(error.to_string());
        }
        let scope = request.job.as_ref();
        let job = scope.and_then(|scope| scope.job_id.parse::<JobId>().ok());
        let stored_generations = job.and_then(|job| stored_jobs.jobs.get(&job));
        match stored_generations {
            Some(StoredGenerations::Present(regions)) => Ok(Confirmation {
                asked,
                regions: regions.clone(),
            }),
            other => Err(format!("it says {other:?}")),
        }
    }

    /// Handles a deployment that waited for the store.
    fn submit_confirmed(
        &mut self,
        now: Instant,
        request: pb::SubmitTasksRequest,
        asked: Moment,
        answer: Result<StoredJobs, NoAnswer>,
    ) -> GatewayResult<pb::SubmitTasksResponse> {
        let answer = answer.map_err(|reason| reason.to_string());
        let confirmed =
            answer.and_then(|stored_jobs| self.confirmation(&request, asked, stored_jobs));
        match confirmed {
            Ok(confirmation) => self.submit(now, request, Some(&confirmation)),
            Err(reason) => {
                let reason = format!("the store does not confirm the generation: {reason}");
                self.refuse_tasks(now, &request, &reason)
            }
        }
    }
}

impl Actor {
    /// Starts a deployment whose graph is there; that of an isolated job only after the store's confirmation.
    pub(super) fn start_deployed(
        &mut self,
        now: Instant,
        request: pb::SubmitTasksRequest,
        reply: Reply<pb::SubmitTasksResponse>,
    ) {
        let job = match self.core.deployed_job(now, &request) {
            Ok(Some(job)) => job,
            Ok(None) => return answer(reply, self.core.submit(now, request, None)),
            Err(refusal) => return answer(reply, Err(refusal)),
        };
        let asked = self.core.isolation_clock().now();
        let waiting = Box::new(Unconfirmed {
            request,
            reply,
            asked,
        });
        let records = self.services.records.clone();
        let bound = self.options.rpc_timeout / 2;
        self.calls.spawn(async move {
            let late = |_| Err(NoAnswer(format!("none within {bound:?}")));
            let answer = tokio::time::timeout(bound, records.stored_jobs(&[job])).await;
            Called::Confirmed(waiting, answer.unwrap_or_else(late))
        });
    }

    /// Handles the store's answer about a deployment.
    pub(super) fn confirmed(
        &mut self,
        now: Instant,
        waiting: Unconfirmed,
        said: Result<StoredJobs, NoAnswer>,
    ) {
        let Unconfirmed {
            request,
            reply,
            asked,
        } = waiting;
        answer(reply, self.core.submit_confirmed(now, request, asked, said));
    }
}
