//! The StreamGraph: a job as it was written, one node per step, without defaults filled in. [`crate::builder`]
//! and the reader of job files create it; only `validate` checks it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use tanist_model::artifact::{self, ArtifactSpec};
use tanist_model::problem::{InvalidJob, Position};
use tanist_model::{OperatorSpec, Transformation};
use tanist_proto::resources::Resources;
use tanist_proto::v1;

use crate::ChainingOptions;
use crate::CompileOptions;
use crate::{chaining, paths, validate};

/// The slot sharing group of steps that set none.
pub const DEFAULT_SLOT_SHARING_GROUP: &str = "default";

/// Distribution of a step's input to its subtasks, if no key-by determines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partition {
    /// Subtask i to subtask i; requires equal parallelism.
    Forward,
    /// Round robin.
    Rebalance,
    /// Every record to every subtask.
    Broadcast,
    /// All records to subtask 0.
    Global,
}

tanist_model::named! {
    Partition {
        Forward = "forward",
        Rebalance = "rebalance",
        Broadcast = "broadcast",
        Global = "global",
    }
}

impl Partition {
    pub(super) fn to_proto(self) -> v1::Partitioning {
        match self {
            Partition::Forward => v1::Partitioning::Forward,
            Partition::Rebalance => v1::Partitioning::Rebalance,
            Partition::Broadcast => v1::Partitioning::Broadcast,
            Partition::Global => v1::Partitioning::Global,
        }
    }
}

/// When the input of a step can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// While it is produced.
    Pipelined,
    /// After the step that produces it has finished.
    Blocking,
}

tanist_model::named! {
    Exchange {
        Pipelined = "pipelined",
        Blocking = "blocking",
    }
}

impl Exchange {
    pub(super) fn to_proto(self) -> v1::Exchange {
        match self {
            Exchange::Pipelined => v1::Exchange::Pipelined,
            Exchange::Blocking => v1::Exchange::Blocking,
        }
    }
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamNode {
    /// Unique in the job.
    pub(super) name: String,
    /// The name of its state in checkpoints; `None`: its name.
    pub(super) uid: Option<String>,
    /// `Some(false)`: its writer knows that no checkpoint is taken of its region.
    pub(super) checkpoint: Option<bool>,
    /// `None`: it could not be read, which was reported; the node is kept so that everything else is checked
    /// too.
    pub(super) transformation: Option<Transformation>,
    /// `None`: the step before it, or nothing for a source.
    pub(super) inputs: Option<Vec<String>>,
    pub(super) parallelism: Option<u32>,
    pub(super) partition: Option<Partition>,
    pub(super) exchange: Option<Exchange>,
    pub(super) chaining: bool,
    pub(super) slot_sharing_group: Option<String>,
    pub(super) co_location_group: Option<String>,
    pub(super) resources: Option<Resources>,
    pub(super) position: Option<Position>,
}

impl StreamNode {
    pub(super) fn new(
        name: impl Into<String>,
        transformation: Option<Transformation>,
    ) -> StreamNode {
        StreamNode {
            name: name.into(),
            uid: None,
            checkpoint: None,
            transformation,
            inputs: None,
            parallelism: None,
            partition: None,
            exchange: None,
            chaining: true,
            slot_sharing_group: None,
            co_location_group: None,
            resources: None,
            position: None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its operation; `None` if it could not be read.
    pub fn transformation(&self) -> Option<&Transformation> {
        self.transformation.as_ref()
    }

    /// Its operator; `None` for a key-by.
    pub(super) fn operator(&self) -> Option<&OperatorSpec> {
        self.transformation.as_ref()?.operator()
    }

    pub(super) fn operator_mut(&mut self) -> Option<&mut OperatorSpec> {
        self.transformation.as_mut()?.operator_mut()
    }

    pub(super) fn is_source(&self) -> bool {
        self.operator().is_some_and(OperatorSpec::is_source)
    }

    pub(super) fn is_sink(&self) -> bool {
        self.operator().is_some_and(OperatorSpec::is_sink)
    }

    pub(super) fn key_columns(&self) -> Option<&[String]> {
        match &self.transformation {
            Some(Transformation::KeyBy(key_by)) => Some(&key_by.columns),
            Some(Transformation::Operator(_)) | None => None,
        }
    }
}

/// A job as it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamGraph {
    pub(super) name: String,
    pub(super) nodes: Vec<StreamNode>,
    pub(super) parallelism: Option<u32>,
    pub(super) max_parallelism: Option<u32>,
    pub(super) chaining: Option<bool>,
    pub(super) exchange: Option<Exchange>,
    pub(super) restart_strategy: Option<v1::RestartStrategy>,
    pub(super) checkpoints: Option<v1::CheckpointSettings>,
    /// Where the fields of these settings are in the job file.
    pub(super) checkpoint_positions: BTreeMap<String, Position>,
    pub(super) isolation: v1::Isolation,
    /// Resources of the slots of a group, by its name.
    pub(super) slot_sharing_groups: BTreeMap<String, Resources>,
    pub(super) artifacts: Vec<ArtifactSpec>,
}

impl StreamGraph {
    pub(super) fn new(name: impl Into<String>) -> StreamGraph {
        StreamGraph {
            name: name.into(),
            nodes: Vec::new(),
            parallelism: None,
            max_parallelism: None,
            chaining: None,
            exchange: None,
            restart_strategy: None,
            checkpoints: None,
            checkpoint_positions: BTreeMap::new(),
            isolation: v1::Isolation::None,
            slot_sharing_groups: BTreeMap::new(),
            artifacts: Vec::new(),
        }
    }

    /// The job's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its steps, in the order in which they were written.
    pub fn nodes(&self) -> &[StreamNode] {
        &self.nodes
    }

    /// Checks the job, fills in the defaults and chains it. `options.parameters` is only for job files and not
    /// used here.
    pub fn compile(&self, options: &CompileOptions) -> Result<v1::JobGraph, InvalidJob> {
        self.compile_after(Vec::new(), options)
            .map_err(|problems| InvalidJob {
                name: format!("job `{}`", self.name),
                problems,
            })
    }

    /// [`StreamGraph::compile`] with problems that were found while reading: they are reported together with
    /// those found here.
    pub(super) fn compile_after(
        &self,
        mut found: Vec<tanist_model::Problem>,
        options: &CompileOptions,
    ) -> Result<v1::JobGraph, Vec<tanist_model::Problem>> {
        let mut graph = Cow::Borrowed(self);
        // Before the validation, which compares the paths of sinks.
        if let Some(directory) = &options.working_dir {
            found.extend(paths::make_absolute(graph.to_mut(), directory));
        }
        let resolved = validate::resolve(&graph, options, found)?;
        let chaining = ChainingOptions {
            enabled: options.chaining.enabled && self.chaining.unwrap_or(true),
        };
        let mut graph = chaining::to_job_graph(&resolved, chaining, options.job_id);
        // Files are read only for a valid job.
        graph.artifacts = artifact::read(
            &self.artifacts,
            options.artifact_dir.as_deref(),
            options.upload_above,
        )?;
        // A compiled graph passes the same check as a received one, which also limits the totals.
        crate::validate_job_graph(&graph).map_err(|invalid| {
            let problem = |message| tanist_model::Problem::of_job(None, message);
            invalid
                .problems
                .into_iter()
                .map(problem)
                .collect::<Vec<_>>()
        })?;
        Ok(graph)
    }
}
