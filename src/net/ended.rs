//! Outgoing connections that report their end: a process that ends closes its connections, long before the next call
//! to it would fail.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_util::rt::TokioIo;
use tower_service::Service;

use super::connect::{HttpConnector, http_connector};
use super::observed_stream::{ObservedStream, StreamObserver};

/// Returns a connector like [`http_connector`] whose connections call `on_end` when they end, whichever side ends them.
pub fn reporting_connector(
    silence: Option<Duration>,
    on_end: impl Fn() + Send + Sync + 'static,
) -> ReportingConnector {
    ReportingConnector {
        connector: http_connector(silence),
        on_end: EndReport(Arc::new(on_end)),
    }
}

/// See [`reporting_connector`].
#[derive(Clone)]
pub struct ReportingConnector {
    connector: HttpConnector,
    on_end: EndReport,
}

impl Service<Uri> for ReportingConnector {
    type Response = TokioIo<ObservedStream<EndReport>>;
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
            Ok(TokioIo::new(ObservedStream::new(stream, on_end)))
        })
    }
}

/// Reports the end of a connection.
#[derive(Clone)]
pub struct EndReport(Arc<dyn Fn() + Send + Sync>);

impl StreamObserver for EndReport {
    fn note_end(&self) {
        (self.0)();
    }
}
