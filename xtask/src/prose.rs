//! Checks the prose of the project: comments and messages of the code, and documents.
//!
//! Two things are refused: words that hide who does what (`WORDS`), and lines of more than [`LONGEST`] characters. In
//! code, comments are checked, and the words of messages (string literals of log macros and errors); in documents
//! everything but tables and fenced blocks. Names and quotes in backticks may have any words.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

/// Maximum length of a line of prose, in characters.
const LONGEST: usize = 120;

/// Words and phrases that are refused, in lower case, and what to write instead.
const WORDS: [(&str, &str); 8] = [
    ("so long", "the timeout, or `as long as`"),
    ("so many", "the number, or the limit"),
    ("whoever", "the caller, the client, the process"),
    ("whomever", "the caller, the client, the process"),
    ("anew", "again"),
    ("somebody", "another process, a user"),
    ("nobody", "no process, no user"),
    ("for ever", "forever, or without limit"),
];

/// What the literals of a message stand in: log macros, and the text of an error.
const MESSAGES: [&str; 8] = [
    "error!(", "warn!(", "info!(", "debug!(", "trace!(", "bail!(", "anyhow!(", "#[error(",
];

/// Checks all files that git tracks. Prints what it found and fails if that is anything.
pub(crate) fn check() -> anyhow::Result<()> {
    let mut found = Vec::new();
    for path in files()? {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let is_code = path.extension().is_some_and(|it| it == "rs");
        let mut report = |number: usize, flaws: Vec<String>| {
            let flaws = flaws.into_iter();
            found.extend(flaws.map(|flaw| format!("{}:{number}: {flaw}", path.display())));
        };
        for (number, line) in prose(&text, is_code) {
            report(number, flaws(line));
        }
        if is_code {
            for (number, message) in messages(&text) {
                report(number, refused_words(&message));
            }
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    for line in &found {
        println!("{line}");
    }
    bail!("{} lines of prose are not as they should be", found.len())
}

/// Paths of the code and the documents.
fn files() -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "*.rs", "*.md"])
        .output()
        .context("cannot run git")?;
    let names = String::from_utf8(output.stdout).context("git names a file that is not UTF-8")?;
    let paths = names.lines().map(PathBuf::from);
    // git still names a file that was deleted and not committed yet. This file quotes the words.
    let own = Path::new("xtask/src/prose.rs");
    Ok(paths.filter(|it| it.exists() && it != own).collect())
}

/// The lines of prose, with their numbers from 1.
fn prose(text: &str, is_code: bool) -> Vec<(usize, &str)> {
    let mut is_fenced = false;
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let line = line.trim_start();
        if is_code {
            return line.starts_with("//");
        }
        let is_fence = line.starts_with("```");
        is_fenced ^= is_fence;
        !is_fence && !is_fenced && !line.starts_with('|')
    });
    lines.map(|(number, line)| (number + 1, line)).collect()
}

/// The string literals of the messages in code, with the numbers of their lines from 1.
fn messages(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for opening in MESSAGES {
        for (at, _) in text.match_indices(opening) {
            let before = text[..at].chars().next_back();
            if before.is_some_and(|it| it.is_alphanumeric() || it == '_') {
                continue;
            }
            for (start, literal) in literals(text, at + opening.len()) {
                let number = text[..start].matches('\n').count() + 1;
                found.push((number, joined(literal)));
            }
        }
    }
    found
}

/// The string literals from `at`, which is behind an opening parenthesis, up to the closing one, each with its
/// position.
fn literals(text: &str, at: usize) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let (mut depth, mut rest) = (1, at);
    while depth > 0 {
        let Some(next) = text[rest..].find(['(', ')', '"', '\'']) else {
            break;
        };
        let position = rest + next;
        rest = position + 1;
        match text.as_bytes()[position] {
            b'(' => depth += 1,
            b')' => depth -= 1,
            b'"' => {
                let hashes = text[..position]
                    .bytes()
                    .rev()
                    .take_while(|it| *it == b'#')
                    .count();
                let is_raw = text[..position - hashes].ends_with('r');
                let end = match is_raw {
                    true => text[rest..].find(&format!("\"{}", "#".repeat(hashes))),
                    false => closing_quote(&text[rest..]),
                };
                let Some(length) = end else { break };
                found.push((position, &text[rest..rest + length]));
                rest += length + 1;
            }
            // A character, unless it is a lifetime.
            _ => {
                let character = text[rest..].chars().next().map_or(0, char::len_utf8);
                let is_escaped = text[rest..].starts_with('\\');
                let end = rest + character + usize::from(is_escaped);
                if text.get(end..).is_some_and(|it| it.starts_with('\'')) {
                    rest = end + 1;
                }
            }
        }
    }
    found
}

/// The position of the quote that ends a literal.
fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

/// A literal without the line breaks that a backslash at the end of a line removes.
fn joined(literal: &str) -> String {
    let mut lines = literal.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |joined, line| joined + line.trim_start())
}

/// The flaws of a line of prose, each as a text.
fn flaws(line: &str) -> Vec<String> {
    let mut flaws = Vec::new();
    let length = line.chars().count();
    // A link can't be wrapped.
    let is_one_word = line.split_whitespace().count() <= 2;
    if length > LONGEST && !is_one_word {
        flaws.push(format!("{length} characters; {LONGEST} are the most"));
    }
    flaws.extend(refused_words(line));
    flaws
}

/// The refused words in a text, each with advice.
fn refused_words(text: &str) -> Vec<String> {
    // Every second piece stands between backticks.
    let unquoted: Vec<&str> = text.split('`').step_by(2).collect();
    let lower = unquoted.join("`").to_lowercase();
    let refused = WORDS.iter().filter(|(word, _)| contains_word(&lower, word));
    let advice = refused.map(|(word, instead)| format!("`{word}`: write {instead}"));
    advice.collect()
}

/// Whether the text contains the word, and not only as a part of a longer word.
fn contains_word(text: &str, word: &str) -> bool {
    let is_letter = |it: Option<char>| it.is_some_and(|it| it.is_alphanumeric() || it == '_');
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !is_letter(before) && !is_letter(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_of_code_are_prose_and_code_is_not() {
        let text = "let anew = 1;\n    // Begins anew.\n/// And so long.\n";
        let found: Vec<usize> = prose(text, true).into_iter().map(|it| it.0).collect();
        assert_eq!(found, [2, 3]);
    }

    #[test]
    fn tables_and_blocks_of_documents_are_no_prose() {
        let text = "One\n| a | b |\n```sh\nanew\n```\nTwo\n";
        let found: Vec<&str> = prose(text, false).into_iter().map(|it| it.1).collect();
        assert_eq!(found, ["One", "Two"]);
    }

    #[test]
    fn words_count_whole_and_in_any_case() {
        assert_eq!(flaws("Whoever asks").len(), 1);
        assert_eq!(flaws("it is renewed, as long as it can").len(), 0);
        assert_eq!(flaws("somebody waits so long").len(), 2);
    }

    #[test]
    fn quotes_may_have_any_words() {
        assert_eq!(flaws("the user `nobody` and `so long`").len(), 0);
        assert_eq!(flaws("`nobody` is nobody").len(), 1);
    }

    #[test]
    fn literals_of_log_macros_and_errors_are_messages_and_others_are_not() {
        let text = r##"
let name = "anew";
warn!(%error, reason = text("a)"), "nobody leads, \
     so \
     long");
#[error("{0} is read anew")]
tracing::info!(
    epoch = %it('"'),
    "whoever"
);
backinfo!("so long");
"##;
        let found = messages(text);
        let found: Vec<_> = found.iter().map(|it| (it.0, it.1.as_str())).collect();
        let expected = [
            (3, "a)"),
            (3, "nobody leads, so long"),
            (9, "whoever"),
            (6, "{0} is read anew"),
        ];
        assert_eq!(found, expected);
        let flaws: usize = found.iter().map(|it| refused_words(it.1).len()).sum();
        assert_eq!(flaws, 4);
    }

    #[test]
    fn long_lines_are_refused_unless_they_are_one_word() {
        assert_eq!(flaws(&"word ".repeat(30)).len(), 1);
        assert_eq!(flaws(&"x".repeat(130)).len(), 0);
    }
}
