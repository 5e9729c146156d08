//! Markers in a directory that is moved away and back, like a mount.

use bytes::Bytes;

use super::*;
use crate::blob::BlobOptions;
use crate::election::{ClusterIncarnation, Epoch};

fn marker(storage: &str, confirmation: &str) -> Marker {
    Marker {
        storage: storage.to_owned(),
        cluster: "default".to_owned(),
        incarnation: "one".to_owned(),
        epoch: 1,
        process: "jm-1".to_owned(),
        confirmation: confirmation.to_owned(),
    }
}

async fn open(root: &tempfile::TempDir) -> BlobStore {
    let url = root.path().join("mount").to_string_lossy().into_owned();
    let options = BlobOptions { url, shared: true };
    let store = BlobStore::open(&options).await.expect("opened");
    store.of_cluster(&ClusterIncarnation::new("one"))
}

/// A store that was begun as `s`.
async fn begun(root: &tempfile::TempDir) -> BlobStore {
    let store = open(root).await.guarded();
    store.make_directory().await.expect("made");
    store.put_marker(&marker("s", "c1")).await.expect("put");
    store.rely_on("s", &["c1".to_owned()]);
    store
}

fn job() -> Name {
    Name::new("0a1b").expect("a name")
}

async fn put(store: &BlobStore) -> Result<super::super::BlobPointer> {
    let bytes = Bytes::from_static(b"state");
    store.put(&job(), Epoch::new(1), bytes).await
}

#[tokio::test]
async fn a_mount_that_is_lost_takes_nothing_is_not_made_again_and_loses_nothing() {
    let root = tempfile::tempdir().expect("a directory");
    let store = begun(&root).await;
    let pointer = put(&store).await.expect("taken");
    let (mount, away) = (root.path().join("mount"), root.path().join("away"));
    std::fs::rename(&mount, &away).expect("unmounted");

    let refused = put(&store).await.expect_err("not mounted");
    assert!(
        refused.to_string().contains("is missing there"),
        "{refused}"
    );
    assert_eq!(refused.outcome(), crate::Outcome::Transient);
    let upload = open(&root).await.guarded_by_presence().upload(&job());
    let refused = upload.expect("a name").finish().await;
    refused.expect_err("not mounted");
    let unread = store.get(&pointer).await.expect_err("not mounted");
    assert_eq!(unread.outcome(), crate::Outcome::Transient, "{unread}");
    store.delete(&pointer.name).await.expect_err("not mounted");
    assert!(!mount.exists(), "it was made again");
    // The mount point usually exists.
    std::fs::create_dir(&mount).expect("made");
    put(&store).await.expect_err("not mounted");
    let left = std::fs::read_dir(&mount).expect("there").count();
    assert_eq!(left, 0, "something was written");

    std::fs::remove_dir(&mount).expect("empty");
    std::fs::rename(&away, &mount).expect("mounted");
    store.get(&pointer).await.expect("read");
    put(&store).await.expect("taken");
    store.delete(&pointer.name).await.expect("deleted");
}

#[tokio::test]
async fn where_another_clusters_leader_has_confirmed_it_nothing_is_deleted() {
    let root = tempfile::tempdir().expect("a directory");
    let store = begun(&root).await;
    let pointer = put(&store).await.expect("taken");
    store.put_marker(&marker("s", "c2")).await.expect("put");
    let refused = store.delete(&pointer.name).await.expect_err("a stranger's");
    assert!(refused.to_string().contains("jm-1"), "{refused}");
    put(&store).await.expect("names are never given twice");
    store.rely_on("s", &["c1".to_owned(), "c2".to_owned()]);
    store.set_contested(true);
    store
        .delete(&pointer.name)
        .await
        .expect_err("still contested");
    store.set_contested(false);
    store.delete(&pointer.name).await.expect("deleted");
    store.put_marker(&marker("t", "c2")).await.expect("put");
    put(&store).await.expect_err("another storage");
}

#[tokio::test]
async fn a_storage_that_is_lost_while_it_is_opened_is_found_when_it_is_back() {
    let root = tempfile::tempdir().expect("a directory");
    let pointer = {
        let store = begun(&root).await;
        put(&store).await.expect("taken")
    };
    let (mount, away) = (root.path().join("mount"), root.path().join("away"));
    std::fs::rename(&mount, &away).expect("unmounted");
    let store = open(&root).await.guarded();
    store.rely_on("s", &["c1".to_owned()]);
    assert!(!mount.exists(), "it was made again");
    assert!(store.marker().await.expect("looked").is_none());
    store.list().await.expect("nothing is there");
    std::fs::rename(&away, &mount).expect("mounted");
    store.get(&pointer).await.expect("read");
    assert_eq!(store.list().await.expect("listed").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_before_the_term_knows_the_storage() {
    let root = tempfile::tempdir().expect("a directory");
    begun(&root).await;
    let store = open(&root).await.guarded();
    let refused = put(&store).await.expect_err("not known");
    assert!(refused.to_string().contains("not begun"), "{refused}");
    let late = store.clone();
    let putting = tokio::spawn(async move { put(&late).await });
    tokio::task::yield_now().await;
    store.rely_on("s", &["c1".to_owned()]);
    putting.await.expect("no panic").expect("taken");
}

#[tokio::test]
async fn a_process_that_does_not_lead_uses_the_storage_of_its_leader() {
    let root = tempfile::tempdir().expect("a directory");
    let leader = begun(&root).await;
    assert_eq!(leader.storage().as_deref(), Some("s"));
    assert_eq!(open(&root).await.guarded().storage(), None, "not begun");

    let other = open(&root).await.guarded_by_presence();
    assert_eq!(other.storage(), None);
    put(&other).await.expect("any marker is enough");
    assert_eq!(other.storage().as_deref(), Some("s"));
    let own = other.expecting("s");
    let pointer = put(&own).await.expect("it is the leader's");
    put(&own.expecting("")).await.expect("none is named");

    let elsewhere = other.expecting("t");
    let refused = put(&elsewhere).await.expect_err("another storage");
    assert!(refused.to_string().contains("another storage"), "{refused}");
    // What is missing here may be in the leader's storage.
    leader.delete(&pointer.name).await.expect("removed");
    let unread = elsewhere.get(&pointer).await.expect_err("missing");
    assert!(unread.may_pass(), "{unread}");
    let unread = own.get(&pointer).await.expect_err("missing");
    assert!(!unread.may_pass(), "{unread}");
}

#[tokio::test(start_paused = true)]
async fn who_needs_the_storage_waits_until_the_term_knows_it_for_a_second_at_most() {
    let root = tempfile::tempdir().expect("a directory");
    let store = open(&root).await.guarded();
    let began = tokio::time::Instant::now();
    store.wait_until_known().await;
    assert_eq!((store.storage(), began.elapsed()), (None, TIMEOUT));
    let begins = async {
        tokio::time::sleep(TIMEOUT / 2).await;
        store.rely_on("s", &[]);
    };
    tokio::join!(store.wait_until_known(), begins);
    assert_eq!(store.storage().as_deref(), Some("s"));
    assert_eq!(began.elapsed(), TIMEOUT * 3 / 2);
}
