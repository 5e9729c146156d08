//! Asks the store whether another process superseded the tasks of jobs whose JobMaster is silent. Pure except for the
//! accepted term, which it shares with its process.
//!
//! - While a region's stored generation is that of its tasks, they run nowhere else, and they continue, however
//!   long there is no leader.
//! - Tasks that a younger generation supersedes are cancelled at once. Their slot stays: the next leader may have
//!   placed that generation in it, and otherwise frees it.
//! - A job that has ended, or is gone from the store, is ended here and loses its slots.
//! - Only answers of the store count. A read without answer changes nothing, unless it began after
//!   `job-manager-failover-timeout` without any leader and any answer: then the jobs are ended. So a process that
//!   itself stood still for that long asks once more before it gives up.
//! - One read is in flight at a time, for all jobs together, and the next one begins [`PAUSE`] after its end.

use std::collections::BTreeMap;
use std::time::Duration;

use tanist_gateway::fencing::{HighestEpoch, ReadBaseline};
use tanist_gateway::{NoAnswer, StoredGenerations, StoredJobs};
use tanist_ha::clock::{Moment, Uptime};
use tanist_proto::id::JobId;

use super::effect::Effect;
use super::log_line::LogLine;
use super::output::Output;

/// Delay between two reads, and between the beginning of doubt and the first read. A random delay is added.
pub(crate) const PAUSE: Duration = Duration::from_millis(750);

/// A read of the store.
#[derive(Debug)]
struct Read {
    /// The jobs, each with the run of its connection when the read began.
    jobs: BTreeMap<JobId, u64>,
    /// Epochs that were known then.
    known: ReadBaseline,
    since: Uptime,
    /// The same by the clock of isolated jobs.
    asked_at: Moment,
}

#[derive(Debug)]
enum ReadState {
    /// No job is in doubt.
    Idle,
    /// The next read begins then.
    Waiting(Uptime),
    InFlight(Read),
}

/// What the store says about a job.
#[derive(Debug)]
pub(super) struct StoredJob {
    /// The job.
    pub job: JobId,
    /// The run of its connection when the read began.
    pub run: u64,
    /// When the read began.
    pub asked_at: Moment,
    /// Its generations.
    pub generations: StoredGenerations,
}

/// Consequence of a read.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The store says this.
    Stored(Vec<StoredJob>),
    /// Neither a leader nor the store was reached within the timeout, and then the store was not reached once more.
    Unreachable,
}

/// See the module.
#[derive(Debug)]
pub(super) struct GenerationCheck {
    terms: HighestEpoch,
    state: ReadState,
    /// When the store last gave a valid answer.
    last_answer: Uptime,
    /// Whether the last answer was valid.
    is_store_believed: bool,
}

impl GenerationCheck {
    /// No job is in doubt.
    pub(super) fn new(now: Uptime, terms: HighestEpoch) -> GenerationCheck {
        GenerationCheck {
            terms,
            state: ReadState::Idle,
            last_answer: now,
            is_store_believed: true,
        }
    }

    /// Begins or ends asking. `doubted`: jobs whose JobMaster is silent or may no longer lead, each with the run of
    /// its connection.
    pub(super) fn review(
        &mut self,
        now: Uptime,
        at: Moment,
        doubted: impl Iterator<Item = (JobId, u64)>,
        output: &mut Output,
    ) {
        let mut doubted = doubted.peekable();
        let is_in_doubt = doubted.peek().is_some();
        match self.state {
            ReadState::Idle if is_in_doubt => self.state = ReadState::Waiting(now + PAUSE),
            ReadState::Waiting(_) if !is_in_doubt => self.state = ReadState::Idle,
            ReadState::Waiting(due) if due <= now => {
                let jobs: BTreeMap<JobId, u64> = doubted.collect();
                output.effect(Effect::ReadGenerations(jobs.keys().copied().collect()));
                self.state = ReadState::InFlight(Read {
                    jobs,
                    known: self.terms.read_baseline(),
                    since: now,
                    asked_at: at,
                });
            }
            ReadState::Idle | ReadState::Waiting(_) | ReadState::InFlight(_) => {}
        }
    }

    /// When the next read begins. `doubted_at`: when doubt about the first job begins.
    pub(super) fn next_deadline(&self, doubted_at: Option<Uptime>) -> Option<Uptime> {
        match self.state {
            ReadState::Idle => doubted_at,
            ReadState::Waiting(due) => Some(due),
            ReadState::InFlight(_) => None,
        }
    }

    /// Handles the result of a read. `last_contact` with a leader counts for the timeout.
    pub(super) fn finish(
        &mut self,
        now: Uptime,
        answer: Result<StoredJobs, NoAnswer>,
        last_contact: Uptime,
        failover_timeout: Duration,
        output: &mut Output,
    ) -> Option<Verdict> {
        let before = std::mem::replace(&mut self.state, ReadState::Waiting(now + PAUSE));
        let ReadState::InFlight(read) = before else {
            return None;
        };
        if let Some(stored) = self.valid_answer(&read, answer, output) {
            self.last_answer = now;
            let asked_at = read.asked_at;
            let of_read = stored.jobs.into_iter().filter_map(|(job, generations)| {
                let run = *read.jobs.get(&job)?;
                Some(StoredJob {
                    job,
                    run,
                    asked_at,
                    generations,
                })
            });
            return Some(Verdict::Stored(of_read.collect()));
        }
        let last_contact = last_contact.max(self.last_answer);
        (read.since >= last_contact + failover_timeout).then_some(Verdict::Unreachable)
    }

    fn valid_answer(
        &mut self,
        read: &Read,
        answer: Result<StoredJobs, NoAnswer>,
        output: &mut Output,
    ) -> Option<StoredJobs> {
        let stored = match answer {
            Ok(stored) => stored,
            Err(reason) => {
                let jobs = read.jobs.len();
                output.log(LogLine::StoreSilent { reason, jobs });
                return None;
            }
        };
        // The store's term counts like its watch. It may be outdated since the read, which does no harm; but a
        // store that shows a lower epoch than it had shown then, or another cluster, says nothing about jobs.
        let (incarnation, epoch) = (&stored.incarnation, stored.epoch);
        self.terms.answered(incarnation, epoch, &read.known);
        let is_ours = self.terms.accepted().incarnation.as_ref() == Some(incarnation);
        let was_believed = self.is_store_believed;
        self.is_store_believed = is_ours && epoch >= read.known.proven();
        if self.is_store_believed {
            return Some(stored);
        }
        if was_believed {
            output.log(LogLine::StoreNotBelieved {
                incarnation: stored.incarnation,
                epoch,
            });
        }
        None
    }
}
