//! Handles jobs whose JobMaster is silent: asks the store whether another process superseded their tasks. Pure, a
//! part of [`super`].
//!
//! - While a region's stored generation is that of its tasks, they run nowhere else, and they continue, however
//!   long there is no leader.
//! - Tasks that a younger generation supersedes stop at once. Their slot stays: the next leader may have placed
//!   that generation in it, and otherwise frees it.
//! - A job that has ended, or is gone from the store, is ended here and loses its slots.
//! - Only answers of the store count. A question without answer changes nothing, unless it began after
//!   `job-manager-failover-timeout` without any leader and any answer: then the jobs are ended. So a process that
//!   itself stood still for that long asks once more before it gives up.
//! - One question is in flight at a time, for all jobs together, and the next one begins [`PAUSE`] after its end.

use std::collections::BTreeMap;
use std::time::Duration;

use tanist_gateway::fencing::Asked;
use tanist_gateway::{NoAnswer, StoredGenerations, StoredJobs};
use tanist_ha::clock::{Moment, Uptime};
use tanist_proto::id::{Generation, JobId};

use super::executions::{CancellationTimeouts, ExecutionKey};
use super::job::Job;
use super::{Core, Effect, LogLine};

/// Delay between two questions, and between the beginning of doubt and the first question. A random delay is added.
pub const PAUSE: Duration = Duration::from_millis(750);

/// State of asking the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asking {
    /// There is no doubt.
    Quiet,
    /// The next question begins then.
    Waiting(Uptime),
    /// A question is in flight.
    InFlight {
        /// The jobs, each with the run of its connection at that time.
        asked: BTreeMap<JobId, u64>,
        /// Epochs known at that time.
        heard: Asked,
        /// When the question began.
        since: Uptime,
        /// The same by the clock of isolated jobs.
        asked_at: Moment,
    },
}

impl Asking {
    /// When the next question begins.
    pub fn deadline(&self) -> Option<Uptime> {
        match self {
            Asking::Waiting(at) => Some(*at),
            Asking::Quiet | Asking::InFlight { .. } => None,
        }
    }
}

impl Core {
    /// Begins or ends asking. To be called after every event.
    pub fn review_doubts(&mut self, now: Uptime, at: Moment) {
        match &self.asking {
            Asking::Quiet if self.is_in_doubt(now, at) => {
                self.asking = Asking::Waiting(now + PAUSE)
            }
            Asking::Waiting(_) if !self.is_in_doubt(now, at) => self.asking = Asking::Quiet,
            Asking::Waiting(due) if *due <= now => {
                let of_run = |job: JobId| Some((job, self.jobs.get(&job)?.connection.run()));
                let asked: BTreeMap<JobId, u64> =
                    self.doubted(now, at).filter_map(of_run).collect();
                self.output
                    .effect(Effect::AskStore(asked.keys().copied().collect()));
                let heard = self.terms.asked();
                let since = now;
                self.asking = Asking::InFlight {
                    asked,
                    heard,
                    since,
                    asked_at: at,
                };
            }
            Asking::Quiet | Asking::Waiting(_) | Asking::InFlight { .. } => {}
        }
    }

    /// When doubt about the next job begins, or the next question is due.
    pub(super) fn doubt_deadline(&self) -> Option<Uptime> {
        match self.asking {
            Asking::Quiet => {
                let doubtable = self.jobs.values().filter(|known| !known.is_ending);
                doubtable
                    .filter_map(|known| known.connection.doubted_at())
                    .min()
            }
            Asking::Waiting(_) | Asking::InFlight { .. } => self.asking.deadline(),
        }
    }

    /// Handles the answer to a question.
    pub fn store_answered(&mut self, now: Uptime, answer: Result<StoredJobs, NoAnswer>) {
        let before = std::mem::replace(&mut self.asking, Asking::Waiting(now + PAUSE));
        let Asking::InFlight {
            asked,
            heard,
            since,
            asked_at,
        } = before
        else {
            return;
        };
        let stored_jobs = match answer {
            Ok(stored_jobs) => stored_jobs,
            Err(reason) => {
                self.output.log(LogLine::StoreSilent {
                    reason,
                    jobs: asked.len(),
                });
                self.asked_without_answer(now, since);
                return;
            }
        };
        // The store's term counts like its watch. It may be outdated since the question, which does no harm; but a
        // store that shows a lower epoch than it had shown then, or another cluster, says nothing about jobs.
        self.terms
            .answered(&stored_jobs.incarnation, stored_jobs.epoch, &heard);
        let is_ours = self.terms.heard().incarnation.as_ref() == Some(&stored_jobs.incarnation);
        if !is_ours || stored_jobs.epoch < heard.proven() {
            if std::mem::replace(&mut self.is_store_believed, false) {
                self.output.log(LogLine::StoreNotBelieved {
                    incarnation: stored_jobs.incarnation,
                    epoch: stored_jobs.epoch,
                });
            }
            self.asked_without_answer(now, since);
            return;
        }
        self.is_store_believed = true;
        self.heard_of_store = now;
        for (job, stored_generations) in stored_jobs.jobs {
            let Some(&run) = asked.get(&job) else {
                continue;
            };
            self.apply_stored(now, job, run, stored_generations, asked_at);
        }
    }

    /// Handles a question, begun at `since`, that had no valid answer.
    fn asked_without_answer(&mut self, now: Uptime, since: Uptime) {
        let heard = self.leader.last_contact().max(self.heard_of_store);
        if since < heard + self.options.job_manager_failover_timeout {
            return;
        }
        let cause = "neither a leader nor the store was reached for job-manager-failover-timeout";
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        for job in jobs {
            self.end_job(now, job, cause);
        }
    }

    fn apply_stored(
        &mut self,
        now: Uptime,
        job: JobId,
        run: u64,
        stored_generations: StoredGenerations,
        asked_at: Moment,
    ) {
        let Some(known) = self.jobs.get(&job) else {
            return;
        };
        // If the job has registered meanwhile, its JobMaster decides; it may have started after the store was read.
        let is_as_asked = known.connection.run() == run;
        match stored_generations {
            StoredGenerations::Present(regions) => {
                if !self.stop_superseded(now, job, &regions) {
                    self.confirm_isolated(job, asked_at);
                }
            }
            StoredGenerations::Ended if is_as_asked => {
                self.end_job(now, job, "the store has its result");
            }
            StoredGenerations::Absent if is_as_asked => {
                self.end_job(now, job, "it is gone from the store");
            }
            StoredGenerations::Unreadable(reason) => {
                self.output.log(LogLine::StateUnreadable { job, reason });
            }
            StoredGenerations::Ended | StoredGenerations::Absent => {}
        }
    }

    /// Cancels tasks of which the store has a younger generation. Returns whether any such task still runs: then no
    /// answer extends its time.
    pub(super) fn stop_superseded(
        &mut self,
        now: Uptime,
        job: JobId,
        stored: &[Generation],
    ) -> bool {
        let timeouts = self.cancellation_timeouts(now);
        let Some(known) = self.jobs.get_mut(&job) else {
            return false;
        };
        let all = self.options.task_cancellation_timeout;
        let isolation = known.isolation.as_ref();
        let timeouts = CancellationTimeouts {
            deadline: now + isolation.map_or(all, |of| of.cancellation.min(all)),
            ..timeouts
        };
        let regions = &known.regions;
        let stored_of =
            |key: &ExecutionKey| stored.get(regions.of(key.vertex, key.subtask)?).copied();
        let cancelled = known.executions.supersede(&stored_of, timeouts);
        let runs = known.executions.runs_superseded(&stored_of);
        if !cancelled.is_empty() {
            self.output.log(LogLine::TasksSuperseded {
                job,
                tasks: cancelled.len(),
            });
            self.output.cancel(job, cancelled);
        }
        runs
    }

    fn is_in_doubt(&self, now: Uptime, at: Moment) -> bool {
        self.doubted(now, at).next().is_some()
    }

    /// Jobs whose JobMaster is silent, or may no longer lead.
    fn doubted(&self, now: Uptime, at: Moment) -> impl Iterator<Item = JobId> {
        let is_doubted = move |known: &Job| {
            let doubted_at = known.connection.doubted_at();
            !self.leader.is_named()
                || doubted_at.is_none_or(|at| at <= now)
                || self.is_to_be_confirmed(at, known)
        };
        let alive = self
            .jobs
            .iter()
            .filter(|(_, known)| !known.is_ending && !self.lifecycle.is_stopping());
        alive
            .filter(move |(_, known)| is_doubted(known))
            .map(|(&job, _)| job)
    }
}
