//! The architecture as far as Cargo can't check it, read from manifests and source text: which crate may depend on
//! which, who opens sockets, what a decision core must not name, how files open; and whether the paths that documents
//! name exist, and whether references are complete.
//!
//! Each rule is a function from text to complaints, tested on bad text first and then applied to all
//! files of the project.

mod cores;
mod documents;
mod manifests;
mod paths;
mod rules;

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use manifests::Manifest;

/// A Rust file of the project.
struct SourceFile {
    /// Path relative to the project's root, with `/`.
    path: String,
    text: String,
}

/// All Rust files below `folder`, which is relative to the project's root and may be missing.
fn files_below(folder: &str) -> anyhow::Result<Vec<SourceFile>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = vec![root.join(folder)];
    while let Some(current) = folders.pop() {
        if !current.exists() {
            continue;
        }
        for entry in std::fs::read_dir(&current).with_context(|| current.display().to_string())? {
            let path = entry?.path();
            let hidden = path
                .file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with('.'));
            if path.is_dir() && !hidden && path != root.join("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path)?;
                let path = path
                    .strip_prefix(root)?
                    .to_string_lossy()
                    .replace('\\', "/");
                files.push(SourceFile { path, text });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// Fails with all complaints of `rule` about `files`, which must not be empty.
fn assert_kept(files: &[SourceFile], rule: impl Fn(&SourceFile) -> Vec<String>) {
    assert!(!files.is_empty(), "no files to check");
    let complaints: Vec<String> = files.iter().flat_map(rule).collect();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// The manifests of all crates.
fn manifests() -> anyhow::Result<Vec<Manifest>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut manifests = Vec::new();
    let mut folders = vec![root.to_owned(), root.join("src")];
    for parent in folders.clone() {
        for entry in std::fs::read_dir(&parent).with_context(|| parent.display().to_string())? {
            folders.push(entry?.path());
        }
    }
    folders.sort();
    folders.dedup();
    for folder in folders {
        let path = folder.join("Cargo.toml");
        if path.is_file() {
            manifests.push(Manifest::read(&std::fs::read_to_string(path)?));
        }
    }
    Ok(manifests)
}

#[test]
fn crates_depend_only_on_the_layers_below_them() -> anyhow::Result<()> {
    let manifests = manifests()?;
    let mut found: Vec<&str> = manifests.iter().map(|it| it.name.as_str()).collect();
    let mut known: Vec<&str> = manifests::LAYERS.concat();
    found.sort_unstable();
    known.sort_unstable();
    assert_eq!(
        found, known,
        "the crates that are there, and those with a layer"
    );
    let complaints: Vec<String> = manifests.iter().flat_map(manifests::layers).collect();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
    Ok(())
}

#[test]
fn the_control_plane_builds_without_records_and_expressions() -> anyhow::Result<()> {
    let manifests = manifests()?;
    for name in manifests::CONTROL_PLANE {
        assert!(manifests.iter().any(|it| it.name == name), "{name} is gone");
        let complaints = manifests::columnar(&manifests, name);
        assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
    }
    Ok(())
}

#[test]
fn only_one_file_names_the_backoff_crate() -> anyhow::Result<()> {
    let mut files = files_below(".")?;
    files.retain(|file| file.path != "ha/src/retry.rs");
    assert_kept(&files, |file| {
        rules::names_none_of(&file.path, &file.text, &["backoff"])
    });
    Ok(())
}

/// Steps that read and write sockets of users: those are data, not ports of the cluster.
const OF_USERS: [&str; 2] = [
    "src/operators/socket_source.rs",
    "src/operators/socket_sink.rs",
];

/// Whether a file below `src` is for tests only.
fn is_test(path: &str) -> bool {
    let parts = [
        "/tests/",
        "/testing/",
        "/tests.rs",
        "_tests.rs",
        "/testing.rs",
    ];
    parts.iter().any(|part| path.contains(part))
}

/// Files that mean one operator: those for the coordinator of file sources, the commit of file sinks and the registry
/// of custom operators.
const OF_ONE_OPERATOR: [&str; 4] = [
    "src/model/job_graph.rs",
    "src/job_master/core/details.rs",
    "src/operators/sink/names.rs",
    "src/operators/custom.rs",
];

#[test]
fn only_the_list_of_operators_names_them_all() -> anyhow::Result<()> {
    let mut files = files_below("src")?;
    for path in OF_ONE_OPERATOR {
        assert!(files.iter().any(|file| file.path == path), "{path} is gone");
    }
    files.retain(|file| !OF_ONE_OPERATOR.contains(&file.path.as_str()) && !is_test(&file.path));
    assert_kept(&files, |file| {
        rules::names_no_operator(&file.path, &file.text)
    });
    Ok(())
}

#[test]
fn only_net_opens_sockets() -> anyhow::Result<()> {
    let mut files = files_below("src")?;
    for path in OF_USERS {
        assert!(files.iter().any(|file| file.path == path), "{path} is gone");
    }
    files.retain(|file| {
        let path = file.path.as_str();
        !path.starts_with("src/net/") && !OF_USERS.contains(&path) && !is_test(path)
    });
    assert_kept(&files, |file| {
        rules::opens_no_socket(&file.path, &file.text)
    });
    Ok(())
}

#[test]
fn every_file_opens_by_saying_what_it_is() -> anyhow::Result<()> {
    assert_kept(&files_below(".")?, |file| {
        rules::opening(&file.path, &file.text)
    });
    Ok(())
}

/// Whether a path below `folder` exists; `*` stands for a part of a name.
fn exists(folder: &Path, path: &str) -> bool {
    let (first, rest) = match path.split_once('/') {
        Some((first, rest)) => (first, rest),
        None => (path, ""),
    };
    if first.is_empty() {
        return true;
    }
    if !first.contains('*') {
        let next = folder.join(first);
        return next.exists() && exists(&next, rest);
    }
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    let mut names = entries.flatten().map(|entry| entry.file_name());
    names.any(|name| {
        let name = name.to_string_lossy();
        documents::fits(first, &name) && exists(&folder.join(&*name), rest)
    })
}

#[test]
fn the_paths_that_documents_name_exist() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join("docs")];
    let mut documents: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(root)? {
        documents.push(entry?.path());
    }
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            match path.is_dir() {
                true => folders.push(path),
                false => documents.push(path),
            }
        }
    }
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    assert!(documents.len() > 10, "{documents:?}");
    let mut complaints = Vec::new();
    for path in documents {
        let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path)?;
        let exists = |path: &str| exists(root, path);
        complaints.extend(documents::missing_paths(&name, &text, exists));
    }
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
    Ok(())
}

#[test]
fn the_reference_of_rest_has_every_path() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).context(path.to_owned());
    let code = read("src/rest/server.rs")? + &read("src/rest_model/paths.rs")?;
    let parts = documents::path_parts(&code);
    assert!(parts.len() > 30, "{parts:?}");
    let reference = read("docs/reference/rest.md")?;
    let quoted = reference.split('`').skip(1).step_by(2);
    let known: std::collections::BTreeSet<&str> =
        quoted.flat_map(|it| it.split(['/', ' ', '?'])).collect();
    let missing: Vec<_> = parts.difference(&known).collect();
    assert!(missing.is_empty(), "{missing:?}");
    Ok(())
}

#[test]
fn the_references_have_every_metric_and_every_exit_code() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).context(path.to_owned());
    let code = read("src/rest/metrics/mod.rs")? + &read("src/rest/metrics/checkpoints.rs")?;
    let known = documents::metrics(&code, '"');
    assert!(known.len() > 20, "{known:?}");
    let reference = read("docs/reference/metrics.md")?;
    assert_eq!(documents::metrics(&reference, '`'), known);
    let (code, reference) = (
        read("src/telemetry/exit.rs")?,
        read("docs/reference/exit-codes.md")?,
    );
    let known = documents::discriminants(&code);
    assert!(known.len() > 10, "{known:?}");
    assert_eq!(documents::first_cells(&reference), known);
    Ok(())
}
