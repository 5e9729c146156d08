//! Warnings for the operator in `/ha/status`. Pure, from the content of the status. A text names the problem, the
//! process that has it, and the action.

use std::collections::BTreeSet;

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
