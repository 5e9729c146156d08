//! The bodies of `/ha/status`, `/ha/leader` and `/ha/self`: the leader, and all JobManagers with their status.

use std::collections::BTreeMap;

use tanist_ha::clock::wall_clock_ms;
use tanist_ha::election::{LeaderInformation, Member};
use tanist_ha::store::cache::CacheStatus;
use tanist_leadership::{HaStatus, Role, TermState};
use tanist_rest_model::{
    CacheInfo, ClaimInfo, HaStatusInfo, LeaderInfo, MemberInfo, OwnStatus, TermInfo,
};

use super::store::store_info;
use super::warnings::{unreadable_warning, warnings};
use super::{REVISION, VERSION, time};
use crate::view::ClusterView;

/// The role in one word.
pub(crate) fn role_name(role: Role) -> &'static str {
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

/// As known to this process.
pub(crate) fn leader_info(leader: &LeaderInformation) -> LeaderInfo {
    LeaderInfo {
        epoch: leader.epoch.get(),
        process: leader.process.to_string(),
        rest_address: address(&leader.addresses, "rest"),
        rpc_address: address(&leader.addresses, "rpc"),
        since: leader.since_ms,
    }
}

fn term(status: &HaStatus) -> TermInfo {
    let leader = status.leader.leader.as_ref();
    let state = match status.term.state {
        TermState::None => "none",
        TermState::Recovering => "recovering",
        TermState::Leading => "leading",
        TermState::Suspended => "suspended",
    };
    TermInfo {
        state: state.into(),
        epoch: status.leader.epoch.get(),
        process: status.term.process.as_ref().map(ToString::to_string),
        since: leader.map_or(-1, |leader| time(leader.since_ms)),
        state_since: status.term.since_ms.map_or(-1, time),
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn cache_info(cache: &CacheStatus) -> CacheInfo {
    CacheInfo {
        change: cache.change.map(|change| change.number),
        newest: cache.newest.map(|change| change.number),
        behind: cache.lag(),
        records: count(cache.records),
        named_only: count(cache.named_only),
        bytes: count(cache.bytes),
        differed: cache.differed,
    }
}

fn claims(view: &dyn ClusterView) -> Vec<ClaimInfo> {
    let process = view.process().to_string();
    let claims = view.claims().into_iter();
    claims
        .map(|claim| ClaimInfo {
            process: process.clone(),
            by: claim.sender,
            epoch: claim.epoch.get(),
            stored_epoch: claim.found.get(),
            at: claim.at_ms,
        })
        .collect()
}

/// The status of this process.
pub(crate) fn own_status(view: &dyn ClusterView) -> OwnStatus {
    let role = view.role();
    OwnStatus {
        process: view.process().to_string(),
        version: VERSION.to_owned(),
        revision: REVISION.to_owned(),
        role: role_name(role).into(),
        epoch: view.leader().epoch.get(),
        wall_clock: wall_clock_ms(),
        cache: (role == Role::Standby).then(|| cache_info(&view.cache())),
        missing_permissions: view.missing_permissions(),
        claims: claims(view),
        storage_problem: view.storage_problem(),
    }
}

/// A process's account of itself, with the offset of its clock; else why there is none.
type StatusReport = Result<(OwnStatus, i64), String>;

/// The view of one JobManager, with the accounts of the members: role, cache, and the offset of their clock.
pub(crate) fn ha_status(status: &HaStatus, reports: Vec<StatusReport>) -> HaStatusInfo {
    let leader = status.leader.leader.as_ref();
    let known = || reports.iter().filter_map(|report| report.as_ref().ok());
    let claims = known().flat_map(|(own, _)| own.claims.clone()).collect();
    let problems: Vec<String> = known()
        .filter_map(|(own, _)| own.storage_problem.clone())
        .collect();
    let member_info = |(member, report): (&Member, StatusReport)| {
        let (own, clock_offset, error) = match report {
            Ok((own, offset)) => (Some(own), Some(offset), None),
            Err(error) => (None, None, Some(error)),
        };
        MemberInfo {
            process: member.process.to_string(),
            incarnation: member.incarnation.clone(),
            rest_address: address(&member.addresses, "rest"),
            rpc_address: address(&member.addresses, "rpc"),
            version: member.version.clone(),
            leads: leader.is_some_and(|leader| leader.process == member.process),
            role: own.as_ref().map(|own| own.role.clone()),
            missing_permissions: own.as_ref().and_then(|own| own.missing_permissions.clone()),
            cache: own.and_then(|own| own.cache),
            clock_offset,
            error,
        }
    };
    let (mut members, members_error) = match &status.members {
        Ok(members) => {
            let members = members.iter().zip(reports).map(member_info);
            (members.collect(), None)
        }
        Err(error) => (Vec::new(), Some(error.clone())),
    };
    measure_lag(&mut members);
    let incarnation = status.leader.incarnation.as_ref();
    let mut info = HaStatusInfo {
        store: status.store.to_owned(),
        process: status.process.to_string(),
        role: role_name(status.role).into(),
        epoch: status.leader.epoch.get(),
        cluster_incarnation: incarnation.map(ToString::to_string),
        leader: leader.map(leader_info),
        term: term(status),
        members,
        members_error,
        store_health: status.health.as_ref().ok().map(store_info),
        store_error: status.health.as_ref().err().cloned(),
        claims,
        warnings: Vec::new(),
    };
    info.warnings = warnings(&info);
    info.warnings
        .extend(status.unreadable.as_deref().map(unreadable_warning));
    info.warnings.extend(problems);
    if let Ok(health) = &status.health {
        info.warnings.extend(health.warnings());
    }
    info
}

/// Computes how far each cache is behind the newest change that any process knows.
fn measure_lag(members: &mut [MemberInfo]) {
    let caches = members.iter().filter_map(|it| it.cache.as_ref());
    let newest = caches
        .flat_map(|cache| [cache.change, cache.newest])
        .flatten()
        .max();
    for cache in members.iter_mut().filter_map(|it| it.cache.as_mut()) {
        cache.behind = newest.zip(cache.change).map(|(newest, at)| newest - at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(change: Option<u64>, newest: Option<u64>) -> CacheInfo {
        CacheInfo {
            change,
            newest,
            ..CacheInfo::default()
        }
    }

    /// The reported lag of each.
    fn lags(caches: Vec<Option<CacheInfo>>) -> Vec<Option<u64>> {
        let member = |cache| MemberInfo {
            cache,
            ..MemberInfo::default()
        };
        let mut members: Vec<MemberInfo> = caches.into_iter().map(member).collect();
        measure_lag(&mut members);
        let of_cache = |it: MemberInfo| it.cache.and_then(|cache| cache.behind);
        members.into_iter().map(of_cache).collect()
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
