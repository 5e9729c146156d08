//! What an operator declares: everything about it that the control plane, the compiler and the client have to know
//! without running it.
//!
//! All methods but two have defaults: those of a step that passes on records with their columns and event time.

use std::fmt;

use super::{EventTime, OperatorSpec, Reading, Windows};
use crate::{ColumnType, Emit, NamedExpression, Schema};

/// The place of an operator in a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It has no input.
    Source {
        /// Whether it ends by itself.
        bounded: bool,
    },
    /// It has input and output.
    Step,
    /// It has no output.
    Sink,
}

/// How an operator uses a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathUse {
    /// It reads what the path or glob names.
    Read,
    /// It writes into the directory, which the JobManager cleans up when the job has ended. No other operator of the
    /// job may write there.
    Write,
}

/// What a checkpoint saves of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateUse {
    /// Its output depends on the present record alone, so there is nothing to save.
    None,
    /// Its `snapshot` saves it.
    Saved,
    /// A checkpoint can't save it, for this reason. Its region is not checkpointed.
    NotSaved(&'static str),
}

/// How the positions of an operator, and its states without keys, are divided among another number of subtasks. Keyed
/// state always goes by key groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redistribution {
    /// They are not: an operator that has any keeps its parallelism.
    SameParallelism,
    /// What a subtask saved goes to one subtask, in turns. So a subtask may get that of several, or nothing.
    List,
    /// Each subtask gets what all have saved, and takes its share of it.
    Union,
}

/// What is known about the input of a step, to complete it. Empty for a source.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Its columns.
    pub schema: &'a Schema,
    /// The columns of the key-by before the step; empty if the operator has no keys.
    pub keys: &'a [String],
    /// Whether it ends.
    pub bounded: bool,
    /// Its event time.
    pub event_time: Option<&'a EventTime>,
}

/// Types of SQL expressions. The compiler implements it; this crate has no SQL.
///
/// An error without problems means that the operator's own problems already say it: a feature is missing.
pub trait ExpressionTypes {
    /// Checks a condition over the input's columns; the error lists its problems.
    fn check_condition(&self, text: &str, input: &Schema) -> Result<(), Vec<String>>;

    /// Returns the types of computed columns, or all their problems.
    fn types_of(
        &self,
        columns: &[NamedExpression],
        input: &Schema,
    ) -> Result<Vec<ColumnType>, Vec<String>>;
}

/// The declaration of an operator, implemented by its part of the [`OperatorSpec`].
pub trait Declaration: fmt::Debug {
    /// Its name in plans and messages: that of its step in a job file.
    fn kind(&self) -> &'static str;

    /// What a checkpoint saves of it.
    fn state(&self) -> StateUse;

    /// How what it saves without keys is divided among another number of subtasks. Its `restore` has to take several
    /// positions or states, unless its parallelism stays.
    fn redistribution(&self) -> Redistribution {
        Redistribution::SameParallelism
    }

    /// The kinds of its output that is committed with checkpoints.
    fn commits(&self) -> Vec<&str> {
        Vec::new()
    }

    /// Its place in a job.
    fn role(&self) -> Role {
        Role::Step
    }

    /// The columns that it emits for those of its input (none for a source), or all problems of the input.
    fn output(&self, input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        Ok(match self.role() {
            Role::Sink => Schema::default(),
            Role::Source { .. } | Role::Step => input.clone(),
        })
    }

    /// The problems of its fields, independently of its input.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }

    /// The problem that it has in a job whose sources all end by themselves.
    fn bounded_job_problem(&self) -> Option<String> {
        None
    }

    /// Fills in what the step leaves to its input, and nothing that it states. The error says what the input lacks.
    fn complete(&mut self, _input: &Input<'_>) -> Result<(), String> {
        Ok(())
    }

    /// Its key columns, by which its input is partitioned; `None` if it has no keys.
    fn keys(&self) -> Option<&[String]> {
        None
    }

    /// Describes the functions whose results its state has for each key. Manifests keep this text with the key columns,
    /// and a restore compares it: with another text, state of the same operator that was saved before is refused.
    /// `None`: it has no keyed state, or only the operator knows.
    fn keyed_results(&self) -> Option<String> {
        None
    }

    /// Whether it can only have one subtask.
    fn is_single(&self) -> bool {
        false
    }

    /// Whether it emits nothing before the end of its input.
    fn waits_for_the_end(&self) -> bool {
        false
    }

    /// Whether it has SQL expressions.
    fn has_expressions(&self) -> bool {
        false
    }

    /// Whether it may use the job's artifacts.
    fn uses_artifacts(&self) -> bool {
        false
    }

    /// Whether a source saves how far it has read, so that a restored one loses no input.
    fn has_position(&self) -> bool {
        true
    }

    /// Whether it runs a program, whose state no checkpoint can save.
    fn runs_program(&self) -> bool {
        false
    }

    /// The event time of its output, given that of its input. A column that only has the same name as the watermarks'
    /// column is a different column: its event time is unknown. So is that of columns that are parsed or aggregated.
    fn event_time(&self, input: Option<&EventTime>) -> Option<EventTime> {
        let makes_columns = self.reading().is_some() || self.keys().is_some();
        match self.role() {
            Role::Source { .. } => None,
            Role::Step | Role::Sink => input.filter(|_| !makes_columns).cloned(),
        }
    }

    /// The problem of its input's event time.
    fn event_time_problem(&self, _input: Option<&EventTime>) -> Option<String> {
        None
    }

    /// Calls `visit` with each path that it reads or writes. `visit` may change the path.
    fn visit_paths(&mut self, _visit: &mut dyn FnMut(&mut String, PathUse)) {}

    /// How it reads texts, if it converts them to columns.
    fn reading(&self) -> Option<&Reading> {
        None
    }

    /// The same, to change it.
    fn reading_mut(&mut self) -> Option<&mut Reading> {
        None
    }

    /// Sets when it emits. No effect unless it is an aggregation over its whole input.
    fn set_emit(&mut self, _emit: Emit) {}

    /// The same aggregation over windows; `None` if it is no aggregation.
    fn windowed(&self, _windows: Windows) -> Option<OperatorSpec> {
        None
    }
}

impl OperatorSpec {
    /// Encodes it for a JobGraph. Fields are written in the order of their declaration: vertex ids depend on
    /// it.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts, numbers and JSON values always serialize")
    }

    /// Decodes it from a JobGraph.
    pub fn from_json(json: &str) -> Result<OperatorSpec, serde_json::Error> {
        serde_json::from_str(json)
    }

    /// Whether it has no input.
    pub fn is_source(&self) -> bool {
        matches!(self.role(), Role::Source { .. })
    }

    /// Whether it is a source that ends by itself.
    pub fn is_bounded_source(&self) -> bool {
        self.role() == Role::Source { bounded: true }
    }

    /// Whether it has no output.
    pub fn is_sink(&self) -> bool {
        self.role() == Role::Sink
    }

    /// Returns the feature that it needs, if this program was built without it.
    pub fn missing_feature(&self) -> Option<&'static str> {
        (self.has_expressions() && !cfg!(feature = "sql")).then_some(crate::NEEDS_SQL)
    }

    /// Returns the problems of its fields, and the feature that is missing.
    pub fn field_problems(&self) -> Vec<String> {
        let missing = self.missing_feature().map(String::from);
        missing.into_iter().chain(self.problems()).collect()
    }

    /// Returns the problems of its fields at submission. Some of these are not checked for a graph that was
    /// accepted before, which continues.
    pub fn submission_problems(&self) -> Vec<String> {
        let mut problems = self.field_problems();
        problems.extend(self.reading().and_then(Reading::format_problem));
        problems
    }
}
