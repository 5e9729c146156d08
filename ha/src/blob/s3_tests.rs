//! Blobs in a real bucket: written objects are read back, and each error has the outcome that decides whether
//! it is retried.

use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::path::Path;
use object_store::{ClientOptions, RetryConfig};

use super::super::{BlobPointer, BlobStore, ClusterTag, user_objects};
use super::*;
use crate::Outcome;
use crate::election::Epoch;
use crate::keys::Name;
use crate::testing::certificates::TestAuthority;
use crate::testing::s3::{BUCKET, Conduct, REGION, S3Server};

/// Timeouts of a request and of all its repetitions.
type Timeouts = (Duration, Duration);
const TIMEOUTS: Timeouts = (Duration::from_secs(10), Duration::from_secs(30));
/// Short ones, for a bucket that says nothing.
const SHORT: Timeouts = (Duration::from_millis(500), Duration::from_secs(1));

async fn server() -> S3Server {
    S3Server::start().await.expect("a free port")
}

fn client(server: &S3Server, secret: &str) -> AmazonS3Builder {
    client_with(TIMEOUTS, server, secret)
}

fn client_with(timeouts: Timeouts, server: &S3Server, secret: &str) -> AmazonS3Builder {
    let (of_request, of_repetitions) = timeouts;
    let retry = RetryConfig {
        max_retries: 2,
        retry_timeout: of_repetitions,
        ..RetryConfig::default()
    };
    let options = ClientOptions::new()
        .with_allow_http(true)
        .with_timeout(of_request);
    AmazonS3Builder::new()
        .with_endpoint(server.endpoint())
        .with_region(REGION)
        .with_access_key_id(&server.credentials().key)
        .with_secret_access_key(secret)
        .with_client_options(options)
        .with_retry(retry)
}

fn objects(s3: AmazonS3Builder) -> Arc<dyn ObjectStore> {
    let place = format!("{BUCKET}/a/b");
    open_with(s3, &format!("s3://{place}"), &place).expect("opened")
}

fn blobs_of(s3: AmazonS3Builder) -> BlobStore {
    BlobStore {
        objects: objects(s3),
        survives_host: true,
        tag: ClusterTag::default(),
        directory: None,
        location: format!("s3://{BUCKET}/a/b"),
        option: None,
        guard: None,
        checkpoints: None,
    }
}

fn blobs(server: &S3Server) -> BlobStore {
    blobs_of(client(server, &server.credentials().secret))
}

fn job() -> Name {
    Name::new("0a1b").expect("a name")
}

async fn put(blobs: &BlobStore) -> Result<BlobPointer> {
    blobs.put(&job(), Epoch::new(1), content(10)).await
}

async fn written(blobs: &BlobStore, bytes: Bytes) -> BlobPointer {
    let put = blobs.put(&job(), Epoch::new(1), bytes).await;
    put.expect("put")
}

fn content(bytes: usize) -> Bytes {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

#[tokio::test]
async fn what_is_put_into_a_bucket_is_read_listed_and_deleted() {
    let server = server().await;
    let blobs = blobs(&server);
    let mut pointers = Vec::new();
    // Several pages of the list.
    for size in 0..8 {
        pointers.push(written(&blobs, content(size * 1_000)).await);
    }
    server.put("a/b/notes.txt", "not an object of ours");
    server.put("a/b/below/0a1b", "not an object of ours");
    server.put("elsewhere", "not an object of ours");
    for (size, pointer) in pointers.iter().enumerate() {
        let read = blobs.get(pointer).await.expect("read");
        assert_eq!(read, content(size * 1_000));
        let size_of = blobs.size_of(&pointer.name).await.expect("answered");
        assert_eq!(size_of, Some(read.len() as u64));
        assert!(server.object(&format!("a/b/{}", pointer.name)).is_some());
    }
    let listed = blobs.list().await.expect("listed");
    let ours = listed
        .iter()
        .filter(|entry| entry.name.as_str() != "notes.txt");
    assert_eq!(ours.count(), 8, "{listed:?}");
    assert!(listed.iter().all(|it| it.age < Duration::from_secs(3600)));
    for pointer in &pointers {
        blobs.delete(&pointer.name).await.expect("deleted");
        blobs
            .delete(&pointer.name)
            .await
            .expect("it is gone already");
    }
    let left = ["a/b/below/0a1b", "a/b/notes.txt", "elsewhere"];
    assert_eq!(server.keys(), left);
}

#[tokio::test]
async fn an_upload_reaches_a_bucket_in_pieces() {
    let server = server().await;
    let blobs = blobs(&server);
    let whole = content(9 * 1024 * 1024);
    let mut upload = blobs.upload(&job()).expect("a name");
    for chunk in whole.chunks(300_000) {
        upload.write(chunk).await.expect("written");
    }
    let pointer = upload.finish().await.expect("finished");
    assert_eq!((pointer.pieces, server.keys().len()), (2, 2));
    assert!(blobs.has_upload(&pointer).await.expect("answered"));
    let mut read = Vec::new();
    for name in pointer.piece_names().expect("two") {
        let pieces = blobs.stream(&name).await.expect("there");
        let pieces: Vec<Bytes> = pieces.try_collect().await.expect("read");
        read.extend(pieces.concat());
    }
    assert!(read == whole, "what was read is something else");
    let first = &pointer.piece_names().expect("two")[0];
    blobs.delete(first).await.expect("deleted");
    assert!(!blobs.has_upload(&pointer).await.expect("answered"));
}

#[tokio::test]
async fn an_object_that_is_missing_is_lost_and_a_bucket_that_is_missing_may_come_back() {
    let server = server().await;
    let blobs = blobs(&server);
    let pointer = written(&blobs, content(10)).await;
    server.conduct(Conduct::NoBucket);
    let unread = blobs.get(&pointer).await.expect_err("no bucket");
    assert_eq!(unread.outcome(), Outcome::Transient, "{unread}");
    let unlisted = blobs.list().await.expect_err("no bucket");
    assert_eq!(unlisted.outcome(), Outcome::Transient, "{unlisted}");
    server.conduct(Conduct::Answers);
    assert_eq!(blobs.get(&pointer).await.expect("it is back"), content(10));
    blobs.delete(&pointer.name).await.expect("deleted");
    let missing = blobs.get(&pointer).await.expect_err("gone");
    assert!(matches!(missing, Error::Corrupt { .. }), "{missing}");
    assert_eq!(blobs.size_of(&pointer.name).await.expect("answered"), None);
}

#[tokio::test]
async fn a_bucket_that_denies_access_says_so_and_takes_nothing() {
    let server = server().await;
    let stranger = blobs_of(client(&server, "wrong"));
    let denied = put(&stranger)
        .await
        .expect_err("signed with another secret");
    assert!(matches!(denied, Error::Denied { .. }), "{denied}");
    assert!(
        denied.to_string().contains("SignatureDoesNotMatch"),
        "{denied}"
    );
    assert!(!denied.to_string().contains("wrong"), "{denied}");
    let ours = blobs(&server);
    server.conduct(Conduct::Denies);
    let denied = put(&ours).await.expect_err("a policy says no");
    assert!(matches!(denied, Error::Denied { .. }), "{denied}");
    assert_eq!(server.keys(), Vec::<String>::new());
    server.conduct(Conduct::Answers);
    put(&ours).await.expect("allowed again");
}

#[tokio::test]
async fn a_bucket_that_says_nothing_is_given_up_and_may_be_asked_again() {
    let server = server().await;
    let blobs = blobs(&server);
    let pointer = written(&blobs, content(10)).await;
    server.conduct(Conduct::Silent);
    let impatient = blobs_of(client_with(SHORT, &server, &server.credentials().secret));
    let silent = impatient.get(&pointer).await.expect_err("no answer");
    assert_eq!(silent.outcome(), Outcome::Transient, "{silent}");
    let silent = impatient.list().await.expect_err("no answer");
    assert_eq!(silent.outcome(), Outcome::Transient, "{silent}");
    server.conduct(Conduct::Answers);
    assert_eq!(blobs.get(&pointer).await.expect("it answers"), content(10));
}

#[tokio::test]
async fn an_object_that_is_cut_off_in_the_middle_is_read_on_from_there() {
    let server = server().await;
    let blobs = blobs(&server);
    let pointer = written(&blobs, content(300_000)).await;
    server.conduct(Conduct::Cuts(200_000));
    let read = blobs.get(&pointer).await.expect("read in two requests");
    assert!(read == content(300_000), "what was read is something else");
    let gets = format!("GET a/b/{}", pointer.name);
    let asked = server.requests().iter().filter(|it| **it == gets).count();
    assert_eq!(asked, 2);
    // If it is truncated again and again, incomplete content is never returned.
    server.conduct(Conduct::Cuts(10));
    let broken = blobs.get(&pointer).await.expect_err("cut off");
    assert_eq!(broken.outcome(), Outcome::Transient, "{broken}");
}

#[tokio::test]
async fn a_bucket_is_reached_by_tls_only_where_its_authority_is_trusted() {
    let authority = TestAuthority::new();
    let server = S3Server::start_secure(&authority).await;
    let server = server.expect("a free port");
    let secret = &server.credentials().secret;
    let trusting = |authority: &TestAuthority| {
        let pem = authority.pem();
        let certificate = object_store::Certificate::from_pem(pem.as_bytes()).expect("PEM");
        let options = ClientOptions::new().with_root_certificate(certificate);
        blobs_of(client(&server, secret).with_client_options(options))
    };
    let blobs = trusting(&authority);
    let pointer = written(&blobs, content(10)).await;
    let stranger = trusting(&TestAuthority::new());
    let refused = stranger.get(&pointer).await.expect_err("not trusted");
    assert_eq!(refused.outcome(), Outcome::Transient, "{refused}");
    assert_eq!(blobs.get(&pointer).await.expect("trusted"), content(10));
}

#[tokio::test]
async fn a_file_of_a_user_is_read_as_a_stream_and_what_it_lacks_is_the_user_s_mistake() {
    let server = server().await;
    let s3 = settings(
        client(&server, &server.credentials().secret),
        RequestTimeout::Long,
    );
    let objects = objects(s3);
    server.put("a/b/model.bin", content(100_000));
    let (size, pieces) = user_objects::read(&*objects, &Path::from("model.bin"))
        .await
        .expect("there");
    let pieces: Vec<Bytes> = pieces.try_collect().await.expect("read");
    assert_eq!(size, 100_000);
    assert!(pieces.concat() == content(100_000), "another file");
    let missing = user_objects::read(&*objects, &Path::from("missing")).await;
    let missing = missing.err().expect("no such object");
    assert!(missing.to_string().contains("no such object"), "{missing}");
    server.conduct(Conduct::Denies);
    let denied = user_objects::read(&*objects, &Path::from("model.bin")).await;
    let denied = denied.err().expect("a policy says no");
    assert!(denied.to_string().contains("may not be read"), "{denied}");
    for error in [missing, denied] {
        assert_eq!(error.outcome(), Outcome::Fatal, "{error}");
    }
}

#[test]
fn a_bucket_is_opened_for_short_requests_and_for_long_ones() {
    for requests in [RequestTimeout::Short, RequestTimeout::Long] {
        open("s3://bucket/prefix", "bucket/prefix", requests).expect("opened");
    }
    let unnamed = open("s3://", "", RequestTimeout::Short).expect_err("no bucket");
    assert!(unnamed.to_string().contains("names no bucket"), "{unnamed}");
}

#[tokio::test]
async fn without_credentials_the_error_says_what_to_set() {
    // A service without roles, as on most hosts.
    let none = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = none.local_addr().expect("bound");
    drop(none);
    let s3 = AmazonS3Builder::new()
        .with_region(REGION)
        .with_metadata_endpoint(format!("http://{address}"));
    let blobs = blobs_of(s3);
    let owner = Name::new("job").expect("a name");
    let put = blobs.put(&owner, Epoch::new(1), Bytes::from_static(b"a"));
    let error = put.await.expect_err("it has no credentials");
    assert_eq!(
        error.outcome(),
        Outcome::Transient,
        "the host may get a role"
    );
    let text = error.to_string();
    for told in [
        "no credentials were found",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    ] {
        assert!(text.contains(told), "{text}");
    }
}
