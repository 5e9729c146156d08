//! What the ledger counts as needed, and what as an orphan.

use super::*;

const JOB: JobId = JobId::from_bits(7);
const EPOCH: Epoch = Epoch::new(5);

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

/// The name of an object that the term of that epoch wrote for the job.
fn written_in(epoch: u64) -> Name {
    name(&format!("{JOB}-{epoch}-000000000000-00000000000000ab"))
}

fn upload() -> Name {
    name(&format!("{JOB}-upload-000000000000-00000000000000ab.0000"))
}

fn is_orphan(ledger: &BlobLedger, name: &Name) -> bool {
    ledger.is_orphan(name, &ClusterTag::default(), EPOCH)
}

#[test]
fn chunks_of_unknown_owners_and_of_unreadable_graphs_are_kept() {
    let owner = name(&JOB.to_string());
    let ledger = BlobLedger::default();
    let needs = |chunk: &Name| ledger.may_need_chunk(&owner, chunk);
    let (ours, other) = (name("set.0000"), name("other.0000"));
    assert!(!needs(&ours));
    ledger.note_graph(JOB, vec![ours.clone()], &pb::JobGraph::default());
    assert!(needs(&ours) && !needs(&other));
    ledger.note_unread_graph(JOB);
    assert!(needs(&other));
    ledger.forget_running(JOB);
    assert!(!needs(&ours));
    ledger.note_description(JOB, vec![ours.clone()]);
    ledger.forget_running(JOB);
    assert!(needs(&ours) && ledger.objects_of(JOB).chunks.is_empty());
    assert_eq!(ledger.forget_descriptions(&[JOB]).len(), 1);
    assert!(!needs(&ours));
    assert!(ledger.may_need_chunk(&name("no-job"), &ours));
}

#[test]
fn a_blob_is_an_orphan_once_no_record_of_an_earlier_term_names_it() {
    let ledger = BlobLedger::default();
    let (earlier, present) = (written_in(4), written_in(5));
    assert!(is_orphan(&ledger, &earlier));
    assert!(!is_orphan(&ledger, &present), "it may be named soon");
    assert!(!is_orphan(&ledger, &name("of-another-program")));
    let other_cluster = earlier.as_str().replace("-000000000000-", "-00000000000f-");
    assert!(!is_orphan(&ledger, &name(&other_cluster)));
    ledger.note_blob(JOB, kinds::RESULTS, Some(earlier.clone()));
    assert!(!is_orphan(&ledger, &earlier));
    let replaced = ledger.replace_blobs(vec![(JOB, kinds::RESULTS, Some(present))]);
    assert_eq!(replaced, std::slice::from_ref(&earlier));
    assert!(is_orphan(&ledger, &earlier));
    ledger.note_unreadable_result(JOB);
    assert!(!is_orphan(&ledger, &earlier), "the result may name it");
}

#[test]
fn an_upload_is_kept_for_a_protected_job_or_gets_a_tombstone_and_never_both() {
    let ledger = BlobLedger::default();
    assert!(is_orphan(&ledger, &upload()));
    // A submission is first: the collection marks nothing.
    assert!(ledger.protect(JOB), "it is the first one");
    assert!(!ledger.protect(JOB));
    assert!(!is_orphan(&ledger, &upload()));
    assert!(ledger.add_tombstones(&[upload()]).is_empty());
    assert!(!ledger.has_tombstone(&[upload()]));
    // The collection is first: the submission finds the tombstone.
    ledger.unprotect(JOB);
    assert_eq!(ledger.add_tombstones(&[upload()]), [upload()]);
    assert!(!is_orphan(&ledger, &upload()), "its deletion has begun");
    assert!(ledger.protect(JOB));
    assert!(ledger.has_tombstone(&[upload()]));
    ledger.forget_tombstones(&[upload()]);
    assert!(ledger.tombstones().is_empty());
}
