//! What an operator should look after, as `/ha/status` says it: pure, from what the status holds.

use std::collections::BTreeSet;

use super::ha::HaStatusBody;

/// From which difference on clocks are worth a warning: times of different processes are compared by people.
const LARGE_CLOCK_OFFSET_MS: i64 = 1000;
/// Changes that a standby may be behind before that is worth a warning: what the store's ring remembers.
const LARGE_LAG: u64 = 1024;

/// One text each.
pub fn warnings(status: &HaStatusBody) -> Vec<String> {
    let mut warnings = Vec::new();
    match status.term.state {
        "suspended" => warnings.push(
            "the leader's term is suspended: the store does not confirm it; running tasks go on, nothing new is decided"
                .to_owned(),
        ),
        "none" => warnings.push("no JobManager is known to lead".to_owned()),
        _ => {}
    }
    if status.members_error.is_none() && status.members.len() == 1 {
        warnings.push(
            "there is no standby: while the only JobManager is away nobody leads; start another one"
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
            warnings.push(format!("{process} gives no account of itself: {error}"));
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
        if let Some(behind) = member.cache.as_ref().and_then(|cache| cache.behind)
            && behind > LARGE_LAG
        {
            warnings.push(format!(
                "{process} is {behind} changes behind: if it takes over it reads the store first"
            ));
        }
    }
    warnings
}
