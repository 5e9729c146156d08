//! Output that the retained checkpoint of an ended job names and that is not visible: files that its sinks were
//! writing, and what was to be committed when the job ended without a JobMaster.
//!
//! The cleanup of the ended job keeps it. A job that begins from the checkpoint has the commit finished, and gets names
//! of its own for the files, before its submission is written. So each job removes its own names, and an acknowledged
//! job has all that its checkpoint names (ADR 61).
//!
//! Before the first of these names is made, a note in the directory of the job's checkpoints says where they will be.
//! If the submission is never written, the sweep of orphans removes them by the note; if another attempt is, the
//! cleanup after that job does. Without a blob store there is no note.

use std::path::PathBuf;
use std::time::Duration;

use prost::Message as _;
use tanist_gateway::manifests;
use tanist_ha::Error;
use tanist_ha::blob::ObjectDirectory;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::warn;

use super::error::JobStoreError;
use super::restore::{TIMEOUT, no_answer};
use crate::cleanup::{HiddenOutput, SinkCleaner};

/// What a retained checkpoint names.
pub(super) fn hidden_output(
    checkpoint: &pb::CompletedCheckpoint,
    manifest: &pb::CheckpointManifest,
) -> HiddenOutput {
    HiddenOutput {
        files: manifests::hidden_files(manifest).into_iter().collect(),
        uncommitted: match checkpoint.committed {
            true => Vec::new(),
            false => manifest.uncommitted.clone(),
        },
    }
}

/// The job that gets the output, and the sinks that give it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heir<'a> {
    pub(super) job: JobId,
    pub(super) graph: &'a pb::JobGraph,
    pub(super) sinks: &'a dyn SinkCleaner,
}

impl Heir<'_> {
    /// Makes visible what a checkpoint lists. That was decided when the checkpoint was written, so it may be done at
    /// any time.
    pub(super) async fn finish_commit(
        self,
        (ended, checkpoint): (JobId, &pb::CompletedCheckpoint),
        manifest: &pb::CheckpointManifest,
        refused: &impl Fn(String) -> JobStoreError,
    ) -> Result<(), JobStoreError> {
        let output = hidden_output(checkpoint, manifest).uncommitted;
        if output.is_empty() {
            return Ok(());
        }
        let number = checkpoint.number;
        let committing = self.sinks.finish_commit(number, &output);
        let committed = tokio::time::timeout(TIMEOUT, committing).await;
        let committed = committed.map_err(|_elapsed| no_files())?;
        committed.map_err(|reason| {
            refused(format!(
                "checkpoint {number} of job {ended} lists output that is not visible yet and that can't be made \
                 visible: {reason}"
            ))
        })
    }

    /// Gets names of its own for the files that a manifest names, and names them there.
    pub(super) async fn take_over(
        self,
        manifest: &mut pb::CheckpointManifest,
        storage: Option<&ObjectDirectory>,
        refused: &impl Fn(String) -> JobStoreError,
    ) -> Result<(), JobStoreError> {
        let files = manifests::hidden_files(manifest);
        if files.is_empty() {
            return Ok(());
        }
        let directories = self.directories();
        let run = &self.graph.run;
        // First: after a crash, only the note shows where names may have been made.
        if let Some(storage) = storage {
            let note = Note::new(run, &directories);
            let putting = tokio::time::timeout(TIMEOUT, note.put(storage)).await;
            putting.map_err(|_elapsed| no_answer(&storage.location()))??;
        }
        let giving = self.sinks.hand_over(&files, (self.job, run), &directories);
        let given = tokio::time::timeout(TIMEOUT, giving).await;
        let given = given.map_err(|_elapsed| no_files())?;
        let given = given.map_err(|reason| {
            let number = manifest.number;
            refused(format!(
                "checkpoint {number} names output that is not visible yet and that can't be taken over: {reason}"
            ))
        })?;
        manifests::rename_hidden_files(manifest, given);
        Ok(())
    }

    /// Removes what it has got: its submission was not written.
    pub(super) async fn give_up(self) {
        let directories = self.directories();
        let paths = directories.iter().map(|it| it.to_string_lossy());
        remove_all(self.sinks, paths, (self.job, &self.graph.run), TIMEOUT).await;
    }

    fn directories(self) -> Vec<PathBuf> {
        tanist_model::sink_directories(self.graph)
    }
}

/// Removes all pending files of a run of a job from these directories. What fails, or takes longer than `timeout` in
/// one of them, is left behind and logged.
pub(super) async fn remove_all(
    sinks: &dyn SinkCleaner,
    directories: impl Iterator<Item = impl AsRef<str>>,
    (job, run): (JobId, &str),
    timeout: Duration,
) {
    let nothing = HiddenOutput::default();
    for directory in directories {
        let directory = directory.as_ref();
        let cleaning = sinks.clean(directory, job, run, &nothing);
        let reason = match tokio::time::timeout(timeout, cleaning).await {
            Ok(Ok(())) => continue,
            Ok(Err(reason)) => reason,
            Err(_elapsed) => format!("no answer within {timeout:?}"),
        };
        warn!(%job, directory, reason, "hidden files of a job are left behind");
    }
}

fn no_files() -> JobStoreError {
    JobStoreError::Refused(Error::Unavailable {
        store: "the directory of a sink",
        reason: format!("it has given no answer for {TIMEOUT:?}"),
    })
}

/// How the names of notes begin, before the run.
const NOTE: &str = "sinks-";

/// Where a submission has names for files of an ended job; see the module.
#[derive(Debug)]
pub(crate) struct Note(pb::SinkDirectories);

impl Note {
    fn new(run: &str, directories: &[PathBuf]) -> Note {
        let paths = directories.iter();
        Note(pb::SinkDirectories {
            paths: paths.map(|it| it.to_string_lossy().into_owned()).collect(),
            run: run.to_owned(),
        })
    }

    async fn put(&self, storage: &ObjectDirectory) -> Result<(), JobStoreError> {
        let name = format!("{NOTE}{}", self.0.run);
        let put = storage.put(&name, self.0.encode_to_vec().into()).await;
        put.map_err(JobStoreError::Refused)
    }

    /// Reads an object. None: it is no note.
    pub(crate) async fn read(
        storage: &ObjectDirectory,
        object: &str,
    ) -> Result<Option<Note>, Error> {
        if !object.starts_with(NOTE) {
            return Ok(None);
        }
        let sinks = pb::SinkDirectories::decode(storage.get(object).await?);
        // Nothing else writes such an object: one that can't be read says nothing.
        Ok(sinks.ok().map(Note))
    }

    /// Removes the names, except those of the run `own`, which its job owns.
    pub(crate) async fn clean(
        &self,
        sinks: &dyn SinkCleaner,
        job: JobId,
        own: &str,
    ) -> Result<(), String> {
        let pb::SinkDirectories { paths, run } = &self.0;
        let nothing = HiddenOutput::default();
        for directory in paths.iter().filter(|_| run != own) {
            sinks.clean(directory, job, run, &nothing).await?;
        }
        Ok(())
    }
}
