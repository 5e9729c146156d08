//! `file-source` with `follow: true`: files that grow. The step is read and described in `file_source.rs`.

use serde::{Deserialize, Serialize};

use super::columns::line;
use super::file_source::path_problems;
use super::{Declaration, ExpressionTypes, PathUse, Redistribution, Role, StateUse, Step};
use crate::Schema;

/// Reads text files line by line, and continues when they grow or new files match. Emits `line: string`. Never
/// ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FollowFiles {
    /// Files, directories (all files in them that are not hidden) or globs. They need not exist yet.
    pub paths: Vec<String>,
    /// Interval at which new, removed and replaced files are searched.
    pub discovery_interval_ms: u64,
}

impl FollowFiles {
    /// Default discovery interval, in milliseconds.
    pub const DISCOVERY_INTERVAL_MS: u64 = 1_000;
}

impl Declaration for FollowFiles {
    fn kind(&self) -> &'static str {
        "file-source"
    }

    fn state(&self) -> StateUse {
        StateUse::Saved
    }

    fn redistribution(&self) -> Redistribution {
        Redistribution::Union
    }

    fn role(&self) -> Role {
        Role::Source { bounded: false }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = path_problems(&self.paths);
        if !(10..=86_400_000).contains(&self.discovery_interval_ms) {
            problems.push("`discovery-interval` must be from 10 ms to 1 d".into());
        }
        problems
    }

    fn visit_paths(&mut self, visit: &mut dyn FnMut(&mut String, PathUse)) {
        let paths = self.paths.iter_mut();
        paths.for_each(|path| visit(path, PathUse::Read));
    }

    fn output(&self, _input: &Schema, _types: &dyn ExpressionTypes) -> Result<Schema, Vec<String>> {
        Ok(line())
    }
}

pub(super) const STEPS: &[Step] = &[];
