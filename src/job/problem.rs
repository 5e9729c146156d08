//! What is wrong with a job, said to the person who wrote it: where, in which step, what to write instead.
//!
//! Problems are collected, never thrown one by one, so that a job file is mended in one go.

use std::fmt;

/// A place in a job file, counted from 1.
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

/// One thing that is wrong with a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it stands, for a job that came from a file.
    pub position: Option<Position>,
    /// The step that it is about; none for what concerns the whole job.
    pub step: Option<String>,
    /// What is wrong and what to write instead.
    pub message: String,
}

impl Problem {
    /// A problem of the job as a whole.
    pub(super) fn of_job(position: Option<Position>, message: impl Into<String>) -> Problem {
        Problem {
            position,
            step: None,
            message: message.into(),
        }
    }

    /// A problem of one step.
    pub(super) fn of_step(
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

/// A job that can't be compiled, with everything that is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", listing(.name, .problems))]
pub struct InvalidJob {
    /// The file or the job's name.
    pub name: String,
    /// At least one, in the order of the file.
    pub problems: Vec<Problem>,
}

/// So many problems are listed: whoever has more mends these first, and a broken graph may have as many as bytes.
pub(super) const MAX_PROBLEMS: usize = 100;

/// One problem stands on the line itself, several stand below it.
pub(super) fn listing(name: &str, problems: &[impl fmt::Display]) -> String {
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
pub(super) fn nearest<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // Distances of long texts cost their product: no name that people type is longer.
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

/// `write X` if a near name exists, else `there is: a, b, c`; what follows a complaint about an unknown name.
pub(super) fn instead<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str> + Clone,
) -> String {
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
