//! How a TaskManager answers who lost the leader: it tries to hear the leader itself, right then.

use std::time::Duration;

use async_trait::async_trait;
use tanist_ha::detector::{Peers as _, Reply};
use tanist_proto::v1 as pb;
use tonic::{Request, Response, Status};

use super::client::TonicPeers;
use super::messages::{question_of, reply_message};

/// Whatever the asker wants: it does not wait longer itself.
const LONGEST_PATIENCE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub struct ProbingWitness;

#[async_trait]
impl pb::witness_server::Witness for ProbingWitness {
    async fn ask_about_leader(
        &self,
        request: Request<pb::AskAboutLeaderRequest>,
    ) -> Result<Response<pb::AskAboutLeaderResponse>, Status> {
        let request = request.into_inner();
        let peers = TonicPeers::new(request.cluster_id.clone());
        let question = question_of(request);
        let patience = question.patience.min(LONGEST_PATIENCE);
        let probed = tokio::time::timeout(patience, peers.probe(&question.address)).await;
        let reply = match probed {
            Ok(Ok(beat))
                if beat.process == question.leader
                    && beat.stance.epoch() == Some(question.epoch) =>
            {
                Reply::Hears
            }
            // Somebody answers there who does not lead that term, or nobody does.
            Ok(Ok(_) | Err(_)) | Err(_) => Reply::Lost {
                since: Duration::ZERO,
            },
        };
        Ok(Response::new(reply_message(reply)))
    }
}
