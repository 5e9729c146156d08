//! Files that a job ships for its programs. They are read when the job is compiled, are part of its graph with
//! their SHA-256, and are checked by every receiver. The submitting process uploads large files before the
//! graph, which names them, and fetches files that are given by an address. What a TaskManager does with them
//! is in `operators`.
//!
//! Invariant of a graph that passed the check: names are unique and safe file names; each content in it matches
//! its checksum; each upload was made for this job; every reference names one of the files; and the total size
//! is bounded.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use prost::Message as _;
use sha2::{Digest as _, Sha256};
use tanist_ha::blob::{BlobName, Checksum, Origin};
use tanist_ha::keys::Name;
use tanist_proto::v1;

use crate::problem::{Position, Problem};

/// Maximum size of all files in a graph together, in bytes.
pub const MAX_SHIPPED: u64 = 48 * 1024 * 1024;
/// Maximum number of files.
const MAX_FILES: usize = 100;
/// Maximum length of a name.
const MAX_NAME: usize = 100;
/// Start of a reference to an artifact in a command: this, the name, and `}`.
const REFERENCE: &str = "${artifact:";

/// A file that a job ships, as written in the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactSpec {
    /// Its name; also its file name where programs run.
    pub name: String,
    /// Where it is read: a path, or an address `http://`, `https://` or `s3://`.
    pub path: String,
    /// The SHA-256 that it must have, as 64 hexadecimal digits.
    pub sha256: Option<String>,
    /// Whether it is executable where programs run.
    pub executable: bool,
    /// Where a job file names it.
    pub position: Option<Position>,
}

impl ArtifactSpec {
    /// Creates a file that is not executable.
    pub fn new(name: impl Into<String>, path: impl Into<String>) -> ArtifactSpec {
        ArtifactSpec {
            name: name.into(),
            path: path.into(),
            sha256: None,
            executable: false,
            position: None,
        }
    }

    /// Sets the SHA-256 that the file must have: 64 hexadecimal digits.
    #[must_use]
    pub fn with_sha256(self, digits: impl Into<String>) -> ArtifactSpec {
        ArtifactSpec {
            sha256: Some(digits.into()),
            ..self
        }
    }

    /// Makes the file executable.
    #[must_use]
    pub fn executable(self) -> ArtifactSpec {
        ArtifactSpec {
            executable: true,
            ..self
        }
    }
}

/// Files larger than this are uploaded, in bytes.
pub const WORTH_AN_UPLOAD: u64 = 256 * 1024;

/// Reads the files, with relative paths taken from `directory`; `None`: the files are not on this host, and only
/// addresses are possible. Of files larger than `upload_above` it reads only the checksum: the submitting process
/// uploads them. Returns the problems of all files. Blocks.
pub fn read(
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
    let wanted = match &spec.sha256 {
        Some(digits) => Some(parse_sha256(digits)?),
        None => None,
    };
    if path.contains("://") {
        if let Some(problem) = address_problem(path) {
            let scheme = path.split("://").next().unwrap_or_default();
            let shown = match path.contains('@') {
                true => format!("{scheme}://..."),
                false => shown(path).to_owned(),
            };
            return Err(format!("`{shown}` {problem}"));
        }
        return Ok(v1::Artifact {
            name: spec.name.clone(),
            sha256: wanted.unwrap_or_default().into(),
            executable: spec.executable,
            url: path.clone(),
            ..v1::Artifact::default()
        });
    }
    let is_wanted = |sha256: &[u8]| match &wanted {
        Some(wanted) if wanted[..] != *sha256 => Err(format!(
            "{path} has the SHA-256 {}, not {}",
            hex(sha256),
            hex(wanted)
        )),
        Some(_) | None => Ok(()),
    };
    let Some(directory) = directory else {
        return Err(format!(
            "`{path}` is a file on the submitting host, which is not available here: submit the job with `tanist run`"
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
        let sha256 = hash(&path).map_err(failed)?;
        is_wanted(&sha256)?;
        return Ok(v1::Artifact {
            name: spec.name.clone(),
            sha256: sha256.into(),
            executable: spec.executable,
            local_path,
            ..v1::Artifact::default()
        });
    }
    // Checked before the file is read, since its size is not limited.
    *size = size.saturating_add(found.len());
    if *size > MAX_SHIPPED {
        return Err(too_large(*size));
    }
    let content = std::fs::read(&path).map_err(failed)?;
    let sha256 = Sha256::digest(&content).to_vec();
    is_wanted(&sha256)?;
    Ok(v1::Artifact {
        name: spec.name.clone(),
        sha256: sha256.into(),
        executable: spec.executable,
        content: content.into(),
        ..v1::Artifact::default()
    })
}

fn parse_sha256(digits: &str) -> Result<Vec<u8>, String> {
    let read = digits.parse::<Checksum>();
    let read = read.map(|sum| sum.as_bytes().to_vec());
    read.map_err(|_| {
        format!("`sha256` is `{digits}`: write 64 hexadecimal digits, as `sha256sum` shows them")
    })
}

/// Hexadecimal digits of bytes.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An address without its query, which may contain a signature: safe to show.
pub fn shown(address: &str) -> &str {
    address.split(['?', '#']).next().unwrap_or_default()
}

/// Returns why nothing can be fetched from an address, as the end of the sentence "`address` ...".
fn address_problem(address: &str) -> Option<String> {
    let (scheme, rest) = address.split_once("://")?;
    let needs = |feature: &str, is_there: bool| {
        let text = format!(
            "is an address for which this program is not built: build it with `--features {feature}`, or fetch the file first"
        );
        (!is_there).then_some(text)
    };
    let missing_feature = match scheme {
        "http" => None,
        "https" => needs("https", cfg!(feature = "https")),
        "s3" => needs("s3", cfg!(feature = "s3")),
        _ => {
            return Some(format!(
                "has the scheme `{scheme}`, and artifacts are files or have http://, https:// or s3:// addresses"
            ));
        }
    };
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let is_whole = match scheme {
        "s3" => !host.is_empty() && !path.is_empty(),
        _ => !host.is_empty() && !host.starts_with(':'),
    };
    if !is_whole || rest.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Some("is no whole address: write http://host/path or s3://bucket/key".to_owned());
    }
    if host.contains('@') {
        return Some(
            "has a user and password, which others would see: use a signed address".to_owned(),
        );
    }
    // Last: with a wrong address the feature would not help.
    missing_feature
}

/// Computes the SHA-256 of a file of any size. Blocks.
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

/// Puts the content of a file that was to be uploaded into the graph, if uploads are not possible. Blocks.
pub fn embed(artifact: &mut v1::Artifact) -> std::io::Result<()> {
    artifact.content = std::fs::read(&artifact.local_path)?.into();
    artifact.local_path.clear();
    Ok(())
}

/// Identity of a graph: the SHA-256 of its encoding. Upload locations and the run id are not part of it.
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
    if !graph.run.is_empty() {
        graph.to_mut().run.clear();
    }
    Sha256::digest(graph.encode_to_vec()).to_vec()
}

/// The uploaded contents of a graph, each once even if it has several names.
pub fn uploads(graph: &v1::JobGraph) -> Vec<&v1::UploadedContent> {
    let uploaded = graph.artifacts.iter().flat_map(|it| &it.uploaded);
    let by_object: BTreeMap<&str, _> = uploaded.map(|it| (it.object.as_str(), it)).collect();
    by_object.into_values().collect()
}

/// Bytes that were uploaded for a graph.
pub fn uploaded_size(graph: &v1::JobGraph) -> u64 {
    let sizes = uploads(graph).into_iter().map(|it| it.size);
    sizes.fold(0, u64::saturating_add)
}

fn too_large(size: u64) -> String {
    format!(
        "the job's files have at least {size} bytes together, more than the {MAX_SHIPPED} that fit into a graph: \
         submit it to a cluster that takes uploads, or put larger ones where every TaskManager reaches them"
    )
}

/// Returns the problems of a graph's artifacts, independently of where the graph comes from.
pub fn problems(graph: &v1::JobGraph) -> Vec<String> {
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
    // Ordered: where the content is decides what is checked of it. Only content in the graph is compared with its
    // SHA-256 here; the other contents are compared by the process that fetches them.
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
        } else if !artifact.url.is_empty() {
            // At submission it must have been fetched.
            if !artifact.content.is_empty() {
                problems.push(format!("artifact `{name}` has both an address and content"));
            }
        } else if !artifact.local_path.is_empty() {
            // At submission it must have been uploaded.
        } else if Sha256::digest(&artifact.content)[..] != artifact.sha256[..] {
            problems.push(format!(
                "artifact `{name}`: its content does not have its SHA-256"
            ));
        }
    }
    // Names need no escapes in JSON, so searching the specification's text is enough.
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

/// Returns the problem of an uploaded artifact.
fn upload_problem(
    graph: &v1::JobGraph,
    artifact: &v1::Artifact,
    uploaded: &v1::UploadedContent,
) -> Option<String> {
    let name = &artifact.name;
    // With the number of a piece it is the name of an object.
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

/// Returns a file that the submitting process must still upload or fetch.
pub fn not_uploaded(graph: &v1::JobGraph) -> Option<&str> {
    let mut local = graph
        .artifacts
        .iter()
        .filter(|it| !it.local_path.is_empty() || !it.url.is_empty());
    local.next().map(|artifact| artifact.name.as_str())
}

/// Whether the text is a file name without a path.
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

/// Replaces each reference by its path. The error is the name of an unknown reference.
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
#[path = "artifact_tests.rs"]
mod tests;
