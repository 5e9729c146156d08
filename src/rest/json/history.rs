//! The body of `/ha/history`: the terms that are remembered, and how each takeover went.

use std::collections::BTreeMap;

use serde::Serialize;

use super::time;
use crate::process::{HistoryRecord, Phases};

/// `/ha/history`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HistoryBody {
    /// Newest first.
    pub terms: Vec<TermHistoryBody>,
}

/// A term.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TermHistoryBody {
    /// Its epoch.
    pub epoch: u64,
    /// Who led.
    pub process: String,
    /// When it was confirmed, in milliseconds since 1970.
    pub since: u64,
    /// When it ended; -1 while it goes on or if nobody came to know.
    pub ended: i64,
    /// Milliseconds that it lasted: until its end, else until the next term was confirmed, else until now.
    pub duration: i64,
    /// How it ended, as `resigned` or `deposed`. Where nobody wrote that down: `replaced` if another term followed.
    pub ended_how: Option<String>,
    /// By what the end of the term before was detected, as `process-gone`.
    pub detected_by: Option<String>,
    /// Jobs that it recovered.
    pub jobs: usize,
    /// Milliseconds of the takeover by name. `deposed`: from the first sign that the leader was gone to the grant; the others
    /// from the grant to the end of each.
    pub phases: BTreeMap<&'static str, f64>,
    /// Where the records of the jobs came from.
    pub recovery: Option<RecoveryBody>,
    /// Tasks that went on running.
    pub tasks_adopted: Option<usize>,
    /// Tasks that had to be started anew.
    pub tasks_restarted: Option<usize>,
    /// Whether the leader before was seen alive after it was deposed uninvited.
    pub false_alarm: Option<bool>,
}

/// Where a leader's records came from.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RecoveryBody {
    /// How the standby's cache was proven.
    pub proof: serde_json::Value,
    /// Records that it held.
    pub from_cache: usize,
    /// Records that were read from the store.
    pub read: usize,
}

/// The steps of a takeover that were taken, by name.
pub fn phases(phases: &Phases) -> BTreeMap<&'static str, f64> {
    let known = [
        ("deposed", phases.deposed_ms),
        ("pipeline", Some(phases.pipeline_ms)),
        ("cache-proven", phases.cache_proven_ms),
        ("recovered", Some(phases.recovered_ms)),
        ("confirmed", Some(phases.confirmed_ms)),
        ("first-adopted", phases.first_adopted_ms),
        ("last-adopted", phases.last_adopted_ms),
    ];
    let known = known.into_iter();
    known.filter_map(|(name, ms)| Some((name, ms?))).collect()
}

impl HistoryBody {
    /// Of records, oldest first; at most `limit` of the newest.
    pub fn new(records: &[HistoryRecord], limit: usize, now_ms: u64) -> HistoryBody {
        let successors = records.iter().skip(1).map(Some).chain([None]);
        let mut terms: Vec<TermHistoryBody> = records
            .iter()
            .zip(successors)
            .map(|(record, successor)| term(record, successor, now_ms))
            .collect();
        terms.reverse();
        terms.truncate(limit);
        HistoryBody { terms }
    }
}

fn term(record: &HistoryRecord, successor: Option<&HistoryRecord>, now_ms: u64) -> TermHistoryBody {
    let until = record.ended_ms.or(successor.map(|next| next.since_ms));
    let lasted = until.unwrap_or(now_ms).saturating_sub(record.since_ms);
    let replaced = || successor.map(|_| "replaced".to_owned());
    TermHistoryBody {
        epoch: record.epoch,
        process: record.process.clone(),
        since: record.since_ms,
        ended: record.ended_ms.map_or(-1, time),
        duration: i64::try_from(lasted).unwrap_or(i64::MAX),
        ended_how: record.ended_how.clone().or_else(replaced),
        detected_by: record.detected_by.clone(),
        jobs: record.jobs,
        phases: phases(&record.phases),
        recovery: record.recovery.as_ref().map(|recovery| RecoveryBody {
            proof: serde_json::to_value(recovery.proof).unwrap_or_default(),
            from_cache: recovery.from_cache,
            read: recovery.read,
        }),
        tasks_adopted: record.tasks_adopted,
        tasks_restarted: record.tasks_restarted,
        false_alarm: record.false_alarm,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_lasts_until_its_end_or_the_next_term_or_now() {
        let at = |epoch: u64, since_ms: u64| HistoryRecord {
            epoch,
            since_ms,
            ..HistoryRecord::default()
        };
        let resigned = HistoryRecord {
            ended_how: Some("resigned".to_owned()),
            ended_ms: Some(1_500),
            ..at(1, 1_000)
        };
        let records = [resigned, at(2, 2_000), at(3, 5_000)];
        let body = HistoryBody::new(&records, 100, 9_000);
        let seen: Vec<(u64, i64, Option<&str>)> = body
            .terms
            .iter()
            .map(|term| (term.epoch, term.duration, term.ended_how.as_deref()))
            .collect();
        let expected = [
            (3, 4_000, None),
            (2, 3_000, Some("replaced")),
            (1, 500, Some("resigned")),
        ];
        assert_eq!(seen, expected);
        assert_eq!(HistoryBody::new(&records, 1, 9_000).terms.len(), 1);
    }
}
