//! Bulk data over the wire: client and server of [`BlobGateway`]. Makes no decisions.
//!
//! Both use separate connections: a client never shares a connection with the calls of a
//! [`TonicConnector`](super::TonicConnector), and the server has its own listener.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use tanist_gateway::blobs::{BlobGateway, BlobStream};
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_net::http::{self, Protocol};
use tanist_net::{BodyShare, Listener};
use tanist_proto::v1 as pb;
use tanist_proto::v1::blob_service_client::BlobServiceClient;
use tanist_proto::v1::blob_service_server::{BlobService, BlobServiceServer};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::status::{from_status, to_status};

/// Number of concurrent fetches on one connection.
const CONCURRENT_FETCHES: u32 = 128;
/// Maximum size of a request, in bytes.
const LARGEST_REQUEST: usize = 4 << 20;

/// Client of another process's blob server. The caller sets the timeout.
#[derive(Debug)]
pub(super) struct BlobClient {
    pub(super) name: String,
    pub(super) channel: Result<Arc<Channel>, GatewayError>,
}

#[async_trait]
impl BlobGateway for BlobClient {
    async fn fetch(&self, request: pb::FetchBlobRequest) -> GatewayResult<BlobStream> {
        let channel = self.channel.clone()?;
        let name = self.name.clone();
        let mut client = BlobServiceClient::new((*channel).clone());
        let answer = client.fetch(request).await;
        let chunks = answer.map_err(|status| from_status(&name, status))?;
        let chunks = chunks.into_inner().map(move |chunk| {
            // Keeps the channel in use while chunks arrive.
            let _held = &channel;
            chunk
                .map(|chunk| chunk.data)
                .map_err(|status| from_status(&name, status))
        });
        Ok(chunks.boxed())
    }
}

/// A blob server with a bound port.
#[derive(Debug)]
pub struct BlobServer {
    listener: Listener,
}

impl BlobServer {
    /// Takes a bound listener, so that its address can be published before anything is served.
    pub fn new(listener: Listener) -> BlobServer {
        BlobServer { listener }
    }

    /// Returns the address that was actually bound.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`, which aborts the fetches in progress: the clients notice it by the size of the content.
    pub async fn serve(self, content: Arc<dyn BlobGateway>, stop: CancellationToken) {
        let service = BlobServiceServer::new(Serve(content));
        let service = service.max_decoding_message_size(LARGEST_REQUEST);
        let bodies = BodyShare::of_process(self.listener.port(), LARGEST_REQUEST);
        let protocol = Protocol::Http2 {
            streams: CONCURRENT_FETCHES,
            resets: CONCURRENT_FETCHES as usize,
        };
        let never = CancellationToken::new();
        let routes = Routes::new(service);
        let serving = http::serve(self.listener, routes, protocol, bodies, never);
        stop.run_until_cancelled(serving).await;
    }
}

struct Serve(Arc<dyn BlobGateway>);

#[async_trait]
impl BlobService for Serve {
    type FetchStream = BoxStream<'static, Result<pb::BlobChunk, Status>>;

    async fn fetch(
        &self,
        request: Request<pb::FetchBlobRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let chunks = self.0.fetch(request.into_inner()).await;
        let chunks = chunks.map_err(to_status)?;
        let message = |chunk: GatewayResult<_>| match chunk {
            Ok(data) => Ok(pb::BlobChunk { data }),
            Err(error) => Err(to_status(error)),
        };
        Ok(Response::new(chunks.map(message).boxed()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use tokio::sync::Semaphore;
    use tokio::task::JoinSet;

    use super::*;
    use crate::{RpcOptions, TonicConnector};
    use tanist_gateway::Connector as _;
    use tanist_gateway::blobs::{BlobFetcher, ServedBlobs};
    use tanist_net::{Connections, Port};

    async fn listen() -> (Listener, String) {
        let listener = Listener::bind("127.0.0.1:0", Port::Blob).await;
        let listener = listener.expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        (listener, address)
    }

    /// A fetcher that shares its connections with no other.
    fn fetcher() -> BlobFetcher {
        let connector = TonicConnector::new(RpcOptions::default());
        BlobFetcher::new(Arc::new(connector), Duration::from_secs(30))
    }

    #[tokio::test]
    async fn content_larger_than_any_message_comes_over_the_wire_whole() {
        let (listener, address) = listen().await;
        let server = BlobServer::new(listener);
        let served = ServedBlobs::new(address);
        let stop = CancellationToken::new();
        let serving = tokio::spawn(server.serve(Arc::new(served.clone()), stop.clone()));
        let options = RpcOptions {
            max_message_size: 1 << 20,
            ..RpcOptions::default()
        };
        let connector = Arc::new(TonicConnector::new(options));
        let fetcher = BlobFetcher::new(connector, Duration::from_secs(30));

        let content = Bytes::from(vec![7; 9_000_000]);
        let held = served.hold(content.clone()).await.expect("held");
        assert!(fetcher.fetch(&held.reference()).await.as_ref() == Ok(&content));

        let reference = held.reference();
        drop(held);
        let gone = fetcher.fetch(&reference).await;
        assert!(matches!(gone, Err(GatewayError::NotFound(_))), "{gone:?}");

        stop.cancel();
        serving.await.expect("it ends in order");
    }

    /// Counts the fetches that have begun, and answers when the test allows it.
    #[derive(Debug)]
    struct Gated {
        served: ServedBlobs,
        begun: Semaphore,
        may_answer: Semaphore,
    }

    #[async_trait]
    impl BlobGateway for Gated {
        async fn fetch(&self, request: pb::FetchBlobRequest) -> GatewayResult<BlobStream> {
            self.begun.add_permits(1);
            let _open = self.may_answer.acquire().await.expect("never closed");
            self.served.fetch(request).await
        }
    }

    #[tokio::test]
    async fn more_fetchers_than_the_port_admits_get_their_graph_all_the_same() {
        const ADMITTED: u32 = 4;
        const TIMEOUT: Duration = Duration::from_secs(60);
        let (listener, address) = listen().await;
        let listener = listener.within(Connections::within(2 * ADMITTED as usize));
        let gated = Arc::new(Gated {
            served: ServedBlobs::new(address),
            begun: Semaphore::new(0),
            may_answer: Semaphore::new(0),
        });
        let server = BlobServer::new(listener);
        tokio::spawn(server.serve(gated.clone(), CancellationToken::new()));
        let content = Bytes::from(vec![7; 1_000_000]);
        let held = gated.served.hold(content.clone()).await.expect("held");
        let fetch = || {
            let (fetcher, reference) = (fetcher(), held.reference());
            async move {
                (
                    fetcher.fetch_with_retries(&reference, TIMEOUT).await,
                    fetcher,
                )
            }
        };
        let mut fetching = JoinSet::new();
        for _ in 0..ADMITTED {
            fetching.spawn(fetch());
        }
        let all = gated.begun.acquire_many(ADMITTED).await;
        all.expect("never closed").forget();
        let refused = fetcher().fetch(&held.reference()).await;
        let is_retryable = refused.as_ref().is_err_and(GatewayError::is_retryable);
        assert!(is_retryable, "{refused:?}");
        for _ in 0..8 * ADMITTED {
            fetching.spawn(fetch());
        }
        gated.may_answer.add_permits(1);
        // The connections of finished fetches stay open, idle.
        for (fetched, _) in fetching.join_all().await {
            assert!(fetched.as_ref() == Ok(&content), "{:?}", fetched.err());
        }
    }

    #[tokio::test]
    async fn a_request_for_which_there_is_no_memory_may_be_tried_again() {
        let (listener, address) = listen().await;
        let service = BlobServiceServer::new(Serve(Arc::new(ServedBlobs::new(""))));
        let routes = Routes::new(service.max_decoding_message_size(LARGEST_REQUEST));
        let protocol = Protocol::Http2 {
            streams: 1,
            resets: 1,
        };
        let (bodies, never) = (BodyShare::of_a_test(1 << 20), CancellationToken::new());
        tokio::spawn(http::serve(listener, routes, protocol, bodies, never));
        let connector = TonicConnector::new(RpcOptions::default());
        let object = "x".repeat(2 << 20);
        let content = Some(pb::fetch_blob_request::Content::Object(object));
        let request = pb::FetchBlobRequest { content };
        let refused = connector.blobs(&address).fetch(request).await.err();
        assert!(
            matches!(&refused, Some(GatewayError::NotYet(text)) if text.contains("memory")),
            "{refused:?}"
        );
    }
}
