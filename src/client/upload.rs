//! Upload of a job's files that are too large for its graph: to any JobManager that answers, before the graph
//! that names them is submitted. Files named by an address are fetched first, into a temporary file.
//!
//! A content is uploaded once, even under several names. An upload is tried at one JobManager after the other,
//! each time from the beginning. A JobManager that serves others first says so; it is asked again while it
//! does. The cluster removes what a failed try leaves. If a cluster has no place for uploads, files are put
//! into the graph up to its limit.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::Method;
use hyper::body::Frame;
use tanist_gateway::remote_files::{self, Bound};
use tanist_ha::blob::Checksum;
use tanist_model::artifact::{self, MAX_SHIPPED, WORTH_AN_UPLOAD};
use tanist_proto::v1 as pb;
use tanist_rest_model::{Uploaded, paths};
use tempfile::NamedTempFile;
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;

use super::error::ClientError;
use super::job_client::{JobClient, parse};
use super::rest_client::{Failure, Request, RequestBody, classify};

/// Size of a read, in bytes.
const PIECE: usize = 256 * 1024;
/// Number of times that all JobManagers are tried; each round may take long.
const SEARCHES: usize = 3;
/// HTTP status of a cluster that has no place for uploads.
const NO_PLACE: u16 = 409;

impl JobClient {
    /// Returns the graph with all files uploaded that it only refers to.
    pub(super) async fn with_uploads<'a>(
        &self,
        graph: &'a pb::JobGraph,
    ) -> Result<Cow<'a, pb::JobGraph>, ClientError> {
        let mut graph = Cow::Borrowed(graph);
        let mut uploads: BTreeMap<Vec<u8>, pb::UploadedContent> = BTreeMap::new();
        for index in 0..graph.artifacts.len() {
            // The temporary file is removed after the upload.
            let _fetched = match graph.artifacts[index].url.is_empty() {
                true => None,
                false => Some(self.fetch(graph.to_mut(), index).await?),
            };
            if graph.artifacts[index].local_path.is_empty() {
                continue;
            }
            let sha256 = graph.artifacts[index].sha256.to_vec();
            let uploading = async {
                match uploads.get(&sha256) {
                    Some(uploaded) => Ok(uploaded.clone()),
                    None => self.upload(&graph.job_id, &graph.artifacts[index]).await,
                }
            };
            let answer = uploading.await;
            match answer {
                Ok(uploaded) => {
                    let artifact = &mut graph.to_mut().artifacts[index];
                    artifact.uploaded = Some(uploaded.clone());
                    artifact.local_path.clear();
                    uploads.insert(sha256, uploaded);
                }
                Err(
                    refusal @ ClientError::Refused {
                        status: NO_PLACE, ..
                    },
                ) => {
                    embed(graph.to_mut(), index, refusal).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(graph)
    }

    /// Fetches a file that the graph names by an address. Afterwards the graph has its content, if small, or
    /// the path of the temporary file.
    async fn fetch(
        &self,
        graph: &mut pb::JobGraph,
        index: usize,
    ) -> Result<NamedTempFile, ClientError> {
        let artifact = &mut graph.artifacts[index];
        let no_room = |error: &dyn std::fmt::Display| {
            let (name, directory) = (&artifact.name, std::env::temp_dir());
            let directory = directory.display();
            ClientError::Unsendable {
                reason: format!(
                    "artifact `{name}` can't be kept in {directory} while it is sent: {error}"
                ),
            }
        };
        let kept = NamedTempFile::new().map_err(|error| no_room(&error))?;
        let file = kept.reopen().map_err(|error| no_room(&error))?;
        let path = kept.path().to_str();
        let path = path
            .ok_or_else(|| no_room(&"its name is not UTF-8"))?
            .to_owned();
        let mut file = File::from_std(file);
        let bound = Bound {
            bytes: self.most_artifacts(),
            what: "are the maximum for the files of a job (artifacts.max-size)",
        };
        let fetched = remote_files::fetch(artifact, bound, &mut file).await;
        let fetched = fetched.map_err(|error| ClientError::Unsendable {
            reason: error.to_string(),
        })?;
        file.flush().await.map_err(|error| no_room(&error))?;
        let size = file
            .metadata()
            .await
            .map_err(|error| no_room(&error))?
            .len();
        artifact.sha256 = fetched;
        artifact.url.clear();
        if size > WORTH_AN_UPLOAD {
            artifact.local_path = path;
        } else {
            let content = tokio::fs::read(&path).await;
            let content = content.map_err(|error| ClientError::Unsendable {
                reason: format!(
                    "artifact `{}`: {path} can't be read: {error}",
                    artifact.name
                ),
            })?;
            artifact.content = content.into();
        }
        Ok(kept)
    }

    async fn upload(
        &self,
        job: &str,
        artifact: &pb::Artifact,
    ) -> Result<pb::UploadedContent, ClientError> {
        let sha256 = Checksum::try_from(&artifact.sha256[..]);
        let sha256 = sha256.map_err(|error| unreadable(artifact, &error))?;
        let size = tokio::fs::metadata(&artifact.local_path).await;
        let size = size.map_err(|error| unreadable(artifact, &error))?.len();
        let request = Request {
            method: Method::PUT,
            headers: vec![("content-length", size.to_string())],
            ..Request::get(&paths::artifact(job, sha256))
        };
        let mut searches = 0;
        let answer = loop {
            searches += 1;
            let asked = self.rest().try_each(async |address, timeout| {
                self.upload_to(address, &request, artifact, timeout).await
            });
            match asked.await {
                Err(ClientError::Unreachable { .. }) if searches < SEARCHES => {}
                answer => break answer?,
            }
        };
        let body: Uploaded = parse(&request, &answer)?;
        Ok(pb::UploadedContent {
            object: body.object,
            pieces: body.pieces,
            size: body.size,
        })
    }

    /// Makes one try. It fails if no data moves for `timeout`.
    async fn upload_to(
        &self,
        address: &str,
        request: &Request,
        artifact: &pb::Artifact,
        timeout: Duration,
    ) -> Result<super::rest_client::Answer, Failure> {
        let file = File::open(&artifact.local_path).await;
        let file = file.map_err(|error| Failure::Final(unreadable(artifact, &error)))?;
        let (moved, mut moves) = watch::channel(0);
        let sending = self
            .rest()
            .exchange_with(address, request, body_of(file, moved));
        tokio::pin!(sending);
        let stalled = || Failure::Passing(format!("no progress for {timeout:?}"));
        loop {
            let next_move = async {
                if moves.changed().await.is_err() {
                    // All data is sent.
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                answer = &mut sending => {
                    let (status, body) = answer?;
                    return classify(address, &request.path, status, body);
                }
                moved = tokio::time::timeout(timeout, next_move) => {
                    moved.map_err(|_elapsed| stalled())?;
                }
            }
        }
    }
}

/// Returns the file's content as a request body; counts the bytes taken.
fn body_of(file: File, moved: watch::Sender<u64>) -> RequestBody {
    let pieces = stream::try_unfold((file, moved), |(mut file, moved)| async move {
        let mut piece = vec![0; PIECE];
        let length = file.read(&mut piece).await?;
        piece.truncate(length);
        moved.send_modify(|sent| *sent += length as u64);
        let frame = Frame::data(Bytes::from(piece));
        io::Result::Ok((length > 0).then_some((frame, (file, moved))))
    });
    BodyExt::boxed(StreamBody::new(pieces))
}

/// Puts a file that could not be uploaded into the graph, if it fits.
async fn embed(
    graph: &mut pb::JobGraph,
    index: usize,
    refusal: ClientError,
) -> Result<(), ClientError> {
    let mut artifact = graph.artifacts[index].clone();
    let size = tokio::fs::metadata(&artifact.local_path).await;
    let size = size.map_err(|error| unreadable(&artifact, &error))?.len();
    let carried: u64 = graph
        .artifacts
        .iter()
        .map(|it| it.content.len() as u64)
        .sum();
    if carried.saturating_add(size) > MAX_SHIPPED {
        return Err(refusal);
    }
    let embedding = tokio::task::spawn_blocking(move || {
        let embedded = artifact::embed(&mut artifact);
        embedded.map_err(|error| unreadable(&artifact, &error))?;
        Ok(artifact)
    });
    let embedded = embedding.await.map_err(|error| ClientError::Unsendable {
        reason: error.to_string(),
    })?;
    graph.artifacts[index] = embedded?;
    Ok(())
}

fn unreadable(artifact: &pb::Artifact, error: &dyn std::fmt::Display) -> ClientError {
    let (name, path) = (&artifact.name, &artifact.local_path);
    ClientError::Unsendable {
        reason: format!("artifact `{name}`: {path} can't be read: {error}"),
    }
}
