//! Memory model of a TaskManager: computes all parts from one total or from some of the parts. Pure.
//!
//! ```text
//! process = flink + overhead                        overhead: the allocator, stacks, memory of libraries
//! flink   = framework + task + network + managed    framework: the TaskManager itself
//! ```
//!
//! Values that are set hold exactly. Unset values follow from fractions, within bounds, and the one part
//! without a fraction takes the rest. Contradictory values are refused with the sum that shows it. If nothing
//! is set, the TaskManager takes the memory that the system allows it, however small.

use std::fmt;

use tanist_proto::resources::WorkerResourceSpec;

use super::value::MemorySize;

/// The memory options of a TaskManager. In bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryOptions {
    /// Total of the process.
    pub process: Option<u64>,
    /// Total without the overhead.
    pub flink: Option<u64>,
    /// Memory of the TaskManager itself.
    pub framework: u64,
    /// Memory of tasks.
    pub task: Option<u64>,
    /// Memory for records between tasks.
    pub network: Share,
    /// Memory for state.
    pub managed: Option<u64>,
    /// Managed memory as a fraction of `flink`, used if no size is set.
    pub managed_fraction: f64,
    /// Memory that is not accounted for: the allocator, stacks, libraries.
    pub overhead: Share,
    /// Whether any of these options was set explicitly.
    pub is_configured: bool,
}

/// A fraction of a total, within bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// Fraction of the total.
    pub fraction: f64,
    /// Lower bound.
    pub min: u64,
    /// Upper bound.
    pub max: u64,
}

/// The parts of a TaskManager's memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskManagerMemory {
    /// Memory of the TaskManager itself.
    pub framework: u64,
    /// Memory of tasks.
    pub task: u64,
    /// Memory for records between tasks.
    pub network: u64,
    /// Memory for state.
    pub managed: u64,
    /// Memory that is not accounted for.
    pub overhead: u64,
}

/// An error: the sizes contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the memory of the TaskManager does not add up: {0}")]
pub struct MemoryContradiction(String);

const PROCESS: &str = "taskmanager.memory.process.size";
const FLINK: &str = "taskmanager.memory.flink.size";

impl TaskManagerMemory {
    /// Total without the overhead.
    pub fn flink(&self) -> u64 {
        [self.task, self.network, self.managed]
            .into_iter()
            .fold(self.framework, u64::saturating_add)
    }

    /// Total of the process: a memory limit of the system must allow at least this.
    pub fn process(&self) -> u64 {
        self.flink().saturating_add(self.overhead)
    }

    /// The options that give a started TaskManager exactly this memory.
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
    /// Computes all parts for a system that allows the process `system_bytes`.
    pub fn resolve(&self, system_bytes: u64) -> Result<TaskManagerMemory, MemoryContradiction> {
        if !self.is_configured {
            return Ok(self.of_system(system_bytes));
        }
        // A total decides before the parts: they must then fit into it.
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

    /// The memory with which a TaskManager with these resources is started.
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

    /// The most memory that all slots of a TaskManager can have together on a system that allows the process
    /// `system_bytes`.
    pub fn most_for_slots(&self, system_bytes: u64) -> u64 {
        let overhead = self.overhead.of(system_bytes);
        system_bytes
            .saturating_sub(overhead)
            .saturating_sub(self.framework)
    }

    /// Divides the memory of the system if nothing is configured. No amount is too small.
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

    /// Divides `flink`, the total without the overhead.
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
            // The network gets the rest.
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
                "{} of framework + {task}{network} + {} of managed memory can't be the {} that are there ({} with {} of overhead){}",
                Bytes(self.framework),
                Bytes(managed),
                Bytes(flink),
                Bytes(flink.saturating_add(overhead)),
                Bytes(overhead),
                match self.managed {
                    Some(_) => String::new(),
                    None => format!(
                        "; `taskmanager.memory.managed.fraction` is {}",
                        self.managed_fraction
                    ),
                }
            )));
        };
        Ok(TaskManagerMemory {
            task,
            network,
            ..memory
        })
    }

    /// Computes the totals from the parts.
    fn of_parts(&self, task: u64) -> Result<TaskManagerMemory, MemoryContradiction> {
        let rest = self.framework.saturating_add(task);
        let (network, managed) = match self.managed {
            Some(managed) => {
                let network = self.network.on_top_of(rest.saturating_add(managed));
                (network, managed)
            }
            None => self.shares_on_top_of(rest)?,
        };
        let memory = TaskManagerMemory {
            framework: self.framework,
            task,
            network,
            managed,
            overhead: 0,
        };
        let overhead = self.overhead.on_top_of(memory.flink());
        Ok(TaskManagerMemory { overhead, ..memory })
    }

    /// Network and managed memory of a total that consists of `rest` and both.
    fn shares_on_top_of(&self, rest: u64) -> Result<(u64, u64), MemoryContradiction> {
        let fractions = self.network.fraction + self.managed_fraction;
        if fractions >= 1.0 {
            return Err(MemoryContradiction(format!(
                "`taskmanager.memory.network.fraction` and `taskmanager.memory.managed.fraction` are {fractions} of a total that \
                 consists of more than them: write `taskmanager.memory.managed.size`, or smaller fractions"
            )));
        }
        let unbounded = part(self.network.fraction / (1.0 - fractions), rest);
        let network = self.network.bounded(unbounded);
        let others = rest.saturating_add(network);
        let factor = self.managed_fraction / (1.0 - self.managed_fraction);
        Ok((network, part(factor, others)))
    }
}

impl Share {
    /// The share of this total.
    fn of(&self, total: u64) -> u64 {
        self.bounded(part(self.fraction, total))
    }

    /// The share of a total that consists of `rest` and the share.
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
    // The cast saturates.
    (total as f64 * fraction).max(0.0) as u64
}

/// Displays bytes for people: in a whole unit if possible, else rounded.
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
