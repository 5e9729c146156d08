//! Control groups (version 2) that limit other processes, below the group of this process or another given group.
//!
//! A process that makes groups needs a parent group: its own, if the system has delegated that to it, or
//! another one. A group with limited groups below it can have no process itself, so a process that uses
//! its own group moves into a child group first.
//!
//! Failures are never silent: the error says why groups can't be used, and the caller logs what follows from that.
//! Not here: the limits themselves, and for whom. Invariant: a group is removed only when no process runs in it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, getpid};

/// The controllers that have to be delegated.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// The child group for a process that makes groups below its own group.
const OWN_LEAF: &str = "tanist-processes";
/// Prefix of the names of all groups that are made here.
const PREFIX: &str = "tanist-";
/// Name suffix of a group that is made only to test whether groups can be made.
const PROBE: &str = "probe";
/// The period of CPU quotas, in microseconds: the kernel's default.
const PERIOD: u64 = 100_000;
/// The smallest quota per period that the kernel accepts, in microseconds.
const LEAST_QUOTA: u64 = 1_000;
/// Number of attempts to remove a group: killed processes need a moment to disappear.
const REMOVALS: u32 = 200;
const REMOVAL_INTERVAL: Duration = Duration::from_millis(5);

/// Limits for all processes of a group together. Absent: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupLimits {
    /// In bytes; excludes swap.
    pub memory: Option<u64>,
    /// In thousandths of a core.
    pub cpu_millis: Option<u64>,
    /// Number of processes and threads.
    pub processes: Option<u64>,
}

/// A directory in which groups can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlGroups {
    directory: PathBuf,
}

/// The control groups that the system reports for this process.
struct Facts {
    /// `/proc/self/mountinfo`.
    mounts: String,
    /// `/proc/self/cgroup`.
    membership: String,
}

impl Facts {
    /// The path of this process's group.
    fn own(&self) -> Option<&Path> {
        let mut membership = self.membership.lines();
        let own = membership.find_map(|line| line.strip_prefix("0::"));
        own.map(Path::new)
    }

    /// The mounted groups: the path of each, and its directory here.
    fn mounts(&self) -> impl Iterator<Item = (&Path, &Path)> {
        self.mounts.lines().filter_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            if after.split(' ').next() != Some("cgroup2") {
                return None;
            }
            let mut fields = before.split(' ').skip(3);
            Some((Path::new(fields.next()?), Path::new(fields.next()?)))
        })
    }

    fn read() -> Facts {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Facts {
            mounts: read("/proc/self/mountinfo"),
            membership: read("/proc/self/cgroup"),
        }
    }
}

impl ControlGroups {
    /// Takes a group to make others in: the group at this path, else the own one. The error says why it can't
    /// be used. Blocks.
    pub fn claim(at: Option<&Path>) -> Result<ControlGroups, String> {
        ControlGroups::claim_by(&Facts::read(), at, getpid())
    }

    fn claim_by(facts: &Facts, at: Option<&Path>, own: Pid) -> Result<ControlGroups, String> {
        let is_own = at.is_none();
        let directory = match at {
            Some(path) => path.to_owned(),
            None => own_group(facts)?,
        };
        let shown = directory.display();
        let available = fs::read_to_string(directory.join("cgroup.controllers"));
        let available = available
            .map_err(|error| format!("{shown} is no control group of version 2: {error}"))?;
        let has = |name: &&str| available.split_whitespace().any(|it| it == *name);
        let missing: Vec<&str> = CONTROLLERS.into_iter().filter(|name| !has(name)).collect();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            return Err(format!(
                "the control group {shown} lacks the controllers {missing}: the manager of the control group above it has to enable them \
                 (systemd: Delegate=yes)"
            ));
        }
        check_moves(facts, &directory)?;
        let control = directory.join("cgroup.subtree_control");
        let enabled = fs::read_to_string(&control).unwrap_or_default();
        let is_enabled = |name: &&str| enabled.split_whitespace().any(|it| it == *name);
        if !CONTROLLERS.iter().all(is_enabled) {
            // Only the root group has no type, and only it may have processes beside child groups.
            if is_own && directory.join("cgroup.type").exists() {
                let leaf = directory.join(OWN_LEAF);
                make_directory(&leaf)
                    .and_then(|()| enter(&leaf, own))
                    .map_err(|error| {
                        format!("this process can't move within its control group {shown}: {error}")
                    })?;
            }
            let wanted = CONTROLLERS.map(|name| format!("+{name}")).join(" ");
            fs::write(&control, wanted).map_err(|error| {
                format!(
                    "no limits can be set below the control group {shown}: {error}. It must be this process's to write, and no \
                     other process may be in it"
                )
            })?;
        }
        let groups = ControlGroups { directory };
        groups.remove_leftovers();
        let probed = groups.make(PROBE, &GroupLimits::default());
        let probed = probed.and_then(|probe| remove_empty(&probe));
        let shown = groups.directory.display();
        probed.map_err(|error| format!("no control group can be made in {shown}: {error}"))?;
        Ok(groups)
    }

    /// Makes a group. The name must not be used twice.
    pub fn make(&self, name: &str, limits: &GroupLimits) -> io::Result<PathBuf> {
        // The name contains the maker: another process must not remove the group as a leftover before
        // anything runs in it.
        let maker = std::process::id();
        let group = self.directory.join(format!("{PREFIX}{maker}-{name}"));
        make_directory(&group)?;
        let set = |file: &str, value: String| {
            fs::write(group.join(file), value)
                .map_err(|error| io::Error::new(error.kind(), format!("{file}: {error}")))
        };
        let limited = || -> io::Result<()> {
            if let Some(bytes) = limits.memory {
                set("memory.max", bytes.to_string())?;
                // Swapped memory counts, too. Not every kernel has this file.
                if group.join("memory.swap.max").exists() {
                    set("memory.swap.max", "0".to_owned())?;
                }
            }
            if let Some(millis) = limits.cpu_millis {
                let quota = (millis.saturating_mul(PERIOD) / 1000).max(LEAST_QUOTA);
                set("cpu.max", format!("{quota} {PERIOD}"))?;
            }
            if let Some(processes) = limits.processes {
                set("pids.max", processes.to_string())?;
            }
            Ok(())
        };
        limited().inspect_err(|_| {
            let _nothing_runs_in_it = remove_one(&group);
        })?;
        Ok(group)
    }

    /// Removes groups of processes that died, if no process runs in them any more.
    fn remove_leftovers(&self) {
        let entries = fs::read_dir(&self.directory).into_iter().flatten();
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let maker = name
                .strip_prefix(PREFIX)
                .and_then(|rest| rest.split('-').next());
            let maker = maker.and_then(|pid| pid.parse::<u32>().ok());
            let is_orphan = |pid| !Path::new(&format!("/proc/{pid}")).exists();
            // A process that outlives its maker, as TaskManagers do, may be making groups in its own group
            // that are still empty.
            if maker.is_some_and(is_orphan) && !is_populated(&entry.path()) {
                let _another_one_tries_again = remove_empty(&entry.path());
            }
        }
    }
}

/// The directory of this process's group, or of the parent if the process has moved itself into the child group.
fn own_group(facts: &Facts) -> Result<PathBuf, String> {
    let (Some(own), Some((root, mount))) = (facts.own(), facts.mounts().next()) else {
        return Err("this system has no control groups of version 2".to_owned());
    };
    let relative = own.strip_prefix(root).map_err(|_| {
        let (own, root) = (own.display(), root.display());
        format!("the control group {own} of this process is not visible here, only {root} is")
    })?;
    let directory = match relative.file_name() {
        Some(name) if name == OWN_LEAF => relative.parent().unwrap_or(relative),
        _ => relative,
    };
    Ok(mount.join(directory))
}

/// Checks that processes of this process's group can be moved to groups below a directory: the kernel
/// requires write access also to the closest common ancestor group.
fn check_moves(facts: &Facts, directory: &Path) -> Result<(), String> {
    // A group that is not visible here can't be checked.
    let Some(above) = common_group(facts, directory) else {
        return Ok(());
    };
    let processes = above.join("cgroup.procs");
    let opened = File::options().write(true).open(&processes);
    opened.map(drop).map_err(|error| {
        format!(
            "nothing that this process starts can be moved below the control group {}, as {}, of the closest group above both, \
             can't be written: {error}. Let this process be started in a group within the one that is delegated to it",
            directory.display(),
            processes.display()
        )
    })
}

/// The closest common ancestor group of a directory and this process's group (or one of the two). `None` if
/// it is not visible here.
fn common_group(facts: &Facts, directory: &Path) -> Option<PathBuf> {
    let own = facts.own()?;
    let directory = fs::canonicalize(directory).ok()?;
    let is_above = |mount: &Path| directory.starts_with(mount);
    // Of nested mounts the innermost one.
    let above = facts.mounts().filter(|(_, mount)| is_above(mount));
    let (root, mount) = above.max_by_key(|(_, mount)| mount.components().count())?;
    let group = root.join(directory.strip_prefix(mount).ok()?);
    let both = group.components().zip(own.components());
    let common = both.take_while(|(one, other)| one == other);
    let common: PathBuf = common.map(|(one, _)| one).collect();
    Some(mount.join(common.strip_prefix(root).ok()?))
}

fn make_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Moves a process into a group.
pub fn enter(group: &Path, process: Pid) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), process.as_raw_pid().to_string())
}

/// Whether a process in a group was killed because the group exceeded its memory limit.
pub fn was_out_of_memory(group: &Path) -> bool {
    let events = fs::read_to_string(group.join("memory.events")).unwrap_or_default();
    events.lines().any(|line| {
        let killed = line.strip_prefix("oom_kill ");
        killed.is_some_and(|count| count.trim() != "0")
    })
}

/// Whether a process runs in a group or below it.
fn is_populated(group: &Path) -> bool {
    let events = fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line.trim() == "populated 1")
}

/// Kills the remaining processes of a group, and removes it with all groups below it. Blocks for at most a second.
pub fn remove(group: &Path) -> io::Result<()> {
    // Older kernels lack this file; there the process that started the others has to kill them.
    if let Ok(mut kill) = File::options().write(true).open(group.join("cgroup.kill")) {
        let _ = kill.write_all(b"1");
    }
    let mut tries = 0;
    loop {
        match remove_empty(group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < REMOVALS => {
                tries += 1;
                let pause = rustix::event::Timespec::try_from(REMOVAL_INTERVAL)
                    .map_err(|_| io::ErrorKind::InvalidInput)?;
                let _it_may_be_interrupted = rustix::event::poll(&mut [], Some(&pause));
            }
            other => return other,
        }
    }
}

/// Removes a group without processes, its child groups first. A missing group counts as removed.
fn remove_empty(group: &Path) -> io::Result<()> {
    let removed = groups_in(group).and_then(|below| {
        below.iter().try_for_each(|below| remove_empty(below))?;
        remove_one(group)
    });
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The direct child groups.
fn groups_in(group: &Path) -> io::Result<Vec<PathBuf>> {
    let mut below = Vec::new();
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            below.push(entry.path());
        }
    }
    Ok(below)
}

/// Removes a group without child groups. Its files disappear with it.
fn remove_one(group: &Path) -> io::Result<()> {
    #[cfg(any(test, feature = "testing"))]
    remove_files(group);
    fs::remove_dir(group)
}

/// Removes the files of a simulated control group; those of a real one disappear with it, and the kernel lets
/// no one remove them.
#[cfg(any(test, feature = "testing"))]
fn remove_files(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            let _the_kernel_refuses = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
#[path = "control_group_tests.rs"]
mod tests;
