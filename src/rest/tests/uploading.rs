//! Uploads: which are accepted, which are refused, and what either leaves behind.

use axum::http::{Method, Request, StatusCode};
use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tanist_ha::blob::{BlobOptions, BlobStore, Checksum};
use tanist_proto::id::JobId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::scripted::Served;
use crate::RestServerOptions;
use crate::server::UPLOADS_AT_ONCE;

const CONTENT: &[u8] = b"the content of a file";

/// A server over a directory, without a leader: an upload needs none.
async fn served() -> (tempfile::TempDir, BlobStore, Served) {
    served_with(100).await
}

/// A server that accepts files of up to this many bytes.
async fn served_with(max_artifact_size: u64) -> (tempfile::TempDir, BlobStore, Served) {
    let directory = tempfile::tempdir().expect("a directory");
    let url = directory.path().to_string_lossy().into_owned();
    let store = BlobStore::open(&BlobOptions { url, shared: true }).await;
    let store = store.expect("opened");
    let options = RestServerOptions {
        max_artifact_size,
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

/// Starts as many uploads as are accepted at once, each with half a file sent.
async fn fill_up(served: &Served) -> Vec<TcpStream> {
    let path = path(Checksum::of(CONTENT));
    let length = 2 * CONTENT.len();
    let head =
        format!("PUT {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n");
    let mut clients = Vec::new();
    for _ in 0..UPLOADS_AT_ONCE {
        let connecting = TcpStream::connect(&served.address);
        let mut client = connecting.await.expect("connected");
        let half = [head.as_bytes(), CONTENT].concat();
        client.write_all(&half).await.expect("there is room");
        clients.push(client);
    }
    clients
}

#[tokio::test(start_paused = true)]
async fn uploads_of_clients_that_are_gone_make_room_for_others() {
    let (_directory, store, served) = served().await;
    let gone = fill_up(&served).await;
    let path = path(Checksum::of(CONTENT));
    let mut answers = Vec::new();
    while answers.last() != Some(&StatusCode::CREATED) && answers.len() < 100 {
        let answer = served.ask(Method::PUT, &path, &[], CONTENT).await;
        let is_busy = answer.headers.contains_key("tanist-busy");
        let is_refused = answer.status == StatusCode::SERVICE_UNAVAILABLE;
        assert_eq!(is_busy, is_refused, "{answer:?}");
        answers.push(answer.status);
    }
    assert_eq!(answers.last(), Some(&StatusCode::CREATED), "{answers:?}");
    for mut client in gone {
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.ok();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    let left = store.list().await.expect("listed");
    assert_eq!(left.len(), 1, "of what was broken off nothing is left");
}

#[tokio::test(start_paused = true)]
async fn a_client_hears_that_others_are_taken_also_in_the_middle_of_a_large_file() {
    // More than the buffers of sockets hold.
    let large = Bytes::from(vec![7; 64 * 1024 * 1024]);
    let (_directory, _store, served) = served_with(large.len() as u64).await;
    let _others = fill_up(&served).await;
    let uri = format!("http://{}{}", served.address, path(Checksum::of(CONTENT)));
    let request = Request::builder().method(Method::PUT).uri(uri);
    let request = request.body(Full::new(large)).expect("a request");
    let client = Client::builder(TokioExecutor::new()).build_http();
    let answer = client.request(request).await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let reason = answer.headers().get("tanist-busy").expect("the reason");
    assert_eq!(
        reason,
        "other files are being uploaded, and 4 at once are taken"
    );
}
