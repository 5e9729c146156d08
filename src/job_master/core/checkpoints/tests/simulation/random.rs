//! Random numbers from a seed, the same on each machine.

/// A generator (splitmix64).
#[derive(Debug)]
pub(in crate::core) struct Random(u64);

impl Random {
    pub(in crate::core) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(in crate::core) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is above 0.
    pub(in crate::core) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Whether one in `n` cases occurs.
    pub(in crate::core) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A number from `low` to `high`.
    pub(in crate::core) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// One of the items. None: there is none.
    pub(in crate::core) fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        match items.len() {
            0 => None,
            length => Some(items[self.below(length)]),
        }
    }
}
