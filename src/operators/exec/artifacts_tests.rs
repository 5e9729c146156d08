//! Which caller gets which file, and when a file is placed again.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn artifact(name: &str, content: &'static [u8]) -> Artifact {
    Artifact {
        name: name.to_owned(),
        sha256: Sha256::digest(content).to_vec().into(),
        content: content.into(),
        ..Artifact::default()
    }
}

#[test]
fn one_content_is_one_file_as_long_as_somebody_holds_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = ArtifactCache::new(directory.path().join("artifacts"));
    let first = cache.hold(&artifact("a", b"content")).expect("held");
    let second = cache.hold(&artifact("b", b"content")).expect("held");
    assert_eq!(first.path(), second.path());
    let path = first.path().to_owned();
    drop(first);
    assert_eq!(fs::read(&path).expect("it is held"), b"content");
    drop(second);
    assert!(!path.exists());
    assert!(cache.inner.holders.lock().is_empty());
}

#[test]
fn a_program_can_be_executed_and_is_a_file_of_its_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = ArtifactCache::new(directory.path().to_owned());
    let plain = cache.hold(&artifact("a", b"content")).expect("held");
    let program = Artifact {
        executable: true,
        ..artifact("a", b"content")
    };
    let program = cache.hold(&program).expect("held");
    let mode = |held: &HeldArtifact| {
        let found = fs::metadata(held.path()).expect("it is held");
        found.permissions().mode() & 0o111
    };
    assert_eq!(mode(&plain), 0);
    assert_ne!(mode(&program), 0);
}

/// A change that a program running as the same user can make.
fn change(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).expect("it is ours");
    fs::write(path, b"what a program wrote").expect("it can be written");
}

#[test]
fn a_file_that_somebody_changed_is_placed_again_for_the_next_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = ArtifactCache::new(directory.path().join("artifacts"));
    let first = cache.hold(&artifact("a", b"content")).expect("held");
    change(first.path());
    let second = cache.hold(&artifact("b", b"content")).expect("held");
    assert_eq!(fs::read(second.path()).expect("it is held"), b"content");
    fs::remove_file(first.path()).expect("it is ours");
    let third = cache.hold(&artifact("c", b"content")).expect("held");
    assert_eq!(fs::read(third.path()).expect("it is held"), b"content");
    drop((first, second));
    assert_eq!(fs::read(third.path()).expect("it is held"), b"content");
    drop(third);
    assert!(cache.inner.holders.lock().is_empty());
}

#[test]
fn a_file_that_nobody_changed_stays_the_same_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = ArtifactCache::new(directory.path().join("artifacts"));
    let first = cache.hold(&artifact("a", b"content")).expect("held");
    let inode = || fs::metadata(first.path()).expect("it is held").ino();
    let before = inode();
    assert_eq!(fs::read(first.path()).expect("it is held"), b"content");
    let _second = cache.hold(&artifact("b", b"content")).expect("held");
    assert_eq!(inode(), before);
}

#[test]
fn content_that_is_not_what_it_should_be_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = ArtifactCache::new(directory.path().to_owned());
    let wrong = Artifact {
        content: (&b"other"[..]).into(),
        ..artifact("a", b"content")
    };
    let error = cache.hold(&wrong).expect_err("refused").to_string();
    assert!(error.contains("does not have its SHA-256"), "{error}");
}

/// Serves pieces and counts them.
#[derive(Debug, Default)]
struct Pieces(std::sync::atomic::AtomicUsize);

#[async_trait::async_trait]
impl UploadSource for Pieces {
    async fn object(&self, name: &str) -> Result<bytes::Bytes, String> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let content = ["first ", "second"];
        let number: usize = name
            .rsplit('.')
            .next()
            .unwrap_or_default()
            .parse()
            .unwrap_or(9);
        let piece = content.get(number).ok_or("there is no such piece")?;
        Ok(bytes::Bytes::from_static(piece.as_bytes()))
    }
}

fn uploaded(content: &[u8], pieces: u32) -> Artifact {
    Artifact {
        name: "model".to_owned(),
        sha256: Sha256::digest(content).to_vec().into(),
        uploaded: Some(tanist_proto::v1::UploadedContent {
            object: "object".to_owned(),
            pieces,
            size: content.len() as u64,
        }),
        ..Artifact::default()
    }
}

#[tokio::test]
async fn what_was_uploaded_is_fetched_once_however_many_want_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = ArtifactCache::new(directory.path().join("artifacts"));
    let source = Pieces::default();
    let artifact = uploaded(b"first second", 2);
    assert!(cache.hold(&artifact).is_err(), "it is not there");
    let fetches = (0..3).map(|_| cache.fetch(&artifact, &source));
    let held = futures::future::try_join_all(fetches)
        .await
        .expect("fetched");
    let count = source.0.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(count, 2, "two pieces, once each");
    let again = cache.hold(&artifact).expect("it is there");
    assert_eq!(fs::read(again.path()).expect("it is held"), b"first second");
    drop((held, again));
    let left = fs::read_dir(directory.path().join("artifacts"));
    assert_eq!(left.expect("it is there").count(), 0);
}

#[tokio::test]
async fn what_was_uploaded_and_changed_here_is_fetched_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = ArtifactCache::new(directory.path().join("artifacts"));
    let artifact = uploaded(b"first second", 2);
    let source = Pieces::default();
    let fetched = cache.fetch(&artifact, &source).await.expect("fetched");
    let first = fetched.expect("it was uploaded");
    change(first.path());
    assert!(cache.hold(&artifact).is_err(), "it is another one");
    let fetched = cache.fetch(&artifact, &source).await.expect("fetched");
    let second = fetched.expect("it was uploaded");
    let content = fs::read(second.path()).expect("it is held");
    assert_eq!(content, b"first second");
    drop((first, second));
    assert!(cache.inner.holders.lock().is_empty());
}

#[tokio::test]
async fn what_is_not_what_was_uploaded_is_refused_and_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = ArtifactCache::new(directory.path().join("artifacts"));
    for (artifact, reason) in [
        (uploaded(b"other", 2), "does not have its SHA-256"),
        (uploaded(b"first second", 3), "no such piece"),
    ] {
        let fetched = cache.fetch(&artifact, &Pieces::default()).await;
        let error = fetched.expect_err("refused").to_string();
        assert!(error.contains(reason), "{error}");
    }
    let left = fs::read_dir(directory.path().join("artifacts"));
    assert_eq!(left.expect("it is there").count(), 0);
}

#[tokio::test]
async fn a_fetch_does_not_block_its_runtime_while_another_caller_writes_a_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let cache = ArtifactCache::new(directory.path().join("artifacts"));
    let (begins, begun) = std::sync::mpsc::sync_channel(1);
    let (go_on, told) = std::sync::mpsc::sync_channel(1);
    let other = cache.clone();
    let writing = std::thread::spawn(move || {
        let placed = other.place(PathBuf::from("other"), |_| {
            begins.send(()).expect("awaited");
            let told = told.recv_timeout(std::time::Duration::from_secs(10));
            told.map_err(io::Error::other)?;
            Err(io::ErrorKind::StorageFull.into())
        });
        placed.expect_err("it is not placed").kind()
    });
    begun.recv().expect("it begins");
    let (artifact, source) = (uploaded(b"first second", 2), Pieces::default());
    let going_on = async { go_on.send(()).expect("awaited") };
    let (fetched, ()) = tokio::join!(biased; cache.fetch(&artifact, &source), going_on);
    assert!(fetched.expect("fetched").is_some());
    let ended = writing.join().expect("no panic");
    assert_eq!(ended, io::ErrorKind::StorageFull, "the fetch blocked it");
}
