//! `file-sink`: part files of a directory, which the JobManager makes visible when the job has finished.

use serde::{Deserialize, Serialize};

use super::{Declaration, PathUse, Role, Section, StateUse, Step, Transformation};
use crate::job_file::{Fields, Reader};

/// Writes records as lines (columns separated by a space) into part files of a directory. The parts become visible
/// when the whole job has finished.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSink {
    /// The directory. TaskManagers and JobManagers must reach it under this path.
    pub path: String,
}

impl FileSink {
    /// Writes into this directory.
    pub fn new(path: impl Into<String>) -> FileSink {
        FileSink { path: path.into() }
    }
}

impl Declaration for FileSink {
    fn kind(&self) -> &'static str {
        "file-sink"
    }

    fn state(&self) -> StateUse {
        StateUse::NotSaved("its state is not saved yet")
    }

    fn role(&self) -> Role {
        Role::Sink
    }

    fn problems(&self) -> Vec<String> {
        let path = &self.path;
        if path.is_empty() {
            vec!["`path` is empty: write the directory for the output".into()]
        } else if path.contains('\0') {
            vec![format!("{path:?} is no path")]
        } else {
            Vec::new()
        }
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

No two sinks of a job may share a directory. If the path of the directory is a file, the job fails at once.",
    fields: &[&["`path` | a path | required | the directory; it is created if it does not exist. TaskManagers and JobManagers must reach it under this path"]],
    example: "\
- file-source: { paths: [\"books/*.txt\"] }
- file-sink: { path: out }
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let path = fields.required("path", "out", reader, Reader::text)?;
    Some(FileSink { path }.into())
}
