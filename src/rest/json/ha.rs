//! The bodies of `/ha/status`, `/ha/leader` and `/ha/self`: the leader, and all JobManagers with their status.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tanist_ha::clock::wall_clock_ms;
use tanist_ha::election::{LeaderInformation, Member};
use tanist_ha::store::cache::CacheStatus;

use super::store::StoreBody;
use super::warnings::{store_warnings, unreadable_warning, warnings};
use super::{REVISION, VERSION, time};
use crate::process::{HaStatus, Role, TermState};
use crate::rest::view::ClusterView;

/// `/ha/status`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct HaStatusBody {
    /// `etcd`, `zookeeper` or `embedded`.
    pub store: &'static str,
    /// The process that was asked.
    pub process: String,
    /// The role of that process.
    pub role: &'static str,
    /// The youngest epoch that it knows: the leader's, or that of a successor that has not recovered yet.
    pub epoch: u64,
    /// Distinguishes the cluster from another one that its store held before.
    pub cluster_incarnation: Option<String>,
    /// The confirmed leader; `null` while there is none.
    pub leader: Option<LeaderBody>,
    /// The youngest term, as far as this process knows.
    pub term: TermBody,
    /// Every JobManager.
    pub members: Vec<MemberBody>,
    /// Why the members are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members_error: Option<String>,
    /// The health of the store.
    pub store_health: Option<StoreBody>,
    /// Why the health is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_error: Option<String>,
    /// The epochs that messages named to JobManagers, and that their stores do not have.
    pub claims: Vec<ClaimBody>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

/// The state of a term.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TermBody {
    /// `leading`, `suspended`, `recovering`, or `none`: no process is known to lead.
    pub state: &'static str,
    /// The youngest epoch; 0: there was never a leader.
    pub epoch: u64,
    /// The process that has the term; `null` if none is known.
    pub process: Option<String>,
    /// Since when it is led, in milliseconds since 1970; -1 while it is not.
    pub since: i64,
    /// Since when it is in this state, in milliseconds since 1970; -1 if not known.
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
    pub role: String,
    /// The youngest epoch that it knows.
    pub epoch: u64,
    /// The time of its wall clock, in milliseconds since 1970.
    pub wall_clock: u64,
    /// Its warm cache; `null` where it has none, as while it leads.
    pub cache: Option<CacheBody>,
    /// The rights in the store that a leader needs and it lacks, in words; `null`: not known.
    #[serde(default)]
    pub lacking_permissions: Option<Vec<String>>,
    /// What is wrong with the storage of large objects; reported by the leader.
    #[serde(default)]
    pub storage_trouble: Option<String>,
    /// The epochs that messages named to it, and that its store does not have.
    #[serde(default)]
    pub claims: Vec<ClaimBody>,
}

/// An epoch that a message named to a process, and that its store does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClaimBody {
    /// The JobManager that received the message.
    pub process: String,
    /// The sender, as the message names it.
    pub by: String,
    /// The epoch that it named.
    pub epoch: u64,
    /// The youngest epoch of the store at that time.
    pub stored_epoch: u64,
    /// Time of the message, in milliseconds since 1970.
    pub at: u64,
}

/// A warm cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CacheBody {
    /// The change number that it has; `null`: none that could be proven.
    pub change: Option<u64>,
    /// The store's last change, as far as it knows.
    pub newest: Option<u64>,
    /// The number of changes that it is behind the store.
    pub behind: Option<u64>,
    /// Number of records that it knows.
    pub records: u64,
    /// Number of records that it knows by name only, as they don't fit.
    pub named_only: u64,
    /// Size of the records, in bytes.
    pub bytes: u64,
    /// Number of records that were changed in the store by hand since the process began.
    #[serde(default)]
    pub differed: u64,
}

/// The leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LeaderBody {
    /// Its term.
    pub epoch: u64,
    /// The process.
    pub process: String,
    /// `host:port` of its REST server.
    pub rest_address: Option<String>,
    /// `host:port` of its RPC server.
    pub rpc_address: Option<String>,
    /// When it was confirmed, in milliseconds since 1970.
    pub since: u64,
}

/// A JobManager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct MemberBody {
    /// The process.
    pub process: String,
    /// Distinguishes this start of it from earlier ones.
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
    pub role: Option<String>,
    /// Its warm cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheBody>,
    /// Offset of its wall clock, in milliseconds: positive if ahead of that of the process that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_offset: Option<i64>,
    /// The rights in the store that a leader needs and it lacks, in words; `null`: not known.
    pub lacking_permissions: Option<Vec<String>>,
    /// Why it did not report its status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The role in one word.
pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Connecting => "connecting",
        Role::Standby => "standby",
        Role::Recovering => "recovering",
        Role::Leading => "leading",
        Role::Suspended => "suspended",
        Role::Refused => "refused",
    }
}

fn address(addresses: &BTreeMap<String, String>, interface: &str) -> Option<String> {
    addresses.get(interface).cloned()
}

impl From<&LeaderInformation> for LeaderBody {
    fn from(leader: &LeaderInformation) -> LeaderBody {
        LeaderBody {
            epoch: leader.epoch.get(),
            process: leader.process.to_string(),
            rest_address: address(&leader.addresses, "rest"),
            rpc_address: address(&leader.addresses, "rpc"),
            since: leader.since_ms,
        }
    }
}

fn term(status: &HaStatus) -> TermBody {
    let leader = status.leader.leader.as_ref();
    let state = match status.term.state {
        TermState::None => "none",
        TermState::Recovering => "recovering",
        TermState::Leading => "leading",
        TermState::Suspended => "suspended",
    };
    TermBody {
        state,
        epoch: status.leader.epoch.get(),
        process: status.term.process.as_ref().map(ToString::to_string),
        since: leader.map_or(-1, |leader| time(leader.since_ms)),
        state_since: status.term.since_ms.map_or(-1, time),
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

impl From<&CacheStatus> for CacheBody {
    fn from(cache: &CacheStatus) -> CacheBody {
        CacheBody {
            change: cache.change.map(|change| change.number),
            newest: cache.newest.map(|change| change.number),
            behind: cache.lag(),
            records: count(cache.records),
            named_only: count(cache.named_only),
            bytes: count(cache.bytes),
            differed: cache.differed,
        }
    }
}

fn claims(view: &dyn ClusterView) -> Vec<ClaimBody> {
    let process = view.process().to_string();
    let claims = view.claims().into_iter();
    claims
        .map(|claim| ClaimBody {
            process: process.clone(),
            by: claim.teller,
            epoch: claim.epoch.get(),
            stored_epoch: claim.found.get(),
            at: claim.at_ms,
        })
        .collect()
}

impl OwnStatus {
    /// The status of this process.
    pub fn of(view: &dyn ClusterView) -> OwnStatus {
        let role = view.role();
        OwnStatus {
            process: view.process().to_string(),
            version: VERSION.to_owned(),
            revision: REVISION.to_owned(),
            role: role_name(role).to_owned(),
            epoch: view.leader().epoch.get(),
            wall_clock: wall_clock_ms(),
            cache: (role == Role::Standby).then(|| CacheBody::from(&view.cache())),
            lacking_permissions: view.lacking_permissions(),
            claims: claims(view),
            storage_trouble: view.storage_trouble(),
        }
    }
}

impl HaStatusBody {
    /// The view of one JobManager, with the status that the members reported: role, cache, and the offset of
    /// their clock.
    pub fn new(status: &HaStatus, accounts: Vec<Result<(OwnStatus, i64), String>>) -> HaStatusBody {
        let leader = status.leader.leader.as_ref();
        let of_account = |account: &Result<(OwnStatus, i64), String>| {
            let own = account.as_ref().map(|(own, _)| own.claims.clone());
            own.unwrap_or_default()
        };
        let claims = accounts.iter().flat_map(of_account).collect();
        let troubles = accounts
            .iter()
            .filter_map(|account| account.as_ref().ok()?.0.storage_trouble.clone());
        let troubles: Vec<String> = troubles.collect();
        let body = |(member, account): (&Member, Result<(OwnStatus, i64), String>)| {
            let (own, clock_offset, error) = match account {
                Ok((own, offset)) => (Some(own), Some(offset), None),
                Err(error) => (None, None, Some(error)),
            };
            MemberBody {
                process: member.process.to_string(),
                incarnation: member.incarnation.clone(),
                rest_address: address(&member.addresses, "rest"),
                rpc_address: address(&member.addresses, "rpc"),
                version: member.version.clone(),
                leads: leader.is_some_and(|leader| leader.process == member.process),
                role: own.as_ref().map(|own| own.role.clone()),
                lacking_permissions: own.as_ref().and_then(|own| own.lacking_permissions.clone()),
                cache: own.and_then(|own| own.cache),
                clock_offset,
                error,
            }
        };
        let (members, members_error) = match &status.members {
            Ok(members) => (members.iter().zip(accounts).map(body).collect(), None),
            Err(error) => (Vec::new(), Some(error.clone())),
        };
        let incarnation = status.leader.incarnation.as_ref();
        let mut body = HaStatusBody {
            store: status.store,
            process: status.process.to_string(),
            role: role_name(status.role),
            epoch: status.leader.epoch.get(),
            cluster_incarnation: incarnation.map(ToString::to_string),
            leader: leader.map(LeaderBody::from),
            term: term(status),
            members,
            members_error,
            store_health: status.health.as_ref().ok().map(StoreBody::from),
            store_error: status.health.as_ref().err().cloned(),
            claims,
            warnings: Vec::new(),
        };
        body.measure_lag();
        body.warnings = warnings(&body);
        body.warnings
            .extend(status.unreadable.as_deref().map(unreadable_warning));
        body.warnings.extend(troubles);
        if let Ok(health) = &status.health {
            body.warnings.extend(store_warnings(status.store, health));
        }
        body
    }

    /// Computes how far each cache is behind the newest change that any process knows.
    fn measure_lag(&mut self) {
        let caches = || self.members.iter().filter_map(|it| it.cache.as_ref());
        let newest = caches()
            .flat_map(|cache| [cache.change, cache.newest])
            .flatten()
            .max();
        for cache in self.members.iter_mut().filter_map(|it| it.cache.as_mut()) {
            cache.behind = newest.zip(cache.change).map(|(newest, at)| newest - at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(change: Option<u64>, newest: Option<u64>) -> CacheBody {
        CacheBody {
            change,
            newest,
            behind: None,
            records: 0,
            named_only: 0,
            bytes: 0,
            differed: 0,
        }
    }

    fn member(cache: Option<CacheBody>) -> MemberBody {
        MemberBody {
            process: "jm".to_owned(),
            incarnation: "i".to_owned(),
            rest_address: None,
            rpc_address: None,
            version: VERSION.to_owned(),
            leads: cache.is_none(),
            role: None,
            cache,
            clock_offset: None,
            lacking_permissions: None,
            error: None,
        }
    }

    /// The reported lag of each.
    fn lags(caches: Vec<Option<CacheBody>>) -> Vec<Option<u64>> {
        let mut body = HaStatusBody {
            store: "etcd",
            process: "jm".to_owned(),
            role: "standby",
            epoch: 1,
            cluster_incarnation: None,
            leader: None,
            term: TermBody {
                state: "none",
                epoch: 1,
                process: None,
                since: -1,
                state_since: -1,
            },
            members: caches.into_iter().map(member).collect(),
            members_error: None,
            store_health: None,
            store_error: None,
            claims: Vec::new(),
            warnings: Vec::new(),
        };
        body.measure_lag();
        let of_cache = |it: MemberBody| it.cache.and_then(|cache| cache.behind);
        body.members.into_iter().map(of_cache).collect()
    }

    #[test]
    fn a_cache_is_behind_the_newest_change_that_anybody_was_told_of() {
        // The second knows of 9 and has read 7; the third does not know of 9.
        let caches = [(Some(9), Some(9)), (Some(7), Some(9)), (Some(6), Some(6))];
        let members = caches.map(|(change, newest)| Some(cache(change, newest)));
        assert_eq!(lags(members.to_vec()), [Some(0), Some(2), Some(3)]);
        // Only a process that has read nothing yet knows of 12.
        let members = vec![Some(cache(None, Some(12))), Some(cache(Some(9), Some(9)))];
        assert_eq!(lags(members), [None, Some(3)]);
    }

    #[test]
    fn who_has_no_cache_is_not_behind() {
        let members = vec![None, Some(cache(Some(4), None))];
        assert_eq!(lags(members), [None, Some(0)]);
        assert_eq!(lags(vec![Some(cache(None, None))]), [None]);
    }
}
