//! Full descriptions of ended jobs: written with their results, read only on request.
//!
//! The result of a job says briefly how it ended; a leader keeps that in memory for each ended job. Vertices,
//! subtasks, edges and failures are in the record `descriptions/<job>`, which neither standbys nor a takeover
//! read. It is written in the transaction of the result. If it is too large for that, it is written before, to
//! a blob or to chunks, and the result names them.
//!
//! What a crash leaves: before the transaction, a blob or chunks that nothing points to, which a later term
//! sweeps; the job's record still says how the job ended, so the next term writes result and description. After
//! the transaction: both.
//! Invariant: a description exists as long as its result names it, or the result says why it does not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tanist_ha::Error;
use tanist_ha::failpoint::failpoint;
use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::store::Write;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::{info, warn};

use super::job_store::{DescriptionRecord, JobStore, JobStoreError, job_id, name_of};

/// Timeout for writing a description to the blob store. Then the job ends without it.
const KEEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for reading a description. Then the answer is the short one from the result.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// A description that is ready to be committed.
#[derive(Debug, Default)]
pub(super) struct PreparedDescription {
    pub(super) write: Option<Write>,
    pub(super) blob: Option<Name>,
    pub(super) chunks: Vec<Write>,
}

/// Result of dropping descriptions.
#[derive(Debug)]
pub(super) struct Dropped {
    /// The results whose descriptions were dropped, as they are now.
    pub(super) left: Vec<pb::JobResult>,
    /// The error that stopped it.
    pub(super) failure: Option<JobStoreError>,
}

impl PreparedDescription {
    fn chunk_names(&self) -> impl Iterator<Item = &Name> {
        self.chunks.iter().map(|chunk| &chunk.key().name)
    }

    /// Returns the reference to it that the result keeps.
    pub(super) fn kept(&self, size: usize) -> Option<pb::KeptDescription> {
        self.write.as_ref()?;
        Some(pb::KeptDescription {
            size: size as u64,
            blobs: self.blob.iter().map(Name::to_string).collect(),
            chunks: self.chunk_names().map(Name::to_string).collect(),
        })
    }
}

/// Returns the short form that a result keeps.
pub(super) fn in_short(details: &pb::JobDetails) -> pb::JobDetails {
    let mut counts: BTreeMap<i32, u32> = BTreeMap::new();
    for subtask in details.vertices.iter().flat_map(|it| &it.subtasks) {
        *counts.entry(subtask.state).or_default() += 1;
    }
    let counts = counts.into_iter();
    pb::JobDetails {
        vertices: Vec::new(),
        edges: Vec::new(),
        failures: details.failures.last().map(alone).into_iter().collect(),
        state_counts: counts
            .map(|(state, count)| pb::StateCount { state, count })
            .collect(),
        ..short_fields(details)
    }
}

/// Returns why a description is not kept. Only the end of the term is an error; a refused description does not
/// keep its job from ending.
fn not_kept(
    job: JobId,
    error: JobStoreError,
) -> Result<Result<PreparedDescription, String>, JobStoreError> {
    let reason = match &error {
        JobStoreError::NotWritten | JobStoreError::Unknown => return Err(error),
        JobStoreError::Refused(cause @ Error::TooLarge { .. }) => {
            format!("it was too large to be kept: {cause}")
        }
        JobStoreError::OutOfSpace(cause) => format!("the store had no space for it: {cause}"),
        JobStoreError::Refused(_) | JobStoreError::NotUploaded(_) => {
            format!("it could not be kept: {error}")
        }
    };
    warn!(%job, %error, "a job's description is not kept");
    Ok(Err(reason))
}

/// A failure without the concurrent ones.
fn alone(failure: &pb::FailureRecord) -> pb::FailureRecord {
    pb::FailureRecord {
        concurrent: Vec::new(),
        ..failure.clone()
    }
}

/// The short fields only.
fn short_fields(details: &pb::JobDetails) -> pb::JobDetails {
    pb::JobDetails {
        job_id: details.job_id.clone(),
        name: details.name.clone(),
        status: details.status,
        started_at_ms: details.started_at_ms,
        ended_at_ms: details.ended_at_ms,
        max_parallelism: details.max_parallelism,
        timestamps: details.timestamps.clone(),
        restarts: details.restarts,
        quarantine: details.quarantine.clone(),
        quarantined: details.quarantined.clone(),
        ..pb::JobDetails::default()
    }
}

/// Whether a result's short form says as much as a description would.
pub(super) fn is_short(details: &pb::JobDetails) -> bool {
    let has_more = |failure: &pb::FailureRecord| !failure.concurrent.is_empty();
    details.vertices.is_empty()
        && details.edges.is_empty()
        && details.failures.len() <= 1
        && !details.failures.iter().any(has_more)
        && details.events.is_empty()
}

/// Recently written or read descriptions, limited in bytes. The least recently used is dropped first.
#[derive(Debug)]
pub(super) struct DescriptionCache {
    limit: usize,
    bytes: usize,
    turn: u64,
    held: BTreeMap<JobId, Held>,
    /// Job by time of last use, oldest first.
    by_use: BTreeMap<u64, JobId>,
}

#[derive(Debug)]
struct Held {
    details: Arc<pb::JobDetails>,
    size: usize,
    used_in: u64,
}

impl DescriptionCache {
    pub(super) fn new(limit: usize) -> DescriptionCache {
        DescriptionCache {
            limit,
            bytes: 0,
            turn: 0,
            held: BTreeMap::new(),
            by_use: BTreeMap::new(),
        }
    }

    fn get(&mut self, job: JobId) -> Option<Arc<pb::JobDetails>> {
        self.turn += 1;
        let held = self.held.get_mut(&job)?;
        self.by_use.remove(&held.used_in);
        held.used_in = self.turn;
        self.by_use.insert(self.turn, job);
        Some(held.details.clone())
    }

    fn put(&mut self, job: JobId, details: Arc<pb::JobDetails>) {
        self.forget(job);
        let size = details.encoded_len();
        if size > self.limit {
            return;
        }
        self.turn += 1;
        self.bytes += size;
        let used_in = self.turn;
        let held = Held {
            details,
            size,
            used_in,
        };
        self.held.insert(job, held);
        self.by_use.insert(used_in, job);
        while self.bytes > self.limit {
            let Some((_, oldest)) = self.by_use.first_key_value() else {
                return;
            };
            self.forget(*oldest);
        }
    }

    fn forget(&mut self, job: JobId) {
        if let Some(held) = self.held.remove(&job) {
            self.bytes -= held.size;
            self.by_use.remove(&held.used_in);
        }
    }
}

/// Returns the jobs whose descriptions must be dropped so that at most `capacity` are left, oldest first.
pub(super) fn beyond_capacity<'a>(
    results: impl Iterator<Item = (JobId, &'a pb::JobResult)>,
    capacity: usize,
) -> Vec<JobId> {
    let mut described: Vec<(u64, JobId, bool)> = results
        .filter(|(_, result)| result.description.is_some())
        .map(|(job, result)| (result.ended_at_ms, job, result.dirty))
        .collect();
    let surplus = described.len().saturating_sub(capacity);
    if surplus == 0 {
        return Vec::new();
    }
    described.sort_unstable();
    let oldest = described.into_iter().take(surplus);
    // A dirty one is being written because of its cleanup; skip it.
    oldest
        .filter(|(.., dirty)| !dirty)
        .map(|(_, job, _)| job)
        .collect()
}

impl JobStore {
    /// Prepares a description to be committed with its result: writes its blob or its chunks. Returns the reason
    /// if no store accepts it. Fails only if the term is over.
    pub(super) async fn prepare_description(
        &self,
        job: JobId,
        details: &pb::JobDetails,
    ) -> Result<Result<PreparedDescription, String>, JobStoreError> {
        // The result's record, which is small, is in the same transaction.
        let share = self.pipeline.limits().bytes / 2;
        let record = DescriptionRecord(details.clone());
        let preparing = self.prepare_surely_within(job, record, share);
        let prepared = match tokio::time::timeout(KEEP_TIMEOUT, preparing).await {
            Ok(prepared) => prepared,
            Err(_elapsed) => {
                warn!(%job, "a job's description is not kept: the blob store did not accept it in time");
                return Ok(Err(
                    "the blob store did not take it when the job ended".to_owned()
                ));
            }
        };
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return not_kept(job, error),
        };
        if let Err(error) = self.write_chunks(job, &prepared.chunks).await {
            return not_kept(job, error);
        }
        failpoint("job.description-prepared").await;
        Ok(Ok(PreparedDescription {
            write: Some(prepared.write),
            blob: prepared.blob,
            chunks: prepared.chunks,
        }))
    }

    /// Records that the description is in the store.
    pub(super) fn note_described(
        &self,
        job: JobId,
        prepared: &PreparedDescription,
        details: pb::JobDetails,
    ) {
        let chunks = prepared.chunk_names().cloned().collect();
        self.ledger.note_description(job, chunks);
        self.lock_descriptions().put(job, Arc::new(details));
    }

    /// Records the description that an earlier term wrote.
    pub(super) fn note_kept(&self, job: JobId, kept: &pb::KeptDescription) {
        let named = |names: &[String]| names.iter().filter_map(|name| name.parse().ok()).collect();
        let blobs: Vec<Name> = named(&kept.blobs);
        self.ledger
            .note_blob(job, Kind::Descriptions, blobs.into_iter().next());
        let chunks: Vec<Name> = named(&kept.chunks);
        self.ledger
            .note_description(job, chunks.into_iter().collect());
    }

    /// Returns the full description of an ended job; if there is none, the short one and the reason.
    pub(super) async fn describe_ended(
        &self,
        job: JobId,
        result: &pb::JobResult,
    ) -> pb::JobDetails {
        let short = result.details.clone().unwrap_or_default();
        if result.description.is_none() {
            return short;
        }
        let known = self.lock_descriptions().get(job);
        if let Some(known) = known {
            return (*known).clone();
        }
        let name = name_of(job);
        let reading = self.records.get::<DescriptionRecord>(&name);
        let undescribed = match tokio::time::timeout(READ_TIMEOUT, reading).await {
            Ok(Ok(Some(stored))) => {
                let details = Arc::new(stored.record.0);
                self.lock_descriptions().put(job, details.clone());
                return (*details).clone();
            }
            Ok(Ok(None)) => "it is not kept any more".to_owned(),
            Err(_elapsed) => "the store gives no answer at present".to_owned(),
            Ok(Err(error)) => {
                self.note_unreadable(&error);
                warn!(%job, %error, "the description of an ended job can't be read");
                format!("it can't be read: {error}")
            }
        };
        pb::JobDetails {
            undescribed,
            ..short
        }
    }

    /// Drops surplus descriptions and keeps their results. Each is tried once; the first failure stops it.
    pub(super) async fn drop_descriptions(&self, results: Vec<pb::JobResult>) -> Dropped {
        let mut left = Vec::with_capacity(results.len());
        for mut result in results {
            result.description = None;
            result.details.get_or_insert_default().undescribed =
                "it was dropped: more jobs have ended than jobstore.max-capacity keeps descriptions for"
                    .to_owned();
            match self.drop_description(&result).await {
                Ok(()) => left.push(result),
                Err(failure) => {
                    let failure = Some(failure);
                    return Dropped { left, failure };
                }
            }
        }
        Dropped {
            left,
            failure: None,
        }
    }

    async fn drop_description(&self, result: &pb::JobResult) -> Result<(), JobStoreError> {
        let job = job_id(&result.job_id)?;
        self.put_undescribed(job, result).await?;
        info!(%job, "the description of an ended job is dropped: it was the oldest beyond jobstore.max-capacity");
        let chunks = self.forget_descriptions(&[job]);
        if let Err(failure) = self.remove_chunks(&chunks).await {
            warn!(%job, %failure, "the chunks of a description are left to the next term");
        }
        Ok(())
    }

    /// Forgets dropped descriptions. Returns the chunks that held them.
    pub(super) fn forget_descriptions(&self, jobs: &[JobId]) -> Vec<Name> {
        let mut cache = self.lock_descriptions();
        for job in jobs {
            cache.forget(*job);
        }
        drop(cache);
        self.ledger.forget_descriptions(jobs)
    }
}

/// Write that removes the description of a job.
pub(super) fn delete(job: JobId) -> Write {
    Write::Delete {
        key: Key::new(Kind::Descriptions, name_of(job)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(failures: usize) -> pb::JobDetails {
        let subtask = |state: pb::ExecutionState| pb::SubtaskDetails {
            state: state.into(),
            ..pb::SubtaskDetails::default()
        };
        pb::JobDetails {
            name: "job".to_owned(),
            vertices: vec![pb::VertexDetails {
                subtasks: vec![
                    subtask(pb::ExecutionState::Finished),
                    subtask(pb::ExecutionState::Finished),
                    subtask(pb::ExecutionState::Canceled),
                ],
                ..pb::VertexDetails::default()
            }],
            failures: (0..failures)
                .map(|number| pb::FailureRecord {
                    cause: number.to_string(),
                    ..pb::FailureRecord::default()
                })
                .collect(),
            ..pb::JobDetails::default()
        }
    }

    #[test]
    fn in_short_a_job_has_its_last_failure_and_counts_of_its_subtasks() {
        let details = described(3);
        assert!(!is_short(&details));
        let short = in_short(&details);
        assert!(is_short(&short));
        assert_eq!(short.name, "job");
        assert_eq!(short.failures[0].cause, "2");
        let counts: Vec<(i32, u32)> = short
            .state_counts
            .iter()
            .map(|it| (it.state, it.count))
            .collect();
        let (finished, canceled) = (
            pb::ExecutionState::Finished as i32,
            pb::ExecutionState::Canceled as i32,
        );
        assert_eq!(counts, [(finished, 2), (canceled, 1)]);
    }

    #[test]
    fn the_cache_keeps_what_was_used_last_within_its_limit() {
        let size = described(1).encoded_len();
        let mut cache = DescriptionCache::new(2 * size);
        let job = |number| JobId::from_bits(number);
        for number in 1..=2 {
            cache.put(job(number), Arc::new(described(1)));
        }
        assert!(cache.get(job(1)).is_some());
        cache.put(job(3), Arc::new(described(1)));
        assert!(cache.get(job(1)).is_some() && cache.get(job(3)).is_some());
        assert!(cache.get(job(2)).is_none());
        cache.put(job(4), Arc::new(described(100)));
        assert!(cache.get(job(4)).is_none(), "it would take all");
        assert_eq!(cache.bytes, 2 * size);
        cache.forget(job(1));
        assert_eq!(cache.bytes, size);
    }

    #[test]
    fn the_oldest_descriptions_go_first_and_none_that_is_written_about() {
        let result = |ended_at_ms, is_described: bool, dirty| pb::JobResult {
            ended_at_ms,
            dirty,
            description: is_described.then(pb::KeptDescription::default),
            ..pb::JobResult::default()
        };
        let results = [
            (JobId::from_bits(1), result(30, true, false)),
            (JobId::from_bits(2), result(10, true, true)),
            (JobId::from_bits(3), result(20, true, false)),
            (JobId::from_bits(4), result(5, false, false)),
        ];
        let beyond = |capacity| {
            let results = results.iter().map(|(job, result)| (*job, result));
            beyond_capacity(results, capacity)
        };
        assert_eq!(beyond(3), []);
        assert_eq!(beyond(2), [], "the oldest is still cleaned up after");
        assert_eq!(beyond(1), [JobId::from_bits(3)]);
    }
}
