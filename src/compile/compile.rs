//! Compiles a job file to a JobGraph. The error has all problems of the file and of the job, or the first error of the
//! YAML syntax alone.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tanist_model::problem::{InvalidJob, Position};
use tanist_proto::id::JobId;
use tanist_proto::v1;

use crate::ChainingOptions;
use crate::yaml;

/// Settings that a job file lacks, or that override it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompileOptions {
    /// The parallelism from the submission: overrides the job's own, but not that of single steps.
    pub parallelism: Option<u32>,
    /// `parallelism.default`: used if neither the step, nor the submission, nor the job sets one.
    pub default_parallelism: u32,
    /// The maximum parallelism of jobs that set none.
    pub max_parallelism: u32,
    /// Whether operators are chained; the job can also disable it.
    pub chaining: ChainingOptions,
    /// Values for the parameters of a job file.
    pub parameters: BTreeMap<String, String>,
    /// The id of the job.
    pub job_id: JobId,
    /// Base directory of relative artifact paths. `None`: the job's files are not on this host.
    pub artifact_dir: Option<PathBuf>,
    /// Base directory of relative paths that steps read and write; an absolute path. `None`: such paths stay
    /// relative, and no cluster accepts the job.
    pub working_dir: Option<PathBuf>,
    /// Artifacts larger than this, in bytes, are not put into the graph: it names the file, and the submitting
    /// process uploads it. `None`: all are put into the graph.
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

/// A job file that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFile {
    /// Its name, for messages.
    pub name: String,
    /// Its content.
    pub text: String,
}

impl JobFile {
    /// Creates a file with this name and text.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> JobFile {
        JobFile {
            name: name.into(),
            text: text.into(),
        }
    }
}

/// Why a job file can't be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobFileError {
    /// The file is not valid YAML; nothing else was checked.
    #[error("{name}: {}{message}", .position.map(|position| format!("{position}: ")).unwrap_or_default())]
    Syntax {
        /// The file.
        name: String,
        /// Position of the error.
        position: Option<Position>,
        /// Message of the YAML parser.
        message: String,
    },
    /// The file is valid YAML, but not a valid job.
    #[error(transparent)]
    Invalid(#[from] InvalidJob),
}

/// Reads a job file, substitutes the parameters, checks everything and chains the job.
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
