//! What a job is found to be, given its records.

use tanist_ha::memory::MemoryCluster;

use super::*;
use crate::core::{Submission, first_state};
use crate::tests::scripted::{JOB, Leader, submission};

const OTHER: JobId = JobId::from_bits(8);

#[tokio::test(start_paused = true)]
async fn a_job_under_whose_name_stands_what_is_another_ones_is_not_led() {
    let a = Leader::of(&MemoryCluster::default(), "a").await;
    let own = submission(OTHER);
    let another = submission(JOB);
    fn stored<T>(record: T) -> Option<Result<Stored<T>, tanist_ha::Error>> {
        Some(Ok(Stored {
            record,
            blob: None,
            chunks: Vec::new(),
        }))
    }
    let found = |graph: &Submission, state: &Submission| {
        let graph = stored(GraphRecord(graph.graph.clone()));
        let state = stored(StateRecord(first_state(state, 1)));
        match a.store.reader().recovered_job(OTHER, graph, state) {
            RecoveredJob::Unreadable { reason, state, .. } => (reason, state.is_some()),
            other => panic!("{other:?}"),
        }
    };
    let of_another = |kind: &str| format!("{kind}/{OTHER} is of job {JOB}");
    assert_eq!(found(&own, &another), (of_another("states"), false));
    assert_eq!(found(&another, &own), (of_another("graphs"), true));
}
