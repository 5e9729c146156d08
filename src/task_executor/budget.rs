//! What a TaskManager has in total, and what of it is reserved for which allocation. Pure.

use std::collections::BTreeMap;
use std::fmt;

use tanist_proto::id::AllocationId;
use tanist_proto::v1 as pb;

/// By how many cores sums of shares of a total may be off: far less than anybody asks for.
const ROUNDING: f64 = 1e-6;

/// More was wanted than there is.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("wanted {}, of {} in total {} are left", Shown(.wanted), Shown(.total), Shown(.left))]
pub struct Exceeded {
    /// What was wanted.
    pub wanted: pb::ResourceProfile,
    /// What nobody has.
    pub left: pb::ResourceProfile,
    /// All that there is.
    pub total: pb::ResourceProfile,
}

/// See the module.
#[derive(Debug)]
pub struct Budget {
    total: pb::ResourceProfile,
    /// What is taken where nothing else is asked for.
    share: pb::ResourceProfile,
    reserved: BTreeMap<AllocationId, pb::ResourceProfile>,
}

impl Budget {
    /// All of it is left.
    pub fn new(share: pb::ResourceProfile, total: pb::ResourceProfile) -> Budget {
        Budget {
            total,
            share,
            reserved: BTreeMap::new(),
        }
    }

    /// Reserves what is wanted, or a share.
    pub fn reserve(
        &mut self,
        allocation: AllocationId,
        wanted: Option<&pb::ResourceProfile>,
    ) -> Result<(), Exceeded> {
        let wanted = wanted.unwrap_or(&self.share).clone();
        let left = self.left();
        let fits = wanted.cpu_cores <= left.cpu_cores + ROUNDING
            && wanted.memory_bytes <= left.memory_bytes;
        if !fits {
            let total = self.total.clone();
            return Err(Exceeded {
                wanted,
                left,
                total,
            });
        }
        self.reserved.insert(allocation, wanted);
        Ok(())
    }

    /// Ends a reservation.
    pub fn give_back(&mut self, allocation: AllocationId) {
        self.reserved.remove(&allocation);
    }

    /// What is reserved for an allocation.
    pub fn reserved(&self, allocation: AllocationId) -> pb::ResourceProfile {
        self.reserved
            .get(&allocation)
            .unwrap_or(&self.share)
            .clone()
    }

    /// Summed up anew each time, so that nothing adds up.
    fn left(&self) -> pb::ResourceProfile {
        let reserved = self.reserved.values();
        let cpu_cores: f64 = reserved.clone().map(|profile| profile.cpu_cores).sum();
        let memory = reserved.fold(0u64, |sum, profile| {
            sum.saturating_add(profile.memory_bytes)
        });
        pb::ResourceProfile {
            cpu_cores: (self.total.cpu_cores - cpu_cores).max(0.0),
            memory_bytes: self.total.memory_bytes.saturating_sub(memory),
            ..pb::ResourceProfile::default()
        }
    }
}

struct Shown<'a>(&'a pb::ResourceProfile);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pb::ResourceProfile {
            cpu_cores,
            memory_bytes,
            ..
        } = self.0;
        write!(f, "{cpu_cores} cores and {memory_bytes} bytes of memory")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(cpu_cores: f64, memory_bytes: u64) -> pb::ResourceProfile {
        pb::ResourceProfile {
            cpu_cores,
            memory_bytes,
            ..pb::ResourceProfile::default()
        }
    }

    #[test]
    fn a_refusal_names_what_is_wanted_left_and_there_in_total() {
        let mut budget = Budget::new(profile(1.0, 10), profile(4.0, 40));
        let one = AllocationId::from_bits(1);
        budget.reserve(one, Some(&profile(2.5, 10))).expect("fits");
        let refusal = budget.reserve(AllocationId::from_bits(2), Some(&profile(2.0, 5)));
        assert_eq!(
            refusal.expect_err("does not fit").to_string(),
            "wanted 2 cores and 5 bytes of memory, of 4 cores and 40 bytes of memory in total 1.5 \
             cores and 30 bytes of memory are left"
        );
        budget.give_back(one);
        budget
            .reserve(AllocationId::from_bits(2), Some(&profile(4.0, 40)))
            .expect("all is left again");
    }

    #[test]
    fn equal_shares_of_any_total_fit_as_often_as_there_are_slots() {
        for slots in 1..=64u32 {
            let total = profile(4.0, 1_000_003);
            let share = profile(4.0 / f64::from(slots), 1_000_003 / u64::from(slots));
            let mut budget = Budget::new(share, total);
            for slot in 0..slots {
                let allocation = AllocationId::from_bits(slot.into());
                assert_eq!(
                    budget.reserve(allocation, None),
                    Ok(()),
                    "{slot} of {slots}"
                );
            }
        }
    }
}
