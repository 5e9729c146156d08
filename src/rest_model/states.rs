//! Names of states in the API: those of the messages without their prefix.

use tanist_proto::v1::{ExecutionState, JobStatus};

/// The name of a status, for example `RUNNING`.
pub fn job_status_name(status: JobStatus) -> &'static str {
    let name = status.as_str_name();
    name.strip_prefix("JOB_STATUS_").unwrap_or(name)
}

/// The name of a state, for example `RUNNING`.
pub fn execution_state_name(state: ExecutionState) -> &'static str {
    let name = state.as_str_name();
    name.strip_prefix("EXECUTION_STATE_").unwrap_or(name)
}

/// A field that is the name of a [`JobStatus`].
pub(crate) mod job_status {
    use std::borrow::Cow;

    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};
    use tanist_proto::v1::JobStatus;

    pub(crate) fn serialize<S: Serializer>(status: &JobStatus, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(super::job_status_name(*status))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<JobStatus, D::Error> {
        let name = Cow::<'de, str>::deserialize(from)?;
        JobStatus::from_str_name(&format!("JOB_STATUS_{name}"))
            .ok_or_else(|| D::Error::custom(format_args!("there is no job status {name}")))
    }
}

/// A JSON object that is written in the order of its entries; a client gets them by name.
pub(crate) mod in_order {
    use std::collections::BTreeMap;

    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::Word;

    pub(crate) fn serialize<S: Serializer>(of: &[(Word, u64)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(of.iter().map(|(name, value)| (name, value)))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<(Word, u64)>, D::Error> {
        let object = BTreeMap::deserialize(from)?;
        Ok(object.into_iter().collect())
    }
}
