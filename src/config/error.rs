//! The errors of a configuration: all at once, each with the place where the value was written. Plain values; no error
//! contains the value of a secret.

use std::fmt;
use std::path::PathBuf;

/// The origin of a value, from the weakest to the strongest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The default: no source sets it.
    Default,
    /// A line of the file.
    File {
        /// The path of the file, as it was given.
        path: PathBuf,
        /// The line of the value, counted from 1.
        line: u64,
    },
    /// A file that contains only this value.
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

/// One error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The affected keys, as they were written; empty if the file itself is the problem.
    pub keys: Vec<String>,
    /// What is wrong and what to write instead, with the places.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A configuration that can't be used, with all its errors.
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
