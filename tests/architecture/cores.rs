//! The decision cores: the files in `src/<component>/core/`, those of election and detector, and the one of crash
//! loops name no runtime, no clock, no task and no log, so that (state, now, event) -> effects is all that they are.
//! Test code is exempt.

use crate::{assert_kept, files_below};

/// Words that no core has, each with what it has instead.
const FORBIDDEN: [(&str, &str); 11] = [
    ("tokio", "channels, timers and tasks belong to the actor"),
    ("Instant", "time is an argument: `Uptime`, or milliseconds"),
    ("SystemTime", "time is an argument"),
    ("Clock", "time is an argument"),
    ("wall_clock_ms", "time is an argument"),
    ("sleep", "a deadline is a value that the actor asks for"),
    ("spawn", "a task is an effect"),
    ("spawn_blocking", "a task is an effect"),
    ("async", "what waits is an effect"),
    ("await", "what waits is an effect"),
    ("tracing", "a line of the log is a value: `LogLine`"),
];

/// Whether the file is decision code of a core.
fn is_core(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let is_below_core = match parts[..] {
        ["src", _, "core", _, ..] | ["ha", "src", "election", "core", _, ..] => true,
        ["ha", "src", "election", file] => file == "core.rs",
        ["ha", "src", "detector", file] => matches!(file, "core.rs" | "inquiry.rs" | "silence.rs"),
        ["src", "leadership", file] => file == "crash_loop.rs",
        _ => false,
    };
    let is_test =
        |part: &&str| matches!(*part, "tests" | "tests.rs") || part.ends_with("_tests.rs");
    is_below_core && !parts.iter().any(is_test)
}

/// Words in the code of `path` that are forbidden in a core.
fn names_no_runtime(path: &str, text: &str) -> Vec<String> {
    let code = without_test_modules(&without_comments_and_strings(text));
    let mut complaints = Vec::new();
    for (number, line) in (1..).zip(code.lines()) {
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        for word in words {
            let found = FORBIDDEN.iter().find(|(forbidden, _)| *forbidden == word);
            complaints.extend(
                found.map(|(_, instead)| format!("{path}:{number}: names `{word}`: {instead}")),
            );
        }
    }
    complaints
}

/// The text with blanks in place of comments and the contents of string literals.
fn without_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    let blank = |code: &mut String, skipped: &str| {
        code.extend(skipped.chars().filter(|c| *c == '\n'));
    };
    while let Some(next) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("'\"'") {
            3
        } else if next == '"' {
            end_of_string(rest)
        } else {
            code.push(next);
            rest = &rest[next.len_utf8()..];
            continue;
        };
        blank(&mut code, &rest[..skipped]);
        rest = &rest[skipped..];
    }
    code
}

/// The length of the string literal at the beginning of `text`.
fn end_of_string(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The code with empty lines in place of modules that are compiled for tests only.
fn without_test_modules(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let (mut is_attribute_before, mut is_inside) = (false, false);
    for line in code.lines() {
        let is_module = line.starts_with("mod ") && line.ends_with('{');
        is_inside |= is_attribute_before && is_module;
        if !is_inside {
            kept.push_str(line);
        }
        kept.push('\n');
        is_inside &= line != "}";
        is_attribute_before = line == "#[cfg(test)]";
    }
    kept
}

#[test]
fn a_core_names_no_runtime_no_clock_and_no_log() -> anyhow::Result<()> {
    let mut files = files_below("src")?;
    files.extend(files_below("ha/src")?);
    files.retain(|file| is_core(&file.path));
    for core in [
        "src/resource_manager/core/",
        "src/task_executor/core/",
        "src/job_master/core/",
        "src/dispatcher/core/",
        "src/leadership/crash_loop.rs",
        "ha/src/election/core.rs",
        "ha/src/election/core/",
        "ha/src/detector/core.rs",
        "ha/src/detector/inquiry.rs",
        "ha/src/detector/silence.rs",
    ] {
        let is_there = files.iter().any(|file| file.path.starts_with(core));
        assert!(is_there, "{core} has no files");
    }
    assert_kept(&files, |file| names_no_runtime(&file.path, &file.text));
    Ok(())
}

#[test]
fn each_forbidden_word_is_reported_with_its_place() {
    for bad in [
        "use tokio::sync::oneshot;",
        "use std::time::Instant;",
        "fn f(now: tanist_ha::clock::Clock) {}",
        "fn f() { tanist_ha::clock::wall_clock_ms(); }",
        "fn f() { std::thread::spawn(g); }",
        "fn f() { tracing::info!(\"x\"); }",
        "async fn f() {}",
        "#[cfg(test)]\nmod tests;\nuse tracing::info;",
        "#[cfg(test)]\nmod tests {\n    use tokio::X;\n}\nuse tracing::info;",
        "const A: char = '\"'; use tracing::info; const B: char = '\"';",
    ] {
        let complaints = names_no_runtime("src/a/core/b.rs", bad);
        assert_eq!(complaints.len(), 1, "{bad}: {complaints:?}");
    }
    let complaints = names_no_runtime("src/a/core/b.rs", "//! x\n\nuse tracing::info;\n");
    assert!(
        complaints[0].starts_with("src/a/core/b.rs:3: names `tracing`"),
        "{complaints:?}"
    );
}

#[test]
fn words_in_comments_strings_and_tests_are_fine_and_so_are_similar_ones() {
    for good in [
        "/// As tokio's Instant.\nfn f() {} // spawn",
        "const A: &str = \"tokio \\\" tracing\";",
        "/* tokio\n */ fn f(awaited: u32, is_spawned: bool) {}",
        "fn f() {}\n#[cfg(test)]\nmod tests {\n    use tokio::time::Instant;\n}\n",
    ] {
        assert_eq!(names_no_runtime("src/a/core/b.rs", good), [""; 0], "{good}");
    }
}

#[test]
fn only_decision_code_of_components_is_checked() {
    for core in ["src/job_master/core/mod.rs", "src/a/core/b/c.rs"] {
        assert!(is_core(core), "{core}");
    }
    for other in [
        "src/job_master/actor.rs",
        "src/a/core.rs",
        "src/a/core/tests/b.rs",
        "src/a/core/b/tests/c.rs",
        "src/a/core/b_tests.rs",
        "ha/src/core/a.rs",
    ] {
        assert!(!is_core(other), "{other}");
    }
}
