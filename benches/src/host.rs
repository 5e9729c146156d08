//! Facts about the machine: hardware, disk, versions, and the load by other processes.

use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::proc;
use crate::samples::{Samples, shown};

/// Number of `fdatasync` calls that are measured.
const SYNCS: usize = 200;
/// The directory whose files show the version of Debian's ZooKeeper.
const JARS: &str = "/usr/share/java";

/// The machine and its software.
#[derive(Debug, Clone, Default)]
pub struct Host {
    /// Number of cores that this process may use.
    pub cores: usize,
    /// The model of the processor.
    pub processor: String,
    /// The kernel's release.
    pub kernel: String,
    /// The output of `tanist --version`.
    pub tanist: String,
    /// etcd's version.
    pub etcd: String,
    /// ZooKeeper's version.
    pub zookeeper: String,
    /// Milliseconds for `fdatasync` of 1 KiB in the directory of the clusters.
    pub fdatasync_ms: Samples,
    /// Start of the run: `2026-01-31 12:34 UTC`.
    pub began: String,
    /// Load averages at that time.
    pub load: String,
}

impl Host {
    /// Collects the facts about this machine.
    pub fn look(program: &Path) -> anyhow::Result<Host> {
        let uname = rustix::system::uname();
        let unknown = || "not found".to_owned();
        Ok(Host {
            cores: std::thread::available_parallelism()?.get(),
            processor: processor().unwrap_or_else(unknown),
            kernel: uname.release().to_string_lossy().into_owned(),
            tanist: first_line(Command::new(program).arg("--version"))
                .with_context(|| format!("{} does not run", program.display()))?,
            etcd: first_line(Command::new("etcd").arg("--version"))
                .map_or_else(unknown, |line| line.replace("etcd Version: ", "")),
            zookeeper: zookeeper_version().unwrap_or_else(unknown),
            fdatasync_ms: time_syncs()?,
            began: first_line(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]))
                .unwrap_or_else(unknown),
            load: load_averages().unwrap_or_else(unknown),
        })
    }

    /// The facts for people, one per line.
    pub fn lines(&self) -> Vec<String> {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), shown);
        vec![
            format!("{}; Linux {}; {} cores, {}", self.began, self.kernel, self.cores, self.processor),
            format!("{}; etcd {}; ZooKeeper {}; single servers on the same host", self.tanist, self.etcd, self.zookeeper),
            format!(
                "`fdatasync` of 1 KiB: {} / {} / {} ms",
                number(self.fdatasync_ms.min()),
                number(self.fdatasync_ms.median()),
                number(self.fdatasync_ms.max())
            ),
            format!("load averages at the start: {}", self.load),
            "load / others: load average (1 min) when the figure was done, and how many cores processes that were not this run's \
             kept busy meanwhile"
                .to_owned(),
        ]
    }

    /// The facts for programs.
    pub fn to_json(&self) -> Value {
        json!({
            "began": self.began,
            "cores": self.cores,
            "processor": self.processor,
            "kernel": self.kernel,
            "tanist": self.tanist,
            "etcd": self.etcd,
            "zookeeper": self.zookeeper,
            "fdatasync_ms": self.fdatasync_ms.all(),
            "load_averages": self.load,
        })
    }
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().next()?.trim().to_owned();
    (output.status.success() && !line.is_empty()).then_some(line)
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The version of Debian's ZooKeeper. Beside the jar is a link to it with the version in its name.
fn zookeeper_version() -> Option<String> {
    let names = std::fs::read_dir(JARS).ok()?.flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter_map(|name| {
            let version = name.strip_prefix("zookeeper-")?.strip_suffix(".jar")?;
            version
                .starts_with(|c: char| c.is_ascii_digit())
                .then(|| version.to_owned())
        })
        .max()
}

fn load_averages() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let three: Vec<&str> = text.split_whitespace().take(3).collect();
    Some(three.join(", "))
}

fn time_syncs() -> anyhow::Result<Samples> {
    let directory = tempfile::tempdir()?;
    let mut file = File::create(directory.path().join("syncs"))?;
    let mut samples = Samples::default();
    for _ in 0..SYNCS {
        file.write_all(&[7; 1024])?;
        let start = Instant::now();
        file.sync_data()?;
        samples.push(milliseconds(start.elapsed()));
    }
    Ok(samples)
}

/// A duration in milliseconds.
pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// The load of the machine during a measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// The load average of the last minute.
    pub average: f64,
    /// Number of cores that other processes kept busy.
    pub others: f64,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} / {:.1}", self.average, self.others)
    }
}

/// Measures the load by other processes.
#[derive(Debug)]
pub struct LoadWatch {
    start: Instant,
    busy: Duration,
    ours: Duration,
}

impl LoadWatch {
    /// Starts the measurement.
    pub fn start() -> LoadWatch {
        LoadWatch {
            start: Instant::now(),
            busy: proc::machine_cpu().unwrap_or_default(),
            ours: proc::family_cpu(),
        }
    }

    /// The load since the start.
    pub fn stop(&self) -> Load {
        let busy = proc::machine_cpu().unwrap_or_default();
        let busy = busy.saturating_sub(self.busy);
        let others = busy.saturating_sub(proc::family_cpu().saturating_sub(self.ours));
        let average = load_averages().and_then(|text| text.split(',').next()?.parse().ok());
        Load {
            average: average.unwrap_or_default(),
            others: others.as_secs_f64() / self.start.elapsed().as_secs_f64().max(0.001),
        }
    }
}
