//! Whether a term recovers carefully, and which jobs it suspects: read off the records of the terms before. Pure; what is
//! done about it is in `recovering.rs`, why it is done so in `docs/adr/0012-careful-recovery.md`.
//!
//! Suspects are a range of job ids, not a list: a record stays small however many jobs there are. Invariants: a term that
//! did not die, or had no jobs to recover, accuses nobody; only a job that has stood is no suspect any more, and all are again where a term dies of those;
//! two terms have to die in the start of the same single job before that is set aside; what was narrowed down is handed on by terms that end otherwise.

use serde::{Deserialize, Serialize};
use tanist_ha::election::{Detection, Takeover};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::history::HistoryRecord;

/// So many terms in a row die in recovery before one recovers carefully.
const TOLERATED: usize = 2;
/// How many of them are remembered.
const REMEMBERED: usize = 16;
/// How many records are looked at for the last term that left one.
pub(super) const LOOKED_AT: u64 = 16;

/// How far a term is, as its record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TermPhase {
    /// Not every recovered job's JobMaster stands.
    Recovering,
    /// They all do.
    Leading,
}

/// Jobs by their ids: from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRange {
    /// The smallest id.
    pub first: JobId,
    /// The largest id.
    pub last: JobId,
}

impl JobRange {
    /// All that there can be.
    pub const ALL: JobRange = JobRange {
        first: JobId::from_bits(0),
        last: JobId::from_bits(u128::MAX),
    };

    /// From the first to the last of jobs in order; `None` without any.
    pub fn of(jobs: &[JobId]) -> Option<JobRange> {
        let (first, last) = (*jobs.first()?, *jobs.last()?);
        Some(JobRange { first, last })
    }

    /// Whether a job is one of them.
    pub fn contains(&self, job: JobId) -> bool {
        (self.first..=self.last).contains(&job)
    }

    fn single(&self) -> Option<JobId> {
        (self.first == self.last).then_some(self.first)
    }
}

/// A term whose process ended in recovery.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Death {
    /// Its epoch.
    pub epoch: u64,
    /// Who led it.
    pub process: String,
    /// When it began, milliseconds since 1970; 0: it had not got as far as to write that.
    pub since_ms: u64,
    /// The jobs that it was starting, where it named any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starting: Option<JobRange>,
}

/// What a term that recovers knows of those before it, for the case that it dies as well.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Suspicion {
    /// The terms in a row that died in recovery, oldest first.
    pub died: Vec<Death>,
    /// The jobs of which any may have been the cause, while that is being found out: those that have not stood since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspects: Option<JobRange>,
    /// The first of them: one of these was, if the term that started them together did not end by chance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub narrowed: Option<JobRange>,
    /// Those of them that are being started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starting: Option<JobRange>,
}

/// The term before, whether it left a record or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FormerTerm {
    pub epoch: u64,
    pub process: String,
    pub has_died: bool,
}

impl FormerTerm {
    /// What a takeover says of it. `led_here` is the last term that this very process led: it has not died.
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

/// Whether what was found out about a leader mostly means that its process has ended. A term that is held for dead wrongly
/// costs its successors time, never a job by itself.
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
    /// What its record begins with.
    pub suspicion: Suspicion,
    /// The job that is set aside, for these deaths.
    pub culprit: Option<(JobId, Vec<Death>)>,
    /// Whether the term before was well, by its own word: nothing has to be written before anything is begun.
    pub follows_health: bool,
    /// The term finds no jobs.
    pub is_idle: bool,
}

impl Plan {
    /// The same for a term that finds no jobs: whichever comes later was not there when former terms died.
    pub(super) fn without_jobs(self) -> Plan {
        Plan {
            suspicion: Suspicion::default(),
            culprit: None,
            is_idle: true,
            ..self
        }
    }

    /// What the term's record begins with.
    pub(super) fn phase(&self) -> TermPhase {
        if self.is_idle {
            TermPhase::Leading
        } else {
            TermPhase::Recovering
        }
    }
}

/// What follows from the records of earlier terms, in any order, and from how the last one ended; `None`: nobody led before,
/// or nobody knows how that ended.
pub(super) fn plan(records: &[HistoryRecord], former: Option<&FormerTerm>) -> Plan {
    let newest = records.iter().max_by_key(|record| record.epoch);
    let unfinished = newest.filter(|record| record.phase == Some(TermPhase::Recovering));
    let mut suspicion = unfinished.map_or_else(Suspicion::default, |it| it.suspicion.clone());
    let starting = suspicion.starting.take();
    let Some(former) = former else {
        let follows_health = newest.is_none();
        return Plan {
            suspicion,
            culprit: None,
            follows_health,
            is_idle: false,
        };
    };
    let record = newest.filter(|newest| newest.epoch == former.epoch);
    // Without a record it had not even begun.
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
        let surplus = suspicion.died.len().saturating_sub(REMEMBERED);
        suspicion.died.drain(..surplus);
        if starting.is_some() {
            suspicion.narrowed = starting;
        } else if record.is_some() && suspicion.suspects.is_some() {
            // It had only started jobs that had stood, or that are new: one of those is guilty too.
            suspicion.suspects = Some(JobRange::ALL);
            suspicion.narrowed = None;
        }
        culprit = twice_alone(&suspicion.died);
    }
    if let Some(job) = culprit {
        // There may be another one, among those that have not stood yet.
        let died = std::mem::take(&mut suspicion.died).into_iter();
        suspicion.narrowed = None;
        let speaks = |death: &Death| death.starting.is_none_or(|range| range.contains(job));
        let culprit = Some((job, died.filter(speaks).collect()));
        return Plan {
            suspicion,
            culprit,
            follows_health: false,
            is_idle: false,
        };
    }
    if suspicion.suspects.is_none() && suspicion.died.len() >= TOLERATED {
        suspicion.suspects = Some(JobRange::ALL);
    }
    Plan {
        follows_health: !was_recovering,
        suspicion,
        culprit: None,
        is_idle: false,
    }
}

/// The job in whose start, and in that alone, the last two terms died.
fn twice_alone(died: &[Death]) -> Option<JobId> {
    let [.., before, last] = died else {
        return None;
    };
    let alone = |death: &Death| death.starting.and_then(|range| range.single());
    alone(last).filter(|job| alone(before) == Some(*job))
}

/// Why a job is set aside.
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

/// The jobs that are started next, of suspects in order: half of those that were narrowed down to, then half of the others.
pub(super) fn next_group(suspects: &[JobId], narrowed: Option<JobRange>) -> &[JobId] {
    let is_narrowed = |job: &&JobId| narrowed.is_some_and(|range| range.contains(**job));
    let of = match suspects.iter().take_while(is_narrowed).count() {
        0 => suspects.len(),
        narrowed => narrowed,
    };
    &suspects[..of.div_ceil(2)]
}
