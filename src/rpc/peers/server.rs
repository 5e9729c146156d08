//! Offers a JobManager to its peers: forwards each message to the process's [`PeerGateway`]. Runs on the
//! election's thread, on a port without any large transfers. Keeps no state.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::{Stream, StreamExt as _};
use tanist_gateway::peers::{PeerGateway, PeerServer};
use tanist_ha::detector::{Invitation, TransferError};
use tanist_ha::election::{Epoch, ProcessId, TermHolder};
use tanist_net::http::{self, Protocol};
use tanist_net::{BodyShare, DetachedListener};
use tanist_proto::v1 as pb;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::messages::{heartbeat_message, query_of, reply_message};

/// Large enough for every message here, and for nothing else.
const MESSAGE_LIMIT: usize = 64 << 10;
/// Maximum timeout of an invitation.
const LONGEST_INVITATION: Duration = Duration::from_secs(60);
/// Maximum number of concurrent requests and streams of one connection: a peer has a separate connection for
/// each kind.
const CONCURRENT: u32 = 16;

/// The server of a process's heartbeats, and of its answers to its peers.
#[derive(Debug)]
pub struct TonicPeerServer {
    listener: DetachedListener,
    cluster_id: String,
}

impl TonicPeerServer {
    /// Takes a bound listener. Requests that name another cluster than `cluster_id` are refused; heartbeats carry it.
    pub fn new(listener: DetachedListener, cluster_id: impl Into<String>) -> TonicPeerServer {
        TonicPeerServer {
            listener,
            cluster_id: cluster_id.into(),
        }
    }
}

#[async_trait]
impl PeerServer for TonicPeerServer {
    async fn serve(&self, peer: Arc<dyn PeerGateway>) -> io::Result<()> {
        use pb::peers_server::PeersServer as Peers;
        use pb::witness_server::WitnessServer as Witness;
        let listener = self.listener.attach()?;
        let service = Arc::new(Forward {
            peer,
            cluster_id: self.cluster_id.clone(),
        });
        let routes =
            Routes::new(Peers::from_arc(service.clone()).max_decoding_message_size(MESSAGE_LIMIT))
                .add_service(Witness::from_arc(service).max_decoding_message_size(MESSAGE_LIMIT));
        let bodies = BodyShare::of_process(listener.port(), MESSAGE_LIMIT);
        let protocol = Protocol::Http2 {
            streams: CONCURRENT,
            resets: CONCURRENT as usize,
        };
        let never = CancellationToken::new();
        http::serve(listener, routes, protocol, bodies, never).await;
        Ok(())
    }
}

/// Forwards messages.
struct Forward {
    peer: Arc<dyn PeerGateway>,
    cluster_id: String,
}

impl Forward {
    fn check_cluster(&self, cluster_id: &str) -> Result<(), Status> {
        if cluster_id == self.cluster_id {
            return Ok(());
        }
        let text = format!(
            "this is the cluster {:?}, not {cluster_id:?}",
            self.cluster_id
        );
        Err(Status::failed_precondition(text))
    }
}

#[async_trait]
impl pb::peers_server::Peers for Forward {
    type HeartbeatsStream = Pin<Box<dyn Stream<Item = Result<pb::PeerHeartbeat, Status>> + Send>>;

    async fn heartbeats(
        &self,
        _: Request<pb::HeartbeatsRequest>,
    ) -> Result<Response<Self::HeartbeatsStream>, Status> {
        let cluster_id = self.cluster_id.clone();
        let heartbeats = self.peer.heartbeats();
        let messages =
            heartbeats.map(move |heartbeat| Ok(heartbeat_message(&cluster_id, heartbeat)));
        Ok(Response::new(Box::pin(messages)))
    }

    async fn probe(
        &self,
        _: Request<pb::ProbeRequest>,
    ) -> Result<Response<pb::PeerHeartbeat>, Status> {
        let heartbeat = self.peer.heartbeat();
        Ok(Response::new(heartbeat_message(
            &self.cluster_id,
            heartbeat,
        )))
    }

    async fn invite_to_depose(
        &self,
        request: Request<pb::InviteToDeposeRequest>,
    ) -> Result<Response<pb::InviteToDeposeResponse>, Status> {
        let request = request.into_inner();
        self.check_cluster(&request.cluster_id)?;
        let bound = Duration::from_millis(request.bound_ms).min(LONGEST_INVITATION);
        let invitation = match request.hand_over {
            true => Invitation::HandOver,
            false => Invitation::Requested,
        };
        let (leader, epoch) = (ProcessId::new(request.leader), Epoch::new(request.epoch));
        let invited = self.peer.invite(leader, epoch, invitation, bound).await;
        invited.map_err(Status::failed_precondition)?;
        Ok(Response::new(pb::InviteToDeposeResponse {}))
    }

    async fn count_reached(
        &self,
        request: Request<pb::CountReachedRequest>,
    ) -> Result<Response<pb::CountReachedResponse>, Status> {
        let request = request.into_inner();
        self.check_cluster(&request.cluster_id)?;
        let query = query_of(request.question.unwrap_or_default());
        let reached = self.peer.count_reached(&query, &request.addresses).await;
        Ok(Response::new(pb::CountReachedResponse {
            reached: u32::try_from(reached).unwrap_or(u32::MAX),
        }))
    }

    async fn ask_belonging(
        &self,
        request: Request<pb::AskBelongingRequest>,
    ) -> Result<Response<pb::AskBelongingResponse>, Status> {
        let request = request.into_inner();
        self.check_cluster(&request.cluster_id)?;
        let who = TermHolder {
            process: ProcessId::new(request.process),
            start: request.process_start,
        };
        let answer = self.peer.ask_belonging(&who).await;
        answer.map(Response::new).map_err(Status::unavailable)
    }

    async fn transfer_leadership(
        &self,
        request: Request<pb::TransferLeadershipRequest>,
    ) -> Result<Response<pb::TransferLeadershipResponse>, Status> {
        let request = request.into_inner();
        self.check_cluster(&request.cluster_id)?;
        let to = Some(request.to).filter(|to| !to.is_empty());
        let to = to.map(ProcessId::new);
        match self.peer.transfer(to.as_ref()).await {
            Ok(epoch) => Ok(Response::new(pb::TransferLeadershipResponse {
                epoch: epoch.get(),
            })),
            Err(error @ TransferError::NotLeading) => Err(Status::unavailable(error.to_string())),
            Err(error) => Err(Status::failed_precondition(error.to_string())),
        }
    }
}

#[async_trait]
impl pb::witness_server::Witness for Forward {
    async fn ask_about_leader(
        &self,
        request: Request<pb::AskAboutLeaderRequest>,
    ) -> Result<Response<pb::AskAboutLeaderResponse>, Status> {
        let request = request.into_inner();
        self.check_cluster(&request.cluster_id)?;
        let reply = self.peer.answer(&query_of(request)).await;
        Ok(Response::new(reply_message(reply)))
    }
}
