//! All states and statuses, and the state of a vertex.

use tanist_proto::v1::{ExecutionState, JobStatus, VertexDetails};

/// Every state of an execution, in Flink's order.
pub(super) const EXECUTION_STATES: [ExecutionState; 10] = [
    ExecutionState::Created,
    ExecutionState::Scheduled,
    ExecutionState::Deploying,
    ExecutionState::Running,
    ExecutionState::Finished,
    ExecutionState::Canceling,
    ExecutionState::Canceled,
    ExecutionState::Failed,
    ExecutionState::Reconciling,
    ExecutionState::Initializing,
];

/// Every status of a job.
pub(super) const JOB_STATUSES: [JobStatus; 11] = [
    JobStatus::Initializing,
    JobStatus::Created,
    JobStatus::Running,
    JobStatus::Failing,
    JobStatus::Failed,
    JobStatus::Cancelling,
    JobStatus::Canceled,
    JobStatus::Finished,
    JobStatus::Restarting,
    JobStatus::Suspended,
    JobStatus::Reconciling,
];

/// The status of a vertex, from those of its subtasks: first any that failed or is being cancelled decides,
/// then whether any runs. If no subtask has got that far it is CREATED; if all are FINISHED it is FINISHED.
pub(super) fn vertex_state(vertex: &VertexDetails) -> ExecutionState {
    let any = |state| {
        vertex
            .subtasks
            .iter()
            .any(|subtask| subtask.state() == state)
    };
    // The first of these that a subtask has decides.
    let deciding = [
        ExecutionState::Failed,
        ExecutionState::Canceling,
        ExecutionState::Canceled,
        ExecutionState::Initializing,
        ExecutionState::Running,
    ];
    if let Some(state) = deciding.into_iter().find(|state| any(*state)) {
        return state;
    }
    let finished = |state| state == ExecutionState::Finished;
    let ended = vertex
        .subtasks
        .iter()
        .filter(|subtask| finished(subtask.state()))
        .count();
    if ended == 0 {
        ExecutionState::Created
    } else if ended == vertex.subtasks.len() && ended == vertex.parallelism as usize {
        ExecutionState::Finished
    } else {
        ExecutionState::Running
    }
}

#[cfg(test)]
mod tests {
    use tanist_proto::v1::SubtaskDetails;
    use tanist_rest_model::execution_state_name;

    use super::*;

    fn of(states: &[ExecutionState]) -> &'static str {
        let subtask = |state: &ExecutionState| SubtaskDetails {
            state: (*state).into(),
            ..SubtaskDetails::default()
        };
        let vertex = VertexDetails {
            parallelism: u32::try_from(states.len()).expect("a few"),
            subtasks: states.iter().map(subtask).collect(),
            ..VertexDetails::default()
        };
        execution_state_name(vertex_state(&vertex))
    }

    #[test]
    fn the_status_of_a_vertex_is_that_of_its_most_telling_subtask() {
        use ExecutionState as S;
        assert_eq!(of(&[]), "CREATED");
        assert_eq!(of(&[S::Created, S::Scheduled]), "CREATED");
        assert_eq!(of(&[S::Deploying, S::Deploying]), "CREATED");
        assert_eq!(of(&[S::Running, S::Deploying]), "RUNNING");
        assert_eq!(of(&[S::Running, S::Initializing]), "INITIALIZING");
        assert_eq!(of(&[S::Running, S::Finished]), "RUNNING");
        assert_eq!(of(&[S::Finished, S::Created]), "RUNNING");
        assert_eq!(of(&[S::Finished, S::Finished]), "FINISHED");
        assert_eq!(of(&[S::Finished, S::Canceled]), "CANCELED");
        assert_eq!(of(&[S::Canceled, S::Canceling]), "CANCELING");
        assert_eq!(of(&[S::Running, S::Failed, S::Canceling]), "FAILED");
    }

    #[test]
    fn every_state_has_a_place_in_the_counts() {
        for number in 0..32 {
            if let Ok(state) = ExecutionState::try_from(number) {
                assert!(EXECUTION_STATES.contains(&state), "{state:?}");
            }
            if let Ok(status) = JobStatus::try_from(number) {
                assert!(JOB_STATUSES.contains(&status), "{status:?}");
            }
        }
    }
}
