//! What is wrong with a configuration: all of it at once, each problem with the place where it was written.

use std::fmt;
use std::path::PathBuf;

/// Where a value comes from, from the weakest to the strongest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// A line of the file, from 1.
    File {
        /// The file, as it was named.
        path: PathBuf,
        /// The line of the value.
        line: u64,
    },
    /// The content of a file that has this value alone.
    SecretFile {
        /// The file.
        path: PathBuf,
    },
    /// An environment variable.
    Environment {
        /// Its name.
        variable: String,
    },
    /// `-D key=value`.
    Flag,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File { path, line } => write!(f, "{}:{line}", path.display()),
            Source::SecretFile { path } => write!(f, "the content of {}", path.display()),
            Source::Environment { variable } => write!(f, "environment {variable}"),
            Source::Flag => f.write_str("-D"),
        }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The keys that are involved, as they were written; empty if the file itself is the problem.
    pub keys: Vec<String>,
    /// What is wrong and what to write instead, with the places.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A configuration that can't be used, with everything that is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the configuration has {}", list(.problems))]
pub struct ConfigError {
    /// At least one.
    pub problems: Vec<Problem>,
}

fn list(problems: &[Problem]) -> String {
    let count = match problems.len() {
        1 => "a problem:".to_owned(),
        n => format!("{n} problems:"),
    };
    problems
        .iter()
        .fold(count, |text, problem| format!("{text}\n  - {problem}"))
}
