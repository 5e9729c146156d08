//! What the subtasks of a step saved, divided once among the subtasks that it has in the graph.

use std::collections::BTreeMap;

use tanist_proto::v1::{OperatorState, StateRedistribution, SubtaskSnapshot};

use super::saved::SavedStep;
use crate::operators::Redistribution;

/// How parts go to subtasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// Each to the subtask of its number.
    Kept,
    /// As the step declares it, since its parallelism differs.
    Redistributed(Redistribution),
}

/// Parts of a step, by subtask of the graph.
#[derive(Debug)]
pub(super) struct Shares<'m> {
    /// What each subtask gets, if each part goes to one subtask. With `union` only the number of lists counts.
    own: Vec<Vec<&'m SubtaskSnapshot>>,
    /// All parts in their order, if each subtask gets all of them.
    union: Option<Vec<&'m SubtaskSnapshot>>,
}

impl<'m> Shares<'m> {
    /// Divides parts among this number of subtasks.
    pub(super) fn of(
        parts: impl Iterator<Item = &'m SubtaskSnapshot>,
        parallelism: u32,
        rule: Rule,
    ) -> Shares<'m> {
        if rule == Rule::Redistributed(Redistribution::Union) {
            return Shares {
                own: empty_lists(parallelism),
                union: Some(parts.collect()),
            };
        }
        let mut own = empty_lists(parallelism);
        let count = own.len();
        for (turn, part) in parts.enumerate() {
            let subtask = match rule {
                Rule::Kept => index(part.subtask),
                Rule::Redistributed(_) => turn % count,
            };
            if let Some(share) = own.get_mut(subtask) {
                share.push(part);
            }
        }
        Shares { own, union: None }
    }

    /// What a subtask gets, in the order of the parts. The bool is true for exactly one subtask of each part: that one
    /// takes what must not be doubled.
    pub(super) fn of_subtask(&self, subtask: u32) -> Vec<(bool, &'m SubtaskSnapshot)> {
        let subtask = index(subtask);
        match &self.union {
            Some(all) => {
                let is_own = |turn: usize| turn % self.own.len() == subtask;
                let all = all.iter().enumerate();
                all.map(|(turn, part)| (is_own(turn), *part)).collect()
            }
            None => {
                let own = self.own.get(subtask).into_iter().flatten();
                own.map(|part| (true, *part)).collect()
            }
        }
    }
}

/// States that say themselves how they are divided among another number of subtasks.
#[derive(Debug, Default)]
pub(super) struct DividedStates<'m> {
    /// Elements of lists, by subtask, each with its place among all states of the step.
    lists: Vec<Vec<(usize, &'m OperatorState)>>,
    /// What each subtask gets.
    unions: Vec<(usize, &'m OperatorState)>,
    /// Copies of the same state, by name.
    copies: BTreeMap<&'m str, Vec<&'m OperatorState>>,
}

impl<'m> DividedStates<'m> {
    /// Divides the states of a step.
    pub(super) fn of(step: &SavedStep<'m>, parallelism: u32) -> DividedStates<'m> {
        let uid = &step.step.uid;
        let states = step.saved().flat_map(|(_, saved)| &saved.operators);
        let mut divided = DividedStates {
            lists: empty_lists(parallelism),
            ..DividedStates::default()
        };
        let mut turns: BTreeMap<&str, usize> = BTreeMap::new();
        for (place, state) in states.filter(|it| it.uid == *uid).enumerate() {
            match state.redistribution() {
                // As the step declares it.
                StateRedistribution::Unspecified => {}
                StateRedistribution::Union => divided.unions.push((place, state)),
                StateRedistribution::List => {
                    let turn = turns.entry(&state.name).or_default();
                    let next = (*turn + 1) % divided.lists.len();
                    let subtask = std::mem::replace(turn, next);
                    divided.lists[subtask].push((place, state));
                }
                StateRedistribution::Broadcast => {
                    divided.copies.entry(&state.name).or_default().push(state);
                }
            }
        }
        divided
    }

    /// What a subtask gets: elements and unions in their order, then a copy of each other state.
    pub(super) fn of_subtask(&self, subtask: u32) -> Vec<OperatorState> {
        let subtask = index(subtask);
        let own = self.lists.get(subtask).into_iter().flatten();
        let mut states: Vec<_> = own.chain(&self.unions).copied().collect();
        states.sort_by_key(|(place, _)| *place);
        let states = states.into_iter().map(|(_, state)| state);
        // Spread over the copies, so that not all subtasks read the same object.
        let copies = self.copies.values();
        let copies = copies.map(|copies| copies[subtask % copies.len()]);
        states.chain(copies).cloned().collect()
    }
}

/// An empty list for each subtask; at least one.
fn empty_lists<T>(parallelism: u32) -> Vec<Vec<T>> {
    (0..parallelism.max(1)).map(|_| Vec::new()).collect()
}

fn index(subtask: u32) -> usize {
    usize::try_from(subtask).unwrap_or(usize::MAX)
}
