//! The types of the jobs' records, and their names.

use prost::Message;
use tanist_compact::{shrink_graph, shrink_state};
use tanist_gateway::kinds;
use tanist_ha::Error;
use tanist_ha::keys::{Kind, Name};
use tanist_ha::records::store::Record;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::error::JobStoreError;

pub(super) fn job_id(text: &str) -> Result<JobId, JobStoreError> {
    text.parse()
        .map_err(|error| JobStoreError::Refused(Error::Misconfigured(format!("{error}").into())))
}

pub(super) fn name_of(job: JobId) -> Name {
    Name::new(job.to_string()).expect("32 hexadecimal digits are a name")
}

macro_rules! protobuf_record {
    ($(#[$doc:meta])* $visible:vis struct $name:ident($message:ty), $kind:expr, splits: $splits:literal $(, $shrink:path)?) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        $visible struct $name(pub $message);

        impl Record for $name {
            const KIND: Kind = $kind;
            const FORMAT: u16 = 1;
            const SPLITS: bool = $splits;

            fn encode(&self) -> Vec<u8> {
                self.0.encode_to_vec()
            }

            fn decode(_format: u16, bytes: &[u8]) -> Result<$name, String> {
                #[allow(unused_mut, reason = "not every message is shrunk")]
                let mut message = <$message>::decode(bytes).map_err(|error| error.to_string())?;
                $($shrink(&mut message);)?
                Ok($name(message))
            }
        }
    };
}

protobuf_record! {
    /// `graphs/<job>`.
    pub(super) struct GraphRecord(pb::JobGraph), kinds::GRAPHS, splits: true, shrink_graph
}
protobuf_record! {
    /// `states/<job>`.
    pub struct StateRecord(pb::JobState), kinds::STATES, splits: false, shrink_state
}
protobuf_record! {
    /// `checkpoints/<job>`.
    pub(super) struct CheckpointsRecord(pb::JobCheckpoints), kinds::CHECKPOINTS, splits: false
}
protobuf_record! {
    /// `results/<job>`.
    pub(super) struct ResultRecord(pb::JobResult), kinds::RESULTS, splits: false
}
protobuf_record! {
    /// `descriptions/<job>`.
    pub(super) struct DescriptionRecord(pb::JobDetails), kinds::DESCRIPTIONS, splits: true
}
