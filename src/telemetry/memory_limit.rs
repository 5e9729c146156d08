//! The memory that the system allows this process: the limits of control groups (version 2) and of the
//! address space. A limit that can't be read counts as absent.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

const GROUPS: &str = "/sys/fs/cgroup";

/// The lowest limit, in bytes.
pub fn memory_limit_bytes() -> Option<u64> {
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_groups = groups(&membership)
        .into_iter()
        .filter_map(|group| limit_of(&fs::read_to_string(group.join("memory.max")).ok()?));
    of_groups.chain(getrlimit(Resource::As).current).min()
}

/// The directories of the process's group and of its ancestors: the limit of each applies.
fn groups(membership: &str) -> Vec<PathBuf> {
    let own = membership
        .lines()
        .find_map(|line| line.strip_prefix("0::/"));
    let own = Path::new(GROUPS).join(own.unwrap_or_default());
    let groups = own.ancestors().take_while(|path| path.starts_with(GROUPS));
    groups.map(Path::to_owned).collect()
}

/// `max` means no limit.
fn limit_of(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_the_groups_around_a_process_hold_as_well() {
        let paths = groups("1:name=systemd:/x\n0::/system.slice/tanist.service\n");
        let expected = ["/system.slice/tanist.service", "/system.slice", ""];
        assert_eq!(
            paths,
            expected.map(|path| PathBuf::from(format!("{GROUPS}{path}")))
        );
        assert_eq!(groups(""), [PathBuf::from(GROUPS)]);
    }

    #[test]
    fn a_group_without_limit_says_max() {
        assert_eq!(limit_of("max\n"), None);
        assert_eq!(limit_of("1073741824\n"), Some(1 << 30));
    }
}
