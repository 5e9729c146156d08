//! Whether a term recovers carefully, and which jobs it suspects: read off the records of the terms before. Pure; what is
//! done about it is in `recovering.rs`, why it is done so in `docs/adr/0012-careful-recovery.md`.
//!
//! Suspects are a range of job ids, not a list: a record stays small however many jobs there are. Invariants: a term that
//! did not die, or had no jobs to recover, accuses nobody; two terms have to die in the start of the same single job before that is set aside; what was
//! narrowed down is handed on by terms that end otherwise.

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
    /// The jobs of which one may have been the cause, while that is being found out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspects: Option<JobRange>,
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
            suspicion.suspects = starting;
        }
        culprit = twice_alone(&suspicion.died);
    }
    if let Some(job) = culprit {
        // Whoever else may be one is looked for anew.
        let died = std::mem::take(&mut suspicion.died).into_iter();
        suspicion.suspects = None;
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

/// The jobs that are started next, of suspects in order: half of them.
pub(super) fn next_group(suspects: &[JobId]) -> &[JobId] {
    &suspects[..suspects.len().div_ceil(2)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(bits: impl Iterator<Item = u128>) -> Vec<JobId> {
        bits.map(JobId::from_bits).collect()
    }

    fn died(epoch: u64) -> FormerTerm {
        FormerTerm {
            epoch,
            process: "a".to_owned(),
            has_died: true,
        }
    }

    fn record(epoch: u64, phase: TermPhase, suspicion: Suspicion) -> HistoryRecord {
        HistoryRecord {
            epoch,
            phase: Some(phase),
            suspicion,
            ..HistoryRecord::default()
        }
    }

    /// Terms one after the other, each of which dies in the start of a group that `kills`; gives the culprit and after how many
    /// deaths it was alone for the first time.
    fn search(jobs: &[JobId], kills: impl Fn(&[JobId]) -> bool) -> (JobId, usize) {
        let (mut records, mut alone_after): (Vec<HistoryRecord>, _) = (Vec::new(), None);
        for epoch in 1.. {
            let former = (epoch > 1).then(|| died(epoch - 1));
            let plan = plan(&records, former.as_ref());
            if let Some((job, evidence)) = plan.culprit {
                assert!(evidence.len() >= 2);
                return (job, alone_after.expect("it was alone"));
            }
            let mut suspicion = plan.suspicion;
            let range = suspicion.suspects;
            let is_suspect = |job: &JobId| range.is_some_and(|range| range.contains(*job));
            let mut suspects: Vec<JobId> = jobs.iter().copied().filter(is_suspect).collect();
            if suspects.is_empty() {
                records.push(record(epoch, TermPhase::Recovering, suspicion));
                continue;
            }
            while !suspects.is_empty() {
                let group = next_group(&suspects).to_vec();
                suspicion.suspects = JobRange::of(&suspects);
                suspicion.starting = JobRange::of(&group);
                if kills(&group) {
                    break;
                }
                suspects.drain(..group.len());
            }
            assert!(!suspects.is_empty(), "it died of something");
            if next_group(&suspects).len() == 1 {
                alone_after.get_or_insert(usize::try_from(epoch).expect("small"));
            }
            records.push(record(epoch, TermPhase::Recovering, suspicion));
        }
        unreachable!("epochs do not end")
    }

    #[test]
    fn whichever_job_it_is_it_is_alone_after_the_logarithm_of_all_and_two_more_terms() {
        for count in 1..=33_u32 {
            let jobs = ids(1..=u128::from(count));
            let logarithm = count.next_power_of_two().ilog2();
            for culprit in &jobs {
                let (found, alone_after) = search(&jobs, |group| group.contains(culprit));
                assert_eq!(found, *culprit);
                let bound = usize::try_from(logarithm).expect("small") + 2 + 1;
                assert!(alone_after <= bound, "{alone_after} of {count} jobs");
            }
        }
    }

    #[test]
    fn a_term_that_resigned_accuses_nobody_and_hands_on_what_was_known() {
        let range = JobRange::of(&ids(3..=4));
        let suspicion = Suspicion {
            died: vec![Death::default(), Death::default()],
            suspects: range,
            starting: JobRange::of(&ids(3..=3)),
        };
        let records = [record(7, TermPhase::Recovering, suspicion.clone())];
        let resigned = FormerTerm {
            has_died: false,
            ..died(7)
        };
        let plan = plan(&records, Some(&resigned));
        let handed_on = Suspicion {
            starting: None,
            ..suspicion
        };
        assert_eq!((plan.suspicion, plan.culprit), (handed_on, None));
    }

    #[test]
    fn a_death_while_leading_and_a_single_one_in_recovery_change_nothing() {
        let leading = [record(7, TermPhase::Leading, Suspicion::default())];
        let after = plan(&leading, Some(&died(7)));
        assert!(after.follows_health && after.suspicion == Suspicion::default());
        let once = [record(8, TermPhase::Recovering, Suspicion::default())];
        let after = plan(&once, Some(&died(8)));
        assert_eq!(after.suspicion.suspects, None);
        assert_eq!(after.suspicion.died.len(), 1);
        assert!(!after.follows_health);
    }

    #[test]
    fn a_term_that_died_before_it_left_a_record_counts_too() {
        let leading = [record(7, TermPhase::Leading, Suspicion::default())];
        let after = plan(&leading, Some(&died(8)));
        assert_eq!(after.suspicion.died[0].epoch, 8);
        assert!(!after.follows_health);
    }

    #[test]
    fn terms_that_had_no_jobs_to_recover_accuse_none() {
        let mut records = Vec::new();
        for epoch in 1..=4 {
            let former = (epoch > 1).then(|| died(epoch - 1));
            let plan = plan(&records, former.as_ref()).without_jobs();
            records.push(record(epoch, plan.phase(), plan.suspicion));
        }
        // Then there is a job.
        let after = plan(&records, Some(&died(4)));
        assert_eq!(after.suspicion, Suspicion::default());
        assert!(after.follows_health);
        assert_eq!(after.phase(), TermPhase::Recovering);
        // What a term without jobs heard of is forgotten.
        let accused = plan(&records, Some(&died(5)));
        assert_eq!(accused.suspicion.died.len(), 1);
        assert_eq!(accused.without_jobs().suspicion, Suspicion::default());
    }

    #[test]
    fn records_of_versions_without_phases_accuse_nobody() {
        let old = HistoryRecord {
            epoch: 7,
            ..HistoryRecord::default()
        };
        let after = plan(&[old], Some(&died(7)));
        assert_eq!(after.suspicion, Suspicion::default());
    }
}
