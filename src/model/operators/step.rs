//! Steps of a job file: how each is read, and its part of the reference (`docs/reference/steps.md`).

use super::{KeyBy, OperatorSpec};
use crate::job_file::{Fields, Reader};

/// The operation of a step. A key-by is no operator: it says how records get to the next one.
#[derive(Debug, Clone, PartialEq)]
pub enum Transformation {
    /// Records with equal values in these columns go to the same subtask of the next step.
    KeyBy(KeyBy),
    /// An operator. What it leaves to its input is filled in when the job is compiled.
    Operator(OperatorSpec),
}

impl Transformation {
    /// Its name in a job file.
    pub fn kind(&self) -> &'static str {
        match self {
            Transformation::KeyBy(_) => KeyBy::NAME,
            Transformation::Operator(spec) => spec.kind(),
        }
    }

    /// The operator, if it is one.
    pub fn operator(&self) -> Option<&OperatorSpec> {
        match self {
            Transformation::KeyBy(_) => None,
            Transformation::Operator(spec) => Some(spec),
        }
    }

    /// The same, to change it.
    pub fn operator_mut(&mut self) -> Option<&mut OperatorSpec> {
        match self {
            Transformation::KeyBy(_) => None,
            Transformation::Operator(spec) => Some(spec),
        }
    }
}

impl From<KeyBy> for Transformation {
    fn from(key_by: KeyBy) -> Transformation {
        Transformation::KeyBy(key_by)
    }
}

impl<T: Into<OperatorSpec>> From<T> for Transformation {
    fn from(spec: T) -> Transformation {
        Transformation::Operator(spec.into())
    }
}

/// The section of the reference that describes a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// It brings records into the job.
    Sources,
    /// It passes on, changes or aggregates records.
    Transformations,
    /// It takes records out of the job.
    Sinks,
}

/// A step as it is written in a job file.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Its name.
    pub name: &'static str,
    /// Where the reference describes it.
    pub section: Section,
    /// What it does, in Markdown.
    pub text: &'static str,
    /// Its fields, in groups: rows of a Markdown table, without the outer bars. The columns are the field's name, its
    /// values with their units, its default or `required`, and its meaning. The fields of a map have the map's name and
    /// a point before theirs; `NAME` stands for any name.
    pub fields: &'static [&'static [&'static str]],
    /// What checkpoints save of it, in Markdown.
    pub checkpoints: &'static str,
    /// Steps of a complete job that show it, in YAML.
    pub example: &'static str,
    /// Reads its fields; `None` if a required one is missing or can't be read, which is reported.
    pub read: fn(&mut Fields<'_>, &mut Reader) -> Option<Transformation>,
}
