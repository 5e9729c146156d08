//! Files that a job ships for its programs: read where the job is compiled, carried in its graph with their SHA-256, checked by
//! whoever receives it. Large ones are uploaded before the graph, which names them. What a TaskManager does with them is the
//! data flow's.
//!
//! Invariant of a graph that passed: names are unique and safe file names, each content that it carries has its checksum, what
//! was uploaded was uploaded for this job, every reference names one of them, and all that it carries is bounded.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tanist_ha::blob::{BlobName, Origin};
use tanist_ha::keys::Name;
use tanist_proto::v1;

use super::problem::{Position, Problem};

/// The most that a graph carries, all files together, in bytes.
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

/// Files above this size are worth an upload, in bytes.
pub const WORTH_AN_UPLOAD: u64 = 256 * 1024;

/// Reads the files. Of those larger than `upload_above` only the checksum: who submits uploads them. Blocks.
pub(super) fn read(
    specs: &[ArtifactSpec],
    directory: Option<&Path>,
    upload_above: Option<u64>,
) -> Result<Vec<v1::Artifact>, Vec<Problem>> {
    let (mut artifacts, mut problems) = (Vec::new(), Vec::new());
    let mut size = 0;
    for spec in specs {
        match read_one(spec, directory, upload_above, &mut size) {
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
    upload_above: Option<u64>,
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
    if upload_above.is_some_and(|bytes| found.len() > bytes) {
        let path = std::path::absolute(&path).map_err(failed)?;
        let Some(local_path) = path.to_str().map(str::to_owned) else {
            return Err(format!("{} is no UTF-8", path.display()));
        };
        return Ok(v1::Artifact {
            name: spec.name.clone(),
            sha256: hash(&path).map_err(failed)?.into(),
            executable: spec.executable,
            local_path,
            ..v1::Artifact::default()
        });
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
        ..v1::Artifact::default()
    })
}

/// The SHA-256 of a file of any size. Blocks.
fn hash(path: &Path) -> std::io::Result<Vec<u8>> {
    let (mut file, mut hasher) = (File::open(path)?, Sha256::new());
    let mut piece = vec![0; 256 * 1024];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.finalize().to_vec()),
            length => hasher.update(&piece[..length]),
        }
    }
}

/// Puts the content of a file that was to be uploaded into the graph: there is no place for uploads. Blocks.
pub fn embed(artifact: &mut v1::Artifact) -> std::io::Result<()> {
    artifact.content = std::fs::read(&artifact.local_path)?.into();
    artifact.local_path.clear();
    Ok(())
}

/// What makes a graph the same as another one: the SHA-256 of its encoded form. Where a file was uploaded to is not part of it.
pub fn digest(graph: &v1::JobGraph) -> Vec<u8> {
    let is_elsewhere =
        |artifact: &v1::Artifact| artifact.uploaded.is_some() || !artifact.local_path.is_empty();
    let mut graph = Cow::Borrowed(graph);
    if graph.artifacts.iter().any(is_elsewhere) {
        for artifact in &mut graph.to_mut().artifacts {
            artifact.uploaded = None;
            artifact.local_path.clear();
        }
    }
    Sha256::digest(graph.encode_to_vec()).to_vec()
}

/// What was uploaded for a graph, in bytes.
pub fn uploaded_size(graph: &v1::JobGraph) -> u64 {
    let uploaded = graph.artifacts.iter().flat_map(|it| &it.uploaded);
    uploaded.fold(0, |size, it| size.saturating_add(it.size))
}

fn too_large(size: u64) -> String {
    format!(
        "the job's files have {size} bytes or more together, and {MAX_SHIPPED} are what a graph carries: \
         submit it to a cluster that takes uploads, or put larger ones where every TaskManager reaches them"
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
        } else if let Some(uploaded) = &artifact.uploaded {
            problems.extend(upload_problem(graph, artifact, uploaded));
        } else if !artifact.local_path.is_empty() {
            // Where it is submitted it has been uploaded.
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

/// What is wrong with an artifact that was uploaded.
fn upload_problem(
    graph: &v1::JobGraph,
    artifact: &v1::Artifact,
    uploaded: &v1::UploadedContent,
) -> Option<String> {
    let name = &artifact.name;
    // The number of a piece makes it the name of an object.
    let read = Name::new(format!("{}.0", uploaded.object)).ok();
    let read = read.as_ref().and_then(BlobName::read);
    let is_of_job = read
        .is_some_and(|read| read.origin == Origin::Upload && read.owner.as_str() == graph.job_id);
    if !is_of_job {
        return Some(format!("artifact `{name}` was not uploaded for this job"));
    }
    if artifact.sha256.len() != 32 || uploaded.pieces == 0 || !artifact.content.is_empty() {
        return Some(format!("artifact `{name}` is not what an upload leaves"));
    }
    None
}

/// Files that whoever submits has yet to upload.
pub fn not_uploaded(graph: &v1::JobGraph) -> Option<&str> {
    let mut local = graph
        .artifacts
        .iter()
        .filter(|it| !it.local_path.is_empty());
    local.next().map(|artifact| artifact.name.as_str())
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
            content: content.into(),
            ..v1::Artifact::default()
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
        let read_here = read(&spec, Some(directory.path()), None).expect("it is there");
        assert!(read_here[0].executable && read_here[0].content == "content");
        let message = |spec: &str, directory| {
            let problems = read(&[ArtifactSpec::new("model", spec)], directory, None);
            problems.expect_err("refused")[0].message.clone()
        };
        assert!(message("m", None).contains("submit it with `tanist run`"));
        assert!(message("http://host/m", None).contains("is an address"));
        assert!(message("none", Some(directory.path())).contains("can't be read"));
        assert!(message(".", Some(directory.path())).contains("is no file"));
    }

    #[test]
    fn a_large_file_is_left_to_be_uploaded_and_where_to_changes_no_digest() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join("m"), "content").expect("written");
        let spec = [ArtifactSpec::new("model", "m")];
        let read = |above| read(&spec, Some(directory.path()), Some(above)).expect("there");
        assert_eq!(read(7)[0].content, "content");
        let large = read(6).remove(0);
        assert!(large.content.is_empty() && large.local_path.ends_with("/m"));
        assert_eq!(large.sha256[..], Sha256::digest("content")[..]);
        let mut graph = v1::JobGraph {
            job_id: "0a".to_owned(),
            artifacts: vec![large],
            ..v1::JobGraph::default()
        };
        assert_eq!(not_uploaded(&graph), Some("model"));
        let before = digest(&graph);
        let object = |owner: &str| format!("{owner}-upload-0123456789ab-0123456789abcdef");
        graph.artifacts[0].local_path.clear();
        graph.artifacts[0].uploaded = Some(v1::UploadedContent {
            object: object("0a"),
            pieces: 1,
            size: 7,
        });
        assert_eq!((digest(&graph), problems(&graph)), (before, Vec::new()));
        assert_eq!(uploaded_size(&graph), 7);
        let uploaded = graph.artifacts[0].uploaded.as_mut().expect("set");
        uploaded.object = object("0b");
        assert!(problems(&graph)[0].contains("not uploaded for this job"));
    }
}
