//! The slots of one job: those that it holds, those that it has declared to need, and since when it waits for them.
//!
//! This object owns all of that; no other one changes it. `slot_needs.rs` computes which slots the job needs,
//! `scheduling.rs` places regions in slots, `slot_requests.rs` declares needs and gives slots back.

use std::sync::Arc;

use tanist_gateway::Unfulfillable;
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::ResourceProfile;

use super::adopted_slots::{AdoptedSlots, Held};
use super::durable_record::{ChangedEnds, DurableRecord};
use super::execution_graph::ExecutionGraph;
use super::slot_pool::{OfferAnswer, PoolSlot, SlotKey, SlotPool};
use super::slot_wait::SlotWait;
use super::{CoreOptions, Needs};

/// Time in ms for which slots are collected to place several regions in one write.
const COLLECT_MS: u64 = 20;

/// The slots of one job; see the module.
#[derive(Debug)]
pub(super) struct Slots {
    request_timeout_ms: u64,
    idle_timeout_ms: u64,
    pool: SlotPool,
    adopted: AdoptedSlots,
    wait: SlotWait,
    /// Number of held slots before the present event.
    held_before: usize,
    /// The slots needed as of the last event: their number by profile.
    needed: Vec<(ResourceProfile, u32)>,
    declared: Option<Arc<Needs>>,
    /// The part of the needs that no TaskManager could ever fulfil, according to the ResourceManager.
    unfulfillable: Option<Box<Unfulfillable>>,
    /// Since when slots are collected to place several regions in one write.
    collecting_since_ms: Option<u64>,
    /// The version of the graph's reads at which inputs were checked for being available.
    checked_reads: u64,
    /// Number of slots from which on a driver starts no more TaskManagers.
    max_slots: Option<u32>,
}

impl Slots {
    /// No slots.
    pub(super) fn new(options: &CoreOptions) -> Slots {
        Slots {
            request_timeout_ms: options.slot_request_timeout_ms,
            idle_timeout_ms: options.slot_idle_timeout_ms,
            pool: SlotPool::default(),
            adopted: AdoptedSlots::default(),
            wait: SlotWait::new(options.slot_request_timeout_ms),
            held_before: 0,
            needed: Vec::new(),
            declared: None,
            unfulfillable: None,
            collecting_since_ms: None,
            checked_reads: 0,
            max_slots: options.max_slots,
        }
    }

    /// The held slots.
    pub(super) fn pool(&self) -> &SlotPool {
        &self.pool
    }

    /// The wait for slots.
    pub(super) fn wait(&self) -> &SlotWait {
        &self.wait
    }

    /// Timeout of a region's wait for slots.
    pub(super) fn request_timeout_ms(&self) -> u64 {
        self.request_timeout_ms
    }

    /// To be called before an event is applied. `will_free_slots`: whether a region runs that ends by itself.
    pub(super) fn begin_event(&mut self, will_free_slots: bool, now_ms: u64) {
        self.held_before = self.pool.len();
        self.wait.begin_event(will_free_slots, now_ms);
    }

    /// Whether slots were added by the present event.
    pub(super) fn has_more(&self) -> bool {
        self.pool.len() > self.held_before
    }

    /// Accepts or rejects an offered slot. See [`SlotPool::offer`].
    pub(super) fn offer(
        &mut self,
        task_manager: &ResourceId,
        allocation: AllocationId,
        index: u32,
        profile: ResourceProfile,
        turn: u64,
    ) -> OfferAnswer {
        self.pool
            .offer(task_manager, allocation, index, profile, turn)
    }

    /// Removes a slot that is lost or given back.
    pub(super) fn remove(&mut self, allocation: &AllocationId) -> Option<PoolSlot> {
        self.pool.remove(allocation)
    }

    /// Removes the slots of a TaskManager whose registration has ended.
    pub(super) fn remove_all_of(&mut self, task_manager: &ResourceId) {
        self.pool.remove_all_of(task_manager);
    }

    /// Accepts slots of a TaskManager again that were given back under its earlier registration.
    pub(super) fn forget_released(&mut self, task_manager: &ResourceId) {
        self.pool.forget_released(task_manager);
    }

    /// Remembers the slot of a key, so that its next execution goes back there.
    pub(super) fn remember(
        &mut self,
        key: SlotKey,
        task_manager: ResourceId,
        allocation: AllocationId,
    ) {
        self.pool.remember(key, task_manager, allocation);
    }

    /// Forgets the former slots of these keys, which are placed.
    pub(super) fn forget_former(&mut self, keys: &[SlotKey]) {
        self.pool.forget_former(keys);
    }

    /// Notes that an execution has this slot or will have it.
    pub(super) fn begin_use(&mut self, allocation: AllocationId) {
        self.pool.begin_use(allocation);
    }

    /// Notes that an execution does not have this slot any more.
    pub(super) fn end_use(&mut self, allocation: AllocationId) {
        self.pool.end_use(allocation);
    }

    /// Applies changed ends: a slot is in use until the end of its execution is durable.
    pub(super) fn apply_ends(&mut self, changed: &ChangedEnds, graph: &ExecutionGraph) {
        let place = |task: &usize| graph.execution(*task).place.as_ref();
        for place in changed.ended.iter().filter_map(place) {
            self.pool.end_use(place.allocation);
        }
        for place in changed.given_up.iter().filter_map(place) {
            self.pool.begin_use(place.allocation);
        }
    }

    /// Notes the time. Unused slots idle if there is a surplus. Returns those that have idled for their timeout.
    pub(super) fn note_idle(&mut self, is_surplus: bool, now_ms: u64) -> Vec<AllocationId> {
        self.pool
            .note_idle(is_surplus, now_ms, self.idle_timeout_ms)
    }

    /// When the next slot has idled for its timeout.
    pub(super) fn idle_until_ms(&self) -> Option<u64> {
        let since_ms = self.pool.idle_since_ms()?;
        Some(since_ms.saturating_add(self.idle_timeout_ms))
    }

    /// Notes whether the cluster has room for the job's minimum, according to the ResourceManager.
    pub(super) fn set_room(&mut self, has_room: bool) {
        self.wait.set_room(has_room);
    }

    /// Notes that a region timed out for lack of slots.
    pub(super) fn starve(&mut self, region: usize) {
        self.wait.starve(region);
    }

    /// Notes that a region has its slots.
    pub(super) fn serve(&mut self, region: usize) {
        self.wait.serve(region);
    }

    /// Sets the heads of both queues of regions: of those that are short of slots, and of those that wait for slots
    /// which the job has.
    pub(super) fn set_heads(&mut self, short: Option<usize>, waiting: Option<usize>, now_ms: u64) {
        self.wait.set_heads(short, waiting, now_ms);
    }

    /// The part of the needs that no TaskManager could ever fulfil.
    pub(super) fn unfulfillable(&self) -> Option<&Unfulfillable> {
        self.unfulfillable.as_deref()
    }

    /// Notes the ResourceManager's verdict about the needs.
    pub(super) fn set_unfulfillable(&mut self, verdict: Option<Box<Unfulfillable>>) {
        self.unfulfillable = verdict;
    }

    /// The slots needed as of the last event, by profile.
    pub(super) fn needed(&self) -> &[(ResourceProfile, u32)] {
        &self.needed
    }

    /// Sets the needed slots.
    pub(super) fn set_needed(&mut self, needed: Vec<(ResourceProfile, u32)>) {
        self.needed = needed;
    }

    /// The slots that were declared as needed, by profile.
    pub(super) fn declared(&self) -> &[(ResourceProfile, u32)] {
        let declared = self.declared.as_ref();
        declared.map_or(&[], |needs| needs.slots.as_slice())
    }

    /// Declares needs. Returns them if they differ from the last declaration.
    pub(super) fn declare(&mut self, needs: Needs) -> Option<Arc<Needs>> {
        if self.declared.as_deref() == Some(&needs) {
            return None;
        }
        let needs = Arc::new(needs);
        self.declared = Some(needs.clone());
        Some(needs)
    }

    /// Whether anything has changed for readers of outputs since the last call.
    pub(super) fn take_new_reads(&mut self, graph: &ExecutionGraph) -> bool {
        let reads = graph.reads();
        std::mem::replace(&mut self.checked_reads, reads) != reads
    }

    /// Number of slots from which on a driver starts no more TaskManagers. None if there is no driver or no limit.
    pub(super) fn max_slots(&self) -> Option<u32> {
        self.max_slots
    }

    /// Collects slots for a larger batch of regions. Returns whether it is time to place them.
    pub(super) fn collect(&mut self, now_ms: u64) -> bool {
        self.collecting_since_ms.get_or_insert(now_ms);
        self.collecting_until_ms()
            .is_some_and(|until_ms| now_ms >= until_ms)
    }

    /// Ends the collection of slots.
    pub(super) fn stop_collecting(&mut self) {
        self.collecting_since_ms = None;
    }

    /// Until when slots are collected to place a batch of regions.
    pub(super) fn collecting_until_ms(&self) -> Option<u64> {
        let since_ms = self.collecting_since_ms?;
        Some(since_ms.saturating_add(COLLECT_MS))
    }

    /// After a recovery: everything that the record places is of an earlier term.
    pub(super) fn adopt_all(&mut self, graph: &ExecutionGraph) {
        self.adopted.recheck_all(graph);
    }

    /// Notes that an execution, which may be an adopted one, has ended or was given up.
    pub(super) fn recheck_adopted(&mut self, graph: &ExecutionGraph, task: usize) {
        self.adopted.recheck(graph, task);
    }

    /// The slots in which adopted executions are.
    pub(super) fn adopted(&mut self, graph: &ExecutionGraph, record: &DurableRecord) -> Arc<Held> {
        self.adopted.held(graph, record)
    }

    /// Moves the start of all waits by the duration for which this process stood still.
    pub(super) fn put_off(&mut self, by_ms: u64) {
        self.wait.put_off(by_ms);
    }
}
