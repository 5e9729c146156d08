//! Uploads: what is taken, what is refused, and what is left of neither.

use axum::http::{Method, StatusCode};
use tanist_ha::blob::{BlobOptions, BlobStore, Checksum};
use tanist_proto::id::JobId;

use super::scripted::Served;
use crate::rest::RestServerOptions;

const CONTENT: &[u8] = b"the content of a file";

/// A server over a directory, without a leader: who takes an upload needs none.
async fn served() -> (tempfile::TempDir, BlobStore, Served) {
    let directory = tempfile::tempdir().expect("a directory");
    let url = directory.path().to_string_lossy().into_owned();
    let store = BlobStore::open(&BlobOptions { url, shared: true }).await;
    let store = store.expect("opened");
    let options = RestServerOptions {
        max_artifact_size: 100,
        ..RestServerOptions::default()
    };
    let served = Served::with_uploads(None, options, Some(store.clone())).await;
    (directory, store, served)
}

fn path(sha256: Checksum) -> String {
    format!("/v1/jobs/{}/artifacts/{sha256}", JobId::from_bits(7))
}

#[tokio::test]
async fn an_upload_is_kept_and_the_answer_says_what_to_name() {
    let (_directory, store, served) = served().await;
    let sum = Checksum::of(CONTENT);
    let answer = served.ask(Method::PUT, &path(sum), &[], CONTENT).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{:?}", answer.body);
    assert_eq!(answer.body["size"], CONTENT.len());
    assert_eq!(answer.body["pieces"], 1);
    let object = answer.body["object"].as_str().expect("a name");
    assert!(
        object.starts_with(&JobId::from_bits(7).to_string()),
        "{object}"
    );
    let listed = store.list().await.expect("listed");
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].name.as_str(), format!("{object}.00000"));
}

#[tokio::test]
async fn what_is_too_large_or_not_what_it_says_is_refused() {
    let (_directory, store, served) = served().await;
    let sum = Checksum::of(CONTENT);
    let large = served.ask(Method::PUT, &path(sum), &[], vec![0; 101]).await;
    assert_eq!(large.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(store.list().await.expect("listed").is_empty());
    let other = served.ask(Method::PUT, &path(sum), &[], "changed").await;
    assert_eq!(other.status, StatusCode::BAD_REQUEST);
    let path = "/v1/jobs/xyz/artifacts/abc";
    let wrong = served.ask(Method::PUT, path, &[], CONTENT).await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_cluster_without_a_place_for_uploads_says_so() {
    let served = Served::over(None, RestServerOptions::default()).await;
    let sum = Checksum::of(CONTENT);
    let answer = served.ask(Method::PUT, &path(sum), &[], CONTENT).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
}
