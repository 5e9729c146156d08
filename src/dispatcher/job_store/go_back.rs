//! A quarantined job goes back to an older one of its retained checkpoints, on request of a user (`docs/adr/0060`).
//!
//! Invariants: nothing is written before all that the job needs of that checkpoint is there; both records are written
//! in one transaction, so the job is quarantined as before or is led from that checkpoint with all of its regions.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use tanist_gateway::persistence::PersistError;
use tanist_gateway::{manifests, savepoints};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tracing::warn;

use super::JobStore;
use super::error::JobStoreError;
use super::records::{CheckpointsRecord, StateRecord};
use super::transaction::Transaction;

impl JobStore {
    /// Writes the record of a job that is led again from its retained checkpoint `number`, with that of its
    /// checkpoints. `Refused`: nothing was written.
    pub(crate) async fn go_back(
        &self,
        job: JobId,
        state: &mut pb::JobState,
        number: u64,
    ) -> Result<(), PersistError> {
        let refused = |reason: String| {
            PersistError::Refused(format!(
                "job {job} can't go back to checkpoint {number}: {reason}"
            ))
        };
        let reading = self.checkpoints.read_once(job, &self.records, &self.ledger);
        let record = match reading.await {
            Ok(Some(record)) => record,
            Ok(None) => return Err(refused("it has no checkpoints".to_owned())),
            Err(JobStoreError::Refused(error)) => return Err(refused(error.to_string())),
            Err(error) => return Err(error.into()),
        };
        let manifest = self.older_manifest(job, &record, number).await;
        let manifest = manifest.map_err(refused)?;
        if let Some(reason) = unfit(&record, state, &manifest) {
            return Err(refused(reason));
        }
        if let Some(steps) = self.begun_since(job, &record, &manifest).await {
            return Err(refused(format!(
                "the region of {steps} had not begun then: it would begin from the start, and its sinks do not write \
                 again what they have made visible since"
            )));
        }
        self.check_objects(job, &manifest).await.map_err(refused)?;
        check_files(&manifest).await.map_err(refused)?;
        let record = shortened(record, number);
        give_up_regions(state, self.records.epoch().get());
        add_coordinators(state, &manifest);
        warn!(%job, number, "a job goes back to an older checkpoint");
        self.checkpoints.note_written(job);
        let checkpoints = CheckpointsRecord(record.clone());
        let checkpoints = self
            .records
            .prepare_until_accepted(job, checkpoints)
            .await?;
        let new_state = StateRecord(state.clone());
        let new_state = self.records.prepare_until_accepted(job, new_state).await?;
        let both = Transaction::default()
            .put(job, checkpoints)
            .put(job, new_state);
        self.commit_until_space(both).await?;
        self.origins.note(job, &record);
        Ok(())
    }

    /// The manifest of a retained checkpoint that is not the newest.
    async fn older_manifest(
        &self,
        job: JobId,
        record: &pb::JobCheckpoints,
        number: u64,
    ) -> Result<pb::CheckpointManifest, String> {
        let (older, newest) = match record.retained.split_last() {
            Some((newest, older)) => (older, newest.number),
            None => return Err("no checkpoint is retained".to_owned()),
        };
        if number == newest {
            return Err("it is the newest one, from which a retry goes on anyway".to_owned());
        }
        let Some(wanted) = older.iter().find(|it| it.number == number) else {
            let numbers: Vec<String> = older.iter().map(|it| it.number.to_string()).collect();
            return Err(match numbers.as_slice() {
                [] => format!(
                    "only the newest one, {newest}, is retained (execution.checkpointing.num-retained)"
                ),
                numbers => format!("the retained older ones are {}", numbers.join(", ")),
            });
        };
        self.decoded(job, wanted).await
    }

    /// The steps of a region of which nothing was saved then, and something later. What can't be read says nothing.
    async fn begun_since(
        &self,
        job: JobId,
        record: &pb::JobCheckpoints,
        manifest: &pb::CheckpointManifest,
    ) -> Option<String> {
        use pb::RegionSnapshotKind::{FromStart, Taken};
        let of_kind = |(region, it): (usize, &pb::RegionSnapshot), kind| {
            (it.kind() == kind).then_some(region)
        };
        let regions = manifest.regions.iter().enumerate();
        let from_start: BTreeSet<usize> = regions.filter_map(|it| of_kind(it, FromStart)).collect();
        if from_start.is_empty() {
            return None;
        }
        for later in record
            .retained
            .iter()
            .filter(|it| it.number > manifest.number)
        {
            let Ok(later) = self.decoded(job, later).await else {
                continue;
            };
            let regions = later.regions.iter().enumerate();
            let mut taken = regions.filter_map(|it| of_kind(it, Taken));
            if let Some(region) = taken.find(|region| from_start.contains(region)) {
                let subtasks = later.regions[region].subtasks.iter();
                let vertices: BTreeSet<&str> = subtasks.map(|it| &*it.vertex_id).collect();
                let steps = later.steps.iter();
                let steps = steps.filter(|it| vertices.contains(&*it.vertex_id));
                return Some(steps.map(|it| &*it.name).collect::<Vec<_>>().join(", "));
            }
        }
        None
    }

    async fn decoded(
        &self,
        job: JobId,
        completed: &pb::CompletedCheckpoint,
    ) -> Result<pb::CheckpointManifest, String> {
        let bytes = self.manifest_of(job, completed.manifest.as_ref()).await;
        let bytes = bytes.map_err(|error| error.to_string())?;
        let manifest = tanist_proto::manifest::decode(&bytes);
        manifest.map_err(|error| format!("its manifest can't be read: {error}"))
    }

    /// Whether each object that a manifest names is there.
    async fn check_objects(
        &self,
        job: JobId,
        manifest: &pb::CheckpointManifest,
    ) -> Result<(), String> {
        let named = savepoints::objects_of(manifest);
        let Some(storage) = self.objects_of(job).filter(|_| !named.is_empty()) else {
            return Ok(());
        };
        let listed = storage.list().await.map_err(|error| error.to_string())?;
        let listed: BTreeSet<String> = listed.into_iter().collect();
        match named.iter().find(|object| !listed.contains(*object)) {
            Some(missing) => Err(format!(
                "the object {missing} is missing in {}",
                storage.location()
            )),
            None => Ok(()),
        }
    }
}

/// Whether the pending files of sinks that a manifest names are there.
async fn check_files(manifest: &pb::CheckpointManifest) -> Result<(), String> {
    let files = manifests::hidden_files(manifest).into_iter();
    let files: Vec<PathBuf> = files
        .map(|path| PathBuf::from(OsString::from_vec(path)))
        .collect();
    let looking = tokio::task::spawn_blocking(move || {
        files.into_iter().find_map(|path| match path.try_exists() {
            Ok(true) => None,
            Ok(false) => Some(format!(
                "the file {} of a sink, which it names, is visible by now, or was removed",
                path.display()
            )),
            Err(error) => Some(format!("{} can't be looked at: {error}", path.display())),
        })
    });
    match looking.await {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => Err(reason),
        Err(error) => Err(error.to_string()),
    }
}

/// Why an intact manifest can't be the newest one of the job.
fn unfit(
    record: &pb::JobCheckpoints,
    state: &pb::JobState,
    manifest: &pb::CheckpointManifest,
) -> Option<String> {
    if !state.stopped_with.is_empty() {
        return Some(format!(
            "it has stopped with the savepoint {}",
            state.stopped_with
        ));
    }
    if manifest.layout != record.layout || manifest.regions.len() != state.regions.len() {
        return Some("it was taken of other regions than the job has".to_owned());
    }
    let is_of_origin = |it: &pb::RegionSnapshot| it.kind() == pb::RegionSnapshotKind::FromOrigin;
    let needs_origin = manifest.regions.iter().any(is_of_origin);
    (needs_origin && record.origin.is_none()).then(|| {
        "it needs the savepoint from which the job was started, which is forgotten".to_owned()
    })
}

/// The record with `number` as the newest checkpoint. All numbers stay given out, and what was taken since is garbage.
fn shortened(mut record: pb::JobCheckpoints, number: u64) -> pb::JobCheckpoints {
    let kept = record.retained.iter().take_while(|it| it.number <= number);
    let abandoned = record.retained.split_off(kept.count());
    let abandoned = abandoned.into_iter().map(|it| pb::SubsumedCheckpoint {
        number: it.number,
        manifest: it.manifest,
    });
    record.removing.extend(abandoned);
    record.floor = record.next;
    for request in record
        .requests
        .iter_mut()
        .filter(|it| savepoints::is_open(it))
    {
        request.set_progress(pb::SavepointProgress::Failed);
        request.outcome = format!("the job went back to checkpoint {number}");
    }
    record
}

/// Adds the coordinators that the job has forgotten since, because all of their tasks had finished: those run again.
fn add_coordinators(state: &mut pb::JobState, manifest: &pb::CheckpointManifest) {
    for saved in &manifest.coordinators {
        let is_it = |it: &pb::CoordinatorState| {
            it.vertex_id == saved.vertex_id && it.operator == saved.operator
        };
        if !state.coordinators.iter().any(is_it) {
            state.coordinators.push(saved.clone());
        }
    }
}

/// Gives each region up: none of its tasks goes on, and none has ended.
fn give_up_regions(state: &mut pb::JobState, epoch: u64) {
    for region in &mut state.regions {
        *region = pb::RegionState {
            generation: region.generation.max(1) + 1,
            epoch,
            placed_before: region.placed_before || !region.placements.is_empty(),
            ..pb::RegionState::default()
        };
    }
    state.terminal.clear();
}
