//! The handshake that opens a channel: a hello from the consumer, an answer from the producer's TaskManager.
//!
//! Data only: `client` sends hellos, `server` answers them. A verdict that is not known counts as a refusal.

use prost::Message;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_proto::id::Generation;

use super::partition::{Attempt, PartitionId};

/// Version of frames and handshake. Both sides must use the same.
pub(super) const PROTOCOL_VERSION: u32 = 1;

/// The channel that a consumer requests, and the term in which it does so.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Hello {
    #[prost(uint32, tag = "1")]
    pub(super) protocol_version: u32,
    #[prost(string, tag = "2")]
    cluster_incarnation: String,
    #[prost(uint64, tag = "3")]
    epoch: u64,
    /// The TaskManager that the consumer expects at this address.
    #[prost(string, tag = "4")]
    pub(super) resource_id: String,
    #[prost(string, tag = "5")]
    pub(super) incarnation: String,
    #[prost(string, tag = "6")]
    job_id: String,
    #[prost(uint64, tag = "7")]
    job_incarnation: u64,
    #[prost(uint64, tag = "8")]
    generation: u64,
    #[prost(string, tag = "9")]
    source_vertex_id: String,
    #[prost(uint32, tag = "10")]
    source_subtask: u32,
    #[prost(uint32, tag = "11")]
    edge: u32,
    #[prost(uint32, tag = "12")]
    pub(super) target_subtask: u32,
    /// The partition is complete and kept.
    #[prost(bool, tag = "13")]
    pub(super) is_kept: bool,
}

impl Hello {
    pub(super) fn new(
        partition: PartitionId,
        attempt: Attempt,
        target_subtask: u32,
        (resource_id, incarnation): (&str, &str),
    ) -> Hello {
        Hello {
            protocol_version: PROTOCOL_VERSION,
            cluster_incarnation: String::new(),
            epoch: 0,
            resource_id: resource_id.to_owned(),
            incarnation: incarnation.to_owned(),
            job_id: partition.job.to_string(),
            job_incarnation: attempt.job_incarnation,
            generation: attempt.generation.get(),
            source_vertex_id: partition.vertex.to_string(),
            source_subtask: partition.subtask,
            edge: partition.edge,
            target_subtask,
            is_kept: false,
        }
    }

    /// Returns a copy in this term.
    pub(super) fn in_term(&self, incarnation: &ClusterIncarnation, epoch: Epoch) -> Hello {
        Hello {
            cluster_incarnation: incarnation.to_string(),
            epoch: epoch.get(),
            ..self.clone()
        }
    }

    pub(super) fn term(&self) -> (ClusterIncarnation, Epoch) {
        (
            ClusterIncarnation::new(&self.cluster_incarnation),
            Epoch::new(self.epoch),
        )
    }

    /// The requested partition; an error names an invalid id.
    pub(super) fn partition(&self) -> Result<(PartitionId, Attempt), String> {
        let partition = PartitionId {
            job: self.job_id.parse().map_err(|error| format!("{error}"))?,
            vertex: self
                .source_vertex_id
                .parse()
                .map_err(|error| format!("{error}"))?,
            subtask: self.source_subtask,
            edge: self.edge,
        };
        let generation = Generation::new(self.generation);
        Ok((
            partition,
            Attempt {
                job_incarnation: self.job_incarnation,
                generation,
            },
        ))
    }
}

/// Whether the channel is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Verdict {
    /// It will never be.
    Refused = 0,
    /// The schema and the records follow.
    Accepted = 1,
    /// The producer is not registered yet, or its TaskManager's store does not show the consumer's term yet:
    /// ask again.
    NotYet = 2,
    /// The consumer's term is over: ask again once the consumer knows the younger one.
    StaleEpoch = 3,
}

/// The answer to a hello.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Answer {
    /// An unknown value is read as the first variant, a refusal.
    #[prost(enumeration = "Verdict", tag = "1")]
    verdict: i32,
    /// Why the channel is not open.
    #[prost(string, tag = "2")]
    pub(super) reason: String,
}

impl Answer {
    pub(super) fn new(verdict: Verdict, reason: impl Into<String>) -> Answer {
        Answer {
            verdict: verdict.into(),
            reason: reason.into(),
        }
    }

    pub(super) fn accepted() -> Answer {
        Answer::new(Verdict::Accepted, "")
    }

    pub(super) fn refused(reason: impl Into<String>) -> Answer {
        Answer::new(Verdict::Refused, reason)
    }
}
