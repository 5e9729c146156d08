//! Entry time and duration of each state of a subtask's current attempt.

use std::collections::BTreeMap;

use tanist_proto::v1::{ExecutionState, SubtaskDetails};
use tanist_rest_model::{Word, execution_state_name};

use super::states::EXECUTION_STATES;

/// The rank of the states in which an attempt has ended.
const ENDED: u8 = 7;

/// The order in which an attempt may go through the states.
fn rank(state: ExecutionState) -> u8 {
    match state {
        ExecutionState::Created => 0,
        ExecutionState::Scheduled => 1,
        ExecutionState::Deploying => 2,
        ExecutionState::Reconciling => 3,
        ExecutionState::Initializing => 4,
        ExecutionState::Running => 5,
        ExecutionState::Canceling => 6,
        ExecutionState::Finished | ExecutionState::Canceled | ExecutionState::Failed => ENDED,
    }
}

/// This value for each state.
fn of_each_state<T: Copy>(value: T) -> BTreeMap<Word, T> {
    let states = EXECUTION_STATES.map(|state| (execution_state_name(state).into(), value));
    states.into()
}

/// The time when the attempt entered each state; 0 if it did not, or the time is not known.
pub(super) fn timestamps(subtask: &SubtaskDetails) -> BTreeMap<Word, u64> {
    let mut all = of_each_state(0);
    for entered in &subtask.timestamps {
        all.insert(execution_state_name(entered.state()).into(), entered.at_ms);
    }
    all
}

/// The duration of each state of the attempt, in milliseconds, for the current state up to `now`; -1 for a
/// state that it was not in, whose duration is not known, or in which it ended.
pub(super) fn status_durations(subtask: &SubtaskDetails, now: u64) -> BTreeMap<Word, i64> {
    let mut all = of_each_state(-1);
    let entered = subtask.timestamps.iter();
    let mut entered: Vec<(u64, ExecutionState)> =
        entered.map(|entry| (entry.at_ms, entry.state())).collect();
    entered.sort_by_key(|&(at_ms, state)| (at_ms, rank(state)));
    for (nth, &(at_ms, state)) in entered.iter().enumerate() {
        let left_at_ms = match entered.get(nth + 1) {
            Some(&(next_ms, _)) => next_ms,
            None if state == subtask.state() && rank(state) < ENDED => now,
            None => continue,
        };
        let duration = i64::try_from(left_at_ms.saturating_sub(at_ms)).unwrap_or(i64::MAX);
        all.insert(execution_state_name(state).into(), duration);
    }
    all
}

#[cfg(test)]
mod tests {
    use tanist_proto::v1::ExecutionTimestamp;

    use super::*;
    use ExecutionState as S;

    fn subtask(state: S, entered: &[(S, u64)]) -> SubtaskDetails {
        let entry = |&(state, at_ms): &(S, u64)| ExecutionTimestamp {
            state: S::into(state),
            at_ms,
        };
        SubtaskDetails {
            state: state.into(),
            timestamps: entered.iter().map(entry).collect(),
            ..SubtaskDetails::default()
        }
    }

    #[test]
    fn a_state_lasts_until_the_next_one_and_the_present_one_until_now() {
        let entered = [(S::Running, 130), (S::Created, 100), (S::Deploying, 100)];
        let running = status_durations(&subtask(S::Running, &entered), 180);
        let of = |name: &str| running[name];
        assert_eq!(running.len(), EXECUTION_STATES.len());
        assert_eq!((of("CREATED"), of("DEPLOYING"), of("RUNNING")), (0, 30, 50));
        assert_eq!((of("SCHEDULED"), of("FINISHED")), (-1, -1));
    }

    #[test]
    fn what_ended_lasts_no_longer_and_an_unknown_end_is_no_duration() {
        let entered = [(S::Running, 100), (S::Finished, 150)];
        let finished = status_durations(&subtask(S::Finished, &entered), 900);
        assert_eq!((finished["RUNNING"], finished["FINISHED"]), (50, -1));
        let unknown = status_durations(&subtask(S::Finished, &entered[..1]), 900);
        assert_eq!(unknown["RUNNING"], -1);
    }
}
