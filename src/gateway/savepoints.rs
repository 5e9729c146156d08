//! Savepoints: their directories (`directory`), and their content as manifests, here: what the JobMaster writes, and
//! what the Dispatcher and the command line read.
//!
//! A path names the directory of one savepoint: an absolute path, `file:///path` or `s3://bucket/prefix`. Invariants:
//! the manifest of a savepoint names objects of that directory alone, and lists nothing that is to be committed.

mod copy;
mod directory;
mod metadata;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tanist_ha::Error;
use tanist_ha::blob::{ObjectDirectory, ObjectRange};
use tanist_proto::manifest::{self, ManifestError};
use tanist_proto::pieces::{Piece, pieces, pieces_mut};
use tanist_proto::v1::{
    CheckpointManifest, JobCheckpoints, ObjectPlace, RegionSnapshotKind, SavepointProgress,
    SavepointRequest,
};

use directory::SavepointContent;

pub use directory::{SavepointError, SavepointStorage};
pub use metadata::FORMAT;

type Result<T> = std::result::Result<T, SavepointError>;

/// The path of the savepoint that this request of this job writes below `directory`, as a copy of the checkpoint of
/// this number. A copy that is repeated has the same path. No other copy has it: a client may use a trigger id again
/// once the record has forgotten it, but no number is given out twice. So the copy of a request that has failed can be
/// removed at any time.
pub fn path_of(directory: &str, job_id: &str, trigger_id: &str, number: u64) -> String {
    let job: String = job_id.chars().take(6).collect();
    let directory = directory.trim_end_matches('/');
    format!("{directory}/savepoint-{job}-{trigger_id}-{number}")
}

/// Whether a request has no outcome.
pub fn is_open(request: &SavepointRequest) -> bool {
    match request.progress() {
        SavepointProgress::Requested | SavepointProgress::Copying => true,
        SavepointProgress::Completed | SavepointProgress::Failed => false,
    }
}

/// Requests that have failed after a copy may have begun.
pub fn failed_copies(record: &JobCheckpoints) -> impl Iterator<Item = &SavepointRequest> {
    let has_failed =
        |it: &&SavepointRequest| it.number > 0 && it.progress() == SavepointProgress::Failed;
    record.requests.iter().filter(has_failed)
}

/// The paths at which copies may have been begun for requests of a job that have failed.
pub fn failed_paths(record: &JobCheckpoints) -> Vec<String> {
    let path = |it: &SavepointRequest| {
        let (directory, trigger_id) = (&it.directory, &it.trigger_id);
        path_of(directory, &record.job_id, trigger_id, it.number)
    };
    failed_copies(record).map(path).collect()
}

/// Copies a checkpoint, whose output is committed, into the directory `path`. Repeated, also beside another leader, it
/// writes the same. `source`: the objects of the job's checkpoints; none is needed if all state stands in the manifest.
pub async fn write(
    path: &str,
    manifest: &CheckpointManifest,
    source: Option<&ObjectDirectory>,
) -> Result<()> {
    let savepoint = SavepointStorage::open(path).await?;
    let from_origin =
        |region: &tanist_proto::v1::RegionSnapshot| region.kind() == RegionSnapshotKind::FromOrigin;
    if let Some(region) = manifest.regions.iter().position(from_origin) {
        let number = manifest.number;
        return Err(refused(format!(
            "checkpoint {number} can't be copied: region {region} has no snapshot yet"
        )));
    }
    let ranges = ranges_of(manifest);
    let nowhere;
    let source = match source {
        Some(source) => source,
        None if ranges.is_empty() => {
            nowhere = no_objects(path).await?;
            &nowhere
        }
        None => {
            let number = manifest.number;
            let reason = format!("checkpoint {number} has objects, and there is no blob store");
            return Err(refused(reason));
        }
    };
    let content = |names: &BTreeMap<String, String>| {
        let mut copy = manifest.clone();
        copy.uncommitted.clear();
        rename_objects(&mut copy, names);
        manifest::encode(&copy).into()
    };
    savepoint.write(source, &ranges, content).await
}

/// Reads what a savepoint is. Its objects exist; their content is checked when a task reads it.
pub async fn read(path: &str) -> Result<CheckpointManifest> {
    let savepoint = SavepointStorage::open(path).await?;
    let content = savepoint.read().await?;
    decode(&savepoint, &content)
}

/// Reads and checks all of a savepoint.
pub async fn verify(path: &str) -> Result<CheckpointManifest> {
    let savepoint = SavepointStorage::open(path).await?;
    let content = savepoint.verify().await?;
    decode(&savepoint, &content)
}

/// Removes a savepoint. A directory that is not a savepoint is refused. The caller has to know that no job begins from
/// it any more.
pub async fn dispose(path: &str) -> Result<()> {
    SavepointStorage::open(path).await?.dispose().await
}

/// Removes the copy at this path for a request of this job that has durably failed, whether the copy is complete or
/// not. A savepoint of another job stays.
///
/// No copy that succeeded is removed: a request that is durably FAILED never becomes COMPLETED, so a process that may
/// discard the copy knows that the request did not complete.
///
/// One discard is not enough. A leader that is deposed after its copy was complete leaves the request COPYING. The next
/// leader completes the request, or lets it fail: then a complete copy has failed. The copy may also become complete
/// after a discard, if the deposed leader writes `_metadata` late and ends before it looks for the objects. Therefore
/// each later JobMaster discards again, and so does the cleanup after the job.
pub async fn discard_copy(path: &str, job_id: &str) -> Result<()> {
    let is_own = |bytes: &Bytes| {
        let manifest = manifest::decode(bytes);
        manifest.is_ok_and(|manifest| manifest.job_id == job_id)
    };
    SavepointStorage::open(path)
        .await?
        .discard_copy(is_own)
        .await
}

fn decode(savepoint: &SavepointStorage, content: &SavepointContent) -> Result<CheckpointManifest> {
    let damaged = |reason: String| SavepointError::Damaged(savepoint.location(), reason);
    let manifest = manifest::decode(&content.manifest).map_err(|error| match error {
        ManifestError::TooNew { found } => {
            SavepointError::TooNew(savepoint.location(), found, manifest::FORMAT)
        }
        ManifestError::Damaged(_) => damaged(error.to_string()),
    })?;
    for range in ranges_of(&manifest) {
        let object = &range.object;
        let end = range.offset.checked_add(range.length);
        let Some(size) = content.objects.get(object) else {
            return Err(damaged(format!(
                "its manifest names {object}, which it does not list"
            )));
        };
        if end.is_none_or(|end| end > *size) {
            let reason = format!("its manifest names bytes of {object} beyond its {size}");
            return Err(damaged(reason));
        }
    }
    Ok(manifest)
}

/// The objects that a manifest names.
pub fn objects_of(manifest: &CheckpointManifest) -> BTreeSet<String> {
    let ranges = ranges_of(manifest).into_iter();
    ranges.map(|range| range.object).collect()
}

/// Gives objects other names, wherever they are named.
pub fn rename_objects(manifest: &mut CheckpointManifest, names: &BTreeMap<String, String>) {
    let regions = manifest.regions.iter_mut();
    for subtask in regions.flat_map(|region| &mut region.subtasks) {
        for mut piece in pieces_mut(subtask) {
            let Some(place) = piece.as_ref().place() else {
                continue;
            };
            if let Some(name) = names.get(&place.object) {
                let object = name.clone();
                piece.set_place(ObjectPlace { object, ..place });
            }
        }
    }
}

/// The ranges of objects that a manifest names.
fn ranges_of(manifest: &CheckpointManifest) -> Vec<ObjectRange> {
    let subtasks = manifest.regions.iter().flat_map(|region| &region.subtasks);
    let places = subtasks.flat_map(pieces).filter_map(Piece::place);
    let range = |place: ObjectPlace| ObjectRange {
        object: place.object,
        offset: place.offset,
        length: place.length,
        checksum: place.checksum,
    };
    places.map(range).collect()
}

fn refused(reason: String) -> SavepointError {
    SavepointError::Storage(Error::Misconfigured(reason.into()))
}

/// A source for a manifest that names no objects: nothing is read from it.
async fn no_objects(path: &str) -> Result<ObjectDirectory> {
    Ok(SavepointStorage::open(path).await?.objects().clone())
}

#[cfg(test)]
mod tests {
    use tanist_ha::blob::range_checksum;
    use tanist_proto::v1::{self as pb, StateSegment};

    use super::directory::source;
    use super::*;

    fn segment(object: &str, content: &[u8]) -> StateSegment {
        StateSegment {
            object: object.to_owned(),
            length: content.len() as u64,
            checksum: range_checksum(content),
            ..StateSegment::default()
        }
    }

    fn manifest(segments: Vec<StateSegment>) -> CheckpointManifest {
        CheckpointManifest {
            number: 7,
            regions: vec![pb::RegionSnapshot {
                kind: RegionSnapshotKind::Taken.into(),
                subtasks: vec![pb::SubtaskSnapshot {
                    segments,
                    ..pb::SubtaskSnapshot::default()
                }],
                ..pb::RegionSnapshot::default()
            }],
            uncommitted: vec![pb::CheckpointCommittable::default()],
            ..CheckpointManifest::default()
        }
    }

    #[tokio::test]
    async fn a_whole_copy_of_a_failed_request_is_discarded_and_that_of_another_job_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let source = source(&directory).await;
        source.put("7-1-aa", "state".into()).await.expect("written");
        let taken = CheckpointManifest {
            job_id: "0a1b2c3d".to_owned(),
            ..manifest(vec![segment("7-1-aa", b"state")])
        };
        let place = directory.path().join("savepoints");
        let of = |number| path_of(&place.to_string_lossy(), &taken.job_id, "a", number);
        let (failed, complete) = (of(7), of(9));
        for path in [&failed, &complete] {
            write(path, &taken, Some(&source)).await.expect("written");
        }
        discard_copy(&failed, "0a1b2c3e").await.expect("looked");
        verify(&failed).await.expect("it is that of another job");
        discard_copy(&failed, "0a1b2c3d").await.expect("discarded");
        let error = read(&failed).await.expect_err("discarded");
        assert!(matches!(error, SavepointError::Missing(_)), "{error}");
        verify(&complete).await.expect("the same request, later");
    }

    #[tokio::test]
    async fn a_savepoint_names_its_own_objects_and_nothing_to_commit() {
        let directory = tempfile::tempdir().expect("a directory");
        let source = source(&directory).await;
        source.put("7-1-aa", "state".into()).await.expect("written");
        let place = directory.path().join("savepoints");
        let path = path_of(
            &place.to_string_lossy(),
            "0a1b2c3d4e",
            "0123456789abcdef",
            7,
        );
        assert!(
            path.ends_with("savepoints/savepoint-0a1b2c-0123456789abcdef-7"),
            "{path}"
        );
        let inline = StateSegment {
            content: b"in place".to_vec(),
            ..StateSegment::default()
        };
        let taken = manifest(vec![segment("7-1-aa", b"state"), inline.clone()]);
        let without = write(&path, &taken, None).await.expect_err("no blob store");
        assert!(without.to_string().contains("no blob store"), "{without}");
        write(&path, &taken, Some(&source)).await.expect("written");

        let read = read(&path).await.expect("read");
        assert_eq!(verify(&path).await.expect("whole"), read);
        let object = read.regions[0].subtasks[0].segments[0].object.clone();
        let mut expected = manifest(vec![segment(&object, b"state"), inline]);
        expected.uncommitted.clear();
        assert_eq!(read, expected);
        let savepoint = SavepointStorage::open(&path).await.expect("opened");
        let state = savepoint.objects().get(&object).await.expect("read");
        assert_eq!(state, "state");
        // Positions and states without keys may be in objects, too.
        let mut others = manifest(Vec::new());
        let subtask = &mut others.regions[0].subtasks[0];
        let place = pieces(&taken.regions[0].subtasks[0]).find_map(Piece::place);
        subtask.positions.push(pb::SourcePosition {
            place: place.clone(),
            ..pb::SourcePosition::default()
        });
        subtask.operators.push(pb::OperatorState {
            place,
            ..pb::OperatorState::default()
        });
        let other = format!("{path}-other");
        write(&other, &others, Some(&source))
            .await
            .expect("written");
        let others = super::read(&other).await.expect("read");
        let named = pieces(&others.regions[0].subtasks[0]).map(|piece| piece.object());
        assert_eq!(named.collect::<Vec<_>>(), [Some(&*object); 2]);
        dispose(&path).await.expect("disposed");
        assert!(super::read(&path).await.is_err());
    }

    #[tokio::test]
    async fn without_objects_a_savepoint_needs_no_blob_store() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("one").to_string_lossy().into_owned();
        let taken = manifest(Vec::new());
        write(&path, &taken, None).await.expect("written");
        assert_eq!(verify(&path).await.expect("whole").number, 7);
    }

    #[tokio::test]
    async fn a_checkpoint_without_a_snapshot_of_each_region_is_not_copied() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("one").to_string_lossy().into_owned();
        let mut taken = manifest(Vec::new());
        taken.regions[0].kind = RegionSnapshotKind::FromOrigin.into();
        let error = write(&path, &taken, None).await.expect_err("no snapshot");
        assert!(
            error.to_string().contains("region 0 has no snapshot"),
            "{error}"
        );
        assert!(!directory.path().join("one").exists());
    }

    #[tokio::test]
    async fn a_manifest_that_names_what_is_not_listed_is_damaged() {
        let directory = tempfile::tempdir().expect("a directory");
        let source = source(&directory).await;
        source.put("7-1-aa", "state".into()).await.expect("written");
        for (object, what) in [("7-1-bb", "does not list"), ("", "beyond its 5")] {
            let path = directory.path().join("one").to_string_lossy().into_owned();
            let savepoint = SavepointStorage::open(&path).await.expect("opened");
            let ranges = ranges_of(&manifest(vec![segment("7-1-aa", b"state")]));
            let content = |names: &BTreeMap<String, String>| {
                let object = match object {
                    "" => &names["7-1-aa"],
                    object => object,
                };
                let longer = segment(object, b"longer state");
                manifest::encode(&manifest(vec![longer])).into()
            };
            savepoint
                .write(&source, &ranges, content)
                .await
                .expect("written");
            let error = read(&path).await.expect_err("damaged").to_string();
            assert!(error.contains(what), "{error}");
            dispose(&path).await.expect("disposed");
        }
    }
}
