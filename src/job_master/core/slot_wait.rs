//! The wait of regions for slots: since when it counts, which regions have timed out, and the two queues of waiting
//! regions (`docs/adr/0022`).
//!
//! Both queues are in topological order: the head is the region with the lowest number. One has the regions that are
//! *short* of slots, i.e. need slots which the job does not have, the other the regions that *wait* for slots which the
//! job has. Serving only the head would let one that fits nowhere block all regions behind it; taking whatever fits
//! would let a sequence of small regions starve a large one. So time is divided into *rounds*: in every other round the
//! slots are reserved for the head of the queue, and in the rounds between, the regions behind it are backfilled. The
//! rounds of a head begin when it becomes the head.

use tanist_compact::SmallSet;

/// Number of rounds in one `slot.request.timeout`.
const ROUNDS_PER_TIMEOUT: u64 = 20;

/// The head of a queue of regions, and since when it is the head.
#[derive(Debug, Clone, Copy, Default)]
struct Head {
    of: Option<(usize, u64)>,
}

impl Head {
    /// Sets the region. Its rounds continue if it is still the same one.
    fn set(&mut self, region: Option<usize>, now_ms: u64) {
        let since_ms = |region| match self.of {
            Some((of, since_ms)) if of == region => since_ms,
            Some(_) | None => now_ms,
        };
        self.of = region.map(|region| (region, since_ms(region)));
    }

    /// The region, and the number of rounds that are over.
    fn at(&self, now_ms: u64, round_ms: u64) -> Option<(usize, u64)> {
        let (region, since_ms) = self.of?;
        Some((region, now_ms.saturating_sub(since_ms) / round_ms))
    }

    /// The end of the present round.
    fn next_ms(&self, now_ms: u64, round_ms: u64) -> Option<u64> {
        let (_, over) = self.at(now_ms, round_ms)?;
        let (_, since_ms) = self.of?;
        Some(since_ms.saturating_add(round_ms.saturating_mul(over + 1)))
    }

    fn put_off(&mut self, by_ms: u64) {
        if let Some((_, since_ms)) = &mut self.of {
            *since_ms = since_ms.saturating_add(by_ms);
        }
    }
}

/// State of the wait for slots; see the module.
#[derive(Debug)]
pub(super) struct SlotWait {
    round_ms: u64,
    /// The last time at which a region ran that ends by itself.
    from_ms: u64,
    /// Whether the cluster has room for the job's minimum, according to the ResourceManager.
    has_room: bool,
    /// The last time at which it had room.
    room_until_ms: u64,
    /// Head of the queue of regions that are short of slots.
    short: Head,
    /// Head of the queue of regions that wait for slots which the job has.
    waiting: Head,
    /// The starved regions: they timed out for lack of slots and were not placed since.
    starved: SmallSet<usize>,
}

impl SlotWait {
    /// No region waits.
    pub(super) fn new(request_timeout_ms: u64) -> SlotWait {
        SlotWait {
            round_ms: (request_timeout_ms / ROUNDS_PER_TIMEOUT).max(1),
            from_ms: 0,
            has_room: false,
            room_until_ms: 0,
            short: Head::default(),
            waiting: Head::default(),
            starved: SmallSet::default(),
        }
    }

    /// To be called before an event is applied. While a region runs that ends by itself, and while the cluster has
    /// room, the wait does not count.
    pub(super) fn begin_event(&mut self, will_free_slots: bool, now_ms: u64) {
        if will_free_slots {
            self.from_ms = now_ms;
        }
        if self.has_room {
            self.room_until_ms = now_ms;
        }
    }

    /// Notes whether the cluster has room for the job's minimum.
    pub(super) fn set_room(&mut self, has_room: bool) {
        self.has_room = has_room;
    }

    /// Whether the cluster has room for the job's minimum, according to the ResourceManager.
    pub(super) fn has_room(&self) -> bool {
        self.has_room
    }

    /// The last time at which a region ran that ends by itself.
    pub(super) fn counts_from_ms(&self) -> u64 {
        self.from_ms
    }

    /// The start of the timeout after which waiting regions fail. None: the timeout does not run at present.
    pub(super) fn fails_from_ms(&self) -> Option<u64> {
        (!self.has_room).then_some(self.from_ms.max(self.room_until_ms))
    }

    /// Duration of a round.
    pub(super) fn round_ms(&self) -> u64 {
        self.round_ms
    }

    /// Sets the heads of both queues.
    pub(super) fn set_heads(&mut self, short: Option<usize>, waiting: Option<usize>, now_ms: u64) {
        self.short.set(short, now_ms);
        self.waiting.set(waiting, now_ms);
    }

    /// The first region that is short of slots, and the number of its rounds that are over.
    pub(super) fn short(&self, now_ms: u64) -> Option<(usize, u64)> {
        self.short.at(now_ms, self.round_ms)
    }

    /// The first region that waits for slots which the job has, and the number of its rounds that are over.
    pub(super) fn waiting(&self, now_ms: u64) -> Option<(usize, u64)> {
        self.waiting.at(now_ms, self.round_ms)
    }

    /// The end of the present round of either queue.
    pub(super) fn next_round_ms(&self, now_ms: u64) -> Option<u64> {
        let both = [&self.short, &self.waiting].map(|head| head.next_ms(now_ms, self.round_ms));
        both.into_iter().flatten().min()
    }

    /// Notes that a region timed out for lack of slots.
    pub(super) fn starve(&mut self, region: usize) {
        self.starved.insert(region);
    }

    /// Notes that a region has its slots.
    pub(super) fn serve(&mut self, region: usize) {
        self.starved.remove(&region);
    }

    /// The regions that timed out for lack of slots and were not placed since.
    pub(super) fn starved(&self) -> &SmallSet<usize> {
        &self.starved
    }

    /// Moves all times by the duration for which this process stood still.
    pub(super) fn put_off(&mut self, by_ms: u64) {
        self.from_ms = self.from_ms.saturating_add(by_ms);
        self.room_until_ms = self.room_until_ms.saturating_add(by_ms);
        self.short.put_off(by_ms);
        self.waiting.put_off(by_ms);
    }
}
