//! Objects in a directory and in a bucket: what is written is read, and what is missing or damaged is distinguished
//! from what can't be read at present.

use super::super::ClusterTag;
use super::*;
use crate::Outcome;
use crate::blob::missing::MissingBucket;
use crate::blob::object_name;
use crate::election::ClusterIncarnation;

fn job(text: &str) -> Name {
    Name::new(text).expect("a name")
}

async fn open(directory: &tempfile::TempDir) -> BlobStore {
    let url = directory.path().to_string_lossy().into_owned();
    let options = BlobOptions { url, shared: true };
    let opened = BlobStore::open(&options).await.expect("opened");
    opened.of_cluster(&ClusterIncarnation::new("one"))
}

fn range(object: &str, content: &[u8], offset: usize, length: usize) -> ObjectRange {
    ObjectRange {
        object: object.to_owned(),
        offset: offset as u64,
        length: length as u64,
        checksum: range_checksum(&content[offset..offset + length]),
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

#[tokio::test]
async fn ranges_of_an_object_are_read_and_objects_of_one_job_are_listed_and_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let blobs = open(&directory).await;
    let storage = blobs.checkpoints(&job("0a1b"));
    let other = blobs.checkpoints(&job("0a1b0"));
    assert_eq!(storage.list().await.expect("listed"), Vec::<String>::new());
    let bytes = content(10_000);
    let names = [object_name(7, 2), object_name(7, 2), object_name(10, 2)];
    assert_ne!(names[0], names[1]);
    assert!(names[0].starts_with("7-2-"), "{names:?}");
    for name in &names {
        let put = storage.put(name, bytes.clone().into()).await;
        put.expect("written");
    }
    other.put("7-1-aa", Bytes::new()).await.expect("written");
    for (offset, length) in [(0, 10_000), (4096, 5_904), (17, 0), (10_000, 0)] {
        let range = range(&names[0], &bytes, offset, length);
        let read = storage.get_range(&range).await.expect("read");
        assert_eq!(read, bytes[offset..offset + length]);
    }
    assert_eq!(storage.get(&names[2]).await.expect("read"), bytes);
    let mut sorted = names.to_vec();
    sorted.sort();
    assert_eq!(storage.list().await.expect("listed"), sorted);
    assert_eq!(other.list().await.expect("listed"), ["7-1-aa"]);
    assert_eq!(blobs.list().await.expect("listed"), [], "blobs are others");
    for name in names.iter().chain(&names) {
        storage.remove(name).await.expect("removed");
    }
    assert_eq!(storage.list().await.expect("listed"), Vec::<String>::new());
    assert_eq!(other.list().await.expect("listed"), ["7-1-aa"]);
}

#[tokio::test]
async fn clusters_that_share_a_place_do_not_see_each_others_objects() {
    let directory = tempfile::tempdir().expect("a directory");
    let one = open(&directory).await;
    let other = one.of_cluster(&ClusterIncarnation::new("another"));
    let [one, other] = [one, other].map(|blobs| blobs.checkpoints(&job("0a1b")));
    one.put("1-1-aa", Bytes::from_static(b"state"))
        .await
        .expect("written");
    assert_eq!(other.list().await.expect("listed"), Vec::<String>::new());
    assert!(other.get("1-1-aa").await.is_err());
    let tag = ClusterTag::of(&ClusterIncarnation::new("one"));
    let file = format!("checkpoints/{}/0a1b/1-1-aa", tag.as_str());
    assert!(directory.path().join(file).exists());
}

#[tokio::test]
async fn what_is_missing_cut_off_or_changed_is_corrupt() {
    let directory = tempfile::tempdir().expect("a directory");
    let storage = open(&directory).await.checkpoints(&job("0a1b"));
    let bytes = content(5_000);
    let name = object_name(3, 1);
    storage
        .put(&name, bytes.clone().into())
        .await
        .expect("written");
    let file = storage.local_directory().expect("a directory").join(&name);
    let whole = range(&name, &bytes, 1_000, 4_000);
    let mut changed = bytes.clone();
    changed[2_000] ^= 1;
    for (now, what) in [(&changed[..], "checksum"), (&bytes[..4_999], "ends before")] {
        std::fs::write(&file, now).expect("written");
        let error = storage.get_range(&whole).await.expect_err("damaged");
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(what) && text.contains(&name), "{text}");
    }
    // What lies outside of the range does not matter.
    std::fs::write(&file, &changed).expect("written");
    let rest = range(&name, &bytes, 3_000, 2_000);
    assert_eq!(
        storage.get_range(&rest).await.expect("read"),
        bytes[3_000..]
    );
    std::fs::remove_file(&file).expect("removed");
    for error in [
        storage.get_range(&whole).await.expect_err("missing"),
        storage.get(&name).await.expect_err("missing"),
        storage.get("../secret").await.expect_err("not a name"),
    ] {
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_storage_that_is_not_there_makes_no_object_missing() {
    let directory = tempfile::tempdir().expect("a directory");
    let storage = open(&directory).await.checkpoints(&job("0a1b"));
    let bytes = content(5_000);
    let name = object_name(3, 1);
    let whole = range(&name, &bytes, 0, 5_000);
    storage
        .put(&name, bytes.clone().into())
        .await
        .expect("written");
    let [here, away] = ["checkpoints", "elsewhere"].map(|name| directory.path().join(name));
    std::fs::rename(&here, &away).expect("moved");
    let error = storage.get_range(&whole).await.expect_err("not mounted");
    assert_eq!(error.outcome(), Outcome::Transient, "{error}");
    std::fs::rename(&away, &here).expect("moved");
    storage.get_range(&whole).await.expect("read");

    let bucket = MissingBucket::default();
    let storage = bucket.store().checkpoints(&job("0a1b"));
    let put = async || storage.put(&name, bytes.clone().into()).await;
    let error = put().await.expect_err("no bucket");
    assert_eq!(error.outcome(), Outcome::Transient, "{error}");
    bucket.appear();
    put().await.expect("written");
    bucket.vanish();
    for error in [
        storage.get_range(&whole).await.expect_err("no bucket"),
        storage.list().await.expect_err("no bucket"),
    ] {
        assert_eq!(error.outcome(), Outcome::Transient, "{error}");
    }
    bucket.appear();
    assert_eq!(storage.get_range(&whole).await.expect("read"), bytes);
    // The object is missing, and there again when the store checks the bucket.
    bucket.vanish_for_a_moment();
    let error = storage.get_range(&whole).await.expect_err("no bucket");
    assert_eq!(error.outcome(), Outcome::Transient, "{error}");
    storage.remove(&name).await.expect("removed");
    let error = storage.get_range(&whole).await.expect_err("removed");
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

#[tokio::test]
async fn the_directory_goes_when_no_object_is_in_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let storage = open(&directory).await.checkpoints(&job("0a1b"));
    storage.remove_directory().await.expect("nothing is there");
    let name = object_name(3, 1);
    storage
        .put(&name, Bytes::from_static(b"state"))
        .await
        .expect("written");
    let local = storage.local_directory().expect("a directory");
    std::fs::write(local.join("3-1-bb#1"), "unfinished").expect("written");
    assert_eq!(storage.list().await.expect("listed"), [name.as_str()]);
    storage.remove_directory().await.expect("looked");
    assert!(local.join("3-1-bb#1").exists());
    storage.remove(&name).await.expect("removed");
    storage.remove_directory().await.expect("removed");
    assert!(!local.exists());
}

/// The errors of a place that is missing, has a truncated marker, or is a file.
#[tokio::test]
async fn what_is_wrong_with_a_place_is_told_with_its_option_the_directory_and_the_host() {
    let root = tempfile::tempdir().expect("a directory");
    let path = root.path().join("objects");
    let url = path.to_string_lossy().into_owned();
    let options = BlobOptions {
        url: url.clone(),
        shared: true,
    };
    let place = BlobStore::open_named(&options, "execution.checkpointing.dir").await;
    let place = place
        .expect("it may be mounted later")
        .guarded_by_presence();
    let objects = place.checkpoints(&Name::new("job").expect("a name"));
    let marker = path.join(place.marker_name().expect("a name").as_str());
    let failure = async || {
        let put = objects.put("1-1-aa", "state".into()).await;
        put.expect_err("it can't be used").to_string()
    };
    let missing = failure().await;
    assert!(missing.contains("mount it again"), "{missing}");
    std::fs::create_dir(&path).expect("made");
    std::fs::write(&marker, "{\"storage\":").expect("written");
    let truncated = failure().await;
    assert!(truncated.contains("the marker"), "{truncated}");
    std::fs::remove_dir_all(&path).expect("removed");
    std::fs::write(&path, "").expect("written");
    let file = failure().await;
    let host = crate::blob::host_name();
    for error in [missing, truncated, file] {
        for part in ["execution.checkpointing.dir", &url, &host] {
            assert!(error.contains(part), "no {part} in {error}");
        }
    }
}
