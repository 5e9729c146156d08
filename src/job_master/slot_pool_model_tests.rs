//! The slot pool compared with a plain model: a list of slots that is looked through for each question.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tanist_proto::id::{AllocationId, ResourceId};

use super::slot_pool::{OfferAnswer, SlotKey, SlotPool};

/// What happens to the slots of a job.
#[derive(Debug, Clone)]
enum Step {
    Offer {
        at: u8,
        allocation: u8,
        index: u32,
    },
    Remove {
        allocation: u8,
    },
    RemoveAllOf {
        at: u8,
    },
    Forgive {
        at: u8,
    },
    Remember {
        key: SlotKey,
        at: u8,
        allocation: u8,
    },
    /// So many keys of each of two groups are wanted; some have a slot already, and some slots are blocked.
    Assign {
        wanted: [u32; 2],
        taken: Vec<(SlotKey, u8)>,
        blocked: Vec<u8>,
    },
}

fn key() -> impl Strategy<Value = SlotKey> {
    (0usize..2, 0u32..4).prop_map(|(group, index)| SlotKey { group, index })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0u8..3, 0u8..12, 0u32..4)
            .prop_map(|(at, allocation, index)| Step::Offer { at, allocation, index }),
        1 => (0u8..12).prop_map(|allocation| Step::Remove { allocation }),
        1 => (0u8..3).prop_map(|at| Step::RemoveAllOf { at }),
        1 => (0u8..3).prop_map(|at| Step::Forgive { at }),
        2 => (key(), 0u8..3, 0u8..12)
            .prop_map(|(key, at, allocation)| Step::Remember { key, at, allocation }),
        3 => (
            (0u32..4, 0u32..4),
            prop::collection::vec((key(), 0u8..12), 0..3),
            prop::collection::vec(0u8..12, 0..3),
        )
            .prop_map(|((one, other), taken, blocked)| Step::Assign {
                wanted: [one, other],
                taken,
                blocked,
            }),
    ];
    prop::collection::vec(step, 1..60)
}

fn tm(number: u8) -> ResourceId {
    format!("tm-{number}").parse().expect("a resource id")
}

fn id(number: u8) -> AllocationId {
    AllocationId::from_bits(u128::from(number) + 1)
}

#[derive(Debug, Default)]
struct Model {
    /// Where, which number there, which allocation.
    slots: Vec<(u8, u32, u8)>,
    let_go: Vec<(u8, u8)>,
    former: BTreeMap<SlotKey, (u8, u8)>,
}

impl Model {
    fn offer(&mut self, at: u8, allocation: u8, index: u32) -> OfferAnswer {
        let same = self.slots.iter().find(|(_, _, held)| *held == allocation);
        if let Some((held_at, held_index, _)) = same {
            return match (*held_at, *held_index) == (at, index) {
                true => OfferAnswer::Accepted,
                false => OfferAnswer::Rejected,
            };
        }
        if self.let_go.contains(&(at, allocation)) {
            return OfferAnswer::Rejected;
        }
        let before = self.slots.iter().find(|it| (it.0, it.1) == (at, index));
        let before = before.map(|(_, _, before)| *before);
        if let Some(before) = before {
            self.remove(before);
        }
        self.slots.push((at, index, allocation));
        before.map_or(OfferAnswer::Accepted, |it| {
            OfferAnswer::AcceptedInsteadOf(id(it))
        })
    }

    fn remove(&mut self, allocation: u8) {
        if let Some(place) = self.slots.iter().position(|it| it.2 == allocation) {
            let (at, ..) = self.slots.remove(place);
            self.let_go.push((at, allocation));
        }
    }

    fn assign(
        &self,
        wanted: &[SlotKey],
        taken: &BTreeMap<SlotKey, u8>,
        blocked: &BTreeSet<u8>,
    ) -> Option<BTreeMap<SlotKey, u8>> {
        let mut assigned = BTreeMap::new();
        for key in wanted {
            if let Some(allocation) = taken.get(key) {
                if blocked.contains(allocation) {
                    return None;
                }
                assigned.insert(*key, *allocation);
            }
        }
        // In each round the keys that have none yet are asked in their order.
        for round in 0..3 {
            for key in wanted {
                if assigned.contains_key(key) {
                    continue;
                }
                let used: BTreeSet<u8> = taken.values().chain(assigned.values()).copied().collect();
                let free = self.slots.iter();
                let free = free.filter(|it| !used.contains(&it.2) && !blocked.contains(&it.2));
                let former = self.former.get(key);
                let found = match round {
                    0 => free
                        .filter(|it| former.is_some_and(|(_, allocation)| it.2 == *allocation))
                        .min_by_key(|it| it.1),
                    1 => free
                        .filter(|it| former.is_some_and(|(at, _)| it.0 == *at))
                        .min_by_key(|it| it.1),
                    _ => free.min_by_key(|it| {
                        let at_it = self.slots.iter().filter(|other| other.0 == it.0);
                        let load = at_it.filter(|other| used.contains(&other.2)).count();
                        (load, it.0, it.1)
                    }),
                };
                match found {
                    Some((_, _, allocation)) => {
                        assigned.insert(*key, *allocation);
                    }
                    None if round == 2 => return None,
                    None => {}
                }
            }
        }
        Some(assigned)
    }
}

fn compare(pool: &SlotPool, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(pool.len(), model.slots.len());
    for at in 0..3 {
        let mut expected: Vec<(u32, AllocationId)> = model
            .slots
            .iter()
            .filter(|it| it.0 == at)
            .map(|it| (it.1, id(it.2)))
            .collect();
        expected.sort_unstable();
        let expected: Vec<AllocationId> = expected.into_iter().map(|it| it.1).collect();
        prop_assert_eq!(pool.slots_of(&tm(at)), expected);
    }
    for (at, index, allocation) in &model.slots {
        let slot = pool.get(&id(*allocation));
        let slot = slot.map(|slot| (slot.task_manager.clone(), slot.index));
        prop_assert_eq!(slot, Some((tm(*at), *index)));
    }
    Ok(())
}

proptest! {
    #[test]
    fn slots_are_held_and_assigned_as_a_plain_model_does_it(steps in steps()) {
        let (mut pool, mut model) = (SlotPool::default(), Model::default());
        for (turn, step) in (0..).zip(steps) {
            match step {
                Step::Offer { at, allocation, index } => {
                    let answer = pool.offer(&tm(at), id(allocation), index, turn);
                    prop_assert_eq!(answer, model.offer(at, allocation, index));
                }
                Step::Remove { allocation } => {
                    pool.remove(&id(allocation));
                    model.remove(allocation);
                }
                Step::RemoveAllOf { at } => {
                    pool.remove_all_of(&tm(at));
                    model.slots.retain(|it| it.0 != at);
                    model.let_go.retain(|it| it.0 != at);
                }
                Step::Forgive { at } => {
                    pool.forgive(&tm(at));
                    model.let_go.retain(|it| it.0 != at);
                }
                Step::Remember { key, at, allocation } => {
                    pool.remember(key, tm(at), id(allocation));
                    model.former.insert(key, (at, allocation));
                }
                Step::Assign { wanted, taken, blocked } => {
                    let keys = |group: usize| {
                        (0..wanted[group]).map(move |index| SlotKey { group, index })
                    };
                    let keys: Vec<SlotKey> = keys(0).chain(keys(1)).collect();
                    let taken: BTreeMap<SlotKey, u8> = taken.into_iter().collect();
                    let blocked: BTreeSet<u8> = blocked.into_iter().collect();
                    let expected = model.assign(&keys, &taken, &blocked);
                    let taken = taken.iter().map(|(key, it)| (*key, id(*it))).collect();
                    let blocked = blocked.iter().map(|it| id(*it)).collect();
                    let assigned = pool.assign(&keys, &taken, &blocked);
                    let expected = expected.map(|it| {
                        it.into_iter().map(|(key, it)| (key, id(it))).collect::<BTreeMap<_, _>>()
                    });
                    prop_assert_eq!(assigned, expected);
                }
            }
            compare(&pool, &model)?;
        }
    }
}
