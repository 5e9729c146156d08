//! Why a job does not run: part of `/jobs/:id`, and `/jobs/quarantine`.

use tanist_proto::v1 as pb;
use tanist_rest_model::{BlockedReason, Evidence, Quarantine, QuarantineList, QuarantinedJob};

use super::{job_id, time};

/// `SOME_KIND_NO_SLOTS` without its prefix, as `no-slots`.
fn kind(name: &str, prefix: &str) -> String {
    let name = name.strip_prefix(prefix).unwrap_or(name);
    name.to_lowercase().replace('_', "-")
}

/// As reported by the leader.
pub(super) fn blocked_reason(reason: &pb::BlockedReason) -> BlockedReason {
    let of_slots = reason.kind() == pb::BlockedReasonKind::NoSlots;
    BlockedReason {
        kind: kind(reason.kind().as_str_name(), "BLOCKED_REASON_KIND_"),
        text: reason.text.clone(),
        since: time(reason.since_ms),
        until: time(reason.until_ms),
        retry_at: (reason.retry_at_ms != 0).then(|| time(reason.retry_at_ms)),
        slots_needed: of_slots.then_some(reason.slots_needed),
        slots_missing: of_slots.then_some(reason.slots_missing),
        missing: reason.missing.clone(),
    }
}

/// As reported by the leader.
pub(super) fn quarantine(quarantine: &pb::Quarantine) -> Quarantine {
    let evidence = quarantine.evidence.iter().map(|one| Evidence {
        epoch: one.epoch,
        process: one.process.clone(),
        at: time(one.at_ms),
        what: one.what.clone(),
    });
    Quarantine {
        kind: kind(quarantine.kind().as_str_name(), "QUARANTINE_KIND_"),
        reason: quarantine.reason.clone(),
        since: time(quarantine.since_ms),
        evidence: evidence.collect(),
    }
}

/// Lists those of `jobs` that are quarantined.
pub(crate) fn quarantine_list(jobs: &[pb::JobDetails]) -> QuarantineList {
    let quarantined = jobs.iter().filter(|job| !job.quarantine.is_empty());
    let of = |job: &pb::JobDetails| {
        let bare = || pb::Quarantine {
            reason: job.quarantine.clone(),
            ..pb::Quarantine::default()
        };
        QuarantinedJob {
            jid: job_id(&job.job_id),
            name: job.name.clone(),
            quarantine: quarantine(&job.quarantined.clone().unwrap_or_else(bare)),
        }
    };
    QuarantineList {
        jobs: quarantined.map(of).collect(),
    }
}
