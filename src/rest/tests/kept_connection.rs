//! A client that keeps its connection.

use axum::http::{Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;

use super::scripted::Served;

/// A client with one connection; it fails if the connection ends.
#[derive(Debug)]
pub(super) struct KeptConnection {
    sender: tokio::sync::Mutex<SendRequest<Full<Bytes>>>,
}

impl KeptConnection {
    pub(super) async fn to(served: &Served) -> KeptConnection {
        let stream = tokio::net::TcpStream::connect(&served.address).await;
        let stream = TokioIo::new(stream.expect("the server listens"));
        let (sender, connection) = hyper::client::conn::http1::handshake(stream)
            .await
            .expect("it speaks HTTP");
        tokio::spawn(connection);
        KeptConnection {
            sender: tokio::sync::Mutex::new(sender),
        }
    }

    /// The status of an answer.
    pub(super) async fn get(&self, path: &str) -> StatusCode {
        let request = Request::get(path).header("host", "localhost");
        let request = request.body(Full::default()).expect("a request");
        let mut sender = self.sender.lock().await;
        sender.ready().await.expect("the connection is kept");
        let response = sender.send_request(request).await.expect("an answer");
        let status = response.status();
        response.into_body().collect().await.expect("a whole body");
        status
    }
}
