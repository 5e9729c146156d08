//! Checks that the files and folders which documents name in backticks exist, and that the references of metrics and
//! exit codes have what the code has.

use std::collections::BTreeSet;

/// Folders of the repository's root: a path that begins with one of them is complete. Other paths of Rust files
/// are relative to `src`.
const ROOTS: [&str; 10] = [
    "src", "ha", "proto", "chaos", "tests", "docs", "deploy", "xtask", "examples", "benches",
];

/// Complaints about the paths in the document `name` for which `exists`, which knows patterns with `*`, is false.
pub(crate) fn missing_paths(name: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in text.lines().enumerate() {
        // Every second piece stands between backticks.
        let quoted = line.split('`').skip(1).step_by(2);
        for word in quoted.flat_map(str::split_whitespace) {
            let Some(path) = path_in(word) else { continue };
            let is_there = |path: String| match is_complete(&path) {
                true => exists(&path),
                false => exists(&path) || exists(&format!("src/{path}")),
            };
            if !alternatives(path).into_iter().all(is_there) {
                complaints.push(format!("{name}:{}: {path} does not exist", number + 1));
            }
        }
    }
    complaints
}

/// The path that a word is, without a line number or an item behind it.
fn path_in(word: &str) -> Option<&str> {
    let path = word.split_once(':').map_or(word, |(path, _)| path);
    let path = path.trim_end_matches(['.', ',', ';']);
    let is_allowed = |it: char| it.is_ascii_alphanumeric() || "/._-*{},".contains(it);
    let is_url = word.contains("://");
    let is_path = path.contains('/') && path.chars().all(is_allowed) && !is_url;
    (is_path && (is_complete(path) || path.ends_with(".rs"))).then_some(path)
}

fn is_complete(path: &str) -> bool {
    path.split_once('/')
        .is_some_and(|(root, _)| ROOTS.contains(&root))
}

/// The paths that a path with a group such as `{a,b}` stands for. A number of a decision stands for its file.
fn alternatives(path: &str) -> Vec<String> {
    let group = path.split_once('{');
    let group = group.and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    if let Some((before, (group, after))) = group {
        let each = group.split(',').map(|one| format!("{before}{one}{after}"));
        return each.flat_map(|path| alternatives(&path)).collect();
    }
    let number = path.strip_prefix("docs/adr/");
    let is_number =
        number.is_some_and(|it| it.len() == 4 && it.bytes().all(|b| b.is_ascii_digit()));
    vec![match is_number {
        true => format!("{path}-*"),
        false => path.to_owned(),
    }]
}

/// Whether a name fits a pattern, in which `*` stands for any text.
pub(crate) fn fits(pattern: &str, name: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(rest) = name.strip_prefix(before) else {
        return false;
    };
    let mut ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.any(|at| fits(after, &rest[at..]))
}

/// The names of metrics in a text that stand directly behind `quote`: code has them in literals, the reference in
/// backticks.
pub(crate) fn metrics(text: &str, quote: char) -> BTreeSet<&str> {
    let pieces = text.split(quote).skip(1);
    let names = pieces.map(|piece| {
        let is_name = |it: char| it.is_ascii_lowercase() || it == '_';
        let end = piece.find(|it| !is_name(it)).unwrap_or(piece.len());
        &piece[..end]
    });
    names.filter(|name| name.starts_with("tanist_")).collect()
}

/// The numbers that an enum gives to its variants, as `Name = 7,`.
pub(crate) fn discriminants(code: &str) -> BTreeSet<&str> {
    let numbers = code.lines().filter_map(|line| {
        let (name, number) = line.trim().strip_suffix(',')?.split_once(" = ")?;
        let is_variant = name.starts_with(|it: char| it.is_ascii_uppercase());
        let is_number = number.bytes().all(|it| it.is_ascii_digit());
        (is_variant && is_number).then_some(number)
    });
    numbers.collect()
}

/// The fixed parts of the paths in the string literals of code.
pub(crate) fn path_parts(code: &str) -> BTreeSet<&str> {
    let literals = code
        .lines()
        .flat_map(|line| line.split('"').skip(1).step_by(2));
    let parts = literals
        .filter(|it| it.contains('/'))
        .flat_map(|it| it.split('/'));
    let is_fixed = |part: &&str| {
        let is_letter = |it: u8| it.is_ascii_lowercase() || it == b'-';
        part.len() > 1 && part.bytes().all(is_letter)
    };
    parts.filter(is_fixed).collect()
}

/// The numbers in the first cells of the rows of tables.
pub(crate) fn first_cells(text: &str) -> BTreeSet<&str> {
    let rows = text.lines().filter_map(|line| line.strip_prefix('|'));
    let cells = rows.filter_map(|row| row.split('|').next());
    let numbers = cells.flat_map(|cell| cell.split([' ', '/']));
    numbers
        .filter(|word| !word.is_empty() && word.bytes().all(|it| it.is_ascii_digit()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(text: &str) -> Vec<String> {
        let there = [
            "src/net",
            "src/net/lib.rs",
            "src/rest/lib.rs",
            "docs/adr/0007-a.md",
        ];
        missing_paths("x.md", text, |path| {
            let path = path.trim_end_matches('/');
            there.iter().any(|it| fits(path, it))
        })
    }

    #[test]
    fn a_path_that_does_not_exist_is_reported_with_its_place() {
        let found = missing("one\nin `src/net/lib.rs` and `src/net/gone.rs`\n");
        assert_eq!(found, ["x.md:2: src/net/gone.rs does not exist"]);
        assert_eq!(
            missing("`net/gone.rs` `docs/adr/0008` `src/{net,gone}/`").len(),
            3
        );
    }

    #[test]
    fn patterns_groups_items_and_numbers_of_decisions_are_understood() {
        let text = "`src/net/` `net/lib.rs:7` `src/*/lib.rs` `src/{net,rest}/lib.rs` `docs/adr/0007` \
                    `src/net/lib.rs::serve`";
        assert_eq!(missing(text), [""; 0]);
    }

    #[test]
    fn fixed_parts_of_paths_are_found_in_literals() {
        let code = "route(\"/jobs/{job}/plan\", get(plan)) // a/b\nformat!(\"{JOBS}/{job}/execution-result\")";
        let parts: Vec<&str> = path_parts(code).into_iter().collect();
        assert_eq!(parts, ["execution-result", "jobs", "plan"]);
    }

    #[test]
    fn metrics_and_codes_are_found_where_they_stand() {
        let code = "use tanist_ha::x; out.gauge(\"tanist_a\", 1); let s = \"other tanist_b\";";
        assert_eq!(Vec::from_iter(metrics(code, '"')), ["tanist_a"]);
        let table = "| `tanist_a`, `tanist_b_total` | `role` |\n| 4 / 5 | x |\n| 10 | 7 |\n";
        let expected = ["tanist_a", "tanist_b_total"];
        assert_eq!(Vec::from_iter(metrics(table, '`')), expected);
        assert_eq!(Vec::from_iter(first_cells(table)), ["10", "4", "5"]);
        let code = "enum E {\n    A = 0,\n    B = 13,\n}\nlet c = 4;\n    d = 7,\n";
        assert_eq!(Vec::from_iter(discriminants(code)), ["0", "13"]);
    }

    #[test]
    fn only_paths_in_backticks_that_begin_in_the_repository_are_checked() {
        let text =
            "src/gone.rs `https://a/src/x.rs` `/etc/x` `GET /v1/jobs` `<src>/x` `application/json`";
        assert_eq!(missing(text), [""; 0]);
    }
}
