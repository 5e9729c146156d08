//! Paths of the files that a job's steps read and write. Each process of a cluster has its own working
//! directory, so only the job's author knows what a relative path means: it is made absolute when the job is
//! compiled, and refused when the job is submitted.
//!
//! Invariant: no job is accepted with a relative path.

use std::path::Path;

use tanist_model::operators::PathUse;
use tanist_model::problem::{MAX_PROBLEMS, Problem};
use tanist_model::{is_relative, shown};

use crate::StreamGraph;

/// Makes all relative paths absolute, from this directory. Returns the problems of those that can't be; they stay
/// unchanged.
pub(super) fn make_absolute(graph: &mut StreamGraph, directory: &Path) -> Vec<Problem> {
    let mut problems = Vec::new();
    for node in &mut graph.nodes {
        let mut wrong = Vec::new();
        if let Some(operator) = node.operator_mut() {
            operator.visit_paths(&mut |path, used| match from(directory, path, used) {
                Ok(absolute) => *path = absolute,
                Err(problem) => wrong.push(problem),
            });
        }
        for message in wrong.into_iter().take(MAX_PROBLEMS) {
            problems.push(Problem::of_step(node.position, &node.name, message));
        }
    }
    problems
}

/// Returns the absolute path. Glob characters in the directory's own name are escaped.
fn from(directory: &Path, path: &str, used: PathUse) -> Result<String, String> {
    if !is_relative(path) {
        return Ok(path.to_owned());
    }
    let name = shown(path);
    if path.starts_with('~') {
        return Err(format!(
            "{name} begins with `~`, which only a shell expands: write the directory out, or `./~` for what is called so"
        ));
    }
    let scheme = path.split_once("://").map(|(scheme, _)| scheme);
    if scheme.is_some_and(|it| it.chars().all(|c| c.is_ascii_alphanumeric() || c == '+')) {
        return Err(format!(
            "{name} is an address, and only files that all hosts reach by a path can be read and written"
        ));
    }
    let Some(directory) = directory.to_str().filter(|it| it.starts_with('/')) else {
        return Err(format!(
            "{name} is relative, and the working directory can't be written down: write an absolute path"
        ));
    };
    let directory = match used {
        PathUse::Read => glob::Pattern::escape(directory),
        PathUse::Write => directory.to_owned(),
    };
    let directory = directory.trim_end_matches('/');
    let mut rest = path;
    while let Some(shorter) = rest.strip_prefix("./") {
        rest = shorter.trim_start_matches('/');
    }
    Ok(match rest {
        "" | "." if directory.is_empty() => "/".to_owned(),
        "" | "." => directory.to_owned(),
        _ => format!("{directory}/{rest}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CompileOptions, JobBuilder, JobFile, compile};
    use tanist_model::check_paths;

    fn within(directory: &str) -> CompileOptions {
        CompileOptions {
            working_dir: Some(directory.into()),
            ..CompileOptions::default()
        }
    }

    #[test]
    fn a_relative_path_is_taken_from_the_directory_and_what_that_is_called_is_no_glob() {
        let taken = |path, used| from(Path::new("/home/[me]/"), path, used);
        for (path, expected) in [
            ("out", "/home/[me]/out"),
            ("./out/", "/home/[me]/out/"),
            (".//./a/b", "/home/[me]/a/b"),
            ("../out", "/home/[me]/../out"),
            (".", "/home/[me]"),
            ("./~", "/home/[me]/~"),
            ("a:b//c", "/home/[me]/a:b//c"),
            ("/out", "/out"),
            ("", ""),
        ] {
            assert_eq!(taken(path, PathUse::Write).as_deref(), Ok(expected));
        }
        let glob = taken("docs/*.md", PathUse::Read);
        assert_eq!(glob.as_deref(), Ok("/home/[[]me[]]/docs/*.md"));
        let pattern = glob::Pattern::new(&glob.expect("relative")).expect("a glob");
        assert!(pattern.matches("/home/[me]/docs/a.md"));
        assert_eq!(
            from(Path::new("/"), "out", PathUse::Read).as_deref(),
            Ok("/out")
        );
    }

    #[test]
    fn what_no_process_could_find_is_told_with_its_step() {
        let file = "version: 1\nname: a\nsteps:\n  - name: lines\n    file-source: {paths: ['~/a', 's3://b/c', d]}\n  \
                    - name: out\n    file-sink: {path: ~me}\n";
        let wrong = compile(&JobFile::new("job.yaml", file), &within("/w"));
        let wrong = wrong.expect_err("three are no paths").to_string();
        for part in [
            "line 4, column 5: step `lines`: `~/a` begins with `~`",
            "step `lines`: `s3://b/c` is an address",
            "line 6, column 5: step `out`: `~me` begins with `~`",
            "has 3 problems",
        ] {
            assert!(wrong.contains(part), "{part}: {wrong}");
        }
    }

    #[test]
    fn a_graph_has_absolute_paths_if_it_was_compiled_where_they_mean_something() {
        let job = JobBuilder::new("a")
            .file_source("lines", ["a/*.txt", "/b"])
            .file_sink("out", "./out")
            .follow_files("tail", ["logs"])
            .file_sink("other", "/other")
            .build();
        let graph = job.compile(&within("/w")).expect("valid");
        assert_eq!(check_paths(&graph), Ok(()));
        let specs: Vec<&str> = graph
            .vertices
            .iter()
            .flat_map(|vertex| &vertex.operators)
            .map(|operator| operator.spec.as_str())
            .collect();
        for path in [
            "\"/w/a/*.txt\",\"/b\"",
            "\"/w/out\"",
            "\"/w/logs\"",
            "\"/other\"",
        ] {
            assert!(specs.iter().any(|spec| spec.contains(path)), "{specs:?}");
        }

        let graph = job.compile(&CompileOptions::default()).expect("valid");
        let refusal = check_paths(&graph).expect_err("relative paths").problems;
        assert_eq!(refusal.len(), 3, "{refusal:?}");
        assert!(refusal[0].starts_with("step `lines`: the path `a/*.txt` is relative"));
    }

    #[test]
    fn two_sinks_can_not_share_a_directory_by_calling_it_differently() {
        let job = JobBuilder::new("a")
            .datagen("numbers", None, Some(1), 1, 1)
            .file_sink("out", "out")
            .datagen("more", None, Some(1), 1, 1)
            .file_sink("other", "/w/out/")
            .build();
        let wrong = job.compile(&within("/w")).expect_err("one directory");
        assert!(wrong.to_string().contains("it writes into"), "{wrong}");
    }
}
