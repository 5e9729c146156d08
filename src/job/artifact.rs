//! Files that a job ships for its programs: read where the job is compiled, carried in its graph with their SHA-256, checked by
//! whoever receives it. What a TaskManager does with them is the data flow's.
//!
//! Invariant of a graph that passed: names are unique and safe file names, each content has its checksum, every
//! reference names one of them, and all of them together are bounded.

use std::collections::BTreeSet;
use std::path::Path;

use sha2::{Digest as _, Sha256};
use tanist_proto::v1;

use super::problem::{Position, Problem};

/// The most that a job ships, all files together, in bytes.
pub const MAX_SHIPPED: u64 = 48 * 1024 * 1024;
/// The most files.
const MAX_FILES: usize = 100;
/// The longest name.
const MAX_NAME: usize = 100;
/// How a command names an artifact: this, its name, and `}`.
const REFERENCE: &str = "${artifact:";

/// A file that a job ships, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactSpec {
    /// Its name; also its file name where programs run.
    pub name: String,
    /// Where it is read.
    pub path: String,
    /// Whether it can be executed where programs run.
    pub executable: bool,
    pub(super) position: Option<Position>,
}

impl ArtifactSpec {
    /// A file that is no program.
    pub fn new(name: impl Into<String>, path: impl Into<String>) -> ArtifactSpec {
        ArtifactSpec {
            name: name.into(),
            path: path.into(),
            executable: false,
            position: None,
        }
    }

    /// The same as a program.
    #[must_use]
    pub fn executable(self) -> ArtifactSpec {
        ArtifactSpec {
            executable: true,
            ..self
        }
    }
}

/// Reads the files. Blocks.
pub(super) fn read(
    specs: &[ArtifactSpec],
    directory: Option<&Path>,
) -> Result<Vec<v1::Artifact>, Vec<Problem>> {
    let (mut artifacts, mut problems) = (Vec::new(), Vec::new());
    let mut size = 0;
    for spec in specs {
        match read_one(spec, directory, &mut size) {
            Ok(artifact) => artifacts.push(artifact),
            Err(message) => {
                let message = format!("artifact `{}`: {message}", spec.name);
                problems.push(Problem::of_job(spec.position, message));
            }
        }
    }
    if problems.is_empty() {
        Ok(artifacts)
    } else {
        Err(problems)
    }
}

fn read_one(
    spec: &ArtifactSpec,
    directory: Option<&Path>,
    size: &mut u64,
) -> Result<v1::Artifact, String> {
    let path = &spec.path;
    if path.contains("://") {
        return Err(format!(
            "`{path}` is an address: fetch it first and name the file, or let the program fetch it"
        ));
    }
    let Some(directory) = directory else {
        return Err(format!(
            "`{path}` is a file of whoever submits the job, which is not here: submit it with `tanist run`"
        ));
    };
    let path = directory.join(path);
    let failed = |error| format!("{} can't be read: {error}", path.display());
    let found = std::fs::metadata(&path).map_err(failed)?;
    if !found.is_file() {
        return Err(format!("{} is no file", path.display()));
    }
    // Before it is read: it may be anything.
    *size = size.saturating_add(found.len());
    if *size > MAX_SHIPPED {
        return Err(too_large(*size));
    }
    let content = std::fs::read(&path).map_err(failed)?;
    Ok(v1::Artifact {
        name: spec.name.clone(),
        sha256: Sha256::digest(&content).to_vec().into(),
        executable: spec.executable,
        content: content.into(),
    })
}

fn too_large(size: u64) -> String {
    format!(
        "the job's files have {size} bytes or more together, and {MAX_SHIPPED} are what a job ships: \
         put larger ones where every TaskManager reaches them"
    )
}

/// What is wrong with the artifacts of a graph, wherever it comes from.
pub(super) fn problems(graph: &v1::JobGraph) -> Vec<String> {
    let artifacts = &graph.artifacts;
    if artifacts.len() > MAX_FILES {
        return vec![format!("it ships more than {MAX_FILES} artifacts")];
    }
    let size: u64 = artifacts.iter().map(|a| a.content.len() as u64).sum();
    if size > MAX_SHIPPED {
        return vec![too_large(size)];
    }
    let mut problems = Vec::new();
    let mut names = BTreeSet::new();
    for artifact in artifacts {
        let name = artifact.name.as_str();
        if !is_name(name) {
            problems.push(format!(
                "`{name}` is no name of an artifact: write up to {MAX_NAME} letters, digits, `_`, `-` and `.`, beginning with no `.`"
            ));
        } else if !names.insert(name) {
            problems.push(format!("two artifacts are called `{name}`"));
        } else if Sha256::digest(&artifact.content)[..] != artifact.sha256[..] {
            problems.push(format!(
                "artifact `{name}`: its content does not have its SHA-256"
            ));
        }
    }
    // Names need no escapes in JSON, so the specification's text says the same as what it stands for.
    let operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    for operator in operators {
        for reference in references(&operator.spec) {
            if !names.contains(reference) {
                problems.push(format!(
                    "step `{}`: there is no artifact `{reference}`: declare it under `artifacts`",
                    operator.name
                ));
            }
        }
    }
    problems
}

/// A file name that leads nowhere else.
fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len())
        && !text.starts_with('.')
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

fn references(text: &str) -> impl Iterator<Item = &str> {
    let after = text.split(REFERENCE).skip(1);
    after.filter_map(|rest| rest.split_once('}').map(|(name, _)| name))
}

/// Puts in what stands for each reference. The error is the name of one that stands for nothing.
pub fn resolve(text: &str, path_of: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut resolved = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(REFERENCE) {
        let Some((name, behind)) = after.split_once('}') else {
            break;
        };
        resolved.push_str(before);
        resolved.push_str(&path_of(name).ok_or_else(|| name.to_owned())?);
        rest = behind;
    }
    resolved.push_str(rest);
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_found_and_replaced() {
        let text = "a ${artifact:x}${artifact:y-1.b} ${artifact:open";
        assert_eq!(references(text).collect::<Vec<_>>(), ["x", "y-1.b"]);
        let resolved = resolve(text, |name| Some(format!("/{name}")));
        assert_eq!(resolved.as_deref(), Ok("a /x/y-1.b ${artifact:open"));
        assert_eq!(resolve(text, |_| None), Err("x".to_owned()));
    }

    #[test]
    fn names_lead_nowhere_else() {
        assert!(is_name("model-1.bin") && is_name("_"));
        for wrong in ["", ".", "..", "a/b", ".hidden", "a b", &"x".repeat(101)] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }

    fn shipped(name: &str, content: &'static [u8]) -> v1::Artifact {
        v1::Artifact {
            name: name.to_owned(),
            sha256: Sha256::digest(content).to_vec().into(),
            executable: false,
            content: content.into(),
        }
    }

    #[test]
    fn what_a_stranger_ships_is_checked() {
        let mut graph = v1::JobGraph {
            artifacts: vec![shipped("a", b"1"), shipped("b", b"2")],
            ..v1::JobGraph::default()
        };
        assert_eq!(problems(&graph), Vec::<String>::new());
        graph.artifacts[0].content = (&b"other"[..]).into();
        graph.artifacts[1].name = "../b".to_owned();
        let problems = problems(&graph);
        assert!(
            problems[0].contains("does not have its SHA-256"),
            "{problems:?}"
        );
        assert!(
            problems[1].contains("no name of an artifact"),
            "{problems:?}"
        );
    }

    #[test]
    fn only_whoever_has_the_files_can_ship_them() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("m"), "content").expect("written");
        let spec = [ArtifactSpec::new("model", "m").executable()];
        let read_here = read(&spec, Some(directory.path())).expect("it is there");
        assert!(read_here[0].executable && read_here[0].content == "content");
        let message = |spec: &str, directory| {
            let problems = read(&[ArtifactSpec::new("model", spec)], directory);
            problems.expect_err("refused")[0].message.clone()
        };
        assert!(message("m", None).contains("submit it with `tanist run`"));
        assert!(message("http://host/m", None).contains("is an address"));
        assert!(message("none", Some(directory.path())).contains("can't be read"));
        assert!(message(".", Some(directory.path())).contains("is no file"));
    }
}
