//! Decides from the records of earlier terms whether a term starts crash-loop recovery, and which jobs are suspects.
//! Pure; the effects are in `recovery_phases.rs`, the reasons in `docs/adr/0012-crash-loop-recovery.md`.
//!
//! Suspects are a range of job ids, not a list, so that a record stays small for any number of jobs.
//!
//! - A term that did not die, or had no jobs to recover, accuses no job.
//! - A job stops being a suspect only when its JobMaster has begun. If a term dies that only started such jobs, all
//!   jobs are suspects again.
//! - A job is set aside only after two terms in a row died while they started that single job.
//! - A term that ends in another way than by the death of its process passes the narrowed range to its successor.

use serde::{Deserialize, Serialize};
use tanist_ha::election::{Detection, Takeover};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::history::HistoryRecord;

/// Terms in a row that may die in recovery before the next one starts crash-loop recovery.
const TOLERATED: usize = 2;
/// Maximum number of terms that died in recovery that a record keeps.
const MAX_DEATHS: usize = 16;
/// Number of records that are searched for the last term that left one.
pub(super) const SEARCHED_RECORDS: u64 = 16;

/// The phase of a term, as its record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TermPhase {
    /// At least one recovered job's JobMaster has not begun.
    Recovering,
    /// The JobMasters of all recovered jobs have begun.
    Leading,
}

/// A range of job ids, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRange {
    /// The smallest id.
    pub first: JobId,
    /// The largest id.
    pub last: JobId,
}

impl JobRange {
    /// The range of all ids.
    pub const ALL: JobRange = JobRange {
        first: JobId::from_bits(0),
        last: JobId::from_bits(u128::MAX),
    };

    /// The range from the first to the last of sorted jobs; `None` if there are none.
    pub fn of(jobs: &[JobId]) -> Option<JobRange> {
        let (first, last) = (*jobs.first()?, *jobs.last()?);
        Some(JobRange { first, last })
    }

    /// Whether the range contains the job.
    pub fn contains(&self, job: JobId) -> bool {
        (self.first..=self.last).contains(&job)
    }

    fn single(&self) -> Option<JobId> {
        (self.first == self.last).then_some(self.first)
    }
}

/// A term whose process ended during recovery.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Death {
    /// Epoch of the term.
    pub epoch: u64,
    /// The process that led it.
    pub process: String,
    /// Start of the term, in milliseconds since 1970; 0 if it did not get as far as writing it.
    pub since_ms: u64,
    /// The jobs that it was starting, if it had named a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starting: Option<JobRange>,
}

/// What a recovering term knows of the terms before it, written for its successor in case it dies too.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Suspicion {
    /// The terms in a row that died in recovery, oldest first.
    pub died: Vec<Death>,
    /// The jobs of which any may be the cause, while the search goes on: those that have not begun since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspects: Option<JobRange>,
    /// The start of the suspects' range: one of these jobs is the cause, unless the term that started them
    /// together ended by chance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub narrowed: Option<JobRange>,
    /// The suspects that are being started at this moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starting: Option<JobRange>,
}

/// The previous term, with or without a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FormerTerm {
    pub epoch: u64,
    pub process: String,
    pub has_died: bool,
}

impl FormerTerm {
    /// The previous term according to a takeover. `led_here` is the last term that this process led itself:
    /// that one has not died.
    pub(super) fn of(takeover: &Takeover, led_here: u64) -> FormerTerm {
        let former = &takeover.evidence.former;
        let process = former.process.as_ref().map(ToString::to_string);
        let epoch = takeover.former_epoch.get();
        FormerTerm {
            epoch,
            process: process.unwrap_or_default(),
            has_died: epoch != led_here && ended_its_process(takeover.evidence.detection),
        }
    }
}

/// Whether this kind of detection usually means that the leader's process has ended. If a term is wrongly taken
/// for dead, this costs its successors time, but never a job by itself.
fn ended_its_process(detection: Detection) -> bool {
    match detection {
        Detection::ProcessGone
        | Detection::OtherIncarnation
        | Detection::LostBySeveral
        | Detection::OwnEarlierIncarnation
        | Detection::LeaseExpired => true,
        Detection::Invited
        | Detection::SilentConfirmed
        | Detection::HandedOver
        | Detection::Stalled
        | Detection::Resigned => false,
    }
}

/// How a term recovers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Plan {
    /// The suspicion with which the term's record begins.
    pub suspicion: Suspicion,
    /// The job to set aside, and the deaths that are the evidence.
    pub culprit: Option<(JobId, Vec<Death>)>,
    /// Whether the previous term's own record says that it had recovered, or there is no record of any term: then no
    /// record has to be written before recovery starts.
    pub follows_recovered_term: bool,
    /// Whether the term finds no jobs.
    pub is_idle: bool,
}

impl Plan {
    /// The plan of a term that finds no jobs: a job that is submitted later was not there when earlier terms
    /// died.
    pub(super) fn without_jobs(self) -> Plan {
        Plan {
            suspicion: Suspicion::default(),
            culprit: None,
            is_idle: true,
            ..self
        }
    }

    /// The phase with which the term's record begins.
    pub(super) fn phase(&self) -> TermPhase {
        if self.is_idle {
            TermPhase::Leading
        } else {
            TermPhase::Recovering
        }
    }
}

/// The plan that follows from the records of earlier terms, in any order, and from how the previous term ended.
/// `None`: no process led before, or it is not known how that term ended.
pub(super) fn plan(records: &[HistoryRecord], former: Option<&FormerTerm>) -> Plan {
    let newest = records.iter().max_by_key(|record| record.epoch);
    let unfinished = newest.filter(|record| record.phase == Some(TermPhase::Recovering));
    let mut suspicion = unfinished.map_or_else(Suspicion::default, |it| it.suspicion.clone());
    let starting = suspicion.starting.take();
    let Some(former) = former else {
        let follows_recovered_term = newest.is_none();
        return Plan {
            suspicion,
            culprit: None,
            follows_recovered_term,
            is_idle: false,
        };
    };
    let record = newest.filter(|newest| newest.epoch == former.epoch);
    // A term without a record had not begun recovery.
    let was_recovering = record.is_none_or(|it| it.phase == Some(TermPhase::Recovering));
    let mut culprit = None;
    if former.has_died && was_recovering {
        let starting = record.and(starting);
        suspicion.died.push(Death {
            epoch: former.epoch,
            process: former.process.clone(),
            since_ms: record.map_or(0, |record| record.since_ms),
            starting,
        });
        let surplus = suspicion.died.len().saturating_sub(MAX_DEATHS);
        suspicion.died.drain(..surplus);
        if starting.is_some() {
            suspicion.narrowed = starting;
        } else if record.is_some() && suspicion.suspects.is_some() {
            // It had started only jobs that had begun in an earlier term, or that are new: one of those is a
            // cause too.
            suspicion.suspects = Some(JobRange::ALL);
            suspicion.narrowed = None;
        }
        culprit = single_twice(&suspicion.died);
    }
    if let Some(job) = culprit {
        // There may be another culprit among the jobs that have not begun yet.
        let died = std::mem::take(&mut suspicion.died).into_iter();
        suspicion.narrowed = None;
        let is_evidence = |death: &Death| death.starting.is_none_or(|range| range.contains(job));
        let culprit = Some((job, died.filter(is_evidence).collect()));
        return Plan {
            suspicion,
            culprit,
            follows_recovered_term: false,
            is_idle: false,
        };
    }
    if suspicion.suspects.is_none() && suspicion.died.len() >= TOLERATED {
        suspicion.suspects = Some(JobRange::ALL);
    }
    Plan {
        follows_recovered_term: !was_recovering,
        suspicion,
        culprit: None,
        is_idle: false,
    }
}

/// The job that was the only one being started when each of the last two terms died.
fn single_twice(died: &[Death]) -> Option<JobId> {
    let [.., before, last] = died else {
        return None;
    };
    let alone = |death: &Death| death.starting.and_then(|range| range.single());
    alone(last).filter(|job| alone(before) == Some(*job))
}

/// The quarantine record: why a job is set aside.
pub(super) fn quarantine(deaths: &[Death], now_ms: u64) -> pb::Quarantine {
    let evidence = deaths.iter().map(|death| pb::QuarantineEvidence {
        epoch: death.epoch,
        process: death.process.clone(),
        at_ms: death.since_ms,
        what: match death.starting {
            Some(range) if range.single().is_some() => {
                "ended while it started this job alone".to_owned()
            }
            Some(range) => format!(
                "ended while it started the jobs from {} to {}",
                range.first, range.last
            ),
            None => "ended while it recovered all jobs".to_owned(),
        },
    });
    pb::Quarantine {
        kind: pb::QuarantineKind::EndedProcess.into(),
        reason: "it ended the processes that led it, each time it was started".to_owned(),
        since_ms: now_ms,
        evidence: evidence.collect(),
    }
}

/// The next group of sorted suspects to start: half of the narrowed range, or half of the others once none of
/// that range is left.
pub(super) fn next_group(suspects: &[JobId], narrowed: Option<JobRange>) -> &[JobId] {
    let is_narrowed = |job: &&JobId| narrowed.is_some_and(|range| range.contains(**job));
    let of = match suspects.iter().take_while(is_narrowed).count() {
        0 => suspects.len(),
        narrowed => narrowed,
    };
    &suspects[..of.div_ceil(2)]
}
