//! The StreamGraph: a job just as it was written, one node a step, defaults not yet filled in. Made by
//! [`super::builder`] and the job file's reader; checked by `validate`, never by its makers.

use serde_json::Value;
use tanist_proto::v1;

use super::artifact::{self, ArtifactSpec};
use super::chaining::ChainingOptions;
use super::compile::CompileOptions;
use super::exec::ExecSpec;
use super::expression::NamedExpression;
use super::operator::{Comparison, Emit};
use super::problem::{InvalidJob, Position};
use super::{chaining, validate};

/// The largest parallelism and maximum parallelism that exist.
pub const MAX_PARALLELISM_LIMIT: u32 = 32_768;

/// The slot sharing group of steps that name none.
pub const DEFAULT_SLOT_SHARING_GROUP: &str = "default";

/// What a step does.
#[derive(Debug, Clone, PartialEq)]
pub enum Transformation {
    /// See [`super::OperatorSpec::FileSource`].
    FileSource {
        /// Paths or globs.
        paths: Vec<String>,
    },
    /// See [`super::OperatorSpec::Datagen`].
    Datagen {
        /// Records a second over all subtasks.
        rate: Option<u64>,
        /// Records over all subtasks.
        count: Option<u64>,
        /// The same seed, the same records.
        seed: u64,
        /// `key` is drawn from `0..keys`.
        keys: u64,
    },
    /// See [`super::OperatorSpec::SplitWords`].
    SplitWords {
        /// The column to cut.
        column: String,
    },
    /// See [`super::OperatorSpec::Filter`].
    Filter {
        /// The column that is compared.
        column: String,
        /// How.
        op: Comparison,
        /// With what; read in the column's type, so a text is fine for a number.
        value: Value,
    },
    /// See [`super::OperatorSpec::Where`].
    Where {
        /// A SQL expression.
        condition: String,
    },
    /// See [`super::OperatorSpec::Map`].
    Map {
        /// What is added or replaced.
        columns: Vec<NamedExpression>,
    },
    /// See [`super::OperatorSpec::Project`].
    Project {
        /// All that is emitted.
        columns: Vec<NamedExpression>,
    },
    /// Records with the same values in these columns go to the same subtask of the next step. No operator of its own.
    KeyBy {
        /// The columns.
        columns: Vec<String>,
    },
    /// See [`super::OperatorSpec::Count`]; the keys are those of the key-by before.
    Count {
        /// None: final for bounded input, updates for unbounded.
        emit: Option<Emit>,
    },
    /// See [`super::OperatorSpec::Sum`]; the keys are those of the key-by before.
    Sum {
        /// The column that is added up.
        column: String,
        /// None: final for bounded input, updates for unbounded.
        emit: Option<Emit>,
    },
    /// See [`super::OperatorSpec::Print`].
    Print {
        /// Put before each line.
        prefix: String,
    },
    /// See [`super::OperatorSpec::FileSink`].
    FileSink {
        /// The directory.
        path: String,
    },
    /// See [`super::OperatorSpec::Discard`].
    Discard,
    /// See [`super::OperatorSpec::Exec`].
    Exec(Box<ExecSpec>),
    /// See [`super::OperatorSpec::ExecSource`].
    ExecSource(Box<ExecSpec>),
    /// See [`super::OperatorSpec::ExecSink`].
    ExecSink(Box<ExecSpec>),
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
            Transformation::Exec(_) => "exec",
            Transformation::ExecSource(_) => "exec-source",
            Transformation::ExecSink(_) => "exec-sink",
        }
    }

    /// Whether it has no input.
    pub fn is_source(&self) -> bool {
        matches!(
            self,
            Transformation::FileSource { .. }
                | Transformation::Datagen { .. }
                | Transformation::ExecSource(_)
        )
    }

    /// Whether it has no output.
    pub fn is_sink(&self) -> bool {
        matches!(
            self,
            Transformation::Print { .. }
                | Transformation::FileSink { .. }
                | Transformation::Discard
                | Transformation::ExecSink(_)
        )
    }
}

/// How the input of a step is shared out among its subtasks, where no key-by says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partition {
    /// Subtask i to subtask i; equal parallelism.
    Forward,
    /// Round robin.
    Rebalance,
    /// Every record to every subtask.
    Broadcast,
    /// Everything to subtask 0.
    Global,
}

impl Partition {
    /// All of them.
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

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamNode {
    /// Unique in the job.
    pub(super) name: String,
    /// None: it could not be read, which has been reported; it stands in so that all else is checked too.
    pub(super) transformation: Option<Transformation>,
    /// None: the step before it, or nothing for a source.
    pub(super) inputs: Option<Vec<String>>,
    pub(super) parallelism: Option<u32>,
    pub(super) partition: Option<Partition>,
    pub(super) chaining: bool,
    pub(super) slot_sharing_group: Option<String>,
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
            chaining: true,
            slot_sharing_group: None,
            position: None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it does; none if that could not be read.
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

/// A job just as it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamGraph {
    pub(super) name: String,
    pub(super) nodes: Vec<StreamNode>,
    pub(super) parallelism: Option<u32>,
    pub(super) max_parallelism: Option<u32>,
    pub(super) chaining: Option<bool>,
    pub(super) restart_strategy: Option<v1::RestartStrategy>,
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
            restart_strategy: None,
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

    /// Checks it, fills in the defaults and chains it. `options.parameters` belong to job files and are not looked at.
    pub fn compile(&self, options: &CompileOptions) -> Result<v1::JobGraph, InvalidJob> {
        self.compile_after(Vec::new(), options)
            .map_err(|problems| InvalidJob {
                name: format!("job `{}`", self.name),
                problems,
            })
    }

    /// [`StreamGraph::compile`], where reading has found problems already: they are reported with those found here.
    pub(super) fn compile_after(
        &self,
        found: Vec<super::Problem>,
        options: &CompileOptions,
    ) -> Result<v1::JobGraph, Vec<super::Problem>> {
        let resolved = validate::resolve(self, options, found)?;
        let chaining = ChainingOptions {
            enabled: options.chaining.enabled && self.chaining.unwrap_or(true),
        };
        let mut graph = chaining::to_job_graph(&resolved, chaining, options.job_id);
        graph.artifacts = artifact::read(&self.artifacts, options.artifact_dir.as_deref())?;
        // What leaves here passes the same check as what arrives from strangers (limits on totals live there).
        super::job_graph::validate_job_graph(&graph).map_err(|invalid| {
            let problem = |message| super::Problem::of_job(None, message);
            invalid
                .problems
                .into_iter()
                .map(problem)
                .collect::<Vec<_>>()
        })?;
        Ok(graph)
    }
}
