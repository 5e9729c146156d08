//! Where the manifest of a checkpoint is kept: in the record of its job, or in an object that the record names. And
//! which checkpoints stay in the record of a job that has ended. Pure functions.

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
    fn a_checkpoint_is_retained_after_a_failure_and_by_setting_after_a_cancellation() {
        use pb::CheckpointRetention::{DeleteOnCancellation, RetainOnCancellation};
        use pb::JobStatus::{Canceled, Failed, Finished};
        assert!(is_retained(Failed, DeleteOnCancellation));
        assert!(is_retained(Canceled, RetainOnCancellation));
        assert!(!is_retained(Canceled, DeleteOnCancellation));
        assert!(!is_retained(Finished, RetainOnCancellation));
    }
}
