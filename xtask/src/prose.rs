//! Checks the prose of the project: comments of the code and documents.
//!
//! Two things are refused: words that hide who does what (`WORDS`), and lines of more than [`LONGEST`] characters. In
//! code only comments are looked at; in documents everything but tables and fenced blocks. Names and quotes in backticks
//! may have any words.

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

/// Checks all files that git tracks. Prints what it found and fails if that is anything.
pub fn check() -> anyhow::Result<()> {
    let mut found = Vec::new();
    for path in files()? {
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let is_code = path.extension().is_some_and(|it| it == "rs");
        for (number, line) in prose(&text, is_code) {
            for flaw in flaws(line) {
                found.push(format!("{}:{number}: {flaw}", path.display()));
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

/// The flaws of a line of prose, each as a text.
fn flaws(line: &str) -> Vec<String> {
    let mut flaws = Vec::new();
    let length = line.chars().count();
    // A link can't be wrapped.
    let is_one_word = line.split_whitespace().count() <= 2;
    if length > LONGEST && !is_one_word {
        flaws.push(format!("{length} characters; {LONGEST} are the most"));
    }
    // Every second piece stands between backticks.
    let unquoted: Vec<&str> = line.split('`').step_by(2).collect();
    let lower = unquoted.join("`").to_lowercase();
    for (word, instead) in WORDS {
        if contains_word(&lower, word) {
            flaws.push(format!("`{word}`: write {instead}"));
        }
    }
    flaws
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
    fn long_lines_are_refused_unless_they_are_one_word() {
        assert_eq!(flaws(&"word ".repeat(30)).len(), 1);
        assert_eq!(flaws(&"x".repeat(130)).len(), 0);
    }
}
