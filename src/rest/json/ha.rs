//! The bodies of `/ha/status`, `/ha/leader` and `/ha/self`: who leads, who could, and how each of them stands.

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
    /// How it stands.
    pub role: &'static str,
    /// The youngest epoch that it has heard of; the leader's, or that of a successor who has yet to recover.
    pub epoch: u64,
    /// Tells the cluster from another one that its store held before.
    pub cluster_incarnation: Option<String>,
    /// The confirmed leader; `null` while there is none.
    pub leader: Option<LeaderBody>,
    /// How the youngest term stands, as far as this process knows.
    pub term: TermBody,
    /// Every JobManager.
    pub members: Vec<MemberBody>,
    /// Why the members are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members_error: Option<String>,
    /// How the store is.
    pub store_health: Option<StoreBody>,
    /// Why that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_error: Option<String>,
    /// The epochs that messages told JobManagers of, and that their stores do not have.
    pub claims: Vec<ClaimBody>,
    /// What an operator should look after.
    pub warnings: Vec<String>,
}

/// How a term stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TermBody {
    /// `leading`, `suspended`, `recovering`, or `none`: nobody is known to lead.
    pub state: &'static str,
    /// The youngest epoch; 0: nobody has ever led.
    pub epoch: u64,
    /// Whose it is; `null` where nobody is known to have it.
    pub process: Option<String>,
    /// Since when it is led, in milliseconds since 1970; -1 while it is not.
    pub since: i64,
    /// Since when it stands so, in milliseconds since 1970; -1 where that is not known.
    pub state_since: i64,
}

/// What a process says of itself: `/ha/self`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct OwnStanding {
    /// The process.
    pub process: String,
    /// Its version.
    pub version: String,
    /// The revision that it was built from.
    pub revision: String,
    /// How it stands.
    pub role: String,
    /// The youngest epoch that it has heard of.
    pub epoch: u64,
    /// What its clock says, in milliseconds since 1970.
    pub wall_clock: u64,
    /// Its warm cache; `null` where it has none, as while it leads.
    pub cache: Option<CacheBody>,
    /// What a leader must be allowed in the store and it is not, in words; `null`: it does not know.
    #[serde(default)]
    pub lacking_permissions: Option<Vec<String>>,
    /// What is wrong with the storage of large objects, said by the leader.
    #[serde(default)]
    pub storage_trouble: Option<String>,
    /// The epochs that messages told it of, and that its store does not have.
    #[serde(default)]
    pub claims: Vec<ClaimBody>,
}

/// An epoch that a message told a process of, and that its store does not have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClaimBody {
    /// The JobManager that was told.
    pub process: String,
    /// Who told it, as the message names its sender.
    pub by: String,
    /// The epoch that it named.
    pub epoch: u64,
    /// The youngest epoch of the store then.
    pub stored_epoch: u64,
    /// When that was, in milliseconds since 1970.
    pub at: u64,
}

/// A warm cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CacheBody {
    /// The change that it stands at; `null`: it stands at none that could be proven.
    pub change: Option<u64>,
    /// The store's last change, as far as it was told.
    pub newest: Option<u64>,
    /// Changes that it is behind the store.
    pub behind: Option<u64>,
    /// Records that it knows.
    pub records: u64,
    /// Those of them that it knows by name only, as they don't fit.
    pub named_only: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// Records that somebody had changed in the store by hand, since the process began.
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
    /// Tells this start of it from earlier ones.
    pub incarnation: String,
    /// `host:port` of its REST server.
    pub rest_address: Option<String>,
    /// `host:port` of its RPC server.
    pub rpc_address: Option<String>,
    /// Its version.
    pub version: String,
    /// Whether it is the leader.
    pub leads: bool,
    /// How it stands by its own account; `null` where it gave none.
    pub role: Option<String>,
    /// Its warm cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheBody>,
    /// By how many milliseconds its wall clock is ahead of that of the process that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_offset: Option<i64>,
    /// What a leader must be allowed in the store and it is not, in words; `null`: not known.
    pub lacking_permissions: Option<Vec<String>>,
    /// Why it gave no account of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A role in a word.
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

impl OwnStanding {
    /// What this process says of itself.
    pub fn of(view: &dyn ClusterView) -> OwnStanding {
        let role = view.role();
        OwnStanding {
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
    /// What one JobManager knows, with what the members said of themselves: role, cache, and how far their clock is ahead.
    pub fn new(
        status: &HaStatus,
        accounts: Vec<Result<(OwnStanding, i64), String>>,
    ) -> HaStatusBody {
        let leader = status.leader.leader.as_ref();
        let of_account = |account: &Result<(OwnStanding, i64), String>| {
            let own = account.as_ref().map(|(own, _)| own.claims.clone());
            own.unwrap_or_default()
        };
        let claims = accounts.iter().flat_map(of_account).collect();
        let troubles = accounts
            .iter()
            .filter_map(|account| account.as_ref().ok()?.0.storage_trouble.clone());
        let troubles: Vec<String> = troubles.collect();
        let body = |(member, account): (&Member, Result<(OwnStanding, i64), String>)| {
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

    /// How far each cache is behind the newest change that any process was told of.
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

    /// How far behind each is said to be.
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
        // The second was told of 9 and has read 7; the third does not know of it.
        let caches = [(Some(9), Some(9)), (Some(7), Some(9)), (Some(6), Some(6))];
        let members = caches.map(|(change, newest)| Some(cache(change, newest)));
        assert_eq!(lags(members.to_vec()), [Some(0), Some(2), Some(3)]);
        // Nobody but one that has read nothing yet was told of 12.
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
