//! Writes records as lines into pending files; see [`crate::sink`] for how they become visible.
//!
//! A sink that commits at the end has one part. One that commits with checkpoints completes a part at the first barrier
//! after its size or age has been reached, names it in each snapshot until one that has it is durable, and goes on with
//! another part. A task that is restored repeats nothing: all that its snapshot names is in a durable manifest.
//!
//! A snapshot makes the part that is not complete durable and names it with its length. From then on it belongs to the
//! job: the sink does not remove it, however it ends. A restored sink copies that length into a file of its own. What
//! an ended job has handed over is found in the directory of this job's run, whatever path the snapshot says.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use prost::Message as _;
use tanist_dataflow::{
    Built, Operator, OperatorContext, OperatorError, Output, PrepareCommit, Restored, SinkOutput,
    Snapshot, TaskEnding,
};
use tanist_model::commit_of;
use tanist_model::operators::{self, Commit, Roll};
use tanist_proto::v1::{Committable, FileSinkState};

use super::factory::{Runtime, Setup, operator};
use super::lines::write_lines;
use crate::sink::{self, Descent, Part, PartNames};

/// Name and signature of its saved state.
const STATE: &str = "parts";
const SIGNATURE: &str = "file-sink";
/// Parts that may wait for a checkpoint that has them. Each snapshot names all of them, and its report has a size
/// limit.
const MAX_COMPLETE: usize = 500;

impl Runtime for operators::FileSink {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(FileSink::new(self, setup.context))
    }
}

pub(super) struct FileSink {
    names: PartNames,
    /// When a part is complete; `None`: at the end.
    roll: Option<Roll>,
    /// The task is restored from a checkpoint.
    is_restored: bool,
    /// The highest checkpoint that it has taken up or was restored from.
    highest: u64,
    /// The jobs whose parts may be in the directory.
    jobs: BTreeSet<String>,
    /// Whether these are all. A subtask that did not exist when its job began does not know them; the others checked
    /// the directory then.
    knows_jobs: bool,
    /// The states of the snapshot, until the open parts that they name are copied.
    restored: Vec<FileSinkState>,
    lines: Vec<u8>,
    /// The part that is being written.
    part: Option<Part>,
    complete: Vec<Complete>,
    ending: TaskEnding,
}

/// A part that is complete, and not known to be in a durable snapshot.
struct Complete {
    /// The first checkpoint whose snapshot has it.
    since: u64,
    part: Committable,
}

impl FileSink {
    pub(super) fn new(spec: &operators::FileSink, context: &OperatorContext) -> FileSink {
        let commit = match context.takes_checkpoints {
            true => commit_of(spec, &context.graph),
            false => Commit::End,
        };
        FileSink {
            names: PartNames::of(&spec.path, context),
            roll: (commit == Commit::Checkpoint).then(|| spec.roll.unwrap_or_default()),
            is_restored: context.restored_from > 0,
            highest: context.restored_from,
            jobs: BTreeSet::from([context.job.to_string()]),
            knows_jobs: context.restored_from == 0,
            restored: Vec::new(),
            lines: Vec::new(),
            part: None,
            complete: Vec::new(),
            ending: context.end_guard.ending(),
        }
    }

    /// The part that is being written. Creates one if there is none.
    fn part(&mut self) -> Result<&mut Part, OperatorError> {
        match &mut self.part {
            Some(part) => Ok(part),
            none => Ok(none.insert(Part::create(self.names.pending())?)),
        }
    }

    /// Takes the output directory for the job, or refuses one with other output.
    fn take_directory(&self) -> Result<(), OperatorError> {
        let descent = match self.knows_jobs {
            true => Descent::Jobs(&self.jobs),
            false => Descent::Unknown,
        };
        let taken = match self.roll {
            None => self.names.begin_until_end(descent),
            Some(_) if self.is_restored => self.names.resume(descent),
            Some(_) => self.names.begin(),
        };
        Ok(taken?)
    }
}

/// A part in its pending file, and the path at which it becomes visible.
fn committable(pending: &Path, visible: PathBuf) -> Committable {
    Committable {
        pending_path: pending.to_string_lossy().into_owned(),
        final_path: visible.to_string_lossy().into_owned(),
    }
}

impl Operator for FileSink {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        self.restored = restored.messages(STATE, SIGNATURE)?;
        let jobs = self.restored.iter().flat_map(|state| &state.jobs);
        self.jobs.extend(jobs.cloned());
        self.knows_jobs = self.restored.iter().any(|state| !state.jobs.is_empty());
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        self.highest = snapshot.number();
        let newest = snapshot.newest();
        // The others are in a durable manifest, with which they are committed.
        self.complete.retain(|complete| complete.since > newest);
        let mut state = FileSinkState {
            open: None,
            jobs: match self.knows_jobs {
                true => self.jobs.iter().cloned().collect(),
                false => Vec::new(),
            },
        };
        if let Some(part) = self.part.as_mut().filter(|part| !part.is_empty()) {
            part.make_durable()?;
            let has_room = self.complete.len() < MAX_COMPLETE;
            if snapshot.is_savepoint() && self.roll.is_some() && !has_room {
                return Err(OperatorError::Custom(
                    format!(
                        "{MAX_COMPLETE} parts wait for a checkpoint: no more are made before one is complete"
                    )
                    .into(),
                ));
            }
            let is_complete = |roll| snapshot.is_savepoint() || has_room && part.is_complete(roll);
            if self.roll.is_some_and(is_complete) {
                let visible = self.names.visible_with(snapshot.number());
                self.complete.push(Complete {
                    since: snapshot.number(),
                    part: committable(part.path(), visible),
                });
                self.part = None;
            } else {
                let open = part.named();
                snapshot.keep_file(open.path.clone());
                state.open = Some(open);
            }
        }
        for complete in &self.complete {
            snapshot.add_committable(sink::KIND, complete.part.encode_to_vec());
        }
        snapshot.save_message(STATE, SIGNATURE, &state);
        Ok(())
    }

    fn open(&mut self) -> Result<(), OperatorError> {
        self.take_directory()?;
        // Before the first record: a directory that can't be written to is an error at once.
        let restored = std::mem::take(&mut self.restored);
        let (ending, names) = (self.ending.clone(), self.names.clone());
        let part = self.part()?;
        let open = restored.iter().filter_map(|state| state.open.as_ref());
        open.into_iter()
            .try_for_each(|former| part.copy(&names.found(former), former, &ending))
    }

    fn process(&mut self, batch: RecordBatch, _output: &mut Output) -> Result<(), OperatorError> {
        let mut lines = std::mem::take(&mut self.lines);
        lines.clear();
        write_lines(&batch, &mut lines)?;
        if !lines.is_empty() {
            self.part()?.write(&lines)?;
        }
        self.lines = lines;
        Ok(())
    }

    fn prepare_commit(&mut self) -> Option<PrepareCommit> {
        let part = self.part.take();
        if self.roll.is_none() {
            let (mut part, visible) = (part?, self.names.visible_at_end());
            return Some(Box::new(move || {
                part.make_durable()?;
                let committables = vec![committable(part.path(), visible)];
                Ok(SinkOutput::at_end(committables))
            }));
        }
        let complete = std::mem::take(&mut self.complete);
        let visible = self.names.visible_last(self.highest);
        Some(Box::new(move || {
            let mut parts: Vec<Committable> = complete.into_iter().map(|it| it.part).collect();
            if let Some(mut part) = part.filter(|part| !part.is_empty()) {
                part.make_durable()?;
                parts.push(committable(part.path(), visible));
            }
            let mut output = SinkOutput::default();
            for part in parts {
                output.add_committable(sink::KIND, part.encode_to_vec());
            }
            Ok(output)
        }))
    }
}

#[cfg(test)]
#[path = "file_sink_tests.rs"]
mod at_end_tests;
#[cfg(test)]
#[path = "file_sink_properties.rs"]
mod properties;
#[cfg(test)]
#[path = "file_sink_checkpoint_tests.rs"]
mod with_checkpoints_tests;
