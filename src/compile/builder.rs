//! Jobs written in Rust. The builder has the same features as a job file, with the same names. Nothing is
//! checked before [`StreamGraph::compile`], which reports all problems at once.
//!
//! The crate `tanist`, which exports this one as `job`, has examples.

use serde_json::Value;
use tanist_model::artifact::ArtifactSpec;
use tanist_model::operators::{
    Count, Datagen, Discard, Exec, ExecSink, ExecSource, FileSink, FileSource, Filter, KeyBy, Map,
    Print, Project, SplitWords, Sum, Where,
};
use tanist_model::{Comparison, CustomSpec, Emit, ExecSpec, NamedExpression, Transformation};
use tanist_proto::resources::Resources;
use tanist_proto::v1;

use crate::{Checkpoints, Exchange, Partition, StreamGraph, StreamNode};

/// The start of a job: settings of the whole job, then its first step.
#[derive(Debug, Clone)]
pub struct JobBuilder {
    graph: StreamGraph,
}

impl JobBuilder {
    /// Starts a job with this name.
    pub fn new(name: impl Into<String>) -> JobBuilder {
        JobBuilder {
            graph: StreamGraph::new(name),
        }
    }

    /// Sets the parallelism of steps that set none.
    #[must_use]
    pub fn parallelism(mut self, parallelism: u32) -> JobBuilder {
        self.graph.parallelism = Some(parallelism);
        self
    }

    /// Sets the parallelism up to which the job can be scaled.
    #[must_use]
    pub fn max_parallelism(mut self, max_parallelism: u32) -> JobBuilder {
        self.graph.max_parallelism = Some(max_parallelism);
        self
    }

    /// Sets whether steps are chained into one task where possible.
    #[must_use]
    pub fn chaining(mut self, enabled: bool) -> JobBuilder {
        self.graph.chaining = Some(enabled);
        self
    }

    /// Sets the exchange between chains whose steps set none.
    #[must_use]
    pub fn exchange(mut self, exchange: Exchange) -> JobBuilder {
        self.graph.exchange = Some(exchange);
        self
    }

    /// Sets when the job is restarted after a failure; see [`tanist_model::restart`].
    #[must_use]
    pub fn restart_strategy(mut self, strategy: v1::RestartStrategy) -> JobBuilder {
        self.graph.restart_strategy = Some(strategy);
        self
    }

    /// Sets when and how checkpoints are taken.
    #[must_use]
    pub fn checkpoints(mut self, checkpoints: Checkpoints) -> JobBuilder {
        self.graph.checkpoints = Some(checkpoints.0);
        self
    }

    /// Sets what is guaranteed about the previous attempt of a subtask when the next one starts.
    #[must_use]
    pub fn isolation(mut self, isolation: v1::Isolation) -> JobBuilder {
        self.graph.isolation = isolation;
        self
    }

    /// Sets the resources of each slot of a slot sharing group. Resources must be stated for all steps or
    /// groups of a job, or for none.
    #[must_use]
    pub fn slot_sharing_group(
        mut self,
        name: impl Into<String>,
        resources: Resources,
    ) -> JobBuilder {
        self.graph
            .slot_sharing_groups
            .insert(name.into(), resources);
        self
    }

    /// Adds a file that the job ships; see [`crate::CompileOptions::artifact_dir`].
    #[must_use]
    pub fn artifact(mut self, artifact: ArtifactSpec) -> JobBuilder {
        self.graph.artifacts.push(artifact);
        self
    }

    /// See [`Steps::file_source`].
    pub fn file_source<P: Into<String>>(
        self,
        name: impl Into<String>,
        paths: impl IntoIterator<Item = P>,
    ) -> Steps {
        self.begin().file_source(name, paths)
    }

    /// See [`Steps::datagen`].
    pub fn datagen(
        self,
        name: impl Into<String>,
        rate: Option<u64>,
        count: Option<u64>,
        seed: u64,
        keys: u64,
    ) -> Steps {
        self.begin().datagen(name, rate, count, seed, keys)
    }

    /// See [`Steps::custom`].
    pub fn custom(self, name: impl Into<String>, operator: CustomSpec) -> Steps {
        self.begin().custom(name, operator)
    }

    /// See [`Steps::exec_source`].
    pub fn exec_source(self, name: impl Into<String>, program: ExecSpec) -> Steps {
        self.begin().exec_source(name, program)
    }

    /// See [`Steps::step`].
    pub fn step(self, name: impl Into<String>, step: impl Into<Transformation>) -> Steps {
        self.begin().step(name, step)
    }

    fn begin(self) -> Steps {
        Steps { graph: self.graph }
    }
}

/// The steps of a job. Each reads the step before it unless [`Steps::reading`] is used. Methods such as
/// `with_...` apply to the last step.
#[derive(Debug, Clone)]
pub struct Steps {
    /// Callers get `Steps` only with at least one node.
    graph: StreamGraph,
}

impl Steps {
    /// Adds a step: any operator of [`tanist_model::operators`], or a key-by.
    #[must_use]
    pub fn step(mut self, name: impl Into<String>, step: impl Into<Transformation>) -> Steps {
        let node = StreamNode::new(name, Some(step.into()));
        self.graph.nodes.push(node);
        self
    }

    /// Reads the lines of text files.
    #[must_use]
    pub fn file_source<P: Into<String>>(
        self,
        name: impl Into<String>,
        paths: impl IntoIterator<Item = P>,
    ) -> Steps {
        self.step(name, FileSource::new(paths))
    }

    /// Generates `rate` records a second (`None`: at full speed) up to `count` records (`None`: unlimited).
    #[must_use]
    pub fn datagen(
        self,
        name: impl Into<String>,
        rate: Option<u64>,
        count: Option<u64>,
        seed: u64,
        keys: u64,
    ) -> Steps {
        self.step(
            name,
            Datagen {
                rate,
                count,
                seed,
                keys,
            },
        )
    }

    /// Splits a text column into words.
    #[must_use]
    pub fn split_words(self, name: impl Into<String>, column: impl Into<String>) -> Steps {
        let column = column.into();
        self.step(name, SplitWords { column })
    }

    /// Passes on records for which the comparison is true.
    #[must_use]
    pub fn filter(
        self,
        name: impl Into<String>,
        column: impl Into<String>,
        op: Comparison,
        value: impl Into<Value>,
    ) -> Steps {
        let (column, value) = (column.into(), value.into());
        self.step(name, Filter { column, op, value })
    }

    /// Passes on records for which a SQL expression is true: `amount > 10 and level = 'ERROR'`.
    #[must_use]
    pub fn filter_where(self, name: impl Into<String>, condition: impl Into<String>) -> Steps {
        let condition = condition.into();
        self.step(name, Where { condition })
    }

    /// Adds or replaces columns, each computed by a SQL expression: `[("total", "price * amount")]`.
    #[must_use]
    pub fn map<C: Into<NamedExpression>>(
        self,
        name: impl Into<String>,
        columns: impl IntoIterator<Item = C>,
    ) -> Steps {
        let columns = columns.into_iter().map(Into::into).collect();
        self.step(name, Map { columns })
    }

    /// Emits only these columns; see [`Steps::map`] and [`NamedExpression::column`].
    #[must_use]
    pub fn project<C: Into<NamedExpression>>(
        self,
        name: impl Into<String>,
        columns: impl IntoIterator<Item = C>,
    ) -> Steps {
        let columns = columns.into_iter().map(Into::into).collect();
        self.step(name, Project { columns })
    }

    /// Partitions by the values of these columns.
    #[must_use]
    pub fn key_by<C: Into<String>>(
        self,
        name: impl Into<String>,
        columns: impl IntoIterator<Item = C>,
    ) -> Steps {
        let columns = columns.into_iter().map(Into::into).collect();
        self.step(name, KeyBy { columns })
    }

    /// Counts records by key.
    #[must_use]
    pub fn count(self, name: impl Into<String>) -> Steps {
        self.step(name, Count::default())
    }

    /// Sums a column by key.
    #[must_use]
    pub fn sum(self, name: impl Into<String>, column: impl Into<String>) -> Steps {
        self.step(name, Sum::of(column))
    }

    /// Writes records to the TaskManager's standard output.
    #[must_use]
    pub fn print(self, name: impl Into<String>, prefix: impl Into<String>) -> Steps {
        let prefix = prefix.into();
        self.step(name, Print { prefix })
    }

    /// Writes records into part files of a directory. [`Steps::step`] takes a [`FileSink`] that says when they are
    /// complete and become visible.
    #[must_use]
    pub fn file_sink(self, name: impl Into<String>, path: impl Into<String>) -> Steps {
        self.step(name, FileSink::new(path))
    }

    /// Runs a program that reads and writes records.
    #[must_use]
    pub fn exec(self, name: impl Into<String>, program: ExecSpec) -> Steps {
        self.step(name, Exec::new(program))
    }

    /// Runs a program that writes records.
    #[must_use]
    pub fn exec_source(self, name: impl Into<String>, program: ExecSpec) -> Steps {
        self.step(name, ExecSource::new(program))
    }

    /// Runs a program that reads records.
    #[must_use]
    pub fn exec_sink(self, name: impl Into<String>, program: ExecSpec) -> Steps {
        self.step(name, ExecSink::new(program))
    }

    /// Drops records.
    #[must_use]
    pub fn discard(self, name: impl Into<String>) -> Steps {
        self.step(name, Discard {})
    }

    /// Adds an operator of the application's own binary.
    #[must_use]
    pub fn custom(self, name: impl Into<String>, operator: CustomSpec) -> Steps {
        self.step(name, operator)
    }

    /// Makes the last step read these steps instead of the step before it. Their records must have the same
    /// columns.
    #[must_use]
    pub fn reading<N: Into<String>>(self, inputs: impl IntoIterator<Item = N>) -> Steps {
        let inputs = inputs.into_iter().map(Into::into).collect();
        self.last(|step| step.inputs = Some(inputs))
    }

    /// Names the state of the last step in checkpoints. Without it the step's name does.
    #[must_use]
    pub fn with_uid(self, uid: impl Into<String>) -> Steps {
        self.last(|step| step.uid = Some(uid.into()))
    }

    /// Accepts that no checkpoint is taken of the region of the last step, which runs a program.
    #[must_use]
    pub fn without_checkpoints(self) -> Steps {
        self.last(|step| step.checkpoint = Some(false))
    }

    /// Sets the parallelism of the last step.
    #[must_use]
    pub fn with_parallelism(self, parallelism: u32) -> Steps {
        self.last(|step| step.parallelism = Some(parallelism))
    }

    /// Sets how the last step's input is distributed to its subtasks.
    #[must_use]
    pub fn partitioned(self, partition: Partition) -> Steps {
        self.last(|step| step.partition = Some(partition))
    }

    /// Sets whether the last step reads its input while it is produced, or after it is complete.
    #[must_use]
    pub fn exchanged(self, exchange: Exchange) -> Steps {
        self.last(|step| step.exchange = Some(exchange))
    }

    /// Runs the last step as a task of its own.
    #[must_use]
    pub fn without_chaining(self) -> Steps {
        self.last(|step| step.chaining = false)
    }

    /// Sets the slot sharing group of the last step. Tasks of different groups never share a slot.
    #[must_use]
    pub fn in_slot_sharing_group(self, group: impl Into<String>) -> Steps {
        self.last(|step| step.slot_sharing_group = Some(group.into()))
    }

    /// Sets the resources that a subtask of the last step needs. Resources must be stated for all steps or
    /// groups of a job, or for none.
    #[must_use]
    pub fn with_resources(self, resources: Resources) -> Steps {
        self.last(|step| step.resources = Some(resources))
    }

    /// Sets the co-location group of the last step. Subtasks with the same index of all steps in the group run
    /// in one slot.
    #[must_use]
    pub fn in_co_location_group(self, group: impl Into<String>) -> Steps {
        self.last(|step| step.co_location_group = Some(group.into()))
    }

    /// Sets when the last step, an aggregation, emits. No effect on other steps.
    #[must_use]
    pub fn emitting(self, when: Emit) -> Steps {
        self.last(|step| {
            if let Some(operator) = step.operator_mut() {
                operator.set_emit(when);
            }
        })
    }

    /// Returns the job as it was written.
    pub fn build(self) -> StreamGraph {
        self.graph
    }

    pub(super) fn last(mut self, change: impl FnOnce(&mut StreamNode)) -> Steps {
        if let Some(step) = self.graph.nodes.last_mut() {
            change(step);
        }
        self
    }
}
