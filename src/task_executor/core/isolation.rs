//! Keeps attempts of an isolated job apart on the side of the TaskExecutor (`isolation: stop-first`,
//! `docs/adr/0020`). Pure, a part of [`super`].
//!
//! - A task of such a job starts only after the store has confirmed, in answer to a question that began after the
//!   deployment arrived, that the deployment's generation is the job's.
//! - Its tasks are cancelled when the last confirming question *began* longer ago than the job's timeout, and have
//!   ended the job's cancellation time later; otherwise the process ends ([`crate::Fatal::CancellationTimedOut`], and
//!   [`crate::IsolationGuard`] if nothing in the process runs).
//! - Only the store's answers count. A JobMaster that sends messages may have been deposed without knowing it.
//! - Time is `CLOCK_BOOTTIME`, which continues while the process is stopped or its host suspended, and is read at
//!   the moment of action.

use std::time::Duration;

use tanist_gateway::{GatewayResult, NoAnswer, StoredGenerations, StoredJobs};
use tanist_ha::clock::{Moment, Uptime};
use tanist_proto::id::{Generation, JobId};
use tanist_proto::v1 as pb;

use super::executions::CancellationTimeouts;
use super::job::Job;
use super::{Core, Effect, LogLine};

/// How often the clock is read while isolated tasks run: a timer would not count the time of a suspended host.
const TICK: Duration = Duration::from_millis(100);

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
pub struct Confirmation {
    pub(super) asked: Moment,
    pub(super) regions: Vec<Generation>,
}

/// Whether the store must be asked about an isolated job although its JobMaster sends heartbeats.
pub(super) fn is_to_be_confirmed(at: Moment, known: &Job) -> bool {
    let Some(isolation) = &known.isolation else {
        return false;
    };
    let asked_again_at = isolation.confirmed.after(isolation.timeout / 3);
    known.executions.is_running() && at >= asked_again_at
}

impl Core {
    /// Extends the time of a job's tasks, after the store confirmed that their generations are the job's.
    pub(super) fn confirm_isolated(&mut self, job: JobId, asked: Moment) {
        let known = self.jobs.get_mut(&job);
        if let Some(isolation) = known.and_then(|known| known.isolation.as_mut()) {
            isolation.confirm(asked);
            self.output
                .effect(Effect::Extend(job, isolation.ended_by()));
        }
    }

    /// Timeout of a read of the store. With isolated jobs it leaves time for a second read.
    pub fn read_timeout(&self) -> Duration {
        let isolations = self
            .jobs
            .values()
            .filter_map(|known| known.isolation.as_ref());
        let shortest = isolations.map(|isolation| isolation.timeout / 3).min();
        let all = self.options.rpc_timeout;
        shortest.map_or(all, |shortest| shortest.min(all))
    }

    /// Cancels isolated tasks whose generation the store has not confirmed within the timeout. Returns the time by
    /// which isolated tasks must have ended, for the [`crate::IsolationGuard`]. To be called after every event.
    pub fn review_isolation(&mut self, now: Uptime, at: Moment) -> Option<Moment> {
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
                let cancelled = known.executions.cancel_all(CancellationTimeouts {
                    deadline: now + end.since(at),
                    ..timeouts
                });
                self.output.log(LogLine::IsolationLapsed {
                    job,
                    tasks: cancelled.len(),
                    since: at.since(isolation.confirmed),
                });
                self.output.cancel(job, cancelled);
            }
            let end = isolation.ended_by();
            ended_by = ended_by.into_iter().chain([end]).min();
        }
        ended_by
    }

    /// When [`Core::review_isolation`] must be called next.
    pub(super) fn isolation_deadline(&self, now: Uptime, at: Moment) -> Option<Uptime> {
        let running = self
            .jobs
            .values()
            .filter(|known| known.executions.is_running());
        let isolated = running.filter_map(|known| known.isolation.as_ref());
        let left = isolated.map(|isolation| match isolation.has_lapsed {
            true => TICK,
            false => isolation.lapses_at().since(at).min(TICK),
        });
        left.min().map(|left| now + left)
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
            self.output
                .effect(Effect::Extend(job, isolation.ended_by()));
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
            .leader
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
    pub fn submit_confirmed(
        &mut self,
        now: Uptime,
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
