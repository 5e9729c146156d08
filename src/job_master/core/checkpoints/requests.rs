//! The requests for savepoints as a record has them. Pure functions.
//!
//! A request is for the snapshots numbered from its `from` on. No number from there on was given out before the request
//! was durable, so each of these numbers was triggered with the request's flags.

use tanist_gateway::savepoints::is_open;
use tanist_proto::v1 as pb;

use super::attempt::Flags;
use crate::core::faults::{Fault, is_planted};

/// Number of requests that a record keeps, open ones among them. While this many are open, further ones are refused.
pub(super) const KEPT: usize = 16;

/// Whether any request has no outcome.
pub(super) fn is_any_open(requests: &[pb::SavepointRequest]) -> bool {
    requests.iter().any(is_open)
}

/// The request with which the job stops, unless it has failed. While there is one, sources that paused stay so.
pub fn stop_of(requests: &[pb::SavepointRequest]) -> Option<&pb::SavepointRequest> {
    let fails = |it: &pb::SavepointRequest| it.progress() == pb::SavepointProgress::Failed;
    requests.iter().find(|it| it.stops && !fails(it))
}

/// Whether the checkpoint that the job stops with is complete. No later checkpoint is written: its output would become
/// visible, and the job that begins from the savepoint would produce it again.
pub(super) fn is_last_complete(requests: &[pb::SavepointRequest]) -> bool {
    let is_planted = is_planted(Fault::CheckpointAfterStop);
    stop_of(requests).is_some_and(|stop| stop.number > 0) && !is_planted
}

/// The path of the savepoint with which the job stops, once that is complete.
pub fn stops_with(record: &pb::JobCheckpoints) -> Option<&str> {
    let stop = stop_of(&record.requests)?;
    (stop.progress() == pb::SavepointProgress::Completed).then_some(&*stop.outcome)
}

/// The trigger id of the request with which the job stops, unless that has failed.
pub fn stop_request(record: &pb::JobCheckpoints) -> Option<&str> {
    stop_of(&record.requests).map(|stop| &*stop.trigger_id)
}

/// Whether a region whose newest snapshot has the number `newest` lacks one that a request waits for.
pub(super) fn lacks_snapshot(requests: &[pb::SavepointRequest], newest: u64) -> bool {
    requests.iter().any(|it| waits(it) && newest < it.from)
}

fn waits(request: &pb::SavepointRequest) -> bool {
    request.progress() == pb::SavepointProgress::Requested
}

/// The flags of a number. Each number that may become part of a savepoint has the flag, also at a region that already
/// has a snapshot for the savepoint: the later snapshot replaces that one, and needs complete output too.
pub(super) fn flags_of(requests: &[pb::SavepointRequest], number: u64) -> Flags {
    let mut all = requests.iter();
    Flags {
        is_savepoint: all.any(|it| waits(it) && it.from <= number),
        pauses: stop_of(requests).is_some_and(|stop| stop.from <= number),
    }
}

/// The regions of a manifest that have neither a snapshot numbered from `from` on nor an end.
pub(super) fn regions_without(manifest: &pb::CheckpointManifest, from: u64) -> Vec<usize> {
    let has = |region: &pb::RegionSnapshot| {
        let is_new = region.number >= from;
        let is_taken = region.kind() == pb::RegionSnapshotKind::Taken;
        is_taken && (is_new || region.subtasks.iter().all(|subtask| subtask.ended))
    };
    let regions = manifest.regions.iter().enumerate();
    let without = regions.filter(|(_, region)| !has(region));
    without.map(|(region, _)| region).collect()
}

/// Drops the oldest requests that have an outcome, until no more than [`KEPT`] are left. A job that stops keeps the
/// request that it stops with.
pub(super) fn trim(requests: &mut Vec<pb::SavepointRequest>) {
    let stop = stop_of(requests).map(|stop| stop.trigger_id.clone());
    let may_go = |it: &pb::SavepointRequest| !is_open(it) && Some(&it.trigger_id) != stop.as_ref();
    while requests.len() > KEPT
        && let Some(oldest) = requests.iter().position(may_go)
    {
        requests.remove(oldest);
    }
}
