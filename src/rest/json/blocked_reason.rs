//! Bodies that say why a job does not run: part of `/jobs/:id`, and `/jobs/quarantine`.

use serde::Serialize;
use tanist_proto::v1 as pb;

use super::time;

/// Why not all of a job runs, or what it waits for while it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct BlockedReasonBody {
    /// `no-slots`, `restarting`, `reconciling`, `quarantined`, `store`, `cleaning-up`, `recovering`, `stopping`,
    /// `committing`, `peer-away`, `eviction`.
    pub kind: String,
    /// Text for display.
    pub text: String,
    /// Begin, in milliseconds since 1970; -1: not known.
    pub since: i64,
    /// Time when it ends by itself or is given up; -1: not known.
    pub until: i64,
    /// Time of the next retry, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<i64>,
    /// Number of slots that the job needs, if slots are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_needed: Option<u32>,
    /// Number of slots that are missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_missing: Option<u32>,
    /// The first of the subtasks that have no slot, have not stopped or can't reach their peer, or of the
    /// TaskManagers that are awaited.
    pub missing: Vec<String>,
}

/// `SOME_KIND_NO_SLOTS` without its prefix, as `no-slots`.
fn kind(name: &str, prefix: &str) -> String {
    let name = name.strip_prefix(prefix).unwrap_or(name);
    name.to_lowercase().replace('_', "-")
}

impl BlockedReasonBody {
    /// As reported by the leader.
    pub fn new(blocked_reason: &pb::BlockedReason) -> BlockedReasonBody {
        let of_slots = blocked_reason.kind() == pb::BlockedReasonKind::NoSlots;
        BlockedReasonBody {
            kind: kind(blocked_reason.kind().as_str_name(), "BLOCKED_REASON_KIND_"),
            text: blocked_reason.text.clone(),
            since: time(blocked_reason.since_ms),
            until: time(blocked_reason.until_ms),
            retry_at: (blocked_reason.retry_at_ms != 0).then(|| time(blocked_reason.retry_at_ms)),
            slots_needed: of_slots.then_some(blocked_reason.slots_needed),
            slots_missing: of_slots.then_some(blocked_reason.slots_missing),
            missing: blocked_reason.missing.clone(),
        }
    }
}

/// Why a job is set aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct QuarantineBody {
    /// `unreadable`, `too-new`, `unknown-operator`, `broke`, `ended-process`.
    pub kind: String,
    /// Text for display.
    pub reason: String,
    /// Begin, in milliseconds since 1970.
    pub since: i64,
    /// The evidence, oldest first.
    pub evidence: Vec<EvidenceBody>,
}

/// One piece of evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EvidenceBody {
    /// The term in which it happened.
    pub epoch: u64,
    /// The process that led.
    pub process: String,
    /// Time, in milliseconds since 1970; -1: not known.
    pub at: i64,
    /// What happened.
    pub what: String,
}

impl QuarantineBody {
    /// As reported by the leader.
    pub fn new(quarantine: &pb::Quarantine) -> QuarantineBody {
        let evidence = quarantine.evidence.iter().map(|one| EvidenceBody {
            epoch: one.epoch,
            process: one.process.clone(),
            at: time(one.at_ms),
            what: one.what.clone(),
        });
        QuarantineBody {
            kind: kind(quarantine.kind().as_str_name(), "QUARANTINE_KIND_"),
            reason: quarantine.reason.clone(),
            since: time(quarantine.since_ms),
            evidence: evidence.collect(),
        }
    }
}

/// `/jobs/quarantine`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QuarantineListing {
    /// The jobs that are set aside.
    pub jobs: Vec<QuarantinedJob>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QuarantinedJob {
    /// Its id.
    pub jid: String,
    /// Its name, if that can be read.
    pub name: String,
    /// The reason and the evidence.
    #[serde(flatten)]
    pub quarantine: QuarantineBody,
}

impl QuarantineListing {
    /// Lists those of `jobs` that are set aside.
    pub fn new(jobs: &[pb::JobDetails]) -> QuarantineListing {
        let quarantined = jobs.iter().filter(|job| !job.quarantine.is_empty());
        let of = |job: &pb::JobDetails| {
            let bare = || pb::Quarantine {
                reason: job.quarantine.clone(),
                ..pb::Quarantine::default()
            };
            QuarantinedJob {
                jid: job.job_id.clone(),
                name: job.name.clone(),
                quarantine: QuarantineBody::new(&job.quarantined.clone().unwrap_or_else(bare)),
            }
        };
        QuarantineListing {
            jobs: quarantined.map(of).collect(),
        }
    }
}
