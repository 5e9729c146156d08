//! The input files of a job: finds those that its paths and globs name, and decides which errors are final.
//!
//! Input that is missing at the first attempt is an unrecoverable error: the paths are wrong, or this host does not
//! have the files, and no further attempt can fix it. Input that is missing later existed once and may come back: the
//! restart strategy decides. Other errors of reading (disk, network) are never final; a pattern that is no glob always
//! is.
//!
//! Not here: when a source looks for its files. All functions that read directories block.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tanist_proto::id::Generation;

/// Whether this is the first look for the input of a job, which was never seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// No attempt looked before.
    First,
    /// The input existed before, or may have existed.
    Later,
}

impl Look {
    /// The look at the start of an attempt.
    pub fn at_start_of(attempt: Generation) -> Look {
        match attempt.get() {
            0 | 1 => Look::First,
            _ => Look::Later,
        }
    }
}

/// Why input can't be read.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// A pattern is no glob. No attempt can read it.
    #[error("{pattern:?} is no glob: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It does not exist, or this process can't read it.
    #[error("{message}")]
    Missing {
        /// Names the input, the host and the reason.
        message: String,
        /// No attempt ever saw the input there.
        is_unrecoverable: bool,
    },
    /// Reading failed, and may succeed later.
    #[error("can't read {path:?}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

impl InputError {
    /// Whether every further attempt would end the same way.
    pub fn is_unrecoverable(&self) -> bool {
        match self {
            InputError::Pattern { .. } => true,
            InputError::Missing {
                is_unrecoverable, ..
            } => *is_unrecoverable,
            InputError::Io { .. } => false,
        }
    }
}

/// The host name of this machine.
pub fn host_name() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

/// Whether the error is a lasting property of the host, and not a temporary problem of its disk or network.
fn is_lasting(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::NotFound
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::InvalidFilename
    )
}

/// Error for a file or directory that can't be read.
pub fn unreadable(path: &Path, error: io::Error, look: Look) -> InputError {
    if !is_lasting(error.kind()) {
        return InputError::Io {
            path: path.to_owned(),
            source: error,
        };
    }
    no_input(format!("can't read {path:?}"), error, look)
}

/// Error for an input on this host.
pub(crate) fn no_input(
    what: impl std::fmt::Display,
    why: impl std::fmt::Display,
    look: Look,
) -> InputError {
    InputError::Missing {
        message: format!("{what} on host {}: {why}", host_name()),
        is_unrecoverable: look == Look::First,
    }
}

/// Returns all files that the paths and globs name, sorted, without duplicates, with their sizes. Blocks.
pub fn matching_files(paths: &[String], look: Look) -> Result<Vec<(PathBuf, u64)>, InputError> {
    let mut found = Vec::new();
    for path in paths {
        if Path::new(path).exists() || !path.contains(['*', '?', '[']) {
            found.push(PathBuf::from(path));
        } else {
            found.extend(glob_files(path, look)?);
        }
    }
    found.sort();
    found.dedup();
    let sizes = found.into_iter().map(|path| {
        let metadata = fs::metadata(&path).map_err(|e| unreadable(&path, e, look))?;
        if !metadata.is_file() {
            let why = "it is no regular file (the files of a directory are named by a glob)";
            return Err(no_input(format!("can't read {path:?}"), why, look));
        }
        Ok((path, metadata.len()))
    });
    sizes.collect()
}

/// Returns the files that match a glob; none is an error.
fn glob_files(pattern: &str, look: Look) -> Result<Vec<PathBuf>, InputError> {
    let found = matching(pattern, look)?;
    if found.is_empty() {
        let what = format!("can't read {pattern:?}");
        return Err(no_input(what, "no file matches it", look));
    }
    Ok(found)
}

/// Returns the files that match a glob. Directories and hidden files match only if the pattern names them.
pub fn matching(pattern: &str, look: Look) -> Result<Vec<PathBuf>, InputError> {
    let options = glob::MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: true,
    };
    let matches = glob::glob_with(pattern, options).map_err(|error| InputError::Pattern {
        pattern: pattern.to_owned(),
        reason: error.to_string(),
    })?;
    let mut found = Vec::new();
    for path in matches {
        let path = path.map_err(|error| {
            let path = error.path().to_owned();
            unreadable(&path, error.into(), look)
        })?;
        if !path.is_dir() {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_at_the_first_try_is_never_there_and_what_was_there_may_come_back() {
        let path = Path::new("/data/in.txt");
        for kind in [
            io::ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::NotADirectory,
        ] {
            let at = |attempt| {
                let look = Look::at_start_of(Generation::new(attempt));
                unreadable(path, kind.into(), look)
            };
            assert!(at(1).is_unrecoverable(), "{kind:?}");
            assert!(!at(2).is_unrecoverable(), "{kind:?}");
            let text = at(1).to_string();
            assert!(
                text.contains("/data/in.txt") && text.contains(&host_name()),
                "{text}"
            );
        }
        let passing = unreadable(path, io::ErrorKind::TimedOut.into(), Look::First);
        assert!(!passing.is_unrecoverable(), "{passing}");
    }
}
