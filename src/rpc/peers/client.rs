//! Reaches the peers of a process over the wire. Keeps no connections: each stream and each request has its own, so
//! that a silently dead one delays no other. An error of the connection is a [`Break`], on which the detector judges.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use tanist_gateway::peers::PeerConnector;
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::millis;
use tanist_ha::detector::{
    Break, HeartbeatStream, Invitation, LivenessQuery, PeerHeartbeat, Peers, Reply,
};
use tanist_ha::election::{Epoch, ProcessId, TermHolder};
use tanist_net::http_connector;
use tanist_proto::v1 as pb;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use super::super::abandoned::whose_refusal;
use super::messages::{heartbeat_of, query_message, reply_of};
use pb::peers_client::PeersClient;
use pb::witness_client::WitnessClient;

/// Timeout for connecting. Callers have their own timeouts; this one ends abandoned attempts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Client of the processes of one cluster.
#[derive(Debug, Clone)]
pub struct TonicPeers {
    cluster_id: String,
}

impl TonicPeers {
    /// Creates the client for the cluster with this id.
    pub fn new(cluster_id: impl Into<String>) -> TonicPeers {
        TonicPeers {
            cluster_id: cluster_id.into(),
        }
    }
}

async fn connect(address: &str) -> Result<Channel, Break> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|_| Break::NoAnswer)?
        .connect_timeout(CONNECT_TIMEOUT);
    // No silence timeout: the detector judges silence.
    match endpoint.connect_with_connector(http_connector(None)).await {
        Ok(channel) => Ok(channel),
        Err(error) => Err(match break_of(&error) {
            Break::Refused => whose_refusal(address).await,
            other => other,
        }),
    }
}

/// Classifies a transport error by its first cause that says which. Other errors count as the end of a connection.
fn break_of(error: &(dyn std::error::Error + 'static)) -> Break {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            match error.kind() {
                io::ErrorKind::ConnectionRefused => return Break::Refused,
                io::ErrorKind::TimedOut
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable => return Break::NoAnswer,
                _ => {}
            }
        }
        cause = error.source();
    }
    Break::Ended
}

#[async_trait]
impl Peers for TonicPeers {
    async fn heartbeats(&self, address: &str) -> Result<HeartbeatStream, Break> {
        let mut client = PeersClient::new(connect(address).await?);
        let heartbeats = client.heartbeats(pb::HeartbeatsRequest {}).await;
        let heartbeats = heartbeats.map_err(|status| break_of(&status))?.into_inner();
        let cluster_id = self.cluster_id.clone();
        let until_broken = heartbeats
            .take_while(|heartbeat| std::future::ready(heartbeat.is_ok()))
            .filter_map(|heartbeat| std::future::ready(heartbeat.ok()));
        Ok(until_broken
            .map(move |heartbeat| {
                // The connection lives as long as its client.
                let _ = &client;
                heartbeat_of(&cluster_id, heartbeat)
            })
            .boxed())
    }

    async fn probe(&self, address: &str) -> Result<PeerHeartbeat, Break> {
        let mut client = PeersClient::new(connect(address).await?);
        let heartbeat = client.probe(pb::ProbeRequest {}).await;
        let heartbeat = heartbeat.map_err(|status| break_of(&status))?.into_inner();
        Ok(heartbeat_of(&self.cluster_id, heartbeat))
    }

    async fn query(&self, address: &str, query: &LivenessQuery) -> Result<Reply, Break> {
        let mut client = WitnessClient::new(connect(address).await?);
        let request = query_message(&self.cluster_id, query);
        let answer = client.ask_about_leader(request).await;
        let answer = answer.map_err(|status| break_of(&status))?;
        Ok(reply_of(answer.into_inner()))
    }

    async fn count_reached(
        &self,
        address: &str,
        query: &LivenessQuery,
        of: &[String],
    ) -> Result<usize, Break> {
        let mut client = PeersClient::new(connect(address).await?);
        let request = pb::CountReachedRequest {
            cluster_id: self.cluster_id.clone(),
            question: Some(query_message(&self.cluster_id, query)),
            addresses: of.to_vec(),
        };
        let answer = client.count_reached(request).await;
        let answer = answer.map_err(|status| break_of(&status))?.into_inner();
        // The answer can't exceed the number of addresses.
        Ok(usize::try_from(answer.reached)
            .unwrap_or(usize::MAX)
            .min(of.len()))
    }

    async fn invite(
        &self,
        address: &str,
        leader: &ProcessId,
        epoch: Epoch,
        invitation: Invitation,
        bound: Duration,
    ) -> Result<(), String> {
        let channel = connect(address).await;
        let channel = channel.map_err(|why| out_of_reach(address, why))?;
        let request = pb::InviteToDeposeRequest {
            cluster_id: self.cluster_id.clone(),
            leader: leader.to_string(),
            epoch: epoch.get(),
            bound_ms: millis(bound),
            hand_over: invitation == Invitation::HandOver,
        };
        let answer = PeersClient::new(channel).invite_to_depose(request).await;
        answer
            .map(|_| ())
            .map_err(|status| status.message().to_owned())
    }
}

#[async_trait]
impl PeerConnector for TonicPeers {
    async fn transfer(&self, address: &str, to: Option<&ProcessId>) -> GatewayResult<Epoch> {
        let channel = connect(address).await;
        let channel = channel.map_err(|why| GatewayError::NotYet(out_of_reach(address, why)))?;
        let request = pb::TransferLeadershipRequest {
            cluster_id: self.cluster_id.clone(),
            to: to.map(ToString::to_string).unwrap_or_default(),
        };
        match PeersClient::new(channel).transfer_leadership(request).await {
            Ok(answer) => Ok(Epoch::new(answer.into_inner().epoch)),
            Err(status) if status.code() == Code::FailedPrecondition => {
                Err(GatewayError::Conflict(status.message().to_owned()))
            }
            Err(status) => Err(GatewayError::NotYet(status.message().to_owned())),
        }
    }

    async fn ask_belonging(
        &self,
        address: &str,
        who: &TermHolder,
    ) -> Result<pb::AskBelongingResponse, String> {
        let channel = connect(address).await;
        let channel = channel.map_err(|why| out_of_reach(address, why))?;
        let request = pb::AskBelongingRequest {
            cluster_id: self.cluster_id.clone(),
            process: who.process.to_string(),
            process_start: who.start.clone(),
        };
        let answer = PeersClient::new(channel).ask_belonging(request).await;
        answer
            .map(|answer| answer.into_inner())
            .map_err(|status| status.message().to_owned())
    }
}

fn out_of_reach(address: &str, why: Break) -> String {
    format!("{address} can't be reached: {why:?}")
}
