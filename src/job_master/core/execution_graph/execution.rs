//! One attempt to run a subtask: its state and its place. Pure data and the edges between states.
//!
//! Invariant: a state changes only along [`next_state`], by [`Execution::enter`]. An ended execution never
//! changes again; only a new generation replaces it.

use std::sync::Arc;

use tanist_proto::id::{AllocationId, Generation, ResourceId};
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use crate::core::result_partitions::ResultPartition;

/// The place of an execution.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Place {
    /// The TaskManager.
    pub task_manager: ResourceId,
    /// The slot.
    pub allocation: AllocationId,
    /// The TaskManager's address and incarnation.
    pub location: Arc<pb::TaskManagerLocation>,
}

/// Progress of the cancellation of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancellation {
    /// Not wanted, or not sent yet.
    NotSent,
    /// Sent.
    Sent,
    /// The TaskManager did not answer. Sent again when it reports again.
    Failed,
    /// The TaskManager confirmed it: it never starts this generation any more.
    Confirmed,
}

/// One attempt to run a subtask.
#[derive(Debug, Clone)]
pub(crate) struct Execution {
    /// Its generation.
    pub generation: Generation,
    /// Its state.
    pub state: ExecutionState,
    /// Its place; `None` while no slot was chosen.
    pub place: Option<Place>,
    /// The step of the core since which every full report of its TaskManager must contain it.
    pub known_since: Option<u64>,
    /// Progress of its cancellation.
    pub cancellation: Cancellation,
    /// When CANCELING began, in milliseconds since 1970.
    pub canceling_since_ms: u64,
    /// When it was deployed, in milliseconds since 1970; 0: never.
    pub started_at_ms: u64,
    /// When it ended, in milliseconds since 1970; 0: it has not.
    pub ended_at_ms: u64,
    /// The cause, if it failed.
    pub cause: String,
    /// The output of its sinks that is to be committed.
    pub committables: Vec<pb::Committable>,
    /// The output of its sinks that is committed with the end of its region.
    pub checkpoint_committables: Vec<pb::CheckpointCommittable>,
    /// After its end: the highest checkpoint that it took up, declined, saw aborted or was restored from.
    pub highest_checkpoint: u64,
    /// Its last reported counters.
    pub metrics: Option<pb::TaskMetrics>,
    /// By its last report: why the state that it is restored from can't be read at present.
    pub unread_state: String,
    /// Whether the record has its terminal state.
    pub is_recorded: bool,
    /// The output that it keeps for regions that start after it has finished.
    pub output: ResultPartition,
    /// When it entered each state, by the state's number, in milliseconds since 1970; 0: it did not, or the
    /// time is unknown.
    entered_ms: [u64; STATES],
}

/// The number of states.
pub(crate) const STATES: usize = 10;

impl Execution {
    /// A new attempt.
    pub(crate) fn created(generation: Generation) -> Execution {
        Execution {
            generation,
            state: ExecutionState::Created,
            place: None,
            known_since: None,
            cancellation: Cancellation::NotSent,
            canceling_since_ms: 0,
            started_at_ms: 0,
            ended_at_ms: 0,
            cause: String::new(),
            committables: Vec::new(),
            checkpoint_committables: Vec::new(),
            highest_checkpoint: 0,
            metrics: None,
            unread_state: String::new(),
            is_recorded: false,
            output: ResultPartition::default(),
            entered_ms: [0; STATES],
        }
    }

    /// Moves it to a state. Returns false if there is no such edge.
    pub(crate) fn enter(&mut self, to: ExecutionState, at_ms: u64) -> bool {
        let Some(state) = next_state(self.state, to) else {
            return false;
        };
        self.state = state;
        self.note_entered(state, at_ms);
        if state == ExecutionState::Canceling {
            self.canceling_since_ms = at_ms;
        }
        if is_terminal(state) {
            self.ended_at_ms = self.entered_at_ms(state);
        }
        true
    }

    /// Notes when it entered a state, unless the time is known already.
    pub(crate) fn note_entered(&mut self, state: ExecutionState, at_ms: u64) {
        if let Some(entered) = usize::try_from(i32::from(state))
            .ok()
            .and_then(|state| self.entered_ms.get_mut(state))
            .filter(|entered| **entered == 0)
        {
            *entered = at_ms;
        }
    }

    /// When it entered a state; 0: it did not, or the time is unknown.
    pub(crate) fn entered_at_ms(&self, state: ExecutionState) -> u64 {
        let number = usize::try_from(i32::from(state)).ok();
        let entered = number.and_then(|state| self.entered_ms.get(state));
        entered.copied().unwrap_or_default()
    }

    /// Fills in unknown times of states from its TaskManager's report, which says how long ago each was
    /// entered. No time is set before its deployment.
    pub(crate) fn note_ages(&mut self, ages: &[pb::ExecutionAge], now_ms: u64) {
        for age in ages {
            let at_ms = now_ms.saturating_sub(age.ms_ago).max(self.started_at_ms);
            self.note_entered(age.state(), at_ms);
        }
    }

    /// The known times of its states, in the order of the states' numbers.
    pub(crate) fn timestamps(&self) -> Vec<pb::ExecutionTimestamp> {
        let entered = (0_i32..).zip(self.entered_ms);
        let known = entered.filter(|(_, at_ms)| *at_ms > 0);
        known
            .map(|(state, at_ms)| pb::ExecutionTimestamp { state, at_ms })
            .collect()
    }

    /// Why the state that it is restored from can't be read at present. None: it can be read, or the execution is not
    /// DEPLOYING.
    pub(crate) fn unread_state(&self) -> Option<&str> {
        let begins = self.state == ExecutionState::Deploying;
        (begins && !self.unread_state.is_empty()).then_some(self.unread_state.as_str())
    }

    /// Whether it ended.
    pub(crate) fn is_ended(&self) -> bool {
        is_terminal(self.state)
    }

    /// Whether a TaskManager may run it.
    pub(crate) fn is_deployed(&self) -> bool {
        match self.state {
            ExecutionState::Deploying
            | ExecutionState::Initializing
            | ExecutionState::Running
            | ExecutionState::Canceling
            | ExecutionState::Reconciling => true,
            ExecutionState::Created
            | ExecutionState::Scheduled
            | ExecutionState::Finished
            | ExecutionState::Canceled
            | ExecutionState::Failed => false,
        }
    }

    /// Whether it is placed on this TaskManager.
    pub(crate) fn is_on(&self, task_manager: &ResourceId) -> bool {
        self.place
            .as_ref()
            .is_some_and(|place| place.task_manager == *task_manager)
    }
}

/// Whether a state is terminal.
pub(crate) fn is_terminal(state: ExecutionState) -> bool {
    match state {
        ExecutionState::Finished | ExecutionState::Canceled | ExecutionState::Failed => true,
        ExecutionState::Created
        | ExecutionState::Scheduled
        | ExecutionState::Deploying
        | ExecutionState::Initializing
        | ExecutionState::Running
        | ExecutionState::Canceling
        | ExecutionState::Reconciling => false,
    }
}

/// The state after `from` when `to` is reported or decided; `None` if there is no such edge (a late or
/// repeated report).
///
/// The edges are Apache Flink's, with two more: a cancelled execution may have finished before it received
/// the cancellation, and an execution that a new leader awaits may be reported in any state. An execution
/// that fails while it is cancelled becomes CANCELED: mostly it lost its connection to a task that was
/// cancelled earlier.
pub(crate) fn next_state(from: ExecutionState, to: ExecutionState) -> Option<ExecutionState> {
    use ExecutionState as S;
    let allowed = match from {
        S::Created => matches!(to, S::Scheduled | S::Reconciling | S::Canceled | S::Failed),
        S::Scheduled => matches!(to, S::Deploying | S::Canceled | S::Failed),
        S::Deploying => {
            is_terminal(to) || matches!(to, S::Initializing | S::Running | S::Canceling)
        }
        S::Initializing => is_terminal(to) || matches!(to, S::Running | S::Canceling),
        S::Running => is_terminal(to) || to == S::Canceling,
        S::Canceling if to == S::Failed => return Some(S::Canceled),
        S::Canceling => is_terminal(to),
        S::Reconciling => {
            let is_there = matches!(to, S::Deploying | S::Initializing | S::Running);
            is_there || is_terminal(to) || to == S::Canceling
        }
        S::Finished | S::Canceled | S::Failed => false,
    };
    allowed.then_some(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_execution_never_changes() {
        use ExecutionState as S;
        let all = [
            S::Created,
            S::Scheduled,
            S::Deploying,
            S::Initializing,
            S::Running,
        ];
        for end in [S::Finished, S::Canceled, S::Failed] {
            let news = all
                .into_iter()
                .chain([S::Canceling, S::Reconciling, S::Failed]);
            assert!(news.into_iter().all(|to| next_state(end, to).is_none()));
        }
    }

    #[test]
    fn late_news_of_an_earlier_state_changes_nothing() {
        use ExecutionState as S;
        assert_eq!(next_state(S::Running, S::Initializing), None);
        assert_eq!(next_state(S::Canceling, S::Running), None);
        assert_eq!(next_state(S::Canceling, S::Finished), Some(S::Finished));
    }

    #[test]
    fn what_fails_while_it_is_cancelled_is_canceled() {
        let mut execution = Execution::created(Generation::new(1));
        let way = [
            ExecutionState::Scheduled,
            ExecutionState::Deploying,
            ExecutionState::Running,
            ExecutionState::Canceling,
        ];
        assert!((1..).zip(way).all(|(at_ms, to)| execution.enter(to, at_ms)));
        assert!(execution.enter(ExecutionState::Failed, 9));
        assert_eq!(execution.state, ExecutionState::Canceled);
        assert_eq!(execution.entered_at_ms(ExecutionState::Canceled), 9);
        assert_eq!(execution.entered_at_ms(ExecutionState::Failed), 0);
        assert_eq!(execution.ended_at_ms, 9);
    }

    #[test]
    fn what_its_task_manager_says_of_earlier_states_fills_the_gaps_only() {
        let mut execution = Execution::created(Generation::new(1));
        execution.started_at_ms = 500;
        assert!(execution.enter(ExecutionState::Reconciling, 1_000));
        let ago = |state: ExecutionState, ms_ago| pb::ExecutionAge {
            state: state.into(),
            ms_ago,
        };
        let (opened, ran) = (ExecutionState::Initializing, ExecutionState::Running);
        execution.note_ages(&[ago(opened, 900), ago(ran, 300)], 1_100);
        assert!(execution.enter(ran, 1_100));
        execution.note_ages(&[ago(ran, 0)], 1_200);
        assert_eq!(
            execution.entered_at_ms(opened),
            500,
            "not before it was deployed"
        );
        assert_eq!(execution.entered_at_ms(ran), 800);
    }

    #[test]
    fn what_is_awaited_may_be_found_in_any_state_that_a_task_manager_reports() {
        use ExecutionState as S;
        for found in [S::Deploying, S::Initializing, S::Running, S::Finished] {
            assert_eq!(next_state(S::Reconciling, found), Some(found));
            assert_eq!(next_state(found, S::Reconciling), None);
        }
    }
}
