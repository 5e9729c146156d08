//! A file is fetched completely or not at all, and an error names its address.

use std::collections::BTreeMap;

use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Answers by path, sent in order; the last one is repeated.
type Script = BTreeMap<&'static str, Vec<String>>;

/// Serves a script on the loopback until the test ends. Returns `host:port`.
async fn serve(script: impl IntoIterator<Item = (&'static str, Vec<String>)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let mut script: Script = script.into_iter().collect();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            answer(stream, &mut script).await;
        }
    });
    address
}

async fn answer(mut stream: TcpStream, script: &mut Script) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_closed) => return,
        }
    }
    let head = String::from_utf8_lossy(&head);
    let target = head.split(' ').nth(1).unwrap_or_default();
    let path = target.split('?').next().unwrap_or_default();
    let missing = status("404 Not Found");
    let answer = match script.get_mut(path) {
        Some(answers) if answers.len() > 1 => answers.remove(0),
        Some(answers) => answers[0].clone(),
        None => missing,
    };
    let _ = stream.write_all(answer.as_bytes()).await;
}

fn content(text: &str) -> String {
    let length = text.len();
    format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{text}")
}

fn status(status: &str) -> String {
    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
}

fn moved(to: &str) -> String {
    format!(
        "HTTP/1.1 302 Found\r\nConnection: close\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"
    )
}

fn named(url: String) -> pb::Artifact {
    pb::Artifact {
        name: "model".to_owned(),
        url,
        ..pb::Artifact::default()
    }
}

const BOUND: Bound = Bound {
    bytes: 10,
    what: "are allowed",
};

async fn fetched(artifact: &pb::Artifact) -> Result<String, FetchError> {
    let mut content = Vec::new();
    let sha256 = fetch(artifact, BOUND, &mut content).await?;
    assert_eq!(sha256[..], Sha256::digest(&content)[..]);
    Ok(String::from_utf8(content).expect("text"))
}

#[tokio::test]
async fn a_file_is_fetched_over_redirections_and_moments_of_trouble() {
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ncon".to_owned();
    let address = serve([
        ("/a/from", vec![moved("to?signed=1")]),
        ("/a/to", vec![moved("/file")]),
        ("/file", vec![status("503 Busy"), half, content("content")]),
    ])
    .await;
    let artifact = named(format!("http://{address}/a/from"));
    assert_eq!(fetched(&artifact).await.as_deref(), Ok("content"));
}

#[tokio::test]
async fn the_error_of_a_fetch_has_the_reason_and_no_secret() {
    let address = serve([
        ("/large", vec![content("eleven byte")]),
        ("/round", vec![moved("/round")]),
        ("/away", vec![moved("ftp://host/x?secret")]),
        ("/other", vec![content("changed")]),
        (
            "/endless",
            vec![format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(100))],
        ),
    ])
    .await;
    for (path, reason) in [
        ("missing", "404 Not Found"),
        ("large", "it has 11 bytes, and 10 are allowed"),
        ("endless", "it has more bytes, and 10 are allowed"),
        ("round", "more than 5 redirections"),
        ("away", "redirects to `ftp://host/x`"),
    ] {
        let artifact = named(format!("http://{address}/{path}?secret"));
        let error = fetched(&artifact).await.expect_err("refused");
        let text = error.to_string();
        assert!(
            text.contains(reason) && text.contains("artifact `model`"),
            "{text}"
        );
        assert!(!text.contains("secret") && !error.is_passing(), "{text}");
    }
    let mut artifact = named(format!("http://{address}/other"));
    artifact.sha256 = Sha256::digest("content").to_vec().into();
    let error = fetched(&artifact).await.expect_err("another file");
    assert!(error.to_string().contains("it has the SHA-256"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_may_be_there_later() {
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = closed.local_addr().expect("bound");
    drop(closed);
    let error = fetched(&named(format!("http://{address}/x"))).await;
    let error = error.expect_err("no server is there");
    assert!(error.is_passing(), "{error}");
}

#[tokio::test]
async fn files_that_fit_go_into_the_graph_with_their_checksum() {
    let address = serve([("/file", vec![content("content")])]).await;
    let mut graph = pb::JobGraph {
        artifacts: vec![named(format!("http://{address}/file"))],
        ..pb::JobGraph::default()
    };
    embed_remote(&mut graph).await.expect("fetched");
    let artifact = &graph.artifacts[0];
    assert_eq!(
        (&artifact.content[..], artifact.url.as_str()),
        (&b"content"[..], "")
    );
    assert_eq!(artifact.sha256[..], Sha256::digest("content")[..]);
}

#[test]
fn a_secure_address_does_not_redirect_to_an_insecure_one() {
    let from: Uri = "https://host/a/b".parse().expect("an address");
    let to = |location| redirected(&from, location).map(|uri| uri.to_string());
    assert_eq!(to("c").ok().as_deref(), Some("https://host/a/c"));
    assert_eq!(to("//other/c").ok().as_deref(), Some("https://other/c"));
    let refused = to("http://host/c").expect_err("refused");
    assert!(refused.reason.contains("not secure"), "{refused:?}");
}

#[cfg(feature = "https")]
#[path = "remote_files_secure_tests.rs"]
mod secure;

#[cfg(not(feature = "s3"))]
#[tokio::test]
async fn a_bucket_wants_a_program_with_the_feature_for_it() {
    let error = fetched(&named("s3://bucket/key".to_owned())).await;
    let error = error.expect_err("not built in");
    assert!(error.to_string().contains("feature s3"), "{error}");
}
