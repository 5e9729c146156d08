//! From a job file to a JobGraph.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tanist_proto::id::JobId;
use tanist_proto::v1;

use super::chaining::ChainingOptions;
use super::problem::{InvalidJob, Position};
use super::yaml;

/// What a job file does not say, or what overrules it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileOptions {
    /// The parallelism that was asked for at submission: overrules the job's own, not that of single steps.
    pub parallelism: Option<u32>,
    /// `parallelism.default`: where neither a step, nor the submission, nor the job names one.
    pub default_parallelism: u32,
    /// The maximum parallelism of jobs that name none.
    pub max_parallelism: u32,
    /// Whether operators are chained; the job can switch it off too.
    pub chaining: ChainingOptions,
    /// Values for the parameters of a job file.
    pub parameters: BTreeMap<String, String>,
    /// The id of the job.
    pub job_id: JobId,
    /// Where relative paths of artifacts begin; none: this is not where the job's files are.
    pub artifact_dir: Option<PathBuf>,
    /// Where relative paths begin that steps read and write, an absolute path; none: they stay relative, and no cluster accepts the
    /// job.
    pub working_dir: Option<PathBuf>,
    /// Artifacts above this size, in bytes, are not put into the graph: it names the file, and whoever submits uploads it. None:
    /// all are put in.
    pub upload_above: Option<u64>,
}

impl Default for CompileOptions {
    /// Parallelism 1 of at most 128, chained, without parameters, with a random job id.
    fn default() -> CompileOptions {
        CompileOptions {
            parallelism: None,
            default_parallelism: 1,
            max_parallelism: 128,
            chaining: ChainingOptions::default(),
            parameters: BTreeMap::new(),
            job_id: JobId::random(),
            artifact_dir: None,
            working_dir: None,
            upload_above: None,
        }
    }
}

/// A job file as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFile {
    /// Its name, for messages.
    pub name: String,
    /// What it says.
    pub text: String,
}

impl JobFile {
    /// The file of this name with this text.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> JobFile {
        JobFile {
            name: name.into(),
            text: text.into(),
        }
    }
}

/// A job file that can't be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobFileError {
    /// It is no YAML; nothing further is known about it.
    #[error("{name}: {}{message}", .position.map(|position| format!("{position}: ")).unwrap_or_default())]
    Syntax {
        /// The file.
        name: String,
        /// Where.
        position: Option<Position>,
        /// What the YAML parser says.
        message: String,
    },
    /// It is YAML, but no valid job.
    #[error(transparent)]
    Invalid(#[from] InvalidJob),
}

/// Reads a job file, puts in the parameters, checks everything and chains the job.
pub fn compile(file: &JobFile, options: &CompileOptions) -> Result<v1::JobGraph, JobFileError> {
    let (graph, problems) = yaml::read(file, &options.parameters)?;
    graph.compile_after(problems, options).map_err(|problems| {
        InvalidJob {
            name: file.name.clone(),
            problems,
        }
        .into()
    })
}
