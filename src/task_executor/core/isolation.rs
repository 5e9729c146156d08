//! Keeps attempts of an isolated job apart on the side of the TaskExecutor (`isolation: stop-first`,
//! `docs/adr/0020`). Pure.
//!
//! - A task of such a job starts only after the store has confirmed, in answer to a read that began after the
//!   deployment arrived, that the deployment's generation is the job's.
//! - Its tasks are cancelled when the last confirming read *began* longer ago than the job's timeout, and have
//!   ended the job's cancellation time later; otherwise the process ends ([`crate::Fatal::CancellationTimedOut`], and
//!   [`crate::IsolationGuard`] if nothing in the process runs).
//! - Only the store's answers count. A JobMaster that sends messages may have been deposed without knowing it.
//! - Time is `CLOCK_BOOTTIME`, which continues while the process is stopped or its host suspended, and is read at
//!   the moment of action.

use std::collections::BTreeMap;
use std::time::Duration;

use tanist_gateway::{NoAnswer, StoredGenerations, StoredJobs};
use tanist_ha::clock::{Moment, Uptime};
use tanist_proto::id::{Generation, JobId};
use tanist_proto::v1 as pb;

use super::effect::Effect;
use super::executions::CancellationTimeouts;
use super::job::Job;
use super::jobs::Jobs;
use super::leader_tracker::LeaderTracker;
use super::log_line::LogLine;
use super::output::Output;

/// How often the clock is read while isolated tasks run: a timer would not count the time of a suspended host.
const TICK: Duration = Duration::from_millis(100);

/// Isolation state of a job.
#[derive(Debug)]
struct Isolation {
    timeout: Duration,
    cancellation: Duration,
    /// When the last read began that confirmed the running generations.
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
}

/// The isolated jobs of a TaskExecutor.
#[derive(Debug, Default)]
pub(super) struct IsolatedJobs(BTreeMap<JobId, Isolation>);

impl IsolatedJobs {
    /// Sets the timeouts of a deployment, whose generation a read of the store that began at `confirmed` has
    /// confirmed.
    pub(super) fn deployed(&mut self, job: JobId, timeouts: pb::StopFirst, confirmed: Moment) {
        let isolation = self.0.entry(job).or_insert(Isolation {
            timeout: Duration::ZERO,
            cancellation: Duration::ZERO,
            confirmed,
            has_lapsed: false,
        });
        isolation.timeout = Duration::from_millis(timeouts.timeout_ms);
        isolation.cancellation = Duration::from_millis(timeouts.cancellation_ms);
    }

    /// Extends the time of a job's tasks, if it is isolated: a read of the store that began at `asked_at` confirmed
    /// their generations.
    pub(super) fn confirm(&mut self, job: JobId, asked_at: Moment, output: &mut Output) {
        if let Some(isolation) = self.0.get_mut(&job) {
            isolation.confirmed = isolation.confirmed.max(asked_at);
            isolation.has_lapsed = false;
            output.effect(Effect::Extend(job, isolation.ended_by()));
        }
    }

    /// Whether a job is isolated.
    pub(super) fn contains(&self, job: JobId) -> bool {
        self.0.contains_key(&job)
    }

    /// Forgets jobs that are not known any more.
    pub(super) fn retain(&mut self, jobs: &Jobs) {
        self.0.retain(|&job, _| jobs.get(job).is_some());
    }

    /// The timeouts of superseded tasks: those of an isolated job must end within its cancellation time.
    pub(super) fn timeouts(
        &self,
        job: JobId,
        of_all: CancellationTimeouts,
    ) -> CancellationTimeouts {
        let isolation = self.0.get(&job);
        let timeout = isolation.map_or(of_all.timeout, |of| of.cancellation.min(of_all.timeout));
        CancellationTimeouts { timeout, ..of_all }
    }

    /// Whether the store must be asked about a job although its JobMaster sends heartbeats.
    pub(super) fn must_be_confirmed(&self, at: Moment, job: &Job) -> bool {
        self.0.get(&job.id()).is_some_and(|isolation| {
            let asked_again_at = isolation.confirmed.after(isolation.timeout / 3);
            job.executions().is_running() && at >= asked_again_at
        })
    }

    /// Timeout of a read of the store, at most `of_all`. With isolated jobs it leaves time for a second read.
    pub(super) fn read_timeout(&self, of_all: Duration) -> Duration {
        let of_isolated = self.0.values().map(|isolation| isolation.timeout / 3);
        of_isolated.min().map_or(of_all, |of| of.min(of_all))
    }

    /// Cancels isolated tasks whose generation the store has not confirmed within the timeout. Returns the time by
    /// which isolated tasks must have ended, for the [`crate::IsolationGuard`].
    pub(super) fn review(
        &mut self,
        at: Moment,
        timeouts: CancellationTimeouts,
        jobs: &mut Jobs,
        output: &mut Output,
    ) -> Option<Moment> {
        let mut first = None;
        for (&job, isolation) in &mut self.0 {
            let known = jobs.get_mut(job);
            let Some(known) = known.filter(|known| known.executions().is_running()) else {
                continue;
            };
            let ended_by = isolation.ended_by();
            if at >= isolation.lapses_at() && !isolation.has_lapsed {
                isolation.has_lapsed = true;
                // The rest of the cancellation time, if this process or its host stood still.
                let timeout = ended_by.since(at);
                let timeouts = CancellationTimeouts {
                    timeout,
                    ..timeouts
                };
                let tasks = known.cancel_all(timeouts, output);
                let since = at.since(isolation.confirmed);
                output.log(LogLine::IsolationLapsed { job, tasks, since });
            }
            first = first.into_iter().chain([ended_by]).min();
        }
        first
    }

    /// When [`IsolatedJobs::review`] must be called next.
    pub(super) fn next_deadline(&self, now: Uptime, at: Moment, jobs: &Jobs) -> Option<Uptime> {
        let is_running = |job| {
            jobs.get(job)
                .is_some_and(|job| job.executions().is_running())
        };
        let running = self.0.iter().filter(|&(&job, _)| is_running(job));
        let due_in = running.map(|(_, isolation)| match isolation.has_lapsed {
            true => TICK,
            false => isolation.lapses_at().since(at).min(TICK),
        });
        due_in.min().map(|due_in| now + due_in)
    }
}

/// The store's answer before tasks start: when the read began, and the regions' generations.
#[derive(Debug, Clone)]
pub(super) struct Confirmation {
    asked_at: Moment,
    regions: Vec<Generation>,
}

impl Confirmation {
    /// The confirmation of a deployment of the job, or why the store's answer is none.
    pub(super) fn new(
        job: Option<JobId>,
        asked_at: Moment,
        answer: Result<StoredJobs, NoAnswer>,
        leader: &LeaderTracker,
    ) -> Result<Confirmation, String> {
        let stored = answer.map_err(|reason| reason.to_string())?;
        let observed = leader.observe(&stored.incarnation, stored.epoch);
        observed.map_err(|error| error.to_string())?;
        match job.and_then(|job| stored.jobs.get(&job)) {
            Some(StoredGenerations::Present(regions)) => Ok(Confirmation {
                asked_at,
                regions: regions.clone(),
            }),
            other => Err(format!("it says {other:?}")),
        }
    }

    /// When the read began.
    pub(super) fn asked_at(&self) -> Moment {
        self.asked_at
    }

    /// The regions' generations.
    pub(super) fn regions(&self) -> &[Generation] {
        &self.regions
    }
}
