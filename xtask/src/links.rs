//! Checks the links of the documents, without a network: every relative link and every anchor resolves, and every
//! page below `docs/` is a page of the book.
//!
//! Known are inline links, `[text](target)`, outside of code. A page of the book links only to files below `docs/`,
//! because the book contains no others. Anchors are those that GitHub and mdBook make from headings; both make the
//! same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

/// The folder of the book, and the file that lists its pages.
const BOOK: &str = "docs/";
const SUMMARY: &str = "docs/SUMMARY.md";

/// The documents, by their paths from the project's root, with `/`.
type Documents = BTreeMap<String, String>;

/// Checks all documents that git tracks. Prints what it found and fails if that is anything.
pub(crate) fn check() -> anyhow::Result<()> {
    let documents = read()?;
    let exists = |path: &str| Path::new(path).exists();
    let mut found = broken_links(&documents, exists);
    found.extend(unlisted_pages(&documents));
    if found.is_empty() {
        return Ok(());
    }
    for line in &found {
        println!("{line}");
    }
    bail!("{} links or pages are broken", found.len())
}

fn read() -> anyhow::Result<Documents> {
    let output = Command::new("git")
        .args(["ls-files", "*.md"])
        .output()
        .context("cannot run git")?;
    let names = String::from_utf8(output.stdout).context("git names a file that is not UTF-8")?;
    let mut documents = Documents::new();
    // git still names a file that was deleted and not committed yet.
    for name in names.lines().filter(|name| Path::new(name).exists()) {
        let text = std::fs::read_to_string(name).with_context(|| format!("cannot read {name}"))?;
        documents.insert(name.to_owned(), text);
    }
    Ok(documents)
}

/// The problems of links. `exists` says whether a path from the root is a file or folder.
fn broken_links(documents: &Documents, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let anchors: BTreeMap<&str, BTreeSet<String>> = documents
        .iter()
        .map(|(path, text)| (path.as_str(), anchors(text)))
        .collect();
    let mut complaints = Vec::new();
    for (path, text) in documents {
        for (number, link) in links(text) {
            let complaint = broken(path, link, &anchors, &exists);
            complaints.extend(complaint.map(|why| format!("{path}:{number}: {link}: {why}")));
        }
    }
    complaints
}

/// Why a link is broken, if it is.
fn broken(
    document: &str,
    link: &str,
    anchors: &BTreeMap<&str, BTreeSet<String>>,
    exists: impl Fn(&str) -> bool,
) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let Some(target) = resolved(document, path) else {
        return Some("leaves the repository".to_owned());
    };
    if document.starts_with(BOOK) && !target.starts_with(BOOK) {
        return Some("a page of the book links only to files below docs/".to_owned());
    }
    if !exists(&target) {
        return Some(format!("{target} does not exist"));
    }
    if anchor.is_empty() {
        return None;
    }
    let known = anchors.get(target.as_str());
    let is_known = known.is_some_and(|known| known.contains(anchor));
    (!is_known).then(|| format!("{target} has no heading for #{anchor}"))
}

/// The path from the root that `path` means in `document`. None if it is above the root, or absolute.
fn resolved(document: &str, path: &str) -> Option<String> {
    if path.is_empty() {
        return Some(document.to_owned());
    }
    if path.starts_with('/') {
        return None;
    }
    let folder = document.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        match part {
            "." => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Complaints about pages below `docs/` that the book's summary does not list, and about those that it lists twice.
fn unlisted_pages(documents: &Documents) -> Vec<String> {
    let Some(summary) = documents.get(SUMMARY) else {
        return vec![format!("{SUMMARY} is missing")];
    };
    let links = links(summary).into_iter();
    let listed: Vec<String> = links
        .filter_map(|(_, link)| resolved(SUMMARY, link))
        .collect();
    let pages = documents
        .keys()
        .filter(|path| path.starts_with(BOOK) && *path != SUMMARY);
    let mut complaints = Vec::new();
    for page in pages {
        match listed.iter().filter(|path| *path == page).count() {
            0 => complaints.push(format!("{page}: {SUMMARY} does not list it")),
            1 => {}
            _ => complaints.push(format!("{page}: {SUMMARY} lists it more than once")),
        }
    }
    complaints
}

/// The targets of the links in a document, with the numbers of their lines from 1.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in outside_of_blocks(text) {
        let mut is_code = false;
        let mut rest = line;
        while let Some(at) = rest.find(['`', ']']) {
            let (is_quote, after) = (rest.as_bytes()[at] == b'`', &rest[at + 1..]);
            rest = after;
            if is_quote {
                // A lone backtick opens nothing.
                is_code = !is_code && after.contains('`');
            } else if let Some((target, after)) = target(after).filter(|_| !is_code) {
                found.push((number, target));
                rest = after;
            }
        }
    }
    found
}

/// The target that follows the text of a link, without a title, and the rest of the line.
fn target(after: &str) -> Option<(&str, &str)> {
    let (inside, rest) = after.strip_prefix('(')?.split_once(')')?;
    let target = inside.split_whitespace().next()?;
    Some((target, rest))
}

/// The lines that are not in fenced blocks, with their numbers from 1.
fn outside_of_blocks(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        (!is_fence && !is_fenced).then_some((number + 1, line))
    })
}

/// The anchors of a document's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for (_, line) in outside_of_blocks(text) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let name = anchor(heading.trim());
        let earlier = count.entry(name.clone()).or_default();
        anchors.insert(match *earlier {
            0 => name,
            number => format!("{name}-{number}"),
        });
        *earlier += 1;
    }
    anchors
}

/// The anchor of a heading: letters and digits in lower case, `-` for spaces, nothing for other signs.
fn anchor(heading: &str) -> String {
    let text = without_targets(heading).to_lowercase();
    let kept = text.chars().filter_map(|sign| match sign {
        ' ' => Some('-'),
        '-' | '_' => Some(sign),
        _ => sign.is_alphanumeric().then_some(sign),
    });
    kept.collect()
}

/// A heading with the texts of its links, but without their targets.
fn without_targets(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading;
    while let Some((before, after)) = rest.split_once("](") {
        text.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(of: &[(&str, &str)]) -> Documents {
        let pairs = of.iter();
        pairs
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
            .collect()
    }

    fn complaints(of: &[(&str, &str)]) -> Vec<String> {
        let documents = documents(of);
        broken_links(&documents, |path| {
            documents.contains_key(path) || ["docs", "src/lib.rs"].contains(&path)
        })
    }

    #[test]
    fn links_that_resolve_are_accepted() {
        let found = complaints(&[
            (
                "README.md",
                "[a](docs/a.md), [b](docs/a.md#two-words), [c](src/lib.rs) [d](https://x/y) [e](docs/)",
            ),
            (
                "docs/a.md",
                "# A\n## Two words\n[self](#a) [up](../docs/b/c.md \"title\")",
            ),
            ("docs/b/c.md", "[a](../a.md#a)"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_broken_link_is_reported_with_its_place() {
        let found = complaints(&[
            ("README.md", "one\n[a](docs/gone.md)\n[b](#gone) [c](../x)"),
            ("docs/a.md", "[a](b.md) [b](../README.md) [c](/docs/a.md)"),
        ]);
        let expected = [
            "README.md:2: docs/gone.md: docs/gone.md does not exist",
            "README.md:3: #gone: README.md has no heading for #gone",
            "README.md:3: ../x: leaves the repository",
            "docs/a.md:1: b.md: docs/b.md does not exist",
            "docs/a.md:1: ../README.md: a page of the book links only to files below docs/",
            "docs/a.md:1: /docs/a.md: leaves the repository",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn code_has_no_links_and_no_headings() {
        let text = "# A\n`[x](gone.md)` and `b[1]` [a](#a)\n```sh\n# not a heading\n[x](gone.md)\n```\n[b](#not-a-heading)";
        let found = complaints(&[("x.md", text)]);
        assert_eq!(
            found,
            ["x.md:7: #not-a-heading: x.md has no heading for #not-a-heading"]
        );
    }

    #[test]
    fn anchors_are_those_of_the_renderers() {
        let text = "# The key `epoch` can't be *read*!\n## Same\n## Same\n## etcd is full (`NOSPACE`)\n## [A link](x.md)";
        let expected = [
            "a-link",
            "etcd-is-full-nospace",
            "same",
            "same-1",
            "the-key-epoch-cant-be-read",
        ];
        assert!(anchors(text).iter().eq(&expected), "{:?}", anchors(text));
    }

    #[test]
    fn a_page_is_listed_in_the_book_once() {
        let summary = "- [A](a.md)\n- [B](b/README.md)\n- [B](b/README.md)";
        let found = unlisted_pages(&documents(&[
            ("README.md", ""),
            ("docs/SUMMARY.md", summary),
            ("docs/a.md", ""),
            ("docs/b/README.md", ""),
            ("docs/c.md", ""),
        ]));
        let expected = [
            "docs/b/README.md: docs/SUMMARY.md lists it more than once",
            "docs/c.md: docs/SUMMARY.md does not list it",
        ];
        assert_eq!(found, expected);
    }
}
