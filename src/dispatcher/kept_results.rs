//! Results of jobs that ended before the term. They are read after the term is confirmed, as leading does not
//! need them (`docs/adr/0049`).

use std::collections::BTreeSet;

use tanist_gateway::kinds;
use tanist_ha::store::cache::Records;
use tanist_proto::id::JobId;

/// Returns the jobs that have such records; `None` if there are no records.
pub(super) fn jobs_of(kept: &Records) -> Option<BTreeSet<JobId>> {
    let names = kept.of(kinds::RESULTS).map(|(name, _)| name);
    let jobs = names.filter_map(|name| name.as_str().parse().ok());
    (!kept.is_empty()).then(|| jobs.collect())
}
