//! What a result keeps of the description of its job, and which descriptions are dropped. Pure.

use std::collections::BTreeMap;

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::job_store::JobStoreError;

/// Result of dropping descriptions.
#[derive(Debug)]
pub(super) struct Dropped {
    /// The results whose descriptions were dropped, as they are now.
    pub(super) left: Vec<pb::JobResult>,
    /// The error that stopped it.
    pub(super) failure: Option<JobStoreError>,
}

/// Returns the short form that a result keeps.
pub(super) fn in_short(details: &pb::JobDetails) -> pb::JobDetails {
    let mut counts: BTreeMap<i32, u32> = BTreeMap::new();
    for subtask in details.vertices.iter().flat_map(|it| &it.subtasks) {
        *counts.entry(subtask.state).or_default() += 1;
    }
    let counts = counts.into_iter();
    pb::JobDetails {
        vertices: Vec::new(),
        edges: Vec::new(),
        failures: details.failures.last().map(alone).into_iter().collect(),
        state_counts: counts
            .map(|(state, count)| pb::StateCount { state, count })
            .collect(),
        ..short_fields(details)
    }
}

/// A failure without the concurrent ones.
fn alone(failure: &pb::FailureRecord) -> pb::FailureRecord {
    pb::FailureRecord {
        concurrent: Vec::new(),
        ..failure.clone()
    }
}

/// The short fields only.
fn short_fields(details: &pb::JobDetails) -> pb::JobDetails {
    pb::JobDetails {
        job_id: details.job_id.clone(),
        name: details.name.clone(),
        status: details.status,
        started_at_ms: details.started_at_ms,
        ended_at_ms: details.ended_at_ms,
        max_parallelism: details.max_parallelism,
        timestamps: details.timestamps.clone(),
        restarts: details.restarts,
        quarantine: details.quarantine.clone(),
        quarantined: details.quarantined.clone(),
        ..pb::JobDetails::default()
    }
}

/// Whether a result's short form says as much as a description would.
pub(super) fn is_short(details: &pb::JobDetails) -> bool {
    let has_more = |failure: &pb::FailureRecord| !failure.concurrent.is_empty();
    details.vertices.is_empty()
        && details.edges.is_empty()
        && details.failures.len() <= 1
        && !details.failures.iter().any(has_more)
        && details.events.is_empty()
}

/// Returns the jobs whose descriptions must be dropped so that at most `capacity` are left, oldest first.
pub(super) fn beyond_capacity<'a>(
    results: impl Iterator<Item = (JobId, &'a pb::JobResult)>,
    capacity: usize,
) -> Vec<JobId> {
    let mut described: Vec<(u64, JobId, bool)> = results
        .filter(|(_, result)| result.description.is_some())
        .map(|(job, result)| (result.ended_at_ms, job, result.dirty))
        .collect();
    let surplus = described.len().saturating_sub(capacity);
    if surplus == 0 {
        return Vec::new();
    }
    described.sort_unstable();
    let oldest = described.into_iter().take(surplus);
    // A dirty one is being written because of its cleanup; skip it.
    oldest
        .filter(|(.., dirty)| !dirty)
        .map(|(_, job, _)| job)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(failures: usize) -> pb::JobDetails {
        let subtask = |state: pb::ExecutionState| pb::SubtaskDetails {
            state: state.into(),
            ..pb::SubtaskDetails::default()
        };
        pb::JobDetails {
            name: "job".to_owned(),
            vertices: vec![pb::VertexDetails {
                subtasks: vec![
                    subtask(pb::ExecutionState::Finished),
                    subtask(pb::ExecutionState::Finished),
                    subtask(pb::ExecutionState::Canceled),
                ],
                ..pb::VertexDetails::default()
            }],
            failures: (0..failures)
                .map(|number| pb::FailureRecord {
                    cause: number.to_string(),
                    ..pb::FailureRecord::default()
                })
                .collect(),
            ..pb::JobDetails::default()
        }
    }

    #[test]
    fn in_short_a_job_has_its_last_failure_and_counts_of_its_subtasks() {
        let details = described(3);
        assert!(!is_short(&details));
        let short = in_short(&details);
        assert!(is_short(&short));
        assert_eq!(short.name, "job");
        assert_eq!(short.failures[0].cause, "2");
        let counts: Vec<(i32, u32)> = short
            .state_counts
            .iter()
            .map(|it| (it.state, it.count))
            .collect();
        let (finished, canceled) = (
            pb::ExecutionState::Finished as i32,
            pb::ExecutionState::Canceled as i32,
        );
        assert_eq!(counts, [(finished, 2), (canceled, 1)]);
    }

    #[test]
    fn the_oldest_descriptions_go_first_and_none_that_is_written_about() {
        let result = |ended_at_ms, is_described: bool, dirty| pb::JobResult {
            ended_at_ms,
            dirty,
            description: is_described.then(pb::KeptDescription::default),
            ..pb::JobResult::default()
        };
        let results = [
            (JobId::from_bits(1), result(30, true, false)),
            (JobId::from_bits(2), result(10, true, true)),
            (JobId::from_bits(3), result(20, true, false)),
            (JobId::from_bits(4), result(5, false, false)),
        ];
        let beyond = |capacity| {
            let results = results.iter().map(|(job, result)| (*job, result));
            beyond_capacity(results, capacity)
        };
        assert_eq!(beyond(3), []);
        assert_eq!(beyond(2), [], "the oldest is still cleaned up after");
        assert_eq!(beyond(1), [JobId::from_bits(3)]);
    }
}
