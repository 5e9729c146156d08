//! High availability: `/ha/status`, `/ha/leader`, `/ha/self`, `/ha/history`, and the request to hand over.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Word;

/// `/ha/status`: the election as known to the JobManager that was asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HaStatusInfo {
    /// `etcd`, `zookeeper` or `embedded`.
    pub store: String,
    /// The process that was asked.
    pub process: String,
    /// The role of that process.
    #[serde(default)]
    pub role: Word,
    /// The youngest epoch that it knows: the leader's, or that of a successor that has not recovered yet.
    #[serde(default)]
    pub epoch: u64,
    /// Distinguishes the cluster from another one that its store held before.
    pub cluster_incarnation: Option<String>,
    /// The confirmed leader; `null` while there is none.
    pub leader: Option<LeaderInfo>,
    /// The youngest term, as far as this process knows.
    pub term: TermInfo,
    /// Every JobManager.
    pub members: Vec<MemberInfo>,
    /// Why the members are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members_error: Option<String>,
    /// The health of the store.
    pub store_health: Option<StoreInfo>,
    /// Why the health is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_error: Option<String>,
    /// The epochs that messages named to JobManagers, and that their stores do not have.
    #[serde(default)]
    pub claims: Vec<ClaimInfo>,
    /// Warnings for the operator.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// The state of a term.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TermInfo {
    /// `leading`, `suspended`, `recovering`, or `none`: no process is known to lead.
    pub state: Word,
    /// The youngest epoch; 0: there was never a leader.
    pub epoch: u64,
    /// The process that has the term; `null` if none is known.
    pub process: Option<String>,
    /// Since when it is led; -1 while it is not.
    pub since: i64,
    /// Since when it is in this state; -1: unknown.
    pub state_since: i64,
}

/// The status of a process, reported by itself: `/ha/self`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct OwnStatus {
    /// The process.
    pub process: String,
    /// Its version.
    pub version: String,
    /// The revision from which it was built.
    pub revision: String,
    /// Its role.
    pub role: Word,
    /// The youngest epoch that it knows.
    pub epoch: u64,
    /// The time of its wall clock.
    pub wall_clock: u64,
    /// Its warm cache; `null` where it has none, as while it leads.
    pub cache: Option<CacheInfo>,
    /// The rights in the store that a leader needs and it lacks, in words; `null`: unknown.
    pub missing_permissions: Option<Vec<String>>,
    /// What is wrong with the storage of large objects; reported by the leader.
    pub storage_problem: Option<String>,
    /// The epochs that messages named to it, and that its store does not have.
    #[serde(default)]
    pub claims: Vec<ClaimInfo>,
}

/// An epoch that a message named to a process, and that its store does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClaimInfo {
    /// The JobManager that received the message.
    pub process: String,
    /// The sender, as the message names it.
    pub by: String,
    /// The epoch that it named.
    pub epoch: u64,
    /// The youngest epoch of the store at that time.
    pub stored_epoch: u64,
    /// Time of the message.
    pub at: u64,
}

/// A warm cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CacheInfo {
    /// The change number that it has; `null`: none that could be proven.
    pub change: Option<u64>,
    /// The store's last change, as far as it knows.
    pub newest: Option<u64>,
    /// The number of changes that it is behind the store.
    pub behind: Option<u64>,
    /// Number of records that it knows.
    pub records: u64,
    /// Number of records that it knows by name only, as they don't fit.
    #[serde(default)]
    pub named_only: u64,
    /// Size of the records, in bytes.
    pub bytes: u64,
    /// Number of records that were changed in the store by hand since the process began.
    #[serde(default)]
    pub differed: u64,
}

/// A leader: `/ha/leader`, and the answer to a [`TransferRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LeaderInfo {
    /// Epoch of its term.
    pub epoch: u64,
    /// The process.
    pub process: String,
    /// `host:port` of its REST server.
    pub rest_address: Option<String>,
    /// `host:port` of its RPC server.
    pub rpc_address: Option<String>,
    /// When it was confirmed.
    pub since: u64,
}

/// A JobManager.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MemberInfo {
    /// The process.
    pub process: String,
    /// Distinguishes this start of it from earlier ones.
    #[serde(default)]
    pub incarnation: String,
    /// `host:port` of its REST server.
    pub rest_address: Option<String>,
    /// `host:port` of its RPC server.
    pub rpc_address: Option<String>,
    /// Its version.
    pub version: String,
    /// Whether it is the leader.
    pub leads: bool,
    /// Its role as reported by itself; `null` if it did not answer.
    pub role: Option<Word>,
    /// Its warm cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheInfo>,
    /// Offset of its wall clock, in milliseconds: positive if ahead of that of the process that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_offset: Option<i64>,
    /// The rights in the store that a leader needs and it lacks, in words; `null`: unknown.
    pub missing_permissions: Option<Vec<String>>,
    /// Why it did not report its status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The health of the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct StoreInfo {
    /// Latency of a linearizable read, in milliseconds.
    pub latency: f64,
    /// Size of its data, in bytes.
    pub size_bytes: Option<u64>,
    /// Size in bytes above which it accepts no writes.
    pub quota_bytes: Option<u64>,
    /// Whether the quota was not reported and is the store's default.
    #[serde(default)]
    pub quota_assumed: bool,
    /// Lower bound of the old revisions of its data, if it keeps very many.
    pub revisions_kept: Option<u64>,
    /// Free bytes on its disk, if that is on the host of the process that was asked.
    pub free_bytes: Option<u64>,
    /// Alarms that it has raised, by its own names.
    #[serde(default)]
    pub alarms: Vec<String>,
    /// Its servers.
    #[serde(default)]
    pub servers: Vec<StoreServerInfo>,
    /// What could not be determined, and why.
    #[serde(default)]
    pub unknown: Vec<String>,
}

/// A server of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreServerInfo {
    /// Its name or address.
    pub name: String,
    /// `leader`, `follower`, `standalone`, `unknown` or `unreachable`.
    pub role: Word,
    /// Its version.
    pub version: Option<String>,
    /// Why it is unreachable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// `/ha/history`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TermList {
    /// The terms whose records are kept, newest first.
    pub terms: Vec<TermHistory>,
}

/// A term, present or past, and the steps of its takeover.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TermHistory {
    /// Its epoch.
    pub epoch: u64,
    /// The process that led.
    pub process: String,
    /// When it was confirmed.
    pub since: u64,
    /// When its successor was confirmed; -1 while it goes on.
    #[serde(default)]
    pub ended: i64,
    /// Its duration in milliseconds: until the next term was confirmed, else until now.
    pub duration: i64,
    /// How it ended: `transferred`, `resigned`, `deposed`, `expired`, or `replaced` if that was not recorded.
    pub ended_how: Option<Word>,
    /// The evidence for the end of the previous term, for example `process-gone`.
    pub detected_by: Option<Word>,
    /// `leading` if the JobMasters of all recovered jobs have begun, else `recovering`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Word>,
    /// Number of jobs that it recovered.
    pub jobs: usize,
    /// Milliseconds of the takeover's steps by name. `noticed`: from the former leader's last heartbeat until
    /// its loss was detected; `deposed`: from then to the grant; the others from the grant to the end of each.
    pub phases: BTreeMap<Word, f64>,
    /// Where the records of the jobs came from.
    pub recovery: Option<RecoveryInfo>,
    /// Number of tasks that went on running.
    pub tasks_adopted: Option<usize>,
    /// Number of tasks that had to be started again.
    pub tasks_restarted: Option<usize>,
    /// Whether the former leader was seen alive after it was deposed uninvited.
    pub false_alarm: Option<bool>,
}

/// Where a leader's records came from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RecoveryInfo {
    /// How the standby's cache was proven.
    pub proof: serde_json::Value,
    /// Number of records that it held.
    pub from_cache: usize,
    /// Number of records that were read from the store.
    pub read: usize,
}

/// Request that the leader hands over. All of it may be left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransferRequest {
    /// The process that shall lead; without it the most current standby.
    pub to: Option<String>,
    /// The epoch whose leader shall hand over. If there is a younger one, nothing has to be done any more, so that the
    /// request may be repeated.
    pub epoch: Option<u64>,
}
