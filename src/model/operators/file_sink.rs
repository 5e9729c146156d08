//! Declaration of `file-sink`: its fields, checks and documentation. Tasks write part files; the JobManager makes them
//! visible.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tanist_ha::clock::millis;

use super::{Declaration, PathUse, Redistribution, Role, Section, StateUse, Step, Transformation};
use crate::job_file::{Fields, Node, Reader};

/// When the parts of a file sink become visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Commit {
    /// All of them when the whole job has finished.
    End,
    /// Each with the first checkpoint after it is complete.
    Checkpoint,
}

/// When a part of a file sink is complete: at the first checkpoint at which it has this size or age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Roll {
    /// In bytes.
    pub size: u64,
    /// Time since its first record.
    pub interval_ms: u64,
}

impl Default for Roll {
    fn default() -> Roll {
        Roll {
            size: 128 << 20,
            interval_ms: 60_000,
        }
    }
}

/// Writes records as lines (columns separated by a space) into part files of a directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSink {
    /// The directory. TaskManagers and JobManagers must reach it under this path.
    pub path: String,
    /// When parts become visible. Absent: [`Commit::End`] if all sources of the job end by themselves, else
    /// [`Commit::Checkpoint`]. A task of which no checkpoints are taken commits at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Commit>,
    /// When a part is complete; absent: the default. Used only with [`Commit::Checkpoint`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roll: Option<Roll>,
}

impl FileSink {
    /// The kind of its output, which is committed with checkpoints.
    pub const OUTPUT: &str = "file";

    /// Writes into this directory.
    pub fn new(path: impl Into<String>) -> FileSink {
        FileSink {
            path: path.into(),
            commit: None,
            roll: None,
        }
    }

    /// The same, with parts that become visible at this time.
    #[must_use]
    pub fn committing(self, commit: Commit) -> FileSink {
        FileSink {
            commit: Some(commit),
            ..self
        }
    }

    /// The same, with parts that are complete at this size or age.
    #[must_use]
    pub fn rolling(self, size: u64, interval: Duration) -> FileSink {
        let interval_ms = millis(interval);
        FileSink {
            roll: Some(Roll { size, interval_ms }),
            ..self
        }
    }
}

const LONGEST_INTERVAL_MS: u64 = 86_400_000;

impl Declaration for FileSink {
    fn kind(&self) -> &'static str {
        "file-sink"
    }

    fn state(&self) -> StateUse {
        StateUse::Saved
    }

    fn redistribution(&self) -> Redistribution {
        Redistribution::List
    }

    fn commits(&self) -> Vec<&str> {
        vec![FileSink::OUTPUT]
    }

    fn role(&self) -> Role {
        Role::Sink
    }

    fn problems(&self) -> Vec<String> {
        let path = &self.path;
        let mut problems = Vec::new();
        if path.is_empty() {
            problems.push("`path` is empty: write the directory for the output".into());
        } else if path.contains('\0') {
            problems.push(format!("{path:?} is no path"));
        }
        let Some(roll) = self.roll else {
            return problems;
        };
        if roll.size == 0 {
            problems.push("`roll.size` must be at least 1 byte".into());
        }
        if roll.interval_ms > LONGEST_INTERVAL_MS {
            problems.push("`roll.interval` must be at most 1 d".into());
        }
        if self.commit == Some(Commit::End) {
            let message = "`roll` has no effect with `commit: end`, where a subtask writes one part: remove one of them";
            problems.push(message.into());
        }
        problems
    }

    fn bounded_job_problem(&self) -> Option<String> {
        let commits_at_the_end = self.commit.is_none();
        (commits_at_the_end && self.roll.is_some()).then(|| {
            "`roll` has no effect in a job whose sources all end, where a subtask writes one part: write `commit: checkpoint`, or remove it".to_owned()
        })
    }

    fn visit_paths(&mut self, visit: &mut dyn FnMut(&mut String, PathUse)) {
        visit(&mut self.path, PathUse::Write);
    }
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "file-sink",
    section: Section::Sinks,
    text: "\
Writes records as lines, with columns separated by a space, into part files of a directory. A record with a line break
is not a line and fails the task, here and in `socket-sink`: a `format-json` step before the sink escapes it.

With `commit: end` the parts become visible together when the whole job has FINISHED. With `commit: checkpoint` a part
is complete at the first checkpoint at which it has the size or age of `roll`, and becomes visible once that checkpoint
is durable; a savepoint completes all parts. Where no checkpoints are taken, the parts become visible at the end.
Without `commit`, a job whose sources all end by themselves commits at the end, and each other job with checkpoints.

With `commit: end` the directory must have no part files at the start; with `commit: checkpoint`, none of another job,
unless this one was started from a checkpoint or savepoint of it. A directory belongs to one job at a time. No two sinks
of a job may share a directory. If the path of the
directory is a file, the job fails at once.",
    fields: &[&[
        "`path` | a path | required | the directory; it is created if it does not exist. TaskManagers and JobManagers must reach it under this path",
        "`commit` | `end`, `checkpoint` | `end` if all sources end by themselves | when parts become visible",
        "`roll` | `{ size: SIZE, interval: DURATION }` | `{ size: 128 mb, interval: 1 min }` | with `commit: checkpoint`: size, and time since the first record, at which a part is complete",
    ]],
    checkpoints: "\
The pending file is made durable, and saved by name and length. A restored subtask copies it, so each
record is in the output once. All TaskManagers that may run the step must reach the directory.",
    example: "\
- datagen: { rate: 1000 }
- file-sink: { path: out, commit: checkpoint, roll: { size: 16 mb, interval: 10 s } }
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let path = fields.required("path", "out", reader, Reader::text);
    let commit = fields.optional_value("commit", reader, |reader, field, node| {
        let choices = [("end", Commit::End), ("checkpoint", Commit::Checkpoint)];
        reader.one_of(field, node, &choices)
    });
    let roll = fields.node("roll").map(|node| roll(node, reader));
    let path = path?;
    Some(FileSink { path, commit, roll }.into())
}

fn roll(node: &Node, reader: &mut Reader) -> Roll {
    let mut fields = Fields::of(node, reader);
    let (size, interval) = (
        fields.optional_value("size", reader, Reader::bytes),
        fields.optional_value("interval", reader, Reader::duration),
    );
    fields.finish("roll", reader);
    let default = Roll::default();
    Roll {
        size: size.unwrap_or(default.size),
        interval_ms: interval.map_or(default.interval_ms, millis),
    }
}
