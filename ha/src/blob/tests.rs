//! Objects in a directory: what is written is read, and what is changed is found.

use super::*;

async fn open(dir: &tempfile::TempDir, shared: bool) -> BlobStore {
    let url = dir.path().join("a/b").to_str().expect("UTF-8").to_owned();
    BlobStore::open(&BlobOptions { url, shared })
        .await
        .expect("opened")
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn job() -> Name {
    Name::new("0a1b").expect("a name")
}

#[tokio::test]
async fn what_was_put_is_read_and_a_name_is_never_used_again() {
    let dir = directory();
    let blobs = open(&dir, false).await;
    let bytes = Bytes::from(vec![7; 3_000_000]);
    let first = blobs
        .put(&job(), Epoch::new(3), bytes.clone())
        .await
        .expect("put");
    let second = blobs
        .put(&job(), Epoch::new(3), bytes.clone())
        .await
        .expect("put");
    let read = BlobName::read(&first.name).expect("one of ours");
    assert_eq!(read.owner, job());
    assert_eq!(read.origin, Origin::Term(Epoch::new(3)));
    assert_ne!(first.name, second.name);
    assert_eq!(blobs.get(&first).await.expect("get"), bytes);
    let listed = blobs.list().await.expect("list");
    let mut names = vec![first.name.clone(), second.name.clone()];
    names.sort();
    assert_eq!(
        listed
            .iter()
            .map(|entry| entry.name.clone())
            .collect::<Vec<_>>(),
        names
    );
    assert!(listed.iter().all(|entry| entry.size == 3_000_000));
    assert!(
        listed
            .iter()
            .all(|entry| entry.age < Duration::from_secs(3600))
    );
    for _ in 0..2 {
        blobs.delete(&first.name).await.expect("deleted");
    }
    assert_eq!(blobs.list().await.expect("list").len(), 1);
    let error = blobs.get(&first).await.expect_err("gone").to_string();
    assert!(error.contains(first.name.as_str()), "{error}");
}

#[tokio::test]
async fn an_object_that_was_changed_or_cut_off_is_corrupt() {
    let dir = directory();
    let blobs = open(&dir, false).await;
    let pointer = blobs
        .put(&job(), Epoch::new(1), Bytes::from_static(b"abc"))
        .await
        .expect("put");
    let file = dir.path().join("a/b").join(pointer.name.as_str());
    for (content, what) in [("abd", "SHA-256"), ("ab", "2 bytes")] {
        std::fs::write(&file, content).expect("written");
        let error = blobs.get(&pointer).await.expect_err("changed").to_string();
        assert!(
            error.contains(what) && error.contains(pointer.name.as_str()),
            "{error}"
        );
    }
}

#[tokio::test]
async fn only_a_shared_directory_outlives_the_host() {
    let dir = directory();
    assert!(open(&dir, true).await.survives_host());
    assert!(!open(&dir, false).await.survives_host());
    let options = BlobOptions {
        url: "relative/path".to_owned(),
        shared: false,
    };
    let error = BlobStore::open(&options)
        .await
        .expect_err("relative")
        .to_string();
    assert!(error.contains("s3://bucket/prefix"), "{error}");
}

#[test]
fn a_pointer_survives_its_json() {
    let sha256 = Checksum::of(b"abc");
    let pointer = BlobPointer {
        name: job(),
        size: 3,
        sha256,
    };
    let text = serde_json::to_string(&pointer).expect("JSON");
    assert!(
        text.contains("\"ba7816bf8f01cfea414140de5dae2223b00361a3"),
        "{text}"
    );
    assert_eq!(
        serde_json::from_str::<BlobPointer>(&text).expect("a pointer"),
        pointer
    );
    assert!("zz".repeat(32).parse::<Checksum>().is_err());
}

#[tokio::test]
async fn what_is_below_a_directory_is_not_looked_at() {
    let dir = directory();
    let blobs = open(&dir, false).await;
    let owner = job();
    let pointer = blobs.put(&owner, Epoch::new(1), Bytes::from_static(b"state"));
    let pointer = pointer.await.expect("put");
    // Listing its content is an error.
    let below = dir.path().join("a/b/0-below");
    std::fs::create_dir(&below).expect("made");
    std::os::unix::fs::symlink(".", below.join("loop")).expect("made");
    let listed = blobs.list().await.expect("listed");
    assert_eq!(listed.len(), 1);
    blobs.delete(&pointer.name).await.expect("deleted");
    let missing = blobs.get(&pointer).await.expect_err("deleted");
    assert!(matches!(missing, Error::Corrupt { .. }), "{missing}");
}
