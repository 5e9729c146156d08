//! Rules about the manifests of checkpoints that several components share: the size up to which one stands in the
//! record of its job and not in an object, the checkpoints that stay in the record of a job that has ended, and the
//! files of sinks that a manifest names. Pure functions.

use std::collections::BTreeSet;

use tanist_proto::v1 as pb;

use super::savepoints::is_open;

/// Size in bytes up to which a manifest stands in the record if there is a blob store for larger ones.
pub const INLINE: usize = 8 * 1024;
/// The same if there is none: larger manifests are declined.
pub const INLINE_ALONE: usize = 64 * 1024;

/// A name for the object of the manifest with this number. It is used once.
pub fn object_name(number: u64) -> String {
    format!("manifest-{number}-{:016x}", rand::random::<u64>())
}

/// Whether the newest checkpoint of a job stays when it ends with this status.
pub fn is_retained(status: pb::JobStatus, retention: pb::CheckpointRetention) -> bool {
    match status {
        pb::JobStatus::Failed => true,
        pb::JobStatus::Canceled => retention == pb::CheckpointRetention::RetainOnCancellation,
        _ => false,
    }
}

/// The record of a job that has ended: the newest checkpoint alone stays, if `is_kept`, and all else is garbage. That
/// may be the one that the job began with. A savepoint is not needed any more. Requests for savepoints have failed.
pub fn ended(mut record: pb::JobCheckpoints, is_kept: bool) -> pb::JobCheckpoints {
    record.floor = record.next;
    record.origin = None;
    for request in record.requests.iter_mut().filter(|it| is_open(it)) {
        request.set_progress(pb::SavepointProgress::Failed);
        "the job has ended".clone_into(&mut request.outcome);
    }
    subsume(&mut record, usize::from(is_kept), &BTreeSet::new());
    record
}

/// Moves all but the newest `retained` completed checkpoints to `removing`, except those with these numbers.
pub fn subsume(record: &mut pb::JobCheckpoints, retained: usize, pinned: &BTreeSet<u64>) {
    let surplus = record.retained.len().saturating_sub(retained);
    let newer = record.retained.split_off(surplus);
    let older = record.retained.drain(..);
    let (kept, subsumed): (Vec<_>, Vec<_>) =
        older.partition(|completed| pinned.contains(&completed.number));
    record.retained = kept.into_iter().chain(newer).collect();
    let subsumed = subsumed.into_iter().map(|it| pb::SubsumedCheckpoint {
        number: it.number,
        manifest: it.manifest,
    });
    record.removing.extend(subsumed);
}

/// Paths of the pending files of sinks that the snapshots of a manifest name, without those that its commit makes
/// visible.
pub fn hidden_files(manifest: &pb::CheckpointManifest) -> Vec<Vec<u8>> {
    let subtasks = manifest.regions.iter().flat_map(|it| &it.subtasks);
    let of_subtask = |subtask: &pb::SubtaskSnapshot| {
        let output = subtask.output.iter();
        let output = output.map(|it| it.pending_path.clone().into_bytes());
        subtask
            .files
            .iter()
            .cloned()
            .chain(output)
            .collect::<Vec<_>>()
    };
    subtasks.flat_map(of_subtask).collect()
}

/// Gives [`hidden_files`] other paths, in the same order.
pub fn rename_hidden_files(manifest: &mut pb::CheckpointManifest, paths: Vec<Vec<u8>>) {
    let mut paths = paths.into_iter();
    let regions = manifest.regions.iter_mut();
    for subtask in regions.flat_map(|it| &mut it.subtasks) {
        for (file, path) in subtask.files.iter_mut().zip(&mut paths) {
            *file = path;
        }
        for (output, path) in subtask.output.iter_mut().zip(&mut paths) {
            output.pending_path = String::from_utf8_lossy(&path).into_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(number: u64) -> pb::CompletedCheckpoint {
        pb::CompletedCheckpoint {
            number,
            ..pb::CompletedCheckpoint::default()
        }
    }

    #[test]
    fn the_newest_checkpoint_alone_outlives_its_job() {
        let record = pb::JobCheckpoints {
            next: 17,
            floor: 3,
            retained: vec![completed(5), completed(7)],
            origin: Some(pb::CheckpointOrigin::default()),
            requests: vec![pb::SavepointRequest {
                number: 5,
                progress: pb::SavepointProgress::Copying.into(),
                ..pb::SavepointRequest::default()
            }],
            ..pb::JobCheckpoints::default()
        };
        let numbers = |record: &pb::JobCheckpoints| {
            let removing = record.removing.iter().map(|it| it.number);
            let retained = record.retained.iter().map(|it| it.number);
            (retained.collect::<Vec<_>>(), removing.collect::<Vec<_>>())
        };
        let kept = ended(record.clone(), true);
        assert_eq!((numbers(&kept), kept.floor), ((vec![7], vec![5]), 17));
        assert_eq!(kept.origin, None);
        let request = &kept.requests[0];
        assert_eq!(request.progress(), pb::SavepointProgress::Failed);
        assert_eq!(numbers(&ended(record, false)), (vec![], vec![5, 7]));
    }

    #[test]
    fn hidden_files_are_renamed_in_the_order_in_which_they_are_listed() {
        let subtask = |files: [&str; 2], output: &str| pb::SubtaskSnapshot {
            files: files.map(|it| it.as_bytes().to_vec()).to_vec(),
            output: vec![pb::Committable {
                pending_path: output.to_owned(),
                final_path: "visible".to_owned(),
            }],
            ..pb::SubtaskSnapshot::default()
        };
        let manifest = |subtasks| pb::CheckpointManifest {
            regions: vec![pb::RegionSnapshot {
                subtasks,
                ..pb::RegionSnapshot::default()
            }],
            ..pb::CheckpointManifest::default()
        };
        let mut renamed = manifest(vec![subtask(["a", "b"], "c"), subtask(["d", "e"], "f")]);
        let found = hidden_files(&renamed);
        assert_eq!(found, ["a", "b", "c", "d", "e", "f"].map(str::as_bytes));
        let given = found.into_iter().map(|it| [b"x-", &*it].concat()).collect();
        rename_hidden_files(&mut renamed, given);
        let expected = vec![
            subtask(["x-a", "x-b"], "x-c"),
            subtask(["x-d", "x-e"], "x-f"),
        ];
        assert_eq!(renamed, manifest(expected));
    }

    #[test]
    fn a_checkpoint_is_retained_after_a_failure_and_by_setting_after_a_cancellation() {
        use pb::CheckpointRetention::{DeleteOnCancellation, RetainOnCancellation};
        use pb::JobStatus::{Canceled, Failed, Finished};
        assert!(is_retained(Failed, DeleteOnCancellation));
        assert!(is_retained(Canceled, RetainOnCancellation));
        assert!(!is_retained(Canceled, DeleteOnCancellation));
        assert!(!is_retained(Finished, RetainOnCancellation));
    }
}
