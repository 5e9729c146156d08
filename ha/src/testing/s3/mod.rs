//! An in-process S3 server for tests: one bucket in memory, path style, with or without TLS.
//!
//! It supports the operations that the blob store uses: PUT, GET with ranges, HEAD, DELETE, deletion of
//! several objects and ListObjectsV2 in pages. Multipart uploads, copies and conditional writes are not
//! supported. Invariant: requests without a signature of [`Credentials`] are refused, except reads of
//! [`PUBLIC`] objects.

mod answers;
mod signature;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::certificates::TestAuthority;

/// The one bucket.
pub const BUCKET: &str = "bucket";
/// Objects with this prefix are readable by all, as a policy may allow: at their plain addresses, without a
/// signature.
pub const PUBLIC: &str = "public/";
/// The region in signatures.
pub const REGION: &str = "eu-north-1";

/// The accepted credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The access key's id.
    pub key: String,
    /// The secret that belongs to it.
    pub secret: String,
}

/// How the server handles requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Conduct {
    /// It answers normally.
    #[default]
    Answers,
    /// It answers 403 to everything, as after a policy change.
    Denies,
    /// It accepts requests and never answers.
    Silent,
    /// It answers 404 to everything: the bucket is missing.
    NoBucket,
    /// It breaks off each body, and its connection, after this number of bytes.
    Cuts(usize),
}

/// An object and its write time.
#[derive(Debug, Clone)]
struct Object {
    bytes: Bytes,
    written: SystemTime,
}

#[derive(Debug, Default)]
struct BucketState {
    objects: BTreeMap<String, Object>,
    conduct: Conduct,
    /// All requests, as `GET key`.
    requests: Vec<String>,
}

/// The server. It ends when dropped.
#[derive(Debug)]
pub struct S3Server {
    address: SocketAddr,
    is_secure: bool,
    credentials: Credentials,
    state: Arc<Mutex<BucketState>>,
    /// Aborts the server and all connections when dropped.
    _serving: JoinSet<()>,
}

impl S3Server {
    /// Starts it without TLS, on a free port of the loopback interface.
    pub async fn start() -> std::io::Result<S3Server> {
        S3Server::serve(None).await
    }

    /// Starts it with a certificate of `authority`.
    pub async fn start_secure(authority: &TestAuthority) -> std::io::Result<S3Server> {
        S3Server::serve(Some(authority.acceptor("127.0.0.1"))).await
    }

    async fn serve(tls: Option<TlsAcceptor>) -> std::io::Result<S3Server> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(BucketState::default()));
        let credentials = Credentials {
            key: "test-key".to_owned(),
            secret: "test-secret".to_owned(),
        };
        let is_secure = tls.is_some();
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, tls, state.clone(), credentials.clone()));
        Ok(S3Server {
            address,
            is_secure,
            credentials,
            state,
            _serving: serving,
        })
    }

    /// Its address, for `AWS_ENDPOINT_URL`.
    pub fn endpoint(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The accepted credentials.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The environment variables that configure a process for this server.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let Credentials { key, secret } = self.credentials.clone();
        let mut variables = vec![
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_ACCESS_KEY_ID", key),
            ("AWS_SECRET_ACCESS_KEY", secret),
        ];
        if !self.is_secure {
            variables.push(("AWS_ALLOW_HTTP", "true".to_owned()));
        }
        variables
    }

    /// The plain address of an object.
    pub fn address_of(&self, key: &str) -> String {
        format!("{}/{BUCKET}/{key}", self.endpoint())
    }

    /// Sets how later requests are handled; waiting requests keep waiting.
    pub fn conduct(&self, conduct: Conduct) {
        self.state.lock().conduct = conduct;
    }

    /// Stores an object without a request.
    pub fn put(&self, key: &str, bytes: impl Into<Bytes>) {
        put(&mut self.state.lock(), key, bytes.into());
    }

    /// The object of that key.
    pub fn object(&self, key: &str) -> Option<Bytes> {
        self.state
            .lock()
            .objects
            .get(key)
            .map(|it| it.bytes.clone())
    }

    /// All keys, in order.
    pub fn keys(&self) -> Vec<String> {
        self.state.lock().objects.keys().cloned().collect()
    }

    /// Makes every object older by `age`.
    pub fn let_pass(&self, age: Duration) {
        for object in self.state.lock().objects.values_mut() {
            object.written = object.written.checked_sub(age).unwrap_or(object.written);
        }
    }

    /// All requests so far, as `GET key`, including unsigned ones.
    pub fn requests(&self) -> Vec<String> {
        self.state.lock().requests.clone()
    }
}

fn put(state: &mut BucketState, key: &str, bytes: Bytes) {
    let written = SystemTime::now();
    state
        .objects
        .insert(key.to_owned(), Object { bytes, written });
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    state: Arc<Mutex<BucketState>>,
    credentials: Credentials,
) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, state, credentials) = (tls.clone(), state.clone(), credentials.clone());
        connections.spawn(async move {
            match tls {
                None => converse(stream, state, credentials).await,
                // A client that does not trust the certificate has disconnected by then.
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        converse(stream, state, credentials).await;
                    }
                }
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn converse<S>(stream: S, state: Arc<Mutex<BucketState>>, credentials: Credentials)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(|request| answers::answer(request, &state, &credentials));
    // A broken connection is the client's problem.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
