//! The StreamGraph: a job as it was written, one node per step, without defaults filled in. [`crate::builder`]
//! and the reader of job files create it; only `validate` checks it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tanist_ha::clock::millis;
use tanist_model::artifact::{self, ArtifactSpec};
use tanist_model::problem::{InvalidJob, Position};
use tanist_model::spec::{Aggregate, Aggregation};
use tanist_model::{
    Comparison, CustomRole, CustomSpec, Emit, ExecSpec, NamedExpression, OperatorSpec,
};
use tanist_proto::resources::Resources;
use tanist_proto::v1;

use crate::ChainingOptions;
use crate::CompileOptions;
use crate::{chaining, paths, validate};

/// The slot sharing group of steps that set none.
pub const DEFAULT_SLOT_SHARING_GROUP: &str = "default";

/// The operation of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Transformation {
    /// See [`tanist_model::OperatorSpec::FileSource`].
    FileSource {
        /// Paths or globs.
        paths: Vec<String>,
    },
    /// See [`tanist_model::OperatorSpec::Datagen`].
    Datagen {
        /// Records per second over all subtasks.
        rate: Option<u64>,
        /// Records over all subtasks.
        count: Option<u64>,
        /// The same seed gives the same records.
        seed: u64,
        /// `key` is drawn from `0..keys`.
        keys: u64,
    },
    /// See [`tanist_model::OperatorSpec::SplitWords`].
    SplitWords {
        /// The column to split.
        column: String,
    },
    /// See [`tanist_model::OperatorSpec::Filter`].
    Filter {
        /// The compared column.
        column: String,
        /// The comparison.
        op: Comparison,
        /// The constant. It is converted to the column's type, so a text can be a number.
        value: Value,
    },
    /// See [`tanist_model::OperatorSpec::Where`].
    Where {
        /// A SQL expression.
        condition: String,
    },
    /// See [`tanist_model::OperatorSpec::Map`].
    Map {
        /// The added or replaced columns.
        columns: Vec<NamedExpression>,
    },
    /// See [`tanist_model::OperatorSpec::Project`].
    Project {
        /// The emitted columns.
        columns: Vec<NamedExpression>,
    },
    /// Records with equal values in these columns go to the same subtask of the next step. It has no operator
    /// of its own.
    KeyBy {
        /// The columns.
        columns: Vec<String>,
    },
    /// See [`tanist_model::OperatorSpec::Count`]; the keys are those of the key-by before it.
    Count {
        /// `None`: final for bounded input, updates for unbounded.
        emit: Option<Emit>,
    },
    /// See [`tanist_model::OperatorSpec::Sum`]; the keys are those of the key-by before it.
    Sum {
        /// The column to sum.
        column: String,
        /// `None`: final for bounded input, updates for unbounded.
        emit: Option<Emit>,
    },
    /// See [`tanist_model::OperatorSpec::Print`].
    Print {
        /// Written before each line.
        prefix: String,
    },
    /// See [`tanist_model::OperatorSpec::FileSink`].
    FileSink {
        /// The directory.
        path: String,
    },
    /// See [`tanist_model::OperatorSpec::Discard`].
    Discard,
    /// An operator whose specification is complete.
    Operator(OperatorSpec),
    /// See [`tanist_model::OperatorSpec::Aggregate`]; the keys are those of the key-by before it, the event time is
    /// that of its input.
    Aggregate {
        /// The computed results.
        aggregations: Vec<Aggregation>,
        /// `None`: as for [`Transformation::Count`]. Not used with windows.
        emit: Option<Emit>,
        /// `None`: over the whole input.
        windows: Option<Windows>,
    },
    /// See [`tanist_model::OperatorSpec::Custom`].
    Custom(CustomSpec),
    /// See [`tanist_model::OperatorSpec::Exec`].
    Exec(Box<ExecSpec>),
    /// See [`tanist_model::OperatorSpec::ExecSource`].
    ExecSource(Box<ExecSpec>),
    /// See [`tanist_model::OperatorSpec::ExecSink`].
    ExecSink(Box<ExecSpec>),
}

/// Windows of event time, as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    pub(super) size_ms: u64,
    pub(super) slide_ms: u64,
    pub(super) allowed_lateness_ms: u64,
}

impl Windows {
    /// Windows of this size without gaps or overlap.
    pub fn tumbling(size: Duration) -> Windows {
        Windows::sliding(size, size)
    }

    /// Windows of this size, one starting at each `slide`.
    pub fn sliding(size: Duration, slide: Duration) -> Windows {
        Windows {
            size_ms: millis(size),
            slide_ms: millis(slide),
            allowed_lateness_ms: 0,
        }
    }

    /// Sets how long after a window was emitted a record can still change it.
    #[must_use]
    pub fn allowing_lateness(self, lateness: Duration) -> Windows {
        Windows {
            allowed_lateness_ms: millis(lateness),
            ..self
        }
    }
}

impl Transformation {
    /// Its name in a job file.
    pub fn kind(&self) -> &'static str {
        match self {
            Transformation::FileSource { .. } => "file-source",
            Transformation::Datagen { .. } => "datagen",
            Transformation::SplitWords { .. } => "split-words",
            Transformation::Filter { .. } | Transformation::Where { .. } => "filter",
            Transformation::Map { .. } => "map",
            Transformation::Project { .. } => "project",
            Transformation::KeyBy { .. } => "key-by",
            Transformation::Count { .. } => "count",
            Transformation::Sum { .. } => "sum",
            Transformation::Print { .. } => "print",
            Transformation::FileSink { .. } => "file-sink",
            Transformation::Discard => "discard",
            Transformation::Operator(spec) => spec.kind(),
            Transformation::Aggregate { aggregations, .. } => Aggregate::kind(aggregations),
            Transformation::Custom(_) => "custom",
            Transformation::Exec(_) => "exec",
            Transformation::ExecSource(_) => "exec-source",
            Transformation::ExecSink(_) => "exec-sink",
        }
    }

    /// Whether it has no input.
    pub fn is_source(&self) -> bool {
        match self {
            Transformation::Custom(custom) => custom.role == CustomRole::Source,
            Transformation::FileSource { .. }
            | Transformation::Datagen { .. }
            | Transformation::ExecSource(_) => true,
            Transformation::Operator(spec) => spec.is_source(),
            _ => false,
        }
    }

    /// Whether it has no output.
    pub fn is_sink(&self) -> bool {
        match self {
            Transformation::Custom(custom) => custom.role == CustomRole::Sink,
            Transformation::Print { .. }
            | Transformation::FileSink { .. }
            | Transformation::Discard
            | Transformation::ExecSink(_) => true,
            Transformation::Operator(spec) => spec.is_sink(),
            _ => false,
        }
    }

    /// Whether it can only have one subtask.
    pub(super) fn is_single(&self) -> bool {
        matches!(self, Transformation::Operator(spec) if spec.is_single())
    }

    /// Whether it needs a key.
    pub(super) fn is_keyed(&self) -> bool {
        matches!(
            self,
            Transformation::Count { .. }
                | Transformation::Sum { .. }
                | Transformation::Aggregate { .. }
        )
    }
}

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

impl Partition {
    /// All partitionings.
    pub const ALL: [Partition; 4] = [
        Partition::Forward,
        Partition::Rebalance,
        Partition::Broadcast,
        Partition::Global,
    ];

    /// Its name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Partition::Forward => "forward",
            Partition::Rebalance => "rebalance",
            Partition::Broadcast => "broadcast",
            Partition::Global => "global",
        }
    }

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

impl Exchange {
    /// Both exchanges.
    pub const ALL: [Exchange; 2] = [Exchange::Pipelined, Exchange::Blocking];

    /// Its name in a job file.
    pub fn name(self) -> &'static str {
        match self {
            Exchange::Pipelined => "pipelined",
            Exchange::Blocking => "blocking",
        }
    }

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

    pub(super) fn is_source(&self) -> bool {
        self.transformation
            .as_ref()
            .is_some_and(Transformation::is_source)
    }

    pub(super) fn is_sink(&self) -> bool {
        self.transformation
            .as_ref()
            .is_some_and(Transformation::is_sink)
    }

    pub(super) fn key_columns(&self) -> Option<&[String]> {
        match &self.transformation {
            Some(Transformation::KeyBy { columns }) => Some(columns),
            _ => None,
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
        if let Some(directory) = &options.working_dir {
            let (absolute, problems) = paths::absolute(self, directory);
            found.extend(problems);
            graph = absolute;
        }
        let resolved = validate::resolve(&graph, options, found)?;
        let chaining = ChainingOptions {
            enabled: options.chaining.enabled && self.chaining.unwrap_or(true),
        };
        let mut graph = chaining::to_job_graph(&resolved, chaining, options.job_id);
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
