//! The body of `/ha/history`: the terms that are kept, and the steps of each takeover.

use std::collections::BTreeMap;

use tanist_ha::election::Detection;
use tanist_leadership::history::{HistoryRecord, TermPhase};
use tanist_rest_model::{RecoveryInfo, TermHistory, TermList, Word};

use super::time;

/// The completed steps of a takeover, by name.
pub(crate) fn phases(record: &HistoryRecord) -> BTreeMap<Word, f64> {
    let (phases, takeover) = (&record.phases, record.takeover.as_ref());
    // A term that is not confirmed yet has not completed the step.
    let phase = |ms: f64| Some(ms).filter(|ms| *ms > 0.0);
    let deposed = takeover.map(|takeover| takeover.deposed_after_ms);
    let known = [
        (
            "noticed",
            takeover.and_then(|takeover| takeover.noticed_after_ms),
        ),
        ("deposed", deposed),
        ("pipeline", phase(phases.pipeline_ms)),
        ("cache-proven", phases.cache_proven_ms),
        ("recovered", phase(phases.recovered_ms)),
        ("confirmed", phase(phases.confirmed_ms)),
        ("first-adopted", phases.first_adopted_ms),
        ("last-adopted", phases.last_adopted_ms),
    ];
    let known = known.into_iter();
    known
        .filter_map(|(name, ms)| Some((name.into(), ms?)))
        .collect()
}

/// The evidence for the end of the previous term.
pub(crate) fn detection(record: &HistoryRecord) -> Option<&'static str> {
    let takeover = record.takeover.as_ref();
    takeover.map(|takeover| takeover.detection.name())
}

/// Whether the former leader was seen alive and well afterwards.
pub(crate) fn is_false_alarm(record: &HistoryRecord) -> bool {
    let takeover = record.takeover.as_ref();
    takeover.is_some_and(|takeover| takeover.false_alarm)
}

/// Takes records, oldest first; lists at most `limit` of the newest.
pub(crate) fn term_list(records: &[HistoryRecord], limit: usize, now_ms: u64) -> TermList {
    let successors = records.iter().skip(1).map(Some).chain([None]);
    let mut terms: Vec<TermHistory> = records
        .iter()
        .zip(successors)
        .map(|(record, successor)| term(record, successor, now_ms))
        .collect();
    terms.reverse();
    terms.truncate(limit);
    TermList { terms }
}

fn term(record: &HistoryRecord, successor: Option<&HistoryRecord>, now_ms: u64) -> TermHistory {
    let until = successor.map(|next| next.since_ms);
    let lasted = until.unwrap_or(now_ms).saturating_sub(record.since_ms);
    let takeover = record.takeover.as_ref();
    let false_alarm = takeover.map(|takeover| takeover.false_alarm);
    TermHistory {
        epoch: record.epoch,
        process: record.process.clone(),
        since: record.since_ms,
        ended: until.map_or(-1, time),
        duration: i64::try_from(lasted).unwrap_or(i64::MAX),
        ended_how: successor.and_then(ended_by),
        detected_by: detection(record).map(Into::into),
        phase: record.phase.map(|phase| match phase {
            TermPhase::Recovering => "recovering".into(),
            TermPhase::Leading => "leading".into(),
        }),
        jobs: record.jobs,
        phases: phases(record),
        recovery: record.recovery.as_ref().map(|recovery| RecoveryInfo {
            proof: serde_json::to_value(recovery.proof).unwrap_or_default(),
            from_cache: recovery.from_cache,
            read: recovery.read,
        }),
        tasks_adopted: record.tasks_adopted,
        tasks_restarted: record.tasks_restarted,
        false_alarm,
    }
}

/// How a term ended, according to its successor's record.
fn ended_by(successor: &HistoryRecord) -> Option<Word> {
    let how = match successor.takeover.as_ref().map(|it| it.detection) {
        None => "replaced",
        Some(Detection::Invited) => "transferred",
        Some(Detection::Resigned | Detection::HandedOver | Detection::Stalled) => "resigned",
        Some(Detection::LeaseExpired) => "expired",
        Some(
            Detection::ProcessGone
            | Detection::OtherIncarnation
            | Detection::LostBySeveral
            | Detection::SilentConfirmed
            | Detection::OwnEarlierIncarnation,
        ) => "deposed",
    };
    Some(how.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tanist_leadership::history::TakeoverRecord;

    #[test]
    fn a_term_lasts_until_the_next_term_or_now() {
        let at = |epoch: u64, since_ms: u64| HistoryRecord {
            epoch,
            since_ms,
            ..HistoryRecord::default()
        };
        let invited = TakeoverRecord {
            former_epoch: 1,
            former: None,
            former_incarnation: None,
            former_address: None,
            detection: Detection::Invited,
            detected_at_ms: 1_990,
            noticed_after_ms: None,
            deposed_after_ms: 1.0,
            false_alarm: false,
        };
        let second = HistoryRecord {
            takeover: Some(invited),
            ..at(2, 2_000)
        };
        let records = [at(1, 1_000), second, at(3, 5_000)];
        let body = term_list(&records, 100, 9_000);
        let seen: Vec<(u64, i64, Option<&str>)> = body
            .terms
            .iter()
            .map(|term| (term.epoch, term.duration, term.ended_how.as_deref()))
            .collect();
        let expected = [
            (3, 4_000, None),
            (2, 3_000, Some("replaced")),
            (1, 1_000, Some("transferred")),
        ];
        assert_eq!(seen, expected);
        assert_eq!(term_list(&records, 1, 9_000).terms.len(), 1);
    }
}
