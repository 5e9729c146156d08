//! `file-source` of a set of files that is determined once. With `follow: true` its step is another operator, see
//! [`FollowFiles`].

use serde::{Deserialize, Serialize};
use tanist_ha::clock::millis;

use super::columns::line;
use super::{
    Declaration, ExpressionTypes, FollowFiles, PathUse, Redistribution, Role, Section, StateUse,
    Step, Transformation,
};
use crate::Schema;
use crate::job_file::{Fields, Reader};
use crate::problem::MAX_PROBLEMS;

/// Reads text files line by line. Emits `line: string`. Bounded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSource {
    /// Paths or globs. The JobMaster sorts the matching files, cuts them into byte ranges and gives these to the
    /// subtasks.
    pub paths: Vec<String>,
}

impl FileSource {
    /// Reads these paths and globs.
    pub fn new<P: Into<String>>(paths: impl IntoIterator<Item = P>) -> FileSource {
        FileSource {
            paths: paths.into_iter().map(Into::into).collect(),
        }
    }
}

impl Declaration for FileSource {
    fn kind(&self) -> &'static str {
        "file-source"
    }

    fn state(&self) -> StateUse {
        StateUse::Saved
    }

    fn redistribution(&self) -> Redistribution {
        Redistribution::List
    }

    fn role(&self) -> Role {
        Role::Source { bounded: true }
    }

    fn problems(&self) -> Vec<String> {
        path_problems(&self.paths)
    }

    fn visit_paths(&mut self, visit: &mut dyn FnMut(&mut String, PathUse)) {
        let paths = self.paths.iter_mut();
        paths.for_each(|path| visit(path, PathUse::Read));
    }

    fn output(&self, _input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        Ok(line())
    }
}

/// Returns the problems of paths and globs to read.
pub(super) fn path_problems(paths: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    if paths.is_empty() {
        problems.push("`paths` is empty: write at least one path or glob".into());
    }
    for path in paths {
        if problems.len() == MAX_PROBLEMS {
            break;
        }
        if path.is_empty() {
            problems.push("`paths` has an empty path: write a path or a glob".into());
        } else if path.contains('\0') {
            problems.push(format!("{path:?} is no path"));
        } else if let Err(error) = glob::Pattern::new(path) {
            problems.push(format!("`{path}` is no valid glob: {}", error.msg));
        }
    }
    problems
}

pub(super) const STEPS: &[Step] = &[Step {
    name: "file-source",
    section: Section::Sources,
    text: "\
Reads text files line by line. Bounded: the job ends when the files are read. Emits `line: string`. A line has at most
16 MiB. Bytes that are not UTF-8 become U+FFFD, here and in the other sources of lines.

The set of files and their lengths are determined once, before the tasks start. Exactly the bytes that the files
contain at that moment are read, even if files grow, new files appear or the leader changes. A slow subtask receives
fewer splits. There are 8 splits for each subtask, of at most 64 MiB, up to 1,024 in total (beyond that, splits are
larger). A split has at least 4 KiB; a subtask whose share is smaller has one split.

The job fails at once if, when it looks for its files for the first time, a path does not exist, can't be read or is a
directory, or a glob matches no file. It also fails at once if the host of a TaskManager does not have the first file
that a task opens. The message contains step, path and host. After the files were found once, the restart strategy
decides. A task that finds a file shorter than it was fails. When tasks restart from the beginning, the files are
determined again. The names of all files that a job reads this way may take 512 KiB together; a job with more fails
with a message about that.

With `follow: true` it never ends: it continues when files grow, and reads files that appear later. Each file belongs to
one subtask. Files need not exist at the start: the source waits for them. A file that exists but can't be read fails
the job. A renamed file is still the same file. A file that became shorter, or that has different content at the
position read last, was truncated and is read again from its beginning. A file that was deleted, or renamed to a name
that no path matches, is read until it has not grown for 10 s since then. A line is emitted when it has its line break.
Files are kept open, so the limit of open files bounds their number.",
    fields: &[&[
        "`paths` | a path or glob, or a list of them | required | the files, which TaskManagers and JobManagers reach under these names; with `follow` also directories, for all files in them",
        "`follow` | `true`, `false` | `false` | whether it continues when files grow and appear",
        "`discovery-interval` | a duration, 10 ms to 1 d | `1 s` | with `follow` only: interval at which it looks for new and deleted files",
    ]],
    checkpoints: "\
The request number, and the rest of the split that is being read, are saved. With `follow`, each file is
saved by device and inode, with its offset behind the last line; a file that is not found after a restore is read no
further.",
    example: "\
- file-source:
    paths: [\"books/*.txt\"]
- print: {}
",
    read,
}];

fn read(fields: &mut Fields<'_>, reader: &mut Reader) -> Option<Transformation> {
    let paths = fields.required("paths", "[\"books/*.txt\"]", reader, Reader::texts);
    let follow = fields.optional_value("follow", reader, Reader::bool) == Some(true);
    let interval = fields.optional_value("discovery-interval", reader, |reader, field, node| {
        if !follow {
            let message = "`discovery-interval` has no effect without `follow: true`: remove it";
            reader.problem(Some(node.position), message);
        }
        reader.duration(field, node)
    });
    let paths = paths?;
    Some(match follow {
        true => FollowFiles {
            paths,
            discovery_interval_ms: interval.map_or(FollowFiles::DISCOVERY_INTERVAL_MS, millis),
        }
        .into(),
        false => FileSource { paths }.into(),
    })
}
