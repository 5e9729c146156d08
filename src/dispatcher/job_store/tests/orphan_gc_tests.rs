//! Objects that nothing points to, over a directory and the memory store.

use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::kinds;
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::blob::{BlobStore, UploadPointer};
use tanist_ha::election::Epoch;
use tanist_ha::keys::Name;
use tanist_ha::memory::MemoryCluster;
use tanist_ha::store::CoordinationStore as _;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use crate::DispatcherOptions;
use crate::handle::Command;
use crate::job_store::error::JobStoreError;
use crate::job_store::records::name_of;
use crate::tests::scripted::{End, JOB, Leader, blobs, result_of, submission};

const OTHER: JobId = JobId::from_bits(8);

async fn leader(cluster: &MemoryCluster, name: &str, blobs: &Arc<BlobStore>) -> Leader {
    let options = DispatcherOptions::default();
    Leader::with(cluster, name, Some(blobs.clone()), options).await
}

async fn upload(leader: &Leader, job: JobId) -> UploadPointer {
    let blobs = leader.store.records.blobs().expect("there are some");
    let mut upload = blobs.upload(&name_of(job)).expect("a name");
    upload.write(b"content").await.expect("written");
    upload.finish().await.expect("finished")
}

async fn uploaded(leader: &Leader, job: JobId) -> Name {
    let pointer = upload(leader, job).await;
    pointer.piece_names().expect("few").remove(0)
}

/// Submits the job with an uploaded file.
async fn submit_with(leader: &Leader, pointer: &UploadPointer) -> GatewayResult<()> {
    let mut submission = submission(JOB);
    submission.graph.artifacts.push(pb::Artifact {
        name: "model".to_owned(),
        sha256: pointer.sha256.as_bytes().to_vec().into(),
        uploaded: Some(pb::UploadedContent {
            object: pointer.name.to_string(),
            pieces: pointer.pieces,
            size: pointer.size,
        }),
        ..pb::Artifact::default()
    });
    let submission = Box::new(submission);
    let command = |reply| Command::Submit { submission, reply };
    leader.dispatcher.ask(command).await.map(drop)
}

async fn there(blobs: &BlobStore) -> Vec<Name> {
    let listed = blobs.list().await.expect("listed");
    listed.into_iter().map(|entry| entry.name).collect()
}

#[tokio::test]
async fn only_what_nothing_points_to_is_removed_and_only_of_this_cluster() {
    let (_directory, blobs) = blobs().await;
    let cluster = MemoryCluster::default();
    let a = leader(&cluster, "a", &blobs).await;
    a.submit(JOB).await.expect("acknowledged");
    let of_running = uploaded(&a, JOB).await;
    let of_nobody = uploaded(&a, OTHER).await;
    let own = a.store.records.blobs().expect("there are some").clone();
    let bytes = bytes::Bytes::from_static(b"record");
    let other = name_of(OTHER);
    let earlier = own.put(&other, Epoch::new(0), bytes.clone()).await;
    let earlier = earlier.expect("put").name;
    let of_this_term = own
        .put(&other, a.store.records.epoch(), bytes.clone())
        .await;
    let of_this_term = of_this_term.expect("put").name;
    let of_strangers = blobs.put(&other, Epoch::new(0), bytes).await;
    let of_strangers = of_strangers.expect("put").name;
    let swept = a
        .store
        .orphan_gc()
        .sweep(Duration::from_secs(3600), Duration::ZERO)
        .await;
    assert_eq!(swept.expect("swept"), 0, "all are young");
    let swept = a
        .store
        .orphan_gc()
        .sweep(Duration::ZERO, Duration::ZERO)
        .await
        .expect("swept");
    assert_eq!(swept, 2);
    let left = there(&blobs).await;
    for kept in [of_running, of_this_term, of_strangers] {
        assert!(left.contains(&kept), "{kept}");
    }
    assert!(!left.contains(&of_nobody) && !left.contains(&earlier));
    let tombstones = a.records.list(kinds::BLOB_TOMBSTONES, None, 10).await;
    assert!(tombstones.expect("readable").items.is_empty());
}

#[tokio::test]
async fn an_object_that_can_not_be_removed_holds_no_other_one_up() {
    let (directory, blobs) = blobs().await;
    let cluster = MemoryCluster::default();
    let a = leader(&cluster, "a", &blobs).await;
    // A non-empty directory in place of an object.
    let stays = Name::new("0-stays").expect("a name");
    let below = directory.path().join(stays.as_str());
    std::fs::create_dir_all(below.join("below")).expect("made");
    let goes = uploaded(&a, OTHER).await;
    for name in [&stays, &goes] {
        a.store.ledger.note_tombstone(name.clone());
    }
    let found_later = uploaded(&a, OTHER).await;
    let refused = a
        .store
        .orphan_gc()
        .sweep(Duration::ZERO, Duration::ZERO)
        .await;
    assert!(
        matches!(refused, Err(JobStoreError::Refused(_))),
        "{refused:?}"
    );
    let left = there(&blobs).await;
    assert!(
        !left.contains(&goes) && !left.contains(&found_later),
        "{left:?}"
    );
    assert!(a.store.ledger.has_tombstone(std::slice::from_ref(&stays)));
    assert!(!a.store.ledger.has_tombstone(std::slice::from_ref(&goes)));
}

#[tokio::test]
async fn a_deposed_leader_sweeps_nothing() {
    let (_directory, blobs) = blobs().await;
    let cluster = MemoryCluster::default();
    let a = leader(&cluster, "a", &blobs).await;
    let upload = uploaded(&a, OTHER).await;
    cluster.expire(&a.process);
    let _b = leader(&cluster, "b", &blobs).await;
    let refused = a
        .store
        .orphan_gc()
        .sweep(Duration::ZERO, Duration::ZERO)
        .await;
    assert!(
        matches!(
            refused,
            Err(JobStoreError::NotWritten | JobStoreError::Unknown)
        ),
        "{refused:?}"
    );
    assert_eq!(there(&blobs).await, [upload]);
}

#[tokio::test]
async fn blobs_with_a_tombstone_of_a_predecessor_are_known_and_go() {
    let (_directory, blobs) = blobs().await;
    let cluster = MemoryCluster::default();
    let a = leader(&cluster, "a", &blobs).await;
    let upload = uploaded(&a, OTHER).await;
    // The leader died between the record and the deletion.
    let put = tanist_ha::store::Write::Put {
        key: tanist_ha::keys::Key::new(kinds::BLOB_TOMBSTONES, upload.clone()),
        value: super::empty_record(),
    };
    a.store.pipeline().commit(vec![put]).await.expect("written");
    a.dispatcher.stop().await;
    cluster.partition(&a.process);
    cluster.expire(&a.process);
    let b = leader(&cluster, "b", &blobs).await;
    assert!(b.store.ledger.has_tombstone(std::slice::from_ref(&upload)));
    b.store
        .orphan_gc()
        .sweep(Duration::from_secs(3600), Duration::ZERO)
        .await
        .expect("swept");
    assert!(there(&blobs).await.is_empty());
    assert!(!b.store.ledger.has_tombstone(std::slice::from_ref(&upload)));
    let tombstones = b.records.list(kinds::BLOB_TOMBSTONES, None, 10).await;
    assert!(tombstones.expect("readable").items.is_empty());
}

#[tokio::test]
async fn what_was_uploaded_stays_as_long_as_its_job_and_goes_with_it() {
    let (_directory, blobs) = blobs().await;
    let cluster = MemoryCluster::default();
    let a = leader(&cluster, "a", &blobs).await;
    let pointer = upload(&a, JOB).await;
    // Upload of a try that was aborted.
    uploaded(&a, JOB).await;
    submit_with(&a, &pointer).await.expect("acknowledged");
    a.dispatcher.stop().await;
    cluster.partition(&a.process);
    cluster.expire(&a.process);
    let b = leader(&cluster, "b", &blobs).await;
    assert_eq!(
        b.store
            .orphan_gc()
            .sweep(Duration::ZERO, Duration::ZERO)
            .await
            .expect("swept"),
        0
    );
    assert_eq!(there(&blobs).await.len(), 2, "both are of a job that runs");
    b.end_last(End::Result(Box::new(result_of(JOB))));
    b.wait_for(JOB, pb::JobStatus::Finished).await;
    for _ in 0..1000 {
        b.store
            .orphan_gc()
            .sweep(Duration::ZERO, Duration::ZERO)
            .await
            .expect("swept");
        if there(&blobs).await.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("left behind: {:?}", there(&blobs).await);
}

#[tokio::test]
async fn a_submission_that_names_an_upload_which_is_gone_or_about_to_go_is_refused() {
    let (_directory, blobs) = blobs().await;
    let cluster = MemoryCluster::default();
    let a = leader(&cluster, "a", &blobs).await;
    let pointer = upload(&a, JOB).await;
    let piece = pointer.piece_names().expect("few").remove(0);
    a.store.ledger.note_tombstone(piece.clone());
    let refused = submit_with(&a, &pointer).await.expect_err("refused");
    assert!(refused.to_string().contains("too long ago"), "{refused}");
    assert!(matches!(refused, GatewayError::Invalid(_)));
    a.store
        .orphan_gc()
        .sweep(Duration::from_secs(3600), Duration::ZERO)
        .await
        .expect("swept");
    let gone = submit_with(&a, &pointer).await.expect_err("refused");
    assert!(gone.to_string().contains("not there any more"), "{gone}");
    // The refused job holds nothing: its unused uploads are swept.
    uploaded(&a, JOB).await;
    assert_eq!(
        a.store
            .orphan_gc()
            .sweep(Duration::ZERO, Duration::ZERO)
            .await
            .expect("swept"),
        1
    );
    let again = upload(&a, JOB).await;
    submit_with(&a, &again).await.expect("acknowledged");
}
