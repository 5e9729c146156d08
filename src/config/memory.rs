//! What the memory of a TaskManager is for: from one total, or from the parts, to all of them. Pure.
//!
//! ```text
//! process = flink + overhead                        overhead: the allocator, stacks, what libraries take
//! flink   = framework + task + network + managed    framework: the TaskManager itself
//! ```
//!
//! Whatever is set holds exactly; what is not follows from fractions, within bounds, and the one part that nothing is said of
//! takes the rest. What can't hold together is refused with the sum that shows it. Without any of it the TaskManager takes what
//! the system lets it have, however little that is.

use std::fmt;

use tanist_proto::resources::WorkerResourceSpec;

use super::value::MemorySize;

/// What is set of the memory of a TaskManager. In bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryOptions {
    /// All of the process.
    pub process: Option<u64>,
    /// All but the overhead.
    pub flink: Option<u64>,
    /// The TaskManager itself.
    pub framework: u64,
    /// For tasks.
    pub task: Option<u64>,
    /// For records between tasks.
    pub network: Share,
    /// For state.
    pub managed: Option<u64>,
    /// The same as a part of `flink`, where no size is set.
    pub managed_fraction: f64,
    /// What nobody counts.
    pub overhead: Share,
    /// Whether any of all this was set by somebody.
    pub is_configured: bool,
}

/// A part of a total, within bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// Of the total.
    pub fraction: f64,
    /// Not less.
    pub min: u64,
    /// Not more.
    pub max: u64,
}

/// What the memory of a TaskManager is for, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskManagerMemory {
    /// The TaskManager itself.
    pub framework: u64,
    /// For tasks.
    pub task: u64,
    /// For records between tasks.
    pub network: u64,
    /// For state.
    pub managed: u64,
    /// What nobody counts.
    pub overhead: u64,
}

/// Sizes that can't hold together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the memory of the TaskManager does not add up: {0}")]
pub struct MemoryContradiction(String);

const PROCESS: &str = "taskmanager.memory.process.size";
const FLINK: &str = "taskmanager.memory.flink.size";

impl TaskManagerMemory {
    /// All but the overhead.
    pub fn flink(&self) -> u64 {
        [self.task, self.network, self.managed]
            .into_iter()
            .fold(self.framework, u64::saturating_add)
    }

    /// All of the process: what a limit of the system has to allow.
    pub fn process(&self) -> u64 {
        self.flink().saturating_add(self.overhead)
    }

    /// The options that give exactly this memory to a TaskManager that is started.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        [
            ("taskmanager.memory.framework.size", self.framework),
            ("taskmanager.memory.task.size", self.task),
            ("taskmanager.memory.network.min", self.network),
            ("taskmanager.memory.network.max", self.network),
            ("taskmanager.memory.managed.size", self.managed),
            ("taskmanager.memory.overhead.min", self.overhead),
            ("taskmanager.memory.overhead.max", self.overhead),
        ]
        .map(|(key, bytes)| (key, MemorySize::of_bytes(bytes).to_string()))
        .to_vec()
    }
}

impl MemoryOptions {
    /// What each part gets of a system that lets the process have so much.
    pub fn resolve(&self, system_bytes: u64) -> Result<TaskManagerMemory, MemoryContradiction> {
        if !self.is_configured {
            return Ok(self.of_system(system_bytes));
        }
        match (self.process, self.flink, self.task) {
            (Some(process), Some(flink), _) => {
                let overhead = process.checked_sub(flink);
                let overhead = overhead.filter(|overhead| self.overhead.allows(*overhead));
                let Some(overhead) = overhead else {
                    let left = process.saturating_sub(flink);
                    return Err(MemoryContradiction(format!(
                        "`{PROCESS}` is {}, and `{FLINK}` is {} of it, which leaves {} for the overhead, not {}",
                        Bytes(process),
                        Bytes(flink),
                        Bytes(left),
                        self.overhead
                    )));
                };
                self.divide(flink, overhead)
            }
            (Some(process), None, _) => self.of_process(process),
            (None, Some(flink), _) => self.divide(flink, self.overhead.on_top_of(flink)),
            (None, None, Some(task)) => self.of_parts(task),
            (None, None, None) => self.of_process(system_bytes),
        }
    }

    /// What a TaskManager with these resources is started with.
    pub fn for_worker(&self, worker: &WorkerResourceSpec) -> TaskManagerMemory {
        let total = worker.total();
        let memory = TaskManagerMemory {
            framework: self.framework,
            task: total.task_memory,
            network: total.network_memory,
            managed: total.managed_memory,
            overhead: 0,
        };
        TaskManagerMemory {
            overhead: self.overhead.on_top_of(memory.flink()),
            ..memory
        }
    }

    /// How much the slots of a TaskManager can have together of a system that lets the process have so much.
    pub fn most_for_slots(&self, system_bytes: u64) -> u64 {
        let overhead = self.overhead.of(system_bytes);
        system_bytes
            .saturating_sub(overhead)
            .saturating_sub(self.framework)
    }

    /// Nobody said anything: nothing is too little.
    fn of_system(&self, system_bytes: u64) -> TaskManagerMemory {
        self.of_process(system_bytes)
            .unwrap_or_else(|_too_little_for_the_bounds| {
                let network = part(self.network.fraction, system_bytes);
                TaskManagerMemory {
                    framework: 0,
                    task: system_bytes.saturating_sub(network),
                    network,
                    managed: 0,
                    overhead: 0,
                }
            })
    }

    fn of_process(&self, process: u64) -> Result<TaskManagerMemory, MemoryContradiction> {
        let overhead = self.overhead.of(process);
        let Some(flink) = process.checked_sub(overhead) else {
            return Err(MemoryContradiction(format!(
                "`{PROCESS}` is {}, less than the overhead of {}",
                Bytes(process),
                Bytes(overhead)
            )));
        };
        self.divide(flink, overhead)
    }

    /// Divides all but the overhead.
    fn divide(&self, flink: u64, overhead: u64) -> Result<TaskManagerMemory, MemoryContradiction> {
        let managed = self
            .managed
            .unwrap_or_else(|| part(self.managed_fraction, flink));
        let memory = TaskManagerMemory {
            framework: self.framework,
            task: self.task.unwrap_or_default(),
            network: 0,
            managed,
            overhead,
        };
        let rest = flink.checked_sub(memory.flink());
        let network = match self.task {
            // What is left is for the network.
            Some(_) => rest.filter(|rest| self.network.allows(*rest)),
            None => Some(self.network.of(flink)),
        };
        let task = match (self.task, network, rest) {
            (Some(task), Some(_), _) => Some(task),
            (None, Some(network), Some(rest)) => rest.checked_sub(network),
            (_, None, _) | (None, _, None) => None,
        };
        let (Some(network), Some(task)) = (network, task) else {
            let network = match self.task {
                Some(_) => format!("{} of network", self.network),
                None => format!("{} of network", Bytes(self.network.of(flink))),
            };
            let task = self
                .task
                .map(|task| format!("{} of task + ", Bytes(task)))
                .unwrap_or_default();
            return Err(MemoryContradiction(format!(
                "{} of framework + {task}{network} + {} of managed memory can't be the {} that are there ({} with {} of overhead)",
                Bytes(self.framework),
                Bytes(managed),
                Bytes(flink),
                Bytes(flink.saturating_add(overhead)),
                Bytes(overhead)
            )));
        };
        Ok(TaskManagerMemory {
            task,
            network,
            ..memory
        })
    }

    /// From the parts to the totals.
    fn of_parts(&self, task: u64) -> Result<TaskManagerMemory, MemoryContradiction> {
        let Some(managed) = self.managed.or((self.managed_fraction == 0.0).then_some(0)) else {
            return Err(MemoryContradiction(format!(
                "`taskmanager.memory.task.size` is {}, but managed memory is {} of a total that is not said: write \
                 `taskmanager.memory.managed.size`, `{FLINK}` or `{PROCESS}`",
                Bytes(task),
                self.managed_fraction
            )));
        };
        let memory = TaskManagerMemory {
            framework: self.framework,
            task,
            network: 0,
            managed,
            overhead: 0,
        };
        let network = self.network.on_top_of(memory.flink());
        let memory = TaskManagerMemory { network, ..memory };
        let overhead = self.overhead.on_top_of(memory.flink());
        Ok(TaskManagerMemory { overhead, ..memory })
    }
}

impl Share {
    /// Of this total.
    fn of(&self, total: u64) -> u64 {
        self.bounded(part(self.fraction, total))
    }

    /// Of the total that is reached when it comes on top of this.
    fn on_top_of(&self, rest: u64) -> u64 {
        let factor = self.fraction / (1.0 - self.fraction);
        self.bounded(part(factor, rest))
    }

    fn bounded(&self, bytes: u64) -> u64 {
        bytes.max(self.min).min(self.max.max(self.min))
    }

    fn allows(&self, bytes: u64) -> bool {
        (self.min..=self.max).contains(&bytes)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.max {
            u64::MAX => write!(f, "at least {}", Bytes(self.min)),
            max => write!(f, "{} to {}", Bytes(self.min), Bytes(max)),
        }
    }
}

fn part(fraction: f64, total: u64) -> u64 {
    // A cast saturates.
    (total as f64 * fraction).max(0.0) as u64
}

/// For people: whole units where there is one, else rounded.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = MemorySize::of_bytes(self.0);
        match self.0 {
            mb if mb >= 1 << 20 && mb % (1 << 20) != 0 => {
                write!(f, "{:.1} mb", mb as f64 / f64::from(1 << 20))
            }
            _ => exact.fmt(f),
        }
    }
}
