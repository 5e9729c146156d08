//! The server of a JobManager's heartbeats. Runs on the election's thread, on a port without any large
//! transfers.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use futures::{Stream, stream};
use tanist_ha::detector::{Identity, Invitation, PeerHeartbeat, TransferError};
use tanist_ha::election::{Epoch, LeaderElection, Leadership, ProcessId, TermHolder};
use tanist_proto::v1 as pb;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::PeersHandle;
use super::belonging;
use super::reports::PeerStatus;
use crate::net::http::{self, Protocol};
use crate::net::{BodyShare, DetachedListener};
use crate::rpc::peers::messages::{heartbeat_message, question_of, reply_message};

/// Large enough for every message here, and for nothing else.
const MESSAGE_LIMIT: usize = 64 << 10;
/// Maximum timeout of an invitation.
const LONGEST_INVITATION: Duration = Duration::from_secs(60);
/// Timeout for the store to list its members.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// The service's data, and where it forwards requests.
#[derive(Debug, Clone)]
pub(super) struct PeersServer {
    pub identity: Identity,
    pub cluster_id: String,
    pub handle: PeersHandle,
    pub leadership: watch::Receiver<Leadership>,
    /// Does not keep the election running.
    pub election: LeaderElection,
    /// Limits concurrent requests that read the store.
    pub questions: Arc<Semaphore>,
    pub beat_interval: Duration,
}

/// Maximum number of concurrent requests and streams of one connection: a peer has a separate connection for
/// each kind.
const CONCURRENT: u32 = 16;

/// Serves for as long as the runtime lives.
pub(super) async fn serve(listener: &DetachedListener, service: PeersServer) -> io::Result<()> {
    use pb::peers_server::PeersServer as Peers;
    use pb::witness_server::WitnessServer as Witness;
    let listener = listener.attach()?;
    let service = Arc::new(service);
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

impl PeersServer {
    fn heartbeat(&self) -> pb::PeerHeartbeat {
        let reports = &self.handle.reports;
        let PeerStatus {
            role,
            progress,
            since_ms,
        } = reports.status(&self.leadership.borrow());
        let leads = role.epoch().is_some();
        let witnesses = leads.then(|| reports.witnesses.borrow().clone());
        let heartbeat = PeerHeartbeat {
            process: self.identity.process.clone(),
            incarnation: self.identity.incarnation.clone(),
            role,
            host: self.identity.host.clone(),
            progress,
            since_ms: Some(since_ms),
            turns: reports.turns(),
            gave_up: *reports.gave_up.borrow(),
            cached_change: *reports.cached_change.borrow(),
            witnesses: witnesses.unwrap_or_default(),
        };
        heartbeat_message(&self.cluster_id, heartbeat)
    }

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

/// One stream of heartbeats.
struct Heartbeats {
    server: PeersServer,
    /// Sent at once, as it may be the last message of this process.
    gave_up: watch::Receiver<Option<Epoch>>,
    ticks: Interval,
}

impl Heartbeats {
    async fn next(mut self) -> Option<(Result<pb::PeerHeartbeat, Status>, Heartbeats)> {
        tokio::select! {
            _ = self.ticks.tick() => {}
            changed = self.server.leadership.changed() => changed.ok()?,
            changed = self.gave_up.changed() => changed.ok()?,
        }
        self.server.leadership.borrow_and_update();
        self.gave_up.borrow_and_update();
        Some((Ok(self.server.heartbeat()), self))
    }
}

#[async_trait]
impl pb::peers_server::Peers for PeersServer {
    type HeartbeatsStream = Pin<Box<dyn Stream<Item = Result<pb::PeerHeartbeat, Status>> + Send>>;

    async fn heartbeats(
        &self,
        _: Request<pb::HeartbeatsRequest>,
    ) -> Result<Response<Self::HeartbeatsStream>, Status> {
        let mut ticks = interval(self.beat_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let server = self.clone();
        let gave_up = server.handle.reports.gave_up.subscribe();
        let heartbeats = Heartbeats {
            server,
            gave_up,
            ticks,
        };
        let heartbeats = stream::unfold(heartbeats, Heartbeats::next);
        Ok(Response::new(Box::pin(heartbeats)))
    }

    async fn probe(
        &self,
        _: Request<pb::ProbeRequest>,
    ) -> Result<Response<pb::PeerHeartbeat>, Status> {
        Ok(Response::new(self.heartbeat()))
    }

    async fn invite_to_depose(
        &self,
        request: Request<pb::InviteToDeposeRequest>,
    ) -> Result<Response<pb::InviteToDeposeResponse>, Status> {
        let request = request.into_inner();
        self.check_cluster(&request.cluster_id)?;
        if self.handle.closing.is_cancelled() {
            return Err(Status::failed_precondition("it is about to end"));
        }
        if self.handle.reports.stands_still.load(Ordering::Relaxed) {
            return Err(Status::failed_precondition("it stands still"));
        }
        let bound = Duration::from_millis(request.bound_ms).min(LONGEST_INVITATION);
        let invitation = match request.hand_over {
            true => Invitation::HandOver,
            false => Invitation::Asked,
        };
        let leader = ProcessId::new(request.leader);
        self.handle
            .detector
            .accept(leader, Epoch::new(request.epoch), invitation, bound)
            .await
            .map_err(Status::failed_precondition)?;
        Ok(Response::new(pb::InviteToDeposeResponse {}))
    }

    async fn count_reached(
        &self,
        request: Request<pb::CountReachedRequest>,
    ) -> Result<Response<pb::CountReachedResponse>, Status> {
        let request = request.into_inner();
        self.check_cluster(&request.cluster_id)?;
        let question = question_of(request.question.unwrap_or_default());
        let detector = &self.handle.detector;
        let reached = detector.count_reached(&question, &request.addresses).await;
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
        let Ok(_place) = self.questions.try_acquire() else {
            return Err(Status::unavailable("too many such requests are under way"));
        };
        let who = TermHolder {
            process: ProcessId::new(request.process),
            start: request.process_start,
        };
        let answer = tokio::time::timeout(STORE_TIMEOUT, belonging::answer(&self.election, &who));
        let late = |_| Status::unavailable("its store does not answer");
        let answer = answer.await.map_err(late)?;
        let answer = answer.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(Response::new(answer))
    }

    async fn transfer_leadership(
        &self,
        request: Request<pb::TransferLeadershipRequest>,
    ) -> Result<Response<pb::TransferLeadershipResponse>, Status> {
        let request = request.into_inner();
        self.check_cluster(&request.cluster_id)?;
        let to = Some(request.to).filter(|to| !to.is_empty());
        let to = to.map(ProcessId::new);
        match self.handle.transfer(to.as_ref()).await {
            Ok(epoch) => Ok(Response::new(pb::TransferLeadershipResponse {
                epoch: epoch.get(),
            })),
            Err(error @ TransferError::NotLeading) => Err(Status::unavailable(error.to_string())),
            Err(error) => Err(Status::failed_precondition(error.to_string())),
        }
    }
}

#[async_trait]
impl pb::witness_server::Witness for PeersServer {
    async fn ask_about_leader(
        &self,
        request: Request<pb::AskAboutLeaderRequest>,
    ) -> Result<Response<pb::AskAboutLeaderResponse>, Status> {
        let request = request.into_inner();
        self.check_cluster(&request.cluster_id)?;
        let question = question_of(request);
        let reply = self.handle.detector.answer(&question).await;
        Ok(Response::new(reply_message(reply)))
    }
}
