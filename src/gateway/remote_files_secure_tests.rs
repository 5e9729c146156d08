//! Files from `https://` addresses: fetched from a server with a trusted authority only.

use tanist_ha::testing::certificates::TestAuthority;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// Reaction of the server to a request, by path.
#[derive(Debug, Clone, Copy)]
enum Conduct {
    /// Sends this answer and closes.
    Says(&'static str),
    /// Sends these pieces with [`PAUSE`] before each, and closes.
    Slowly(&'static [&'static str]),
    /// Sends this and then nothing.
    Silent(&'static str),
}

const FILE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ncontent";
const CUT: &str = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ncon";
const MOVED: &str = "HTTP/1.1 302 Found\r\nLocation: /file\r\nContent-Length: 0\r\n\r\n";
const LEADS_ASTRAY: &str =
    "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/file\r\nContent-Length: 0\r\n\r\n";
const DENIED: &str = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n";
const MISSING: &str = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";

/// Timeout for a server that says nothing, short enough for tests.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Three of these pauses are longer than the timeout of the client that reads.
const PAUSE: Duration = Duration::from_millis(700);
const TIMEOUT_WITH_PAUSES: Duration = Duration::from_millis(1_800);

/// Serves with a certificate for `name`. Returns the port.
async fn serve_secure(authority: &TestAuthority, name: &str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let acceptor = authority.acceptor(name);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // A client that does not trust the certificate aborts the handshake.
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    let _ = converse(&mut stream).await;
                    let _ = stream.shutdown().await;
                }
            });
        }
    });
    port
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head);
    let conduct = match head.split(' ').nth(1).unwrap_or_default() {
        "/file" => Conduct::Says(FILE),
        "/cut" => Conduct::Says(CUT),
        "/moved" => Conduct::Says(MOVED),
        "/astray" => Conduct::Says(LEADS_ASTRAY),
        "/denied" => Conduct::Says(DENIED),
        "/slow" => Conduct::Slowly(&[
            "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nc",
            "ont",
            "ent",
        ]),
        "/silent" => Conduct::Silent(CUT),
        "/mute" => Conduct::Silent(""),
        _ => Conduct::Says(MISSING),
    };
    match conduct {
        Conduct::Says(answer) => stream.write_all(answer.as_bytes()).await,
        Conduct::Slowly(pieces) => {
            for piece in pieces {
                // The delay under test, not a wait for something.
                tokio::time::sleep(PAUSE).await;
                stream.write_all(piece.as_bytes()).await?;
                stream.flush().await?;
            }
            Ok(())
        }
        Conduct::Silent(answer) => {
            stream.write_all(answer.as_bytes()).await?;
            stream.flush().await?;
            std::future::pending().await
        }
    }
}

fn trusting(authority: &TestAuthority) -> Terms {
    Terms {
        timeout: Duration::from_secs(30),
        roots: Some(authority.roots()),
    }
}

/// Makes one try.
async fn tried(terms: &Terms, url: &str) -> Result<String, Failure> {
    let mut content = Vec::new();
    fetch_once(terms, url, BOUND, &mut content).await?;
    Ok(String::from_utf8(content).expect("text"))
}

#[tokio::test]
async fn a_file_is_fetched_from_a_server_whose_authority_is_trusted() {
    let authority = TestAuthority::new();
    let port = serve_secure(&authority, "127.0.0.1").await;
    let terms = trusting(&authority);
    for path in ["file", "moved"] {
        let url = format!("https://127.0.0.1:{port}/{path}");
        assert_eq!(tried(&terms, &url).await.expect(path), "content");
    }
    let artifact = named(format!("https://127.0.0.1:{port}/file"));
    let mut content = Vec::new();
    let sha256 = fetch_on(&terms, &artifact, BOUND, &mut content).await;
    assert_eq!(sha256.expect("fetched")[..], Sha256::digest("content")[..]);
    // A process may have one provider of cryptography or two: the default is neither used nor set.
    assert!(rustls::crypto::CryptoProvider::get_default().is_none());
}

#[tokio::test]
async fn a_slow_server_is_read_from_as_long_as_something_comes() {
    let authority = TestAuthority::new();
    let port = serve_secure(&authority, "127.0.0.1").await;
    let terms = Terms {
        timeout: TIMEOUT_WITH_PAUSES,
        ..trusting(&authority)
    };
    let began = tokio::time::Instant::now();
    let content = tried(&terms, &format!("https://127.0.0.1:{port}/slow")).await;
    assert_eq!(content.expect("it comes"), "content");
    assert!(began.elapsed() > TIMEOUT_WITH_PAUSES, "it was not slow");
}

#[tokio::test]
async fn a_server_without_a_trusted_certificate_for_its_name_receives_no_request() {
    let authority = TestAuthority::new();
    let ours = serve_secure(&authority, "127.0.0.1").await;
    let another_name = serve_secure(&authority, "elsewhere.example").await;
    let host = Terms::default();
    for (terms, port, reason) in [
        (&trusting(&TestAuthority::new()), ours, "UnknownIssuer"),
        (&host, ours, "UnknownIssuer"),
        (&trusting(&authority), another_name, "not valid for name"),
    ] {
        let url = format!("https://127.0.0.1:{port}/file");
        let refused = tried(terms, &url).await.expect_err("not trusted");
        assert!(refused.reason.contains(reason), "{refused:?}");
        // A retry would meet the same certificate.
        assert!(!refused.is_passing, "{refused:?}");
        assert!(refused.reason.contains("SSL_CERT_FILE"), "{refused:?}");
    }
    let plain = serve([("/file", vec![content("content")])]).await;
    let refused = tried(&trusting(&authority), &format!("https://{plain}/file")).await;
    refused.expect_err("it does not speak TLS");
}

#[tokio::test]
async fn a_refusal_of_a_secure_server_is_lasting_and_a_broken_connection_is_passing() {
    let authority = TestAuthority::new();
    let port = serve_secure(&authority, "127.0.0.1").await;
    let patient = trusting(&authority);
    let impatient = Terms {
        timeout: TIMEOUT,
        ..patient.clone()
    };
    for (path, reason, is_passing) in [
        ("missing", "404 Not Found", false),
        ("denied", "403 Forbidden", false),
        ("astray", "which is not secure", false),
        ("silent", "it sent nothing for 500ms", true),
        ("mute", "it sent nothing for 500ms", true),
        ("cut", "", true),
    ] {
        let url = format!("https://127.0.0.1:{port}/{path}");
        let terms = match path {
            "silent" | "mute" => &impatient,
            _ => &patient,
        };
        let failure = tried(terms, &url).await.expect_err(path);
        assert!(failure.reason.contains(reason), "{path}: {failure:?}");
        assert_eq!(failure.is_passing, is_passing, "{path}: {failure:?}");
    }
}
