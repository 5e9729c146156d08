//! Facts from the kernel about processes: memory, threads and CPU time.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// `/proc` counts in `USER_HZ`, which is 100 on every architecture of Linux.
const MILLISECONDS_A_TICK: u64 = 10;

/// Memory and threads of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Resident memory in bytes, mapped files included, as `ps` shows it.
    pub resident: u64,
    /// The most that it was.
    pub peak: u64,
    /// The part of it that belongs to no file.
    pub anonymous: u64,
    /// Number of threads.
    pub threads: u64,
}

/// Raises the limit of open files for this process and its future children to what the system grants;
/// returns an error if that is less than wanted.
pub fn allow_open_files(wanted: u64) -> anyhow::Result<()> {
    let granted = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: granted.maximum,
            ..granted
        },
    )?;
    // `None` means no limit.
    match granted.maximum {
        Some(maximum) if maximum < wanted => {
            bail!("{wanted} open files are needed, {maximum} are granted (`ulimit -Hn`)")
        }
        Some(_) | None => Ok(()),
    }
}

/// The memory of a process.
pub fn memory(pid: u32) -> anyhow::Result<Memory> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name));
        let number = rest.and_then(|rest| rest.trim_start_matches(':').split_whitespace().next());
        let number = number.and_then(|number| number.parse::<u64>().ok());
        number.with_context(|| format!("/proc/{pid}/status has no {name}"))
    };
    Ok(Memory {
        resident: field("VmRSS")? * 1024,
        peak: field("VmHWM")? * 1024,
        anonymous: field("RssAnon")? * 1024,
        threads: field("Threads")?,
    })
}

/// CPU time of a running process, from the scheduler's accounts: exact, but without threads that have ended.
pub fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let mut nanoseconds = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end during the read.
        let Ok(text) = std::fs::read_to_string(thread?.path().join("schedstat")) else {
            continue;
        };
        let on_cpu = text
            .split_whitespace()
            .next()
            .and_then(|word| word.parse::<u64>().ok());
        nanoseconds += on_cpu.unwrap_or_default();
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// CPU time of a process including threads that have ended, in the kernel's ticks.
pub fn total_cpu(pid: u32) -> anyhow::Result<Duration> {
    let stat = Stat::read(pid).with_context(|| format!("process {pid} does not run"))?;
    Ok(ticks(stat.own))
}

/// CPU time that the whole machine has spent.
pub fn machine_cpu() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().next()?;
    let counts = line
        .split_whitespace()
        .skip(1)
        .map(|word| word.parse::<u64>().ok());
    let counts: Vec<u64> = counts.collect::<Option<_>>()?;
    // user nice system idle iowait irq softirq steal; guests are in user already.
    let busy = [0, 1, 2, 5, 6].map(|index| counts.get(index).copied().unwrap_or_default());
    Some(ticks(busy.iter().sum()))
}

/// CPU time of this process and all its descendants, including those that have ended and were reaped.
pub fn family_cpu() -> Duration {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let stats: BTreeMap<u32, Stat> = pids
        .filter_map(|pid| Some((pid, Stat::read(pid)?)))
        .collect();
    let me = std::process::id();
    let belongs = |mut pid: u32| {
        loop {
            match stats.get(&pid) {
                _ if pid == me => return true,
                Some(stat) if stat.parent != pid => pid = stat.parent,
                Some(_) | None => return false,
            }
        }
    };
    let family = stats.iter().filter(|(pid, _)| belongs(**pid));
    ticks(family.map(|(_, stat)| stat.own + stat.waited_for).sum())
}

/// The needed fields of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    parent: u32,
    /// Ticks of all its threads.
    own: u64,
    /// Ticks of children that have ended.
    waited_for: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Stat> {
        Stat::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Stat> {
        // The name is in parentheses and may contain any character.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Stat {
            parent: u32::try_from(number(1)?).ok()?,
            own: number(11)? + number(12)?,
            waited_for: number(13)? + number(14)?,
        })
    }
}

fn ticks(count: u64) -> Duration {
    Duration::from_millis(count * MILLISECONDS_A_TICK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_spaces_and_parentheses_is_no_field() {
        let text = "12 (a ) 7 (b) S 34 12 12 0 -1 0 0 0 0 0 5 6 7 8 20 0 1 0";
        let expected = Stat {
            parent: 34,
            own: 11,
            waited_for: 15,
        };
        assert_eq!(Stat::parse(text), Some(expected));
        assert_eq!(Stat::parse("nonsense"), None);
    }

    #[test]
    fn this_process_has_memory_and_is_of_its_own_family() -> anyhow::Result<()> {
        let me = std::process::id();
        let memory = memory(me)?;
        assert!(memory.anonymous > 0 && memory.resident >= memory.anonymous);
        assert!(memory.threads > 0);
        assert!(cpu(me)? > Duration::ZERO);
        let before = total_cpu(me)?;
        assert!(family_cpu() >= before);
        assert!(machine_cpu().expect("the machine has run") >= before);
        Ok(())
    }
}
