//! Bodies about the checkpoints of a job. What Flink has and Tanist lacks (unaligned barriers) is absent, 0 or false. A
//! savepoint is a copy of a checkpoint, so the history has the checkpoint alone; Flink's `latest.savepoint` shows it
//! once more, with the path of the copy.

use std::collections::BTreeMap;

use serde::Serialize;
use tanist_proto::v1::{
    CheckpointDetails, CheckpointOutcome, CheckpointRetention, CheckpointSummary as Summary,
    FailingRegions as FailingDetails, JobDetails, SavepointOutcome,
    SkippedRegion as SkippedDetails, StorageProblem as ProblemDetails,
};
use tanist_rest_model::{
    CheckpointCounts, CheckpointInfo, CheckpointStatistics, CheckpointSummaries, CheckpointSummary,
    FailingRegions, JobCheckpoints, LatestCheckpoints, RestoredCheckpoint, SkippedRegion,
    StorageProblem,
};

use super::savepoint::savepoint_info;
use super::vertex_checkpoints::{in_progress, slowest, vertices};
use super::{duration, known, time};

/// `/jobs/:id/checkpoints`, at `now`.
pub(crate) fn checkpoint_statistics(details: &CheckpointDetails, now: u64) -> CheckpointStatistics {
    let in_progress = of_outcome(details, CheckpointOutcome::InProgress).count() as u64;
    let history: Vec<CheckpointInfo> = details
        .history
        .iter()
        .rev()
        .map(|summary| checkpoint_info(details, summary, now))
        .collect();
    let latest = |status: &str| history.iter().find(|it| it.status == status).cloned();
    CheckpointStatistics {
        counts: CheckpointCounts {
            restored: u64::from(details.restored_from != 0),
            total: in_progress + details.completed + details.failed,
            in_progress,
            completed: details.completed,
            failed: details.failed,
        },
        summary: summaries(details),
        latest: LatestCheckpoints {
            completed: latest(status_name(CheckpointOutcome::Completed)),
            savepoint: latest_savepoint(details, &history),
            failed: latest(status_name(CheckpointOutcome::Failed)),
            restored: (details.restored_from != 0).then(|| RestoredCheckpoint {
                id: details.restored_from,
                restore_timestamp: time(details.restored_at_ms),
                is_savepoint: !details.restored_directory.is_empty(),
                external_path: known(&details.restored_directory),
            }),
        },
        history,
        skipped: details.skipped.iter().map(skipped).collect(),
        failing: details.failing.iter().map(failing).collect(),
        storage_problem: details.storage_problem.as_ref().map(storage_problem),
        savepoints: details
            .savepoints
            .iter()
            .rev()
            .map(savepoint_info)
            .collect(),
        started_from: known(&details.started_from),
    }
}

/// The checkpoint of which the last complete savepoint is a copy.
fn latest_savepoint(
    details: &CheckpointDetails,
    history: &[CheckpointInfo],
) -> Option<CheckpointInfo> {
    let mut newest_first = details.savepoints.iter().rev();
    let savepoint = newest_first.find(|it| it.outcome() == SavepointOutcome::Completed)?;
    let copied = history.iter().find(|it| it.id == savepoint.number)?;
    Some(CheckpointInfo {
        is_savepoint: true,
        savepoint_format: Some("CANONICAL".to_owned()),
        checkpoint_type: "SAVEPOINT".into(),
        external_path: Some(savepoint.text.clone()),
        discarded: copied.discarded.map(|_| false),
        ..copied.clone()
    })
}

/// `/jobs/:id/checkpoints/details/:number`, at `now`: `None` if the history has no such checkpoint.
pub(crate) fn checkpoint_of(
    details: &CheckpointDetails,
    number: u64,
    now: u64,
) -> Option<CheckpointInfo> {
    let mut history = details.history.iter();
    let wanted = history.find(|summary| summary.number == number)?;
    Some(CheckpointInfo {
        tasks: vertices(wanted, now),
        ..checkpoint_info(details, wanted, now)
    })
}

/// The checkpoints in `/jobs/:id`.
pub(crate) fn job_checkpoints(job: &JobDetails, details: &CheckpointDetails) -> JobCheckpoints {
    let completed = of_outcome(details, CheckpointOutcome::Completed).last();
    let failed = of_outcome(details, CheckpointOutcome::Failed).last();
    let number = completed.map(|it| it.number);
    let failure = failed.filter(|it| number.is_none_or(|number| it.number > number));
    JobCheckpoints {
        interval: details.interval_ms,
        completed: number,
        completed_at: completed.map_or(-1, |it| time(it.ended_at_ms)),
        slowest: completed.and_then(|it| slowest(job, it)),
        in_progress: in_progress(job, &details.history),
        restored: Some(details.restored_from).filter(|number| *number != 0),
        restored_at: time(details.restored_at_ms),
        failure: failure.map(|it| it.reason.clone()),
        skipped: details.skipped.iter().map(skipped).collect(),
        failing: details.failing.iter().map(failing).collect(),
        storage_problem: details.storage_problem.as_ref().map(storage_problem),
        savepoint: details.savepoints.last().map(savepoint_info),
        started_from: known(&details.started_from),
        kept: Some(details.kept).filter(|number| *number != 0),
    }
}

fn of_outcome(
    details: &CheckpointDetails,
    outcome: CheckpointOutcome,
) -> impl Iterator<Item = &Summary> {
    let history = details.history.iter();
    history.filter(move |summary| summary.outcome() == outcome)
}

/// The name of an outcome: that of the message without its prefix.
pub(super) fn status_name(outcome: CheckpointOutcome) -> &'static str {
    let name = outcome.as_str_name();
    name.strip_prefix("CHECKPOINT_OUTCOME_").unwrap_or(name)
}

fn checkpoint_info(details: &CheckpointDetails, summary: &Summary, now: u64) -> CheckpointInfo {
    let outcome = summary.outcome();
    let is_completed = outcome == CheckpointOutcome::Completed;
    let has_failed = outcome == CheckpointOutcome::Failed;
    let later = of_outcome(details, CheckpointOutcome::Completed)
        .filter(|it| it.number > summary.number)
        .count();
    let retained = usize::try_from(details.retained).unwrap_or(usize::MAX);
    CheckpointInfo {
        class_name: status_name(outcome).to_ascii_lowercase().into(),
        id: summary.number,
        status: status_name(outcome).into(),
        is_savepoint: false,
        savepoint_format: None,
        trigger_timestamp: time(summary.triggered_at_ms),
        latest_ack_timestamp: time(summary.acknowledged_at_ms),
        checkpointed_size: summary.written,
        state_size: summary.size,
        end_to_end_duration: match is_completed && !is_timed(summary) {
            true => -1,
            false => duration(summary.triggered_at_ms, summary.ended_at_ms, now),
        },
        alignment_buffered: 0,
        processed_data: 0,
        persisted_data: 0,
        num_subtasks: summary.subtasks,
        num_acknowledged_subtasks: summary.acknowledged_subtasks,
        checkpoint_type: "CHECKPOINT".into(),
        tasks: BTreeMap::new(),
        external_path: None,
        discarded: is_completed.then_some(later >= retained),
        failure_timestamp: has_failed.then(|| time(summary.ended_at_ms)),
        failure_message: has_failed.then(|| summary.reason.clone()),
    }
}

/// Whether this leader saw it end. Of a checkpoint that an earlier leader took, only the number, the trigger and the
/// size are known.
fn is_timed(summary: &Summary) -> bool {
    summary.ended_at_ms > 0
}

fn summaries(details: &CheckpointDetails) -> CheckpointSummaries {
    let completed = || {
        let completed = of_outcome(details, CheckpointOutcome::Completed);
        completed.filter(|summary| is_timed(summary))
    };
    CheckpointSummaries {
        checkpointed_size: statistics(completed().map(|it| it.written)),
        state_size: statistics(completed().map(|it| it.size)),
        end_to_end_duration: statistics(
            completed().map(|it| it.ended_at_ms.saturating_sub(it.triggered_at_ms)),
        ),
        ..CheckpointSummaries::default()
    }
}

pub(super) fn statistics(values: impl Iterator<Item = u64>) -> CheckpointSummary {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    let (Some(min), Some(max)) = (values.first(), values.last()) else {
        return CheckpointSummary::default();
    };
    let sum: u128 = values.iter().copied().map(u128::from).sum();
    // The nearest rank: the smallest value that is not below that many thousandths of all.
    let percentile = |thousandths: usize| {
        let rank = (values.len() * thousandths).div_ceil(1000).max(1);
        values[rank - 1] as f64
    };
    CheckpointSummary {
        min: *min,
        max: *max,
        avg: u64::try_from(sum / values.len() as u128).unwrap_or(u64::MAX),
        p50: percentile(500),
        p90: percentile(900),
        p95: percentile(950),
        p99: percentile(990),
        p999: percentile(999),
    }
}

fn skipped(region: &SkippedDetails) -> SkippedRegion {
    SkippedRegion {
        vertices: region.vertices.clone(),
        reason: region.reason.clone(),
    }
}

fn storage_problem(problem: &ProblemDetails) -> StorageProblem {
    StorageProblem {
        reason: problem.text.clone(),
        since: time(problem.since_ms),
    }
}

fn failing(regions: &FailingDetails) -> FailingRegions {
    FailingRegions {
        vertices: regions.vertices.clone(),
        regions: regions.regions,
        id: regions.number,
        reason: regions.reason.clone(),
        in_a_row: regions.in_a_row,
        since: time(regions.since_ms),
    }
}

/// `/jobs/:id/checkpoints/config`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct CheckpointConfig {
    mode: &'static str,
    interval: u64,
    timeout: u64,
    min_pause: u64,
    max_concurrent: u32,
    externalization: Externalization,
    state_backend: &'static str,
    checkpoint_storage: &'static str,
    unaligned_checkpoints: bool,
    tolerable_failed_checkpoints: i32,
    aligned_checkpoint_timeout: u64,
    checkpoints_after_tasks_finish: bool,
    state_changelog_enabled: bool,
    changelog_periodic_materialization_interval: u64,
    changelog_storage: &'static str,
    /// Tanist's own: the number of completed checkpoints that are kept.
    retained: u32,
}

/// What becomes of checkpoints when the job has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Externalization {
    enabled: bool,
    delete_on_cancellation: bool,
}

impl CheckpointConfig {
    /// The settings in `details`.
    pub(crate) fn new(details: &CheckpointDetails) -> CheckpointConfig {
        CheckpointConfig {
            mode: "exactly_once",
            interval: details.interval_ms,
            timeout: details.timeout_ms,
            min_pause: details.min_pause_ms,
            max_concurrent: 1,
            externalization: Externalization {
                enabled: true,
                delete_on_cancellation: details.retention()
                    == CheckpointRetention::DeleteOnCancellation,
            },
            state_backend: "memory",
            checkpoint_storage: "blobs",
            unaligned_checkpoints: false,
            // Flink's number has 32 bits.
            tolerable_failed_checkpoints: i32::try_from(details.tolerable_failures)
                .unwrap_or(i32::MAX),
            aligned_checkpoint_timeout: 0,
            checkpoints_after_tasks_finish: true,
            state_changelog_enabled: false,
            changelog_periodic_materialization_interval: 0,
            changelog_storage: "",
            retained: details.retained,
        }
    }
}
