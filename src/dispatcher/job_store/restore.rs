//! What a submitted job begins from, and the removal of savepoints.
//!
//! Everything is read and checked before the submission is written: an acknowledged job finds a state that fits it.
//! The record `checkpoints/<job>` with the origin is part of the submission's transaction. What was copied or written
//! for a submission that fails is in the job's directory, which has no record then: the sweep of orphans removes it.
//!
//! A retained checkpoint of an ended job is copied into the directory of the new one, under new names, and becomes the
//! first retained checkpoint of that job, by the regions of its graph. So the ended job can be forgotten at any time,
//! each object has one owner, and a job that ends before a checkpoint of its own leaves what it began from. One that
//! is claimed leaves the ended job: the transaction of the submission deletes its record, so at each moment one record
//! names the checkpoint. What is left in the directory of the ended job is garbage from then on, for the sweep.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use tanist_gateway::savepoints::{self, SavepointError};
use tanist_gateway::{GatewayError, GatewayResult, manifests};
use tanist_ha::Error;
use tanist_ha::blob::{ObjectDirectory, object_name};
use tanist_model::restore::{self, Unclaimed};
use tanist_model::shown;
use tanist_proto::id::JobId;
use tanist_proto::manifest;
use tanist_proto::v1 as pb;
use tanist_proto::v1::restore_request::From as RestoreFrom;
use tanist_proto::v1::stored_manifest::Place;

use super::JobStore;
use super::error::JobStoreError;
use super::hidden_output::Heir;
use super::records::{ResultRecord, StateRecord, job_id, name_of};
use crate::cleanup::SinkCleaner;

/// Time to read and check a savepoint, or to copy one object. Its place may be on a file system that hangs.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
const COPIES_AT_ONCE: usize = 8;
/// Where users say what a job begins from.
const NAMED_BY: &str = "named by `--from-savepoint` or REST's `savepoint-path`, or else by \
                        `execution.state-recovery.path`";

/// What a job begins from.
enum Source {
    Savepoint {
        manifest: pb::CheckpointManifest,
        directory: String,
    },
    /// The newest checkpoint of an ended job.
    Retained {
        ended: JobId,
        checkpoint: pb::CompletedCheckpoint,
        manifest: pb::CheckpointManifest,
        /// What that job wanted to be retained.
        retention: pb::CheckpointRetention,
    },
}

impl Source {
    fn manifest(&self) -> &pb::CheckpointManifest {
        match self {
            Source::Savepoint { manifest, .. } | Source::Retained { manifest, .. } => manifest,
        }
    }
}

/// Whether a graph can begin from a manifest, and that manifest by its tasks and regions.
pub(crate) type Fits =
    fn(&pb::CheckpointManifest, &pb::JobGraph, Unclaimed) -> Result<pb::CheckpointManifest, String>;

/// See [`Fits`].
pub(crate) fn fits(
    manifest: &pb::CheckpointManifest,
    graph: &pb::JobGraph,
    unclaimed: Unclaimed,
) -> Result<pb::CheckpointManifest, String> {
    let checked = restore::check(manifest, graph, unclaimed);
    let laid_out = checked.and_then(|()| restore::laid_out(manifest, graph));
    laid_out.map_err(|mismatch| mismatch.to_string())
}

impl JobStore {
    /// Like [`JobStore::put_submission`], for a job that begins from a savepoint or a retained checkpoint. Adds to the
    /// state what its coordinators go on with. `sinks` know the files that a retained checkpoint names.
    pub(crate) async fn put_restored_submission(
        &self,
        graph: &pb::JobGraph,
        state: &mut pb::JobState,
        request: &pb::RestoreRequest,
        (fits, sinks): (Fits, &dyn SinkCleaner),
    ) -> Result<(), JobStoreError> {
        let job = job_id(&graph.job_id)?;
        // From here on the sweep leaves the job's directory alone.
        self.checkpoints.note_written(job);
        let heir = Heir { job, graph, sinks };
        let mut has_files = false;
        let putting = self.try_put_restored(heir, state, request, (fits, &mut has_files));
        let written = putting.await;
        if written.as_ref().is_err_and(|error| !error.is_term_over()) {
            self.checkpoints.forget(job);
            self.origins.forget(job);
            if has_files {
                heir.give_up().await;
            }
        }
        written
    }

    async fn try_put_restored(
        &self,
        heir: Heir<'_>,
        state: &mut pb::JobState,
        request: &pb::RestoreRequest,
        (fits, has_files): (Fits, &mut bool),
    ) -> Result<(), JobStoreError> {
        let Heir { job, graph, .. } = heir;
        let from = match &request.from {
            Some(RestoreFrom::Path(path)) => format!(" from the savepoint {path}"),
            Some(RestoreFrom::JobId(ended)) => format!(" from what job {ended} has left"),
            None => String::new(),
        };
        let refused = |reason: String| {
            JobStoreError::NotRestored(format!(
                "job {} can't be started{from} ({NAMED_BY}): {reason}",
                shown(&graph.name)
            ))
        };
        let is_claim = request.claim_mode() == pb::RecoveryClaimMode::Claim;
        if is_claim && matches!(request.from, Some(RestoreFrom::Path(_))) {
            let reason = "a savepoint belongs to the user, and only the retained checkpoint of an ended job can be \
                          claimed: start without a claim";
            return Err(refused(reason.to_owned()));
        }
        // Once a claim is written, the sweep may remove what other submissions from the same job copy. So no claim
        // begins while one copies, and no copy while one claims.
        let _copying = match request.from {
            Some(RestoreFrom::JobId(_)) if is_claim => {
                (Some(self.retained_starts.write().await), None)
            }
            Some(RestoreFrom::JobId(_)) => (None, Some(self.retained_starts.read().await)),
            Some(RestoreFrom::Path(_)) | None => (None, None),
        };
        let unclaimed = match request.allow_non_restored_state {
            true => Unclaimed::Ignored,
            false => Unclaimed::Refused,
        };
        let source = match &request.from {
            None => {
                let reason = "its restore names neither a savepoint nor a job".to_owned();
                return Err(refused(reason));
            }
            Some(RestoreFrom::Path(path)) => {
                let directory = normal(path);
                let identity = identity(&directory).await;
                let begun = self.origins.begin(job, &directory, &identity);
                begun.map_err(refused)?;
                let reading = tokio::time::timeout(TIMEOUT, savepoints::read(path)).await;
                let manifest = reading.map_err(|_elapsed| no_answer(path))?;
                let manifest = manifest.map_err(|error| not_read(error, &refused))?;
                if let Some(hidden) = restore::hidden_output(&manifest) {
                    return Err(refused(hidden));
                }
                if let Some(shared) = self.shared_output(&manifest.job_id, state).await? {
                    return Err(refused(shared));
                }
                Source::Savepoint {
                    manifest,
                    directory,
                }
            }
            Some(RestoreFrom::JobId(ended)) => self.retained(ended, is_claim, &refused).await?,
        };
        let number = source.manifest().number;
        let laid_out = fits(source.manifest(), graph, unclaimed)
            .map_err(|mismatch| refused(format!("checkpoint {number}: {mismatch}")))?;
        state.coordinators.clone_from(&laid_out.coordinators);
        let next = number.saturating_add(1);
        let mut record = pb::JobCheckpoints {
            job_id: graph.job_id.clone(),
            next,
            floor: next,
            ..pb::JobCheckpoints::default()
        };
        let claimed = match source {
            Source::Savepoint {
                manifest,
                directory,
            } => {
                record.started_from.clone_from(&directory);
                record.origin = Some(pb::CheckpointOrigin {
                    number,
                    manifest: Some(self.stored(job, &manifest, &refused).await?),
                    directory,
                });
                None
            }
            Source::Retained {
                ended,
                checkpoint,
                manifest,
                retention,
            } => {
                heir.finish_commit((ended, &checkpoint), &manifest, &refused)
                    .await?;
                let mut manifest = self.copied(job, ended, laid_out, &refused).await?;
                *has_files = !manifests::hidden_files(&manifest).is_empty();
                let storage = self.objects_of(job);
                heir.take_over(&mut manifest, storage.as_ref(), &refused)
                    .await?;
                record.started_from = format!("job:{ended}");
                // Until its JobMaster knows the settings of the cluster.
                let options = graph.options.as_ref();
                let own = options.and_then(|it| it.checkpoints?.retention);
                record.retention = own.unwrap_or(retention.into());
                record.retained.push(pb::CompletedCheckpoint {
                    manifest: Some(self.stored(job, &manifest, &refused).await?),
                    committed: true,
                    ..checkpoint
                });
                is_claim.then_some(ended)
            }
        };
        self.put_with_checkpoints(graph, state, Some(&record), claimed)
            .await
    }

    /// Why a job can't begin from a savepoint of `origin`: that job goes on writing to a directory of its sinks, so
    /// what both read would be there twice.
    async fn shared_output(
        &self,
        origin: &str,
        state: &pb::JobState,
    ) -> Result<Option<String>, JobStoreError> {
        let Ok(origin) = origin.parse::<JobId>() else {
            return Ok(None);
        };
        let found = self.records.get::<StateRecord>(origin).await;
        // It has ended, or is of another cluster.
        let Some(found) = found.map_err(JobStoreError::Refused)? else {
            return Ok(None);
        };
        let other = found.record.0;
        let ends = other.wanted() != pb::WantedStatus::Running
            || !other.fatal_cause.is_empty()
            || !other.stopped_with.is_empty();
        if ends {
            return Ok(None);
        }
        let paths = |state: &pb::JobState| -> BTreeSet<String> {
            let sinks = state.sinks.iter();
            sinks
                .flat_map(|it| &it.paths)
                .map(|it| normal(it))
                .collect()
        };
        let (own, others) = (paths(state), paths(&other));
        let shared = own.intersection(&others).next();
        Ok(shared.map(|path| {
            format!(
                "job {origin}, of which the savepoint is, still runs and writes to {path}: what both read would be there \
                 twice; stop that job with a savepoint first, or choose another directory"
            )
        }))
    }

    /// The newest checkpoint that an ended job left.
    async fn retained(
        &self,
        ended: &str,
        is_claim: bool,
        refused: &impl Fn(String) -> JobStoreError,
    ) -> Result<Source, JobStoreError> {
        let job: JobId = ended
            .parse()
            .map_err(|_| refused(format!("{ended} is not the id of a job")))?;
        let result = self.records.get::<ResultRecord>(job).await;
        let result = result.map_err(JobStoreError::Refused)?;
        let Some(result) = result else {
            let running = self.records.get::<StateRecord>(job).await;
            return Err(refused(match running.map_err(JobStoreError::Refused)? {
                Some(_) => format!("job {job} has not ended: stop it with a savepoint first"),
                None => format!(
                    "there is no ended job {job} here, whose checkpoint could have been kept"
                ),
            }));
        };
        if is_claim && result.record.0.dirty {
            return Err(refused(format!(
                "the checkpoint of job {job} can't be claimed before that job is cleaned up: try again"
            )));
        }
        let record = self
            .checkpoints
            .read(job, &self.records, &self.ledger)
            .await?;
        let mut record = record.unwrap_or_default();
        let Some(newest) = record.retained.pop() else {
            return Err(refused(format!(
                "no checkpoint of job {job} is retained: if it was stopped with a savepoint, start from the path that \
                 `tanist info {job}` shows; it may have ended before its first checkpoint, or another job has claimed \
                 it; whether a cancelled job keeps one is said by \
                 `execution.checkpointing.externalized-checkpoint-retention`"
            )));
        };
        let reading =
            tokio::time::timeout(TIMEOUT, self.manifest_of(job, newest.manifest.as_ref()));
        let bytes = reading.await.map_err(|_elapsed| no_answer(ended))?;
        let bytes = bytes.map_err(|error| not_read(error.into(), refused))?;
        let manifest = manifest::decode(&bytes);
        let manifest = manifest.map_err(|error| refused(format!("of job {job}: {error}")))?;
        let from_origin =
            |region: &&pb::RegionSnapshot| region.kind() == pb::RegionSnapshotKind::FromOrigin;
        if manifest.regions.iter().any(|region| from_origin(&region)) {
            return Err(refused(format!(
                "checkpoint {} of job {job} has no snapshot of a region that was restored: start from what that job began from",
                newest.number
            )));
        }
        Ok(Source::Retained {
            ended: job,
            retention: record.retention(),
            checkpoint: newest,
            manifest,
        })
    }

    /// Copies the objects of an ended job's checkpoint into the directory of a new job. Returns the manifest with their
    /// names there.
    async fn copied(
        &self,
        job: JobId,
        ended: JobId,
        mut manifest: pb::CheckpointManifest,
        refused: &impl Fn(String) -> JobStoreError,
    ) -> Result<pb::CheckpointManifest, JobStoreError> {
        let objects: BTreeSet<String> = savepoints::objects_of(&manifest);
        if objects.is_empty() {
            return Ok(manifest);
        }
        let (Some(from), Some(to)) = (self.objects_of(ended), self.objects_of(job)) else {
            return Err(refused("there is no blob store".to_owned()));
        };
        let copies = objects.into_iter().map(|object| {
            let name = object_name(manifest.number, 0);
            let (from, to) = (&from, &to);
            async move {
                let copying = tokio::time::timeout(TIMEOUT, to.copy(from, &object, &name));
                let copied = copying
                    .await
                    .map_err(|_elapsed| no_answer(&to.location()))?;
                copied.map_err(|error| not_read(error.into(), refused))?;
                Ok::<_, JobStoreError>((object, name))
            }
        });
        let copies: Vec<_> = copies.collect();
        let copies = stream::iter(copies).buffer_unordered(COPIES_AT_ONCE);
        let names: BTreeMap<String, String> = copies.try_collect().await?;
        savepoints::rename_objects(&mut manifest, &names);
        Ok(manifest)
    }

    /// A manifest for the record of a job: its bytes, or the object that has them.
    async fn stored(
        &self,
        job: JobId,
        manifest: &pb::CheckpointManifest,
        refused: &impl Fn(String) -> JobStoreError,
    ) -> Result<pb::StoredManifest, JobStoreError> {
        let bytes = manifest::encode(manifest);
        let length = bytes.len();
        let place = match self.objects_of(job) {
            Some(storage) if length > manifests::INLINE => {
                let name = manifests::object_name(manifest.number);
                let putting = tokio::time::timeout(TIMEOUT, storage.put(&name, bytes.into()));
                let put = putting
                    .await
                    .map_err(|_elapsed| no_answer(&storage.location()))?;
                put.map_err(JobStoreError::Refused)?;
                let length = length as u64;
                Place::Object(pb::ManifestObject { name, length })
            }
            None if length > manifests::INLINE_ALONE => {
                return Err(refused(format!(
                    "its manifest has {length} bytes, and without a blob store {} are allowed: set \
                     high-availability.storageDir",
                    manifests::INLINE_ALONE
                )));
            }
            Some(_) | None => Place::Inline(bytes),
        };
        Ok(pb::StoredManifest { place: Some(place) })
    }

    /// Reads the bytes of a manifest.
    pub(super) async fn manifest_of(
        &self,
        job: JobId,
        stored: Option<&pb::StoredManifest>,
    ) -> Result<Vec<u8>, Error> {
        match stored.and_then(|stored| stored.place.as_ref()) {
            Some(Place::Inline(bytes)) => Ok(bytes.clone()),
            Some(Place::Object(object)) => match self.objects_of(job) {
                Some(storage) => Ok(storage.get(&object.name).await?.into()),
                None => Err(Error::Misconfigured("there is no blob store".into())),
            },
            None => Err(Error::Corrupt {
                key: format!("checkpoints/{job}"),
                reason: "a checkpoint has no manifest".to_owned(),
            }),
        }
    }

    /// The objects of the checkpoints of a job; `None` without a blob store that outlives the host.
    pub(super) fn objects_of(&self, job: JobId) -> Option<ObjectDirectory> {
        let blobs = self.records.blobs().filter(|it| it.keeps_checkpoints())?;
        Some(blobs.checkpoints(&name_of(job)))
    }

    /// Removes a savepoint. `Conflict` if a job of this cluster still begins from it.
    pub(crate) async fn dispose_savepoint(&self, path: &str) -> GatewayResult<()> {
        let directory = normal(path);
        let own = identity(&directory).await;
        let disposal = self.origins.dispose(&directory, &own);
        let _disposal = disposal.map_err(GatewayError::Conflict)?;
        for (job, used) in self.origins.used() {
            if used == directory || identity(&used).await == own {
                return Err(GatewayError::Conflict(format!(
                    "the savepoint in {directory} is still needed: job {job} has begun from it, and has not taken a \
                     checkpoint of each region since"
                )));
            }
        }
        // A deposed leader does not know what jobs begin from by now. One that is deposed after this goes on removing:
        // then a job that its successor accepts from this savepoint finds objects missing (ADR 61).
        self.confirm_term().await?;
        let disposed = savepoints::dispose(path).await;
        disposed.map_err(|error| match error {
            // The answer to a request that removed it may have been lost.
            SavepointError::Missing(_) => GatewayError::NotFound(format!(
                "{error}, or an earlier attempt of this request has removed it"
            )),
            SavepointError::Storage(Error::Misconfigured(reason)) => {
                GatewayError::Invalid(reason.into_owned())
            }
            SavepointError::Storage(error) => JobStoreError::Refused(error).into(),
            SavepointError::HalfCopied(_)
            | SavepointError::NotSavepoint(..)
            | SavepointError::Damaged(..)
            | SavepointError::TooNew(..) => GatewayError::Invalid(error.to_string()),
        })
    }
}

/// The path of a savepoint as it is compared.
fn normal(path: &str) -> String {
    let path = path.trim_end_matches('/');
    path.strip_prefix("file://").unwrap_or(path).to_owned()
}

/// The path of a directory without links, as this host sees it. What can't be looked at is as its path says, and so is
/// what is in a bucket.
async fn identity(directory: &str) -> String {
    if !directory.starts_with('/') {
        return directory.to_owned();
    }
    let path = directory.to_owned();
    let looking = tokio::task::spawn_blocking(move || std::fs::canonicalize(path));
    match tokio::time::timeout(TIMEOUT, looking).await {
        Ok(Ok(Ok(found))) => found.to_string_lossy().into_owned(),
        Ok(_) | Err(_) => directory.to_owned(),
    }
}

pub(super) fn no_answer(place: &str) -> JobStoreError {
    JobStoreError::Refused(Error::Unavailable {
        store: "the blob store",
        reason: format!("{place} has given no answer for {TIMEOUT:?}"),
    })
}

/// What can't be read for now may be asked for again. All else is reported to the user.
fn not_read(error: SavepointError, refused: &impl Fn(String) -> JobStoreError) -> JobStoreError {
    match error {
        SavepointError::Storage(error) if error.may_pass() => JobStoreError::Refused(error),
        error => refused(error.to_string()),
    }
}

#[cfg(test)]
#[path = "tests/restore_tests.rs"]
mod tests;
