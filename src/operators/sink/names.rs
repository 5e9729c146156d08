//! Where file sinks write: the names of pending and visible files, and the check for files of another run.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tanist_dataflow::OperatorContext;
use tanist_model::OperatorSpec;
use tanist_proto::id::JobId;
use tanist_proto::v1::JobGraph;

use super::SinkError;

/// Directory for pending files, inside the output directory.
pub(super) const PENDING_DIRECTORY: &str = ".tanist";
const PART_PREFIX: &str = "part-";

/// Where one subtask of a file sink writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartNames {
    pub(crate) directory: PathBuf,
    pub(crate) pending: PathBuf,
    pub(crate) visible: PathBuf,
}

impl PartNames {
    pub(crate) fn of(path: &str, context: &OperatorContext) -> PartNames {
        let OperatorContext {
            graph,
            job,
            vertex,
            subtask,
            generation,
            ..
        } = context;
        let directory = PathBuf::from(path);
        let pending = directory
            .join(PENDING_DIRECTORY)
            .join(run_directory(*job, &graph.run))
            .join(format!(
                "{vertex}-{subtask}-{generation}-{:016x}.pending",
                rand::random::<u64>()
            ));
        let part = match sinks_into(graph, &directory) {
            0 | 1 => format!("{PART_PREFIX}{subtask}"),
            _ => format!("{PART_PREFIX}{subtask}-{vertex}"),
        };
        let visible = directory.join(part);
        PartNames {
            directory,
            pending,
            visible,
        }
    }
}

/// Name of the directory of a run's pending files. It contains the run, so that a leader that was stopped until
/// the job id was used again can't remove the next run's files.
pub(super) fn run_directory(job: JobId, run: &str) -> String {
    match run {
        "" => job.to_string(),
        run => format!("{job}-{run}"),
    }
}

/// Number of file sinks of a graph that write into a directory.
fn sinks_into(graph: &JobGraph, directory: &Path) -> usize {
    let operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    let specs = operators.filter_map(|operator| serde_json::from_str(&operator.spec).ok());
    let is_into = |spec: &OperatorSpec| match spec {
        OperatorSpec::FileSink(sink) => Path::new(&sink.path) == directory,
        _ => false,
    };
    specs.filter(is_into).count()
}

/// Refuses a directory that has part files. No part of a job is visible while one of its tasks may still start,
/// so existing part files belong to another run.
pub(crate) fn check_output(directory: &Path) -> Result<(), SinkError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(SinkError::NoDirectory {
                path: directory.to_owned(),
            });
        }
        Err(error) => return Err(SinkError::io("read", directory, error)),
    };
    for entry in entries {
        let entry = entry.map_err(|error| SinkError::io("read", directory, error))?;
        if entry.file_name().to_string_lossy().starts_with(PART_PREFIX) {
            return Err(SinkError::Occupied { path: entry.path() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_part_files_are_in_the_way() {
        let directory = tempfile::tempdir().expect("directory");
        check_output(&directory.path().join("missing")).expect("free");
        fs::write(directory.path().join("notes.txt"), "").expect("written");
        check_output(directory.path()).expect("free");
        fs::write(directory.path().join("part-7"), "").expect("written");
        assert!(check_output(directory.path()).is_err());
    }
}
