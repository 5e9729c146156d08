//! Counts of the slots that a job uses and needs, by kind, updated with each change. Pure. Owned by `Indexes`;
//! changed only in `indexes.rs` and `transitions.rs`.
//!
//! A slot is identified by its [`SlotKey`], no matter which allocation fills it. Invariant: each count of a
//! kind is the number of its keys that meet the condition.

use tanist_proto::resources::ResourceProfile;

use super::as_index;
use crate::core::slot_pool::SlotKey;

/// Counts of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct KeyUse {
    /// Number of tasks that are in its slot or will be.
    pub live: u32,
    /// Number of unfinished tasks of regions that run or could run.
    pub unfinished: u32,
    /// Number of regions with this key that are not placed.
    pub unplaced: u32,
    /// Number of regions with this key that are placed and do not end by themselves.
    pub endless: u32,
}

impl KeyUse {
    fn is_taken(self) -> bool {
        self.live > 0
    }

    /// A taken slot stays if another region with its key is not placed yet and will use it, or if a placed one
    /// does not end by itself. After a durable stop request sources end, so that only the first reason counts.
    fn stays(self, is_stop_durable: bool) -> bool {
        let is_kept = self.unplaced > 0 || self.endless > 0 && !is_stop_durable;
        self.is_taken() && is_kept
    }
}

/// Numbers of slots of one kind, by condition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct KindUse {
    taken: u32,
    needed: u32,
    stay: u32,
    stay_when_stopping: u32,
}

impl KindUse {
    fn count(&mut self, key: KeyUse) {
        self.taken += u32::from(key.is_taken());
        self.needed += u32::from(key.unfinished > 0);
        self.stay += u32::from(key.stays(false));
        self.stay_when_stopping += u32::from(key.stays(true));
    }

    fn count_no_more(&mut self, key: KeyUse) {
        self.taken -= u32::from(key.is_taken());
        self.needed -= u32::from(key.unfinished > 0);
        self.stay -= u32::from(key.stays(false));
        self.stay_when_stopping -= u32::from(key.stays(true));
    }
}

/// The different profiles of a job's slots. A *kind* is the index of one.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Kinds {
    profiles: Vec<ResourceProfile>,
    /// By slot sharing group.
    of_group: Vec<usize>,
    /// By group: the number of keys of all groups before it. The last entry is the number of all keys.
    offsets: Vec<usize>,
}

impl Kinds {
    /// The kinds of groups with these profiles; `offsets` as in the field.
    pub(crate) fn new(groups: &[ResourceProfile], offsets: Vec<usize>) -> Kinds {
        let mut profiles: Vec<ResourceProfile> = Vec::new();
        let mut number = |profile: &ResourceProfile| {
            let known = profiles.iter().position(|it| it == profile);
            known.unwrap_or_else(|| {
                profiles.push(profile.clone());
                profiles.len() - 1
            })
        };
        let of_group = groups.iter().map(&mut number).collect();
        // Saves memory: a list starts with room for four, and most jobs have one kind.
        profiles.shrink_to_fit();
        Kinds {
            profiles,
            of_group,
            offsets,
        }
    }

    /// The profile of each kind.
    pub(crate) fn profiles(&self) -> &[ResourceProfile] {
        &self.profiles
    }

    pub(crate) fn of(&self, key: SlotKey) -> usize {
        self.of_group[key.group]
    }

    /// A key's index among all keys.
    fn number(&self, key: SlotKey) -> usize {
        self.offsets[key.group] + as_index(key.index)
    }

    /// Converts numbers by kind to numbers by profile, without zeros.
    pub(crate) fn by_profile(
        &self,
        numbers: impl IntoIterator<Item = u32>,
    ) -> Vec<(ResourceProfile, u32)> {
        let numbered = self.profiles.iter().zip(numbers);
        let some = numbered.filter(|(_, number)| *number > 0);
        // Saves memory: collecting from a filter allocates room for four, and most jobs have one profile.
        let mut by_profile = Vec::with_capacity(self.profiles.len());
        by_profile.extend(some.map(|(profile, number)| (profile.clone(), number)));
        by_profile
    }

    /// Number of remaining slots by kind: `there` returns how many slots serve a profile, `used` how many of
    /// a kind are not counted.
    pub(crate) fn left(
        &self,
        there: impl Fn(&ResourceProfile) -> u32,
        used: impl Fn(usize) -> u32,
    ) -> Vec<u32> {
        let left = |wanted: &ResourceProfile| {
            let used_for_it = self.profiles.iter().enumerate();
            let used_for_it = used_for_it.filter(|(_, profile)| profile.is_matching(wanted));
            let used_for_it: u32 = used_for_it.map(|(kind, _)| used(kind)).sum();
            there(wanted).saturating_sub(used_for_it)
        };
        self.profiles.iter().map(left).collect()
    }
}

/// Counts of slots; see the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SlotUses {
    keys: Vec<KeyUse>,
    kinds: Vec<KindUse>,
}

impl SlotUses {
    /// Counts without any use.
    pub(crate) fn none(kinds: &Kinds) -> SlotUses {
        SlotUses {
            keys: vec![KeyUse::default(); kinds.offsets.last().copied().unwrap_or_default()],
            kinds: vec![KindUse::default(); kinds.profiles.len()],
        }
    }

    /// Changes the counts of a key. Returns whether the key became taken or free.
    pub(crate) fn change(
        &mut self,
        kinds: &Kinds,
        key: SlotKey,
        change: impl FnOnce(&mut KeyUse),
    ) -> bool {
        let at = &mut self.keys[kinds.number(key)];
        let of_kind = &mut self.kinds[kinds.of(key)];
        let before = *at;
        change(at);
        of_kind.count_no_more(before);
        of_kind.count(*at);
        before.is_taken() != at.is_taken()
    }

    /// Whether a task is in the slot of a key or will be.
    pub(crate) fn is_taken(&self, kinds: &Kinds, key: SlotKey) -> bool {
        self.keys[kinds.number(key)].is_taken()
    }

    /// Whether the slot of a key is taken and does not become free by itself for waiting regions.
    pub(crate) fn is_staying(&self, kinds: &Kinds, key: SlotKey, is_stop_durable: bool) -> bool {
        self.keys[kinds.number(key)].stays(is_stop_durable)
    }

    /// Number of taken slots of a kind.
    pub(crate) fn taken(&self, kind: usize) -> u32 {
        self.kinds[kind].taken
    }

    /// By kind: the number of slots needed for unfinished tasks of regions that run or could run.
    pub(crate) fn needed(&self) -> impl Iterator<Item = u32> {
        self.kinds.iter().map(|of_kind| of_kind.needed)
    }

    /// Number of slots of a kind that are taken and do not become free by themselves for waiting regions.
    pub(crate) fn staying(&self, kind: usize, is_stop_durable: bool) -> u32 {
        let of_kind = self.kinds[kind];
        match is_stop_durable {
            true => of_kind.stay_when_stopping,
            false => of_kind.stay,
        }
    }
}
