//! Intervals, timeouts and limits of a job's checkpoints, and the shape of its graph. Data only.

use std::collections::BTreeMap;

use tanist_proto::v1 as pb;

/// Intervals, timeouts and limits. Times are in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Time between the beginnings of two rounds.
    pub interval_ms: u64,
    /// Time between the end of a round and the beginning of the next one, at least.
    pub min_pause_ms: u64,
    /// Timeout of a number in flight.
    pub timeout_ms: u64,
    /// Number of failed checkpoints of a region in a row that are no failure of the region. None: any number.
    pub tolerable_failures: Option<u32>,
    /// Number of completed checkpoints that are kept, at least 1.
    pub retained: usize,
    /// Whether the newest one is kept when the job is canceled.
    pub retention: pb::CheckpointRetention,
    /// Whether there is a blob store that outlives the host.
    pub has_blob_store: bool,
    /// Time between two listings of the job's directory.
    pub listing_interval_ms: u64,
}

/// Timeout in milliseconds of an answer to a trigger, of a lost link, and of a task whose input has ended.
pub(super) const ANSWER_TIMEOUT_MS: u64 = 1_000;
/// The setting of [`Options::timeout_ms`], for people.
pub(super) const TIMEOUT_KEY: &str =
    "`timeout` of the job's `checkpoints`, or else execution.checkpointing.timeout";
/// Number of uncommitted committables above which no round begins.
pub(super) const MAX_UNCOMMITTED: usize = 10_000;
/// Delay in milliseconds before something that failed in the store or the blob store is tried again.
pub(super) const RETRY_MS: u64 = 1_000;

/// A task of the graph. Tasks are numbered across the job, regions too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its vertex.
    pub vertex_id: String,
    /// Its number in the vertex.
    pub subtask: u32,
    /// Its region.
    pub region: usize,
    /// Whether it has a source, so that barriers begin there.
    pub is_source: bool,
}

/// The tasks of a job and their regions. It never changes within a layout.
#[derive(Debug, Clone)]
pub struct Topology {
    tasks: Vec<Task>,
    regions: Vec<Vec<usize>>,
    not_checkpointed: BTreeMap<usize, String>,
    steps: Vec<pb::ManifestStep>,
}

impl Topology {
    /// The shape of a job. `not_checkpointed` has the reasons for regions that take no part.
    pub fn new(tasks: Vec<Task>, not_checkpointed: BTreeMap<usize, String>) -> Topology {
        let count = tasks.iter().map(|task| task.region + 1).max();
        let mut regions = vec![Vec::new(); count.unwrap_or_default()];
        for (number, task) in tasks.iter().enumerate() {
            regions[task.region].push(number);
        }
        Topology {
            tasks,
            regions,
            not_checkpointed,
            steps: Vec::new(),
        }
    }

    /// Adds the steps of the graph, which each manifest names.
    #[must_use]
    pub fn with_steps(self, steps: Vec<pb::ManifestStep>) -> Topology {
        Topology { steps, ..self }
    }

    /// The steps of the graph.
    pub(super) fn steps(&self) -> &[pb::ManifestStep] {
        &self.steps
    }

    /// A task.
    pub(super) fn task(&self, task: usize) -> Option<&Task> {
        self.tasks.get(task)
    }

    /// The tasks of a region, ordered.
    pub(super) fn tasks_of(&self, region: usize) -> &[usize] {
        &self.regions[region]
    }

    /// The tasks of a region that have sources, ordered.
    pub(super) fn sources_of(&self, region: usize) -> impl Iterator<Item = usize> + '_ {
        let tasks = self.tasks_of(region).iter().copied();
        tasks.filter(|task| self.tasks[*task].is_source)
    }

    /// The names of the vertices of a region, for messages.
    pub(super) fn vertices_of(&self, region: usize) -> Vec<&str> {
        let mut vertices = Vec::new();
        for task in self.tasks_of(region) {
            let id = self.tasks[*task].vertex_id.as_str();
            let mut steps = self.steps.iter().filter(|step| step.vertex_id == id);
            let name = steps.next().map_or(id, |step| &step.name);
            if !vertices.contains(&name) {
                vertices.push(name);
            }
        }
        vertices
    }

    /// The name of a task, for messages.
    pub(super) fn task_name(&self, task: usize) -> String {
        let Task {
            vertex_id, subtask, ..
        } = &self.tasks[task];
        let steps = self.steps.iter().filter(|it| it.vertex_id == *vertex_id);
        let steps: Vec<&pb::ManifestStep> = steps.collect();
        let parallelism = steps.first().map(|step| step.parallelism);
        let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
        let name = match names.as_slice() {
            [] => vertex_id.clone(),
            names => names.join(" -> "),
        };
        match parallelism {
            Some(parallelism) => format!("{name} ({}/{parallelism})", subtask + 1),
            None => format!("{name} ({})", subtask + 1),
        }
    }

    /// Number of regions.
    pub(super) fn region_count(&self) -> usize {
        self.regions.len()
    }

    /// The first region that takes no part in checkpoints, and why.
    pub(super) fn first_not_checkpointed(&self) -> Option<(usize, &str)> {
        let (region, reason) = self.not_checkpointed.first_key_value()?;
        Some((*region, reason))
    }

    /// Why a region takes no part in checkpoints.
    pub(super) fn not_checkpointed(&self, region: usize) -> Option<&str> {
        self.not_checkpointed.get(&region).map(String::as_str)
    }
}
