//! Why a savepoint could not begin soon: regions of the job have no slots, or restart much later (`docs/adr/0061`). A
//! request is refused with this reason instead of waiting for its timeout. Pure; decides nothing.

use super::JobMasterCore;
use super::execution_graph::RegionPhase;

/// Time in ms for which a savepoint waits for a region without slots, or for one that restarts. Mostly there are slots
/// by then, e.g. after a move, the loss of a TaskManager, or a change of the leader.
const LONG_WAIT_MS: u64 = 5_000;

impl JobMasterCore {
    /// Why no savepoint can begin soon: the vertices of a region that does not run, and what the job waits for. None:
    /// no region waits for long; or a region is being started, the record is not durable, or the job reconciles, stops
    /// or has ended. If no TaskManager can provide the slots (`is_hopeless`), the wait counts as long at once.
    pub fn savepoint_obstacle(&self, now_ms: u64) -> Option<String> {
        let is_known = self.record.is_durable() && !self.is_reconciling();
        if !is_known || self.record.is_stopping() || self.end.has_ended() || self.is_starting() {
            return None;
        }
        let without_slots = self.without_slots().filter(|it| it.slots_missing > 0);
        let is_long = |since_ms: u64| now_ms >= since_ms.saturating_add(LONG_WAIT_MS);
        // No TaskManager can provide the slots: a wait counts as long at once.
        let is_hopeless = self.slots.unfulfillable().is_some();
        let mut regions = self.graph.regions().iter().enumerate();
        let (region, why) = regions.find_map(|(region, at)| {
            let waits = match at.phase {
                RegionPhase::Waiting { since_ms } if is_hopeless || is_long(since_ms) => {
                    without_slots.as_ref().map(|it| it.text.clone())
                }
                RegionPhase::Stopping {
                    restart_at_ms: Some(at_ms),
                } if now_ms.saturating_add(LONG_WAIT_MS) < at_ms => {
                    self.restarting().map(|it| it.text)
                }
                RegionPhase::Waiting { .. }
                | RegionPhase::Stopping { .. }
                | RegionPhase::AwaitingInput
                | RegionPhase::Reconciling
                | RegionPhase::Placed
                | RegionPhase::Deployed => None,
            };
            Some((region, waits?))
        })?;
        let vertices = self.vertices_of(region).join(", ");
        Some(format!("the region of {vertices} does not run: {why}"))
    }

    /// Whether a region has its slots, and not all of its tasks run yet.
    fn is_starting(&self) -> bool {
        let mut regions = self
            .graph
            .regions()
            .iter()
            .zip(&self.graph.indexes().regions);
        regions.any(|(at, tally)| match at.phase {
            RegionPhase::Placed => true,
            RegionPhase::Deployed => tally.running < tally.live,
            RegionPhase::AwaitingInput
            | RegionPhase::Waiting { .. }
            | RegionPhase::Reconciling
            | RegionPhase::Stopping { .. } => false,
        })
    }
}
