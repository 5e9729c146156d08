//! The slot pool compared with a plain model: a list of slots that is searched for each question. For jobs
//! that state no resources, and jobs whose slot sharing groups state equal or different ones.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tanist_property_tests::run_cases;
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::{CpuCores, ResourceProfile, Resources};

use crate::core::slot_pool::{OfferAnswer, SlotKey, SlotPool};

/// Number of profiles. Profile 0: no resources are stated.
const PROFILES: u8 = 4;

fn profile(number: u8) -> ResourceProfile {
    match number {
        0 => ResourceProfile::Unknown,
        number => ResourceProfile::from(Resources {
            cpu: CpuCores::whole(u32::from(number)),
            ..Resources::ZERO
        }),
    }
}

/// An operation on the slots of a job.
#[derive(Debug, Clone)]
enum Step {
    Offer {
        at: u8,
        allocation: u8,
        index: u32,
        has: u8,
    },
    Remove {
        allocation: u8,
    },
    RemoveAllOf {
        at: u8,
    },
    ForgetReleased {
        at: u8,
    },
    Remember {
        key: SlotKey,
        at: u8,
        allocation: u8,
    },
    ForgetFormer {
        keys: Vec<SlotKey>,
    },
    /// `wanted` keys of each of two groups are needed; some have a slot already, and some slots are blocked.
    Assign {
        wanted: [u32; 2],
        of: [u8; 2],
        taken: Vec<(SlotKey, u8)>,
        blocked: Vec<u8>,
    },
    /// The slots in `of` that exceed these needs are asked for.
    Surplus {
        needed: Vec<(u8, u32)>,
        of: Vec<u8>,
    },
}

fn key() -> impl Strategy<Value = SlotKey> {
    (0usize..2, 0u32..4).prop_map(|(group, index)| SlotKey { group, index })
}

/// A job that states no resources for one group states none for any.
fn groups() -> impl Strategy<Value = [u8; 2]> {
    prop_oneof![
        1 => Just([0, 0]),
        2 => (1..PROFILES, 1..PROFILES).prop_map(|(one, other)| [one, other]),
    ]
}

fn needs() -> impl Strategy<Value = Vec<(u8, u32)>> {
    let stated = prop::collection::btree_map(1..PROFILES, 0u32..4, 0..3);
    prop_oneof![
        1 => (0u32..6).prop_map(|number| vec![(0, number)]),
        3 => stated.prop_map(|all| all.into_iter().collect()),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let assign = (
        (0u32..4, 0u32..4),
        groups(),
        prop::collection::vec((key(), 0u8..12), 0..3),
        prop::collection::vec(0u8..12, 0..3),
    );
    let step = prop_oneof![
        12 => (0u8..3, 0u8..12, 0u32..4, 0..PROFILES)
            .prop_map(|(at, allocation, index, has)| Step::Offer { at, allocation, index, has }),
        1 => (0u8..12).prop_map(|allocation| Step::Remove { allocation }),
        1 => (0u8..3).prop_map(|at| Step::RemoveAllOf { at }),
        1 => (0u8..3).prop_map(|at| Step::ForgetReleased { at }),
        2 => (key(), 0u8..3, 0u8..12)
            .prop_map(|(key, at, allocation)| Step::Remember { key, at, allocation }),
        1 => prop::collection::vec(key(), 0..3).prop_map(|keys| Step::ForgetFormer { keys }),
        4 => assign.prop_map(|((one, other), of, taken, blocked)| Step::Assign {
            wanted: [one, other],
            of,
            taken,
            blocked,
        }),
        2 => (needs(), prop::collection::btree_set(0u8..12, 0..8))
            .prop_map(|(needed, of)| Step::Surplus { needed, of: of.into_iter().collect() }),
    ];
    prop::collection::vec(step, 1..60)
}

/// Situations that have to occur in some run.
#[derive(Debug, Clone, Copy, Default)]
struct Reached {
    assigned_plain: u32,
    assigned_alike: u32,
    assigned_different: u32,
    /// There were enough slots, but not of the right profiles.
    wrong_profile: u32,
    /// The key got its former slot.
    former: u32,
    replaced: u32,
    let_go: u32,
    surplus: u32,
    /// A slot of a profile that is not needed any more.
    not_needed: u32,
}

impl Reached {
    fn counts(&self) -> [u32; 9] {
        [
            self.assigned_plain,
            self.assigned_alike,
            self.assigned_different,
            self.wrong_profile,
            self.former,
            self.replaced,
            self.let_go,
            self.surplus,
            self.not_needed,
        ]
    }
}

fn tm(number: u8) -> ResourceId {
    format!("tm-{number}").parse().expect("a resource id")
}

fn id(number: u8) -> AllocationId {
    AllocationId::from_bits(u128::from(number) + 1)
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    at: u8,
    index: u32,
    allocation: u8,
    has: u8,
}

impl Slot {
    fn serves(&self, wanted: u8) -> bool {
        wanted == 0 || self.has == wanted
    }
}

#[derive(Debug, Default)]
struct Model {
    slots: Vec<Slot>,
    let_go: Vec<(u8, u8)>,
    former: BTreeMap<SlotKey, (u8, u8)>,
    reached: Reached,
}

impl Model {
    fn offer(&mut self, slot: Slot) -> OfferAnswer {
        let (at, index, allocation) = (slot.at, slot.index, slot.allocation);
        let same = self.slots.iter().find(|it| it.allocation == allocation);
        if let Some(held) = same {
            return match (held.at, held.index) == (at, index) {
                true => OfferAnswer::Accepted,
                false => OfferAnswer::Rejected,
            };
        }
        if self.let_go.contains(&(at, allocation)) {
            self.reached.let_go += 1;
            return OfferAnswer::Rejected;
        }
        let mut slots = self.slots.iter();
        let before = slots.find(|it| (it.at, it.index) == (at, index));
        let before = before.map(|it| it.allocation);
        if let Some(before) = before {
            self.reached.replaced += 1;
            self.remove(before);
        }
        self.slots.push(slot);
        before.map_or(OfferAnswer::Accepted, |it| {
            OfferAnswer::AcceptedInsteadOf(id(it))
        })
    }

    fn remove(&mut self, allocation: u8) {
        let mut slots = self.slots.iter();
        if let Some(place) = slots.position(|it| it.allocation == allocation) {
            let slot = self.slots.remove(place);
            self.let_go.push((slot.at, allocation));
        }
    }

    fn assign(
        &mut self,
        wanted: &[SlotKey],
        of: [u8; 2],
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
        // In the first two rounds the keys without a slot are served in their order, in the last one profile
        // by profile.
        for round in 0..3 {
            let mut in_order = wanted.to_vec();
            if round == 2 {
                in_order.sort_by_key(|key| profile(of[key.group]));
            }
            for key in in_order {
                if assigned.contains_key(&key) {
                    continue;
                }
                let used: BTreeSet<u8> = taken.values().chain(assigned.values()).copied().collect();
                let is_free = |it: &&Slot| {
                    let is_used = used.contains(&it.allocation) || blocked.contains(&it.allocation);
                    !is_used && it.serves(of[key.group])
                };
                let free = self.slots.iter().filter(is_free);
                let former = self.former.get(&key);
                let found = match round {
                    0 => free
                        .filter(|it| former.is_some_and(|(_, was)| it.allocation == *was))
                        .min_by_key(|it| it.index),
                    1 => free
                        .filter(|it| former.is_some_and(|(at, _)| it.at == *at))
                        .min_by_key(|it| it.index),
                    _ => free.min_by_key(|it| {
                        let there = self.slots.iter().filter(|other| other.at == it.at);
                        let load = there.filter(|other| used.contains(&other.allocation));
                        (load.count(), it.at, it.index)
                    }),
                };
                match found {
                    Some(slot) => {
                        self.reached.former += u32::from(round == 0);
                        assigned.insert(key, slot.allocation);
                    }
                    None if round == 2 => {
                        let left = self.slots.len().saturating_sub(used.len() + blocked.len());
                        let is_wrong = left >= wanted.len() - assigned.len();
                        self.reached.wrong_profile += u32::from(is_wrong);
                        return None;
                    }
                    None => {}
                }
            }
        }
        let (one, other) = (of[0], of[1]);
        match (one == 0, one == other) {
            _ if assigned.is_empty() => {}
            (true, _) => self.reached.assigned_plain += 1,
            (false, true) => self.reached.assigned_alike += 1,
            (false, false) => self.reached.assigned_different += 1,
        }
        Some(assigned)
    }

    /// If no resources are stated, all slots are of one kind.
    fn kind(has: u8, needed: &[(u8, u32)]) -> u8 {
        let is_any = needed.iter().any(|(profile, _)| *profile == 0);
        if is_any { 0 } else { has }
    }

    fn surplus(&mut self, of: &[u8], needed: &[(u8, u32)]) -> (Vec<u8>, bool) {
        let mut left: BTreeMap<u8, usize> = BTreeMap::new();
        for slot in &self.slots {
            *left.entry(Self::kind(slot.has, needed)).or_default() += 1;
        }
        for (profile, number) in needed {
            if let Some(left) = left.get_mut(profile) {
                *left = left.saturating_sub(*number as usize);
            }
        }
        let is_any = left.values().any(|left| *left > 0);
        let mut more = Vec::new();
        for allocation in of {
            let mut slots = self.slots.iter();
            let Some(slot) = slots.find(|it| it.allocation == *allocation) else {
                continue;
            };
            let kind = Self::kind(slot.has, needed);
            let left = left.get_mut(&kind).expect("it is counted");
            if *left > 0 {
                *left -= 1;
                more.push(*allocation);
                self.reached.surplus += 1;
                let is_needed = needed.iter().any(|(profile, _)| *profile == kind);
                self.reached.not_needed += u32::from(!is_needed && !needed.is_empty());
            }
        }
        (more, is_any)
    }
}

fn compare(pool: &SlotPool, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(pool.len(), model.slots.len());
    for at in 0..3 {
        let there = model.slots.iter().filter(|it| it.at == at);
        let mut expected: Vec<(u32, AllocationId)> =
            there.map(|it| (it.index, id(it.allocation))).collect();
        expected.sort_unstable();
        let expected: Vec<AllocationId> = expected.into_iter().map(|it| it.1).collect();
        prop_assert_eq!(pool.slots_of(&tm(at)), expected);
    }
    for it in &model.slots {
        let slot = pool.get(&id(it.allocation));
        let slot = slot.map(|slot| {
            let profile = (*slot.profile).clone();
            (slot.task_manager.clone(), slot.index, profile)
        });
        prop_assert_eq!(slot, Some((tm(it.at), it.index, profile(it.has))));
    }
    for wanted in 0..PROFILES {
        let serving = model.slots.iter().filter(|it| it.serves(wanted));
        let serving = u32::try_from(serving.count()).expect("few");
        prop_assert_eq!(pool.count_for(&profile(wanted)), serving);
    }
    Ok(())
}

fn take(
    pool: &mut SlotPool,
    model: &mut Model,
    turn: u64,
    step: Step,
) -> Result<(), TestCaseError> {
    match step {
        Step::Offer {
            at,
            allocation,
            index,
            has,
        } => {
            let slot = Slot {
                at,
                index,
                allocation,
                has,
            };
            let answer = pool.offer(&tm(at), id(allocation), index, profile(has), turn);
            prop_assert_eq!(answer, model.offer(slot));
        }
        Step::Remove { allocation } => {
            pool.remove(&id(allocation));
            model.remove(allocation);
        }
        Step::RemoveAllOf { at } => {
            pool.remove_all_of(&tm(at));
            model.slots.retain(|it| it.at != at);
            model.let_go.retain(|it| it.0 != at);
        }
        Step::ForgetReleased { at } => {
            pool.forget_released(&tm(at));
            model.let_go.retain(|it| it.0 != at);
        }
        Step::Remember {
            key,
            at,
            allocation,
        } => {
            pool.remember(key, tm(at), id(allocation));
            model.former.insert(key, (at, allocation));
        }
        Step::ForgetFormer { mut keys } => {
            keys.sort_unstable();
            pool.forget_former(&keys);
            model.former.retain(|key, _| !keys.contains(key));
        }
        Step::Assign {
            wanted,
            of,
            taken,
            blocked,
        } => {
            let keys = |group: usize| (0..wanted[group]).map(move |index| SlotKey { group, index });
            let keys: Vec<SlotKey> = keys(0).chain(keys(1)).collect();
            let taken: BTreeMap<SlotKey, u8> = taken.into_iter().collect();
            let blocked: BTreeSet<u8> = blocked.into_iter().collect();
            let expected = model.assign(&keys, of, &taken, &blocked);
            let taken = taken.iter().map(|(key, it)| (*key, id(*it))).collect();
            let blocked = blocked.iter().map(|it| id(*it)).collect();
            let profiles = of.map(profile);
            let assigned = pool.assign(&keys, &profiles, &taken, &blocked);
            let expected = expected.map(|it| {
                let ids = it.into_iter().map(|(key, it)| (key, id(it)));
                ids.collect::<BTreeMap<_, _>>()
            });
            prop_assert_eq!(assigned, expected);
        }
        Step::Surplus { needed, of } => {
            let (more, is_any) = model.surplus(&of, &needed);
            let needed: Vec<(ResourceProfile, u32)> = needed
                .into_iter()
                .map(|(of, number)| (profile(of), number))
                .collect();
            prop_assert_eq!(pool.has_surplus(&needed), is_any);
            let told = pool.surplus(of.into_iter().map(id).collect(), &needed);
            let more: Vec<AllocationId> = more.into_iter().map(id).collect();
            prop_assert_eq!(told, more);
        }
    }
    compare(pool, model)
}

#[test]
fn slots_are_held_and_assigned_as_a_plain_model_does_it() {
    run_cases(512, file!(), steps(), |steps, reached: &mut [u32; 9]| {
        let (mut pool, mut model) = (SlotPool::default(), Model::default());
        for (turn, step) in (0..).zip(steps) {
            take(&mut pool, &mut model, turn, step)?;
        }
        for (sum, count) in reached.iter_mut().zip(model.reached.counts()) {
            *sum += count;
        }
        Ok(())
    });
}
