//! Outgoing connections that report their end: a process that ends closes its connections, long before anybody calls
//! it again.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tower_service::Service;

use super::connect::{HttpConnector, http_connector};

type OnEnd = Arc<dyn Fn() + Send + Sync>;

/// Returns a connector like [`http_connector`] whose connections call `on_end` when they end, whichever side ends them.
pub fn reporting_connector(
    silence: Option<Duration>,
    on_end: impl Fn() + Send + Sync + 'static,
) -> ReportingConnector {
    ReportingConnector {
        connector: http_connector(silence),
        on_end: Arc::new(on_end),
    }
}

/// See [`reporting_connector`].
#[derive(Clone)]
pub struct ReportingConnector {
    connector: HttpConnector,
    on_end: OnEnd,
}

impl Service<Uri> for ReportingConnector {
    type Response = TokioIo<ReportingStream>;
    type Error = <HttpConnector as Service<Uri>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.connector.poll_ready(context)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connecting = self.connector.call(to);
        let on_end = self.on_end.clone();
        Box::pin(async move {
            let stream = connecting.await?.into_inner();
            Ok(TokioIo::new(ReportingStream { stream, on_end }))
        })
    }
}

/// A connection that reports its end.
pub struct ReportingStream {
    stream: TcpStream,
    on_end: OnEnd,
}

impl Drop for ReportingStream {
    fn drop(&mut self) {
        (self.on_end)();
    }
}

impl AsyncRead for ReportingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for ReportingStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
