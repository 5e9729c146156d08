//! Warnings for the operator in `/ha/status`. Pure, from the content of the status.

use std::collections::BTreeSet;

use tanist_ha::store::health::StoreHealth;
use tanist_rest_model::HaStatusInfo;

/// Clock difference from which a warning is given: people compare times of different processes.
const LARGE_CLOCK_OFFSET_MS: i64 = 1000;
/// Number of changes that a standby may be behind without a warning: the size of the store's ring of changes.
const LARGE_LAG: u64 = 1024;

/// One text for each warning.
pub(super) fn warnings(status: &HaStatusInfo) -> Vec<String> {
    let mut warnings = Vec::new();
    match &*status.term.state {
        "suspended" => warnings.push(
            "the leader's term is suspended: the store does not confirm it; running tasks go on, nothing new is decided"
                .to_owned(),
        ),
        "none" => warnings.push("no JobManager is known to lead".to_owned()),
        _ => {}
    }
    if status.members_error.is_none() && status.members.len() == 1 {
        warnings.push(
            "there is no standby: while the only JobManager is away no process leads; start another one"
                .to_owned(),
        );
    }
    let versions: BTreeSet<&str> = status.members.iter().map(|it| &*it.version).collect();
    if versions.len() > 1 {
        let versions: Vec<&str> = versions.into_iter().collect();
        warnings.push(format!(
            "the JobManagers have different versions ({}): finish the upgrade",
            versions.join(", ")
        ));
    }
    for member in &status.members {
        let process = &member.process;
        if let Some(error) = &member.error {
            warnings.push(format!("the status of {process} can't be read: {error}"));
        }
        if let Some(offset) = member.clock_offset
            && offset.abs() >= LARGE_CLOCK_OFFSET_MS
        {
            let direction = if offset > 0 { "ahead of" } else { "behind" };
            let (offset, asked) = (offset.abs(), &status.process);
            warnings.push(format!(
                "the clock of {process} is {offset} ms {direction} that of {asked}: synchronize them"
            ));
        }
        for missing in member.missing_permissions.iter().flatten() {
            warnings.push(format!(
                "{process} can't lead: the store does not allow it {missing}"
            ));
        }
        if let Some(behind) = member.cache.as_ref().and_then(|cache| cache.behind)
            && behind > LARGE_LAG
        {
            warnings.push(format!(
                "{process} is {behind} changes behind: if it takes over it reads the store first"
            ));
        }
    }
    for claim in &status.claims {
        warnings.push(format!(
            "{} named epoch {} to {}, whose store has epoch {}: it uses a copy of the store, or is an attacker; its message was refused",
            claim.by, claim.epoch, claim.process, claim.stored_epoch
        ));
    }
    warnings
}

/// The warning while no process can lead for this reason.
pub(super) fn unreadable_warning(reason: &str) -> String {
    format!(
        "no process can lead: {reason}; the key that fences every write was overwritten, docs/guides/trouble/store-changed.md says how to repair it"
    )
}

/// etcd's alarm for a database that has reached its quota.
const NO_SPACE: &str = "NOSPACE";
/// etcd's alarm for members whose data differ.
const CORRUPT: &str = "CORRUPT";
/// Free bytes below which the embedded store accepts nothing new.
const FULL: u64 = 1024 * 1024;

/// Warnings about the store, with the operator's commands if there are any.
pub(super) fn store_warnings(store: &str, health: &StoreHealth) -> Vec<String> {
    let mut warnings = health.warnings();
    if health.alarms.iter().any(|alarm| alarm == NO_SPACE) {
        warnings.push(
            "etcd is out of space: the leader goes on and deletes, submissions are refused, and no standby can take over from it. \
             Make room: etcdctl alarm list; etcdctl endpoint status -w json (revision); etcdctl compact REVISION; \
             etcdctl defrag --cluster; etcdctl alarm disarm. Start etcd with --auto-compaction-retention, and with a larger \
             --quota-backend-bytes if that does not last"
                .to_owned(),
        );
    } else if health.alarms.iter().any(|alarm| alarm == CORRUPT) {
        warnings.push(
            "etcd's members disagree on their data, and it answers no reads or writes: the leader decides nothing new, running \
             tasks go on. Find the odd member (etcdctl endpoint hashkv --cluster), replace it (etcdctl member remove, member add), \
             then etcdctl alarm disarm"
                .to_owned(),
        );
    } else if store == "embedded" && health.free_bytes.is_some_and(|free| free < FULL) {
        warnings.push(
            "the disk of the embedded store is full: the leader goes on and deletes, from space kept in reserve, and a standby can \
             take over; submissions are refused, and what jobs have to write waits. Free that disk"
                .to_owned(),
        );
    } else if store == "etcd" && (is_nearly_full(health) || health.revisions_kept.is_some()) {
        warnings.push(
            "before etcd is full and refuses to write: compact and defragment it (etcdctl compact REVISION; etcdctl defrag \
             --cluster), start it with --auto-compaction-retention, or with a larger --quota-backend-bytes"
                .to_owned(),
        );
    }
    warnings
}

/// Whether the data has four fifths of its quota.
fn is_nearly_full(health: &StoreHealth) -> bool {
    let sizes = health.size_bytes.zip(health.quota_bytes);
    sizes.is_some_and(|(size, quota)| size.saturating_mul(5) >= quota.saturating_mul(4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operators_commands_are_said_before_and_after_etcd_is_full() {
        let filling = StoreHealth {
            size_bytes: Some(85),
            quota_bytes: Some(100),
            ..StoreHealth::default()
        };
        let said = store_warnings("etcd", &filling).join("\n");
        assert!(said.contains("etcdctl defrag"), "{said}");
        let uncompacted = StoreHealth {
            revisions_kept: Some(100_000),
            ..StoreHealth::default()
        };
        let said = store_warnings("etcd", &uncompacted).join("\n");
        assert!(said.contains("--auto-compaction-retention"), "{said}");
        let full = StoreHealth {
            alarms: vec![NO_SPACE.to_owned()],
            ..filling.clone()
        };
        let said = store_warnings("etcd", &full).join("\n");
        assert!(said.contains("etcdctl alarm disarm"), "{said}");
        assert!(said.contains("no standby can take over"), "{said}");
        let said = store_warnings("embedded", &filling).join("\n");
        assert!(!said.contains("etcdctl"), "{said}");
        assert!(store_warnings("etcd", &StoreHealth::default()).is_empty());
        let corrupt = StoreHealth {
            alarms: vec![CORRUPT.to_owned()],
            ..StoreHealth::default()
        };
        let said = store_warnings("etcd", &corrupt).join("\n");
        assert!(
            said.contains("hashkv") && !said.contains("compact"),
            "{said}"
        );
        let full = StoreHealth {
            free_bytes: Some(0),
            ..StoreHealth::default()
        };
        let said = store_warnings("embedded", &full).join("\n");
        assert!(said.contains("Free that disk"), "{said}");
    }
}
