//! Answers of a TaskManager to a process that lost the leader: it probes the leader at that moment. Keeps no state.

use std::time::Duration;

use async_trait::async_trait;
use tanist_ha::detector::{Peers as _, Reply};
use tanist_proto::v1 as pb;
use tonic::{Request, Response, Status};

use super::client::TonicPeers;
use super::messages::{query_of, reply_message};

/// Maximum timeout of a probe, if the caller asks for a longer one; the caller does not wait longer itself.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Witness that probes the leader; see the module.
#[derive(Debug, Default)]
pub(crate) struct ProbingWitness;

#[async_trait]
impl pb::witness_server::Witness for ProbingWitness {
    async fn ask_about_leader(
        &self,
        request: Request<pb::AskAboutLeaderRequest>,
    ) -> Result<Response<pb::AskAboutLeaderResponse>, Status> {
        let request = request.into_inner();
        let peers = TonicPeers::new(request.cluster_id.clone());
        let query = query_of(request);
        let timeout = query.timeout.min(LONGEST_TIMEOUT);
        let probed = tokio::time::timeout(timeout, peers.probe(&query.address)).await;
        let reply = match probed {
            Ok(Ok(heartbeat))
                if heartbeat.process == query.leader
                    && heartbeat.role.epoch() == Some(query.epoch) =>
            {
                Reply::Reachable
            }
            // A process that answers there does not lead that term, or there was no answer.
            Ok(Ok(_) | Err(_)) | Err(_) => Reply::Lost {
                since: Duration::ZERO,
            },
        };
        Ok(Response::new(reply_message(reply)))
    }
}
