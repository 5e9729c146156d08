//! Problems of a job, reported to its author: where, in which step, what to write instead.
//!
//! All problems are collected before they are reported, so that a job file can be fixed in one pass.

use std::fmt;

/// A position in a job file, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// One problem of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Its position, if the job came from a file.
    pub position: Option<Position>,
    /// The step that it is about; `None` for the whole job.
    pub step: Option<String>,
    /// The problem and what to write instead.
    pub message: String,
}

impl Problem {
    /// A problem of the job as a whole.
    pub fn of_job(position: Option<Position>, message: impl Into<String>) -> Problem {
        Problem {
            position,
            step: None,
            message: message.into(),
        }
    }

    /// A problem of one step.
    pub fn of_step(
        position: Option<Position>,
        step: impl Into<String>,
        message: impl Into<String>,
    ) -> Problem {
        Problem {
            position,
            step: Some(step.into()),
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(position) = self.position {
            write!(f, "{position}: ")?;
        }
        if let Some(step) = &self.step {
            write!(f, "step `{step}`: ")?;
        }
        f.write_str(&self.message)
    }
}

/// A job that can't be compiled, with all its problems.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", listing(.name, .problems))]
pub struct InvalidJob {
    /// The file or the job's name.
    pub name: String,
    /// At least one, in the order of the file.
    pub problems: Vec<Problem>,
}

/// Maximum number of listed problems: the author fixes these first, and a broken graph may have as many
/// problems as bytes.
pub const MAX_PROBLEMS: usize = 100;

/// One problem is on the same line as the name, several are on lines of their own.
pub fn listing(name: &str, problems: &[impl fmt::Display]) -> String {
    match problems {
        [only] => format!("{name}: {only}"),
        many => {
            let mut text = format!("{name} has {} problems:", many.len());
            for problem in many {
                text.push_str(&format!("\n  {problem}"));
            }
            text
        }
    }
}

/// The candidate that was probably meant, if one is close enough.
pub fn nearest<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // The cost grows with the product of the lengths; real names are not longer.
    if written.len() > 100 {
        return None;
    }
    let allowed = (written.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .filter(|candidate| candidate.len() <= 100)
        .map(|candidate| (strsim::damerau_levenshtein(written, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `did you mean X?` if a similar name exists, else `there is: a, b, c`; follows an error about an unknown
/// name.
pub fn instead<'a>(written: &str, candidates: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match nearest(written, candidates.clone()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => {
            let all: Vec<&str> = candidates.into_iter().collect();
            if all.is_empty() {
                "there is none".into()
            } else {
                format!("there is: {}", all.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found_and_a_far_one_is_not() {
        assert_eq!(
            nearest("split-word", ["count", "split-words"]),
            Some("split-words")
        );
        assert_eq!(nearest("wrod", ["line", "word"]), Some("word"));
        assert_eq!(nearest("map", ["count", "filter"]), None);
        assert_eq!(instead("zzzzz", ["a", "b"]), "there is: a, b");
    }
}
