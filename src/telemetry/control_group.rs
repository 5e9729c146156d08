//! Control groups (version 2) below that of this process, in which other processes are held to limits.
//!
//! Who makes groups needs one to make them in: its own, where the system has delegated that to it, or another one. A group
//! that has groups with limits below it can have no process itself, so a process that uses its own moves into one below first.
//! Nothing is tried in silence: why groups can't be had is the answer, and what follows is said by who asked.
//!
//! Not here: what the limits are, and of whom. Invariant: a group is removed only when nothing runs in it.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, getpid};

/// What has to be delegated.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];
/// Where a process is that makes groups in its own.
const OWN_LEAF: &str = "tanist-processes";
/// With what the names of all groups begin that are made here.
const PREFIX: &str = "tanist-";
/// The end of the name of a group that is made to see whether one can be.
const PROBE: &str = "probe";
/// The period in which processor time is shared out, in microseconds: the kernel's own.
const PERIOD: u64 = 100_000;
/// The least that the kernel takes of it.
const LEAST_QUOTA: u64 = 1_000;
/// How often a group is tried to be removed, every few milliseconds: what was killed takes a moment to be gone.
const REMOVALS: u32 = 200;
const REMOVAL_INTERVAL: Duration = Duration::from_millis(5);

/// What the processes of a group may use together; absent: as much as there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupLimits {
    /// In bytes; without swap.
    pub memory: Option<u64>,
    /// In thousandths of a core.
    pub cpu_millis: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
}

/// Where groups can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlGroups {
    directory: PathBuf,
}

/// What the system says of control groups.
struct Facts {
    /// `/proc/self/mountinfo`.
    mounts: String,
    /// `/proc/self/cgroup`.
    membership: String,
}

impl Facts {
    /// The path of the group that this process is in.
    fn own(&self) -> Option<&Path> {
        let mut membership = self.membership.lines();
        let own = membership.find_map(|line| line.strip_prefix("0::"));
        own.map(Path::new)
    }

    /// The groups that are seen here with all below them: the path of each, and its directory.
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
    /// Takes a group to make others in: that at this path, else the own one. The error says why it can't be. Blocks.
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
                "the control group {shown} lacks the controllers {missing}: whoever is above it has to enable them \
                 (systemd: Delegate=yes)"
            ));
        }
        check_moves(facts, &directory)?;
        let control = directory.join("cgroup.subtree_control");
        let enabled = fs::read_to_string(&control).unwrap_or_default();
        let is_enabled = |name: &&str| enabled.split_whitespace().any(|it| it == *name);
        if !CONTROLLERS.iter().all(is_enabled) {
            // Only the topmost group has no type, and may have processes besides.
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

    /// Makes a group. Its name is given to no other one.
    pub fn make(&self, name: &str, limits: &GroupLimits) -> io::Result<PathBuf> {
        // Whose it is: another process must not take it for left over before anything runs in it.
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
                // What is swapped out is memory, too. Not every kernel has it.
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

    /// Groups of processes that died, where nothing runs any more.
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
            // What outlives its maker, as TaskManagers do, is making groups in its own, in which nothing runs yet.
            if maker.is_some_and(is_orphan) && !is_populated(&entry.path()) {
                let _another_one_tries_again = remove_empty(&entry.path());
            }
        }
    }
}

/// The directory of the group that this process is in, or above which it has moved itself.
fn own_group(facts: &Facts) -> Result<PathBuf, String> {
    let (Some(own), Some((root, mount))) = (facts.own(), facts.mounts().next()) else {
        return Err("this system has no control groups of version 2".to_owned());
    };
    let relative = own.strip_prefix(root).map_err(|_| {
        let (own, root) = (own.display(), root.display());
        format!("the control group {own} of this process is not to be seen here, only {root}")
    })?;
    let directory = match relative.file_name() {
        Some(name) if name == OWN_LEAF => relative.parent().unwrap_or(relative),
        _ => relative,
    };
    Ok(mount.join(directory))
}

/// Makes sure that processes from the group of this one can be moved to groups below a directory: for that the kernel asks for write
/// access also to the closest group above both.
fn check_moves(facts: &Facts, directory: &Path) -> Result<(), String> {
    // What is not to be seen here can't be asked about either.
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

/// The closest group above a directory and the group of this process, or one of these; none if that is not to be seen here.
fn common_group(facts: &Facts, directory: &Path) -> Option<PathBuf> {
    let own = facts.own()?;
    let directory = fs::canonicalize(directory).ok()?;
    let is_above = |mount: &Path| directory.starts_with(mount);
    // Of those that are mounted into others the innermost one.
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

/// Puts a process into a group.
pub fn enter(group: &Path, process: Pid) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), process.as_raw_pid().to_string())
}

/// Whether something in a group was killed because it took more memory than the group may have.
pub fn was_out_of_memory(group: &Path) -> bool {
    let events = fs::read_to_string(group.join("memory.events")).unwrap_or_default();
    events.lines().any(|line| {
        let killed = line.strip_prefix("oom_kill ");
        killed.is_some_and(|count| count.trim() != "0")
    })
}

/// Whether something runs in a group, or in one below it.
fn is_populated(group: &Path) -> bool {
    let events = fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line.trim() == "populated 1")
}

/// Kills what is left in a group, and removes it with all below it. Blocks for a second at most.
pub fn remove(group: &Path) -> io::Result<()> {
    // Older kernels have none; then whoever started what is in it has to.
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

/// Removes a group in which nothing runs, those below it first. One that is gone is removed.
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

/// The groups right below one.
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

/// Removes a group that has none below it. Its files go with it.
fn remove_one(group: &Path) -> io::Result<()> {
    #[cfg(test)]
    tests::remove_files(group);
    fs::remove_dir(group)
}

#[cfg(test)]
#[path = "control_group_tests.rs"]
pub(crate) mod tests;
