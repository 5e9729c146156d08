//! A storage in a directory that appears and disappears like a mount, used by leaders of one store and of its copy.

use std::path::PathBuf;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use tanist_gateway::kinds;
use tanist_gateway::persistence::{JobStateStore as _, PersistError};
use tanist_ha::blob::{BlobOptions, BlobPlaces, BlobStore};
use tanist_ha::keys::Key;
use tanist_ha::memory::MemoryCluster;
use tanist_ha::records::store::RecordStore;
use tanist_ha::store::Write;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::place::QUIET_CHECKS;
use super::*;
use crate::DispatcherOptions;
use crate::JobStore;
use crate::job_store::records::name_of;
use crate::tests::scripted::{JOB, Leader, large_name, submission};

const OTHER: JobId = JobId::from_bits(8);

/// The mount point of the storage, in a directory that stays.
struct Mount {
    root: tempfile::TempDir,
}

impl Mount {
    fn new() -> Mount {
        let root = tempfile::tempdir().expect("a directory");
        Mount { root }
    }

    fn path(&self) -> PathBuf {
        self.root.path().join("mount")
    }

    fn unmount(&self) {
        std::fs::rename(self.path(), self.root.path().join("away")).expect("mounted");
        std::fs::create_dir(self.path()).expect("made");
    }

    fn mount(&self) {
        std::fs::remove_dir(self.path()).expect("nothing is there");
        std::fs::rename(self.root.path().join("away"), self.path()).expect("unmounted");
    }

    /// Returns the names of all objects.
    fn listed(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).expect("there");
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let entry = entry.expect("readable");
            entry.file_name().to_string_lossy().into_owned()
        };
        entries.map(name).collect()
    }
}

fn options_of(mount: &Mount) -> BlobOptions {
    let url = mount.path().to_string_lossy().into_owned();
    BlobOptions { url, shared: true }
}

/// A leader with a guarded storage that it has not begun yet.
async fn leader(cluster: &MemoryCluster, name: &str, mount: &Mount) -> (Leader, StorageUser) {
    let opened = BlobStore::open(&options_of(mount)).await.expect("opened");
    leader_with(cluster, name, opened).await
}

async fn leader_with(
    cluster: &MemoryCluster,
    name: &str,
    opened: BlobStore,
) -> (Leader, StorageUser) {
    let leader = Leader::with(
        cluster,
        name,
        Some(Arc::new(opened.guarded())),
        DispatcherOptions::default(),
    )
    .await;
    let user = StorageUser::of(&leader.session, "default");
    (leader, user)
}

/// A leader that has begun or recognized the storage.
async fn using(cluster: &MemoryCluster, name: &str, mount: &Mount) -> (Leader, StorageUser) {
    let (leader, user) = leader(cluster, name, mount).await;
    expect(&leader.store).await;
    leader.store.storage().begin(&user).await.expect("begun");
    (leader, user)
}

/// Reads the storage records of the store.
async fn expect(store: &JobStore) {
    let records: Records = known_to(store).await.into_iter().collect();
    store.storage().load(&records).await;
}

/// Returns the storages that a store has records of.
async fn known_to(store: &JobStore) -> Vec<(Key, Bytes)> {
    let listed = store.coordination_store().list(kinds::STORAGES, None, 10);
    let items = listed.await.expect("listed").items.into_iter();
    let keyed = items.map(|(name, value)| (Key::new(kinds::STORAGES, name), value));
    keyed.collect()
}

/// Submits a job whose graph becomes a blob.
async fn submit_large(leader: &Leader, job: JobId) -> Result<(), JobStoreError> {
    let mut graph = submission(job).graph;
    graph.name = large_name();
    let state = tanist_proto::v1::JobState {
        job_id: job.to_string(),
        ..Default::default()
    };
    leader.store.put_submission(&graph, &state).await
}

fn trouble(store: &JobStore) -> Option<String> {
    store.storage().trouble().borrow().clone()
}

#[tokio::test]
async fn a_submission_that_relies_on_a_storage_that_lost_its_mount_is_refused_and_nothing_written()
{
    let (mount, cluster) = (Mount::new(), MemoryCluster::default());
    let (a, user) = using(&cluster, "a", &mount).await;
    submit_large(&a, JOB).await.expect("acknowledged");
    mount.unmount();
    let refused = submit_large(&a, OTHER).await.expect_err("not mounted");
    assert!(refused.to_string().contains("mount it again"), "{refused}");
    assert_eq!(mount.listed(), Vec::<String>::new());
    a.store.storage().check(&user).await.expect("looked");
    assert!(trouble(&a.store).is_some_and(|it| it.contains("is missing")));
    let swept = a
        .store
        .orphan_gc()
        .sweep(Duration::ZERO, Duration::ZERO)
        .await;
    assert_eq!(swept.expect("nothing to do"), 0);

    // The next leader knows that the storage was begun, and does not begin it again.
    lose(&a);
    let (b, user) = leader(&cluster, "b", &mount).await;
    expect(&b.store).await;
    b.store
        .storage()
        .begin(&user)
        .await
        .expect_err("not mounted");
    assert_eq!(mount.listed(), Vec::<String>::new());
    assert!(trouble(&b.store).is_some());
    mount.mount();
    b.store.storage().check(&user).await.expect("mounted");
    assert_eq!(trouble(&b.store), None);
    submit_large(&b, OTHER).await.expect("acknowledged");
}

/// The leader is cut off, and its lease expires.
fn lose(leader: &Leader) {
    leader.cluster.partition(&leader.process);
    leader.cluster.expire(&leader.process);
}

#[tokio::test]
async fn a_leader_that_died_before_the_storage_was_begun_leaves_it_to_the_next_one() {
    let (mount, cluster) = (Mount::new(), MemoryCluster::default());
    let (a, user) = leader(&cluster, "a", &mount).await;
    // The leader dies between the record and the marker.
    let mut record = StorageRecord::new(&mount.path().to_string_lossy());
    let confirmation = record.confirm();
    a.store
        .storage()
        .blobs
        .put_record(&record)
        .await
        .expect("decided");
    assert!(!mount.path().exists());
    let (b, user_of_b) = {
        lose(&a);
        using(&cluster, "b", &mount).await
    };
    submit_large(&b, JOB).await.expect("acknowledged");
    // It was only frozen, and writes the marker late: the marker is one of ours.
    let blobs = b.store.blobs().expect("there are some");
    let late = a
        .store
        .storage()
        .blobs
        .write_marker(blobs, &user, &record, &confirmation);
    late.await.expect("written");
    b.store.storage().check(&user_of_b).await.expect("looked");
    assert_eq!(trouble(&b.store), None);
    submit_large(&b, OTHER).await.expect("acknowledged");
}

/// A leader, and a copy of its store, which has a leader too.
struct Copied {
    production: Leader,
    of_production: StorageUser,
    copy: JobStore,
    of_copy: StorageUser,
    _leads_the_copy: Leader,
}

impl Copied {
    async fn new(mount: &Mount) -> Copied {
        let (production, of_production) = using(&MemoryCluster::default(), "a", mount).await;
        let (other, _) = leader(&MemoryCluster::default(), "b", mount).await;
        for (key, value) in known_to(&production.store).await {
            let put = other
                .store
                .pipeline()
                .commit(vec![Write::Put { key, value }]);
            put.await.expect("copied");
        }
        // A copy has the incarnation of its original.
        let url = mount.path().to_string_lossy().into_owned();
        let options = BlobOptions { url, shared: true };
        let opened = BlobStore::open(&options).await.expect("opened");
        let blobs = opened
            .of_cluster(production.session.incarnation())
            .guarded();
        let records = RecordStore::new(other.records.clone(), Some(Arc::new(blobs)), 256);
        let copy = JobStore::new(
            records,
            other.store.pipeline().clone(),
            other.store.records.epoch(),
        );
        expect(&copy).await;
        let of_copy = StorageUser {
            incarnation: of_production.incarnation.clone(),
            ..StorageUser::of(&other.session, "default")
        };
        Copied {
            production,
            of_production,
            copy,
            of_copy,
            _leads_the_copy: other,
        }
    }
}

#[tokio::test]
async fn a_copy_of_the_store_and_production_delete_nothing_as_long_as_both_use_the_storage() {
    let mount = Mount::new();
    let both = Copied::new(&mount).await;
    let (production, copy) = (&*both.production.store, &both.copy);
    // The copy can't notice it by itself: it has the same record.
    copy.storage()
        .begin(&both.of_copy)
        .await
        .expect("recognized");
    // An object that nothing points to, as far as either leader knows.
    let blobs = copy.blobs().expect("there are some");
    let bytes = bytes::Bytes::from_static(b"record");
    let orphan = blobs.put(&name_of(OTHER), Epoch::new(0), bytes).await;
    let orphan = orphan.expect("put").name.to_string();
    let look = async |store: &JobStore, user| {
        store.storage().check(user).await.expect("looked");
    };
    look(production, &both.of_production).await;
    let told = trouble(production).expect("the copy was seen");
    assert!(told.contains("process b has marked it"), "{told}");
    for _ in 0..2 {
        for store in [production, copy] {
            let swept = store
                .orphan_gc()
                .sweep(Duration::ZERO, Duration::ZERO)
                .await;
            assert_eq!(swept.expect("nothing to do"), 0);
            assert!(mount.listed().contains(&orphan), "{:?}", mount.listed());
        }
        look(copy, &both.of_copy).await;
        look(production, &both.of_production).await;
    }
    assert!(trouble(copy).is_some(), "production was seen");

    // The copy has stopped.
    for _ in 0..QUIET_CHECKS {
        look(production, &both.of_production).await;
    }
    assert_eq!(trouble(production), None);
    let swept = production
        .orphan_gc()
        .sweep(Duration::ZERO, Duration::ZERO)
        .await;
    assert_eq!(swept.expect("swept"), 1);
}

#[tokio::test]
async fn a_storage_is_not_swept_before_the_term_has_used_it_alone_for_a_while() {
    let (mount, cluster) = (Mount::new(), MemoryCluster::default());
    let (a, _) = using(&cluster, "a", &mount).await;
    assert!(
        !a.store
            .storage()
            .is_exclusive(Duration::from_secs(60))
            .await
            .expect("looked")
    );
    assert!(
        a.store
            .storage()
            .is_exclusive(Duration::ZERO)
            .await
            .expect("looked")
    );
}

#[tokio::test]
async fn a_term_deletes_objects_as_soon_as_the_marker_has_its_confirmation() {
    let (mount, cluster) = (Mount::new(), MemoryCluster::default());
    let (a, _) = using(&cluster, "a", &mount).await;
    lose(&a);
    let (b, user) = leader(&cluster, "b", &mount).await;
    expect(&b.store).await;
    let blobs = b.store.blobs().expect("there are some");
    let before = blobs.marker().await.expect("readable");
    let marker = mount
        .path()
        .join(blobs.marker_name().expect("one").as_str());
    let bytes_before = std::fs::read(&marker).expect("there");
    let mut begin = std::pin::pin!(b.store.storage().begin(&user));
    // Stops when the new marker is there, before `begin` goes on.
    let until_marked = std::future::poll_fn(|context| {
        if std::fs::read(&marker).expect("there") != bytes_before {
            return Poll::Ready(());
        }
        let begun = begin.as_mut().poll(context);
        assert!(begun.is_pending(), "{begun:?}");
        Poll::Pending
    });
    until_marked.await;
    assert_ne!(blobs.marker().await.expect("readable"), before);
    let objects = blobs.checkpoints(&name_of(JOB));
    objects.remove("1-1-00").await.expect("not refused");
    begin.await.expect("begun");
}

#[tokio::test]
async fn a_storage_is_known_under_each_path_where_it_is_mounted() {
    let (mount, cluster) = (Mount::new(), MemoryCluster::default());
    let (a, _) = using(&cluster, "a", &mount).await;
    lose(&a);
    let elsewhere = Mount::new();
    std::os::unix::fs::symlink(mount.path(), elsewhere.path()).expect("linked");
    let (b, _) = using(&cluster, "b", &elsewhere).await;
    submit_large(&b, JOB).await.expect("acknowledged");
    lose(&b);
    let (c, _) = using(&cluster, "c", &mount).await;
    submit_large(&c, OTHER).await.expect("acknowledged");
    let known = c.store.storage().blobs.known.lock().await.all.len();
    assert_eq!(known, 1);
}

#[tokio::test]
async fn a_storage_whose_marker_this_store_has_never_known_is_not_begun() {
    let (mount, cluster) = (Mount::new(), MemoryCluster::default());
    let (a, user) = leader(&cluster, "a", &mount).await;
    let blobs = a.store.blobs().expect("there are some");
    blobs.make_directory().await.expect("made");
    let mut record = StorageRecord::new("elsewhere");
    let confirmation = record.confirm();
    let marked = a
        .store
        .storage()
        .blobs
        .write_marker(blobs, &user, &record, &confirmation);
    marked.await.expect("written");
    let refused = a
        .store
        .storage()
        .begin(&user)
        .await
        .expect_err("a stranger's");
    assert!(refused.to_string().contains("another cluster"), "{refused}");
    submit_large(&a, JOB).await.expect_err("not begun");
}

#[tokio::test]
async fn a_place_of_checkpoints_that_lost_its_mount_is_told_and_takes_nothing() {
    let (mount, checkpoints) = (Mount::new(), Mount::new());
    let places = BlobPlaces {
        blobs: options_of(&mount),
        checkpoints: Some(options_of(&checkpoints)),
    };
    let cluster = MemoryCluster::default();
    let opened = places.open().await.expect("opened");
    let (a, user) = leader_with(&cluster, "a", opened).await;
    a.store.storage().begin(&user).await.expect("begun");
    let objects = a.store.blobs().expect("there are some");
    let objects = objects.checkpoints(&name_of(JOB));
    let bytes = Bytes::from_static(b"state");
    objects.put("1-1-00", bytes.clone()).await.expect("written");
    assert!(checkpoints.listed().contains(&"checkpoints".to_owned()));
    assert!(!mount.listed().contains(&"checkpoints".to_owned()));

    // Another leader knows both places.
    lose(&a);
    let opened = places.open().await.expect("opened");
    let (b, user) = leader_with(&cluster, "b", opened).await;
    expect(&b.store).await;
    checkpoints.unmount();
    b.store.storage().begin(&user).await.expect_err("one lost");
    let told = trouble(&b.store).expect("told");
    let path = checkpoints.path().to_string_lossy().into_owned();
    assert!(
        told.contains(&path) && told.contains("mount it again"),
        "{told}"
    );
    let objects = b.store.blobs().expect("there are some");
    let objects = objects.checkpoints(&name_of(JOB));
    objects.put("2-1-00", bytes).await.expect_err("not mounted");
    objects.remove("1-1-00").await.expect_err("not mounted");
    assert_eq!(checkpoints.listed(), Vec::<String>::new());
    // Other objects are where they were.
    submit_large(&b, JOB).await.expect("acknowledged");
    checkpoints.mount();
    b.store.storage().check(&user).await.expect("mounted");
    assert_eq!(trouble(&b.store), None);
    objects.remove("1-1-00").await.expect("removed");
}

#[tokio::test]
async fn a_record_of_checkpoints_that_needs_the_storage_does_not_wait_for_it_long() {
    let (mount, cluster) = (Mount::new(), MemoryCluster::default());
    let (a, _) = using(&cluster, "a", &mount).await;
    submit_large(&a, JOB).await.expect("acknowledged");
    let record = pb::JobCheckpoints {
        job_id: JOB.to_string(),
        started_from: large_name(),
        ..pb::JobCheckpoints::default()
    };
    mount.unmount();
    let refused = a.store.put_checkpoints(&record).await;
    let Err(PersistError::NoBlobs(why)) = refused else {
        panic!("{refused:?}");
    };
    let place = mount.path().display().to_string();
    assert!(why.contains(&place), "{why}");
    mount.mount();
    let written = a.store.put_checkpoints(&record).await;
    written.expect("the storage is back");
}
