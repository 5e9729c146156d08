//! Prepares coordinators: lists the files that a source reads. Blocks, so the core requests it by an effect. A failure
//! (no file, too many files, a directory that can't be read) fails the regions that wait for the preparation.

use tanist_model::files::{Look, matching_files};
use tanist_proto::v1 as pb;
use tanist_proto::v1::coordinator_state::State;

use super::core::{Coordinated, Kind, Unprepared, cut};

/// Prepares all coordinators of a group ([`Look`]). Blocks.
pub(super) fn prepare(
    operators: &[Coordinated],
    generation: u64,
    look: Look,
) -> Result<Vec<pb::CoordinatorState>, Unprepared> {
    let prepared = operators.iter().map(|it| {
        let state = it.kind.prepare(it.parallelism, look);
        let state = state.map_err(|error| Unprepared {
            cause: format!("operator {:?}: {}", it.operator, error.cause),
            ..error
        })?;
        Ok(pb::CoordinatorState {
            vertex_id: it.vertex_id.clone(),
            operator: it.operator.clone(),
            generation,
            state: Some(state),
        })
    });
    prepared.collect()
}

impl Kind {
    /// Prepares the coordinator's initial state. Blocks.
    fn prepare(&self, parallelism: u32, look: Look) -> Result<State, Unprepared> {
        match self {
            Kind::FileSplits {
                paths,
                most_path_bytes,
            } => {
                let splits = list_file_splits(paths, parallelism, *most_path_bytes, look);
                splits.map(State::FileSplits)
            }
        }
    }
}

/// Lists the files and cuts them into splits. Blocks.
pub(super) fn list_file_splits(
    paths: &[String],
    parallelism: u32,
    most_path_bytes: usize,
    look: Look,
) -> Result<pb::FileSplits, Unprepared> {
    let files = matching_files(paths, look).map_err(|error| Unprepared {
        cause: error.to_string(),
        is_unrecoverable: error.is_unrecoverable(),
    })?;
    let path_bytes: usize = files.iter().map(|(path, _)| path.as_os_str().len()).sum();
    if path_bytes > most_path_bytes {
        let cause = format!(
            "it reads {} files, whose names take {path_bytes} bytes; at most {most_path_bytes} may be kept in the job's \
             record: read fewer, larger files, or make several jobs",
            files.len()
        );
        return Err(Unprepared {
            cause,
            is_unrecoverable: false,
        });
    }
    Ok(cut(files, parallelism))
}
