//! Savepoints in a directory and in a bucket: what is copied stands alone, and the error says what is no savepoint.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::path::Path as ObjectPath;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use parking_lot::Mutex;
use proptest::prelude::*;

use tanist_ha::blob::missing::MissingBucket;
use tanist_ha::blob::{BlobOptions, BlobStore, range_checksum};
use tanist_ha::keys::Name;

use super::*;

const SMALL: Sizes = Sizes {
    small: 1_000,
    piece: 300,
};

fn content(length: usize, salt: usize) -> Vec<u8> {
    (0..length).map(|at| ((at + salt) % 251) as u8).collect()
}

/// The checkpoint objects of a job, in a directory with a blob store.
pub(crate) async fn source(directory: &tempfile::TempDir) -> ObjectDirectory {
    let url = directory
        .path()
        .join("blobs")
        .to_string_lossy()
        .into_owned();
    let options = BlobOptions { url, shared: false };
    let blobs = BlobStore::open(&options).await.expect("opened");
    blobs.checkpoints(&Name::new("0a1b").expect("a name"))
}

/// A directory with a blob store, in which a job has three checkpoint objects, two of them with the same bytes.
struct World {
    directory: tempfile::TempDir,
    source: ObjectDirectory,
    ranges: Vec<ObjectRange>,
}

impl World {
    async fn new() -> World {
        let directory = tempfile::tempdir().expect("a directory");
        let source = source(&directory).await;
        let mut ranges = Vec::new();
        for (object, bytes) in [
            ("7-2-aa", content(2_500, 1)),
            ("7-2-bb", content(700, 2)),
            ("8-2-cc", content(700, 2)),
        ] {
            let put = source.put(object, bytes.clone().into()).await;
            put.expect("written");
            for (offset, length) in [(0, 250), (200, 500), (700, 0), (0, bytes.len())] {
                ranges.push(ObjectRange {
                    object: object.to_owned(),
                    offset: offset as u64,
                    length: length as u64,
                    checksum: range_checksum(&bytes[offset..offset + length]),
                });
            }
        }
        World {
            directory,
            source,
            ranges,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    async fn savepoint(&self, name: &str) -> SavepointStorage {
        let url = self.path(name).to_string_lossy().into_owned();
        let opened = SavepointStorage::open(&url).await.expect("opened");
        SavepointStorage {
            sizes: SMALL,
            ..opened
        }
    }

    /// Writes a savepoint whose manifest lists the names of its objects.
    async fn write(&self, savepoint: &SavepointStorage) -> Result<()> {
        let manifest = |names: &BTreeMap<String, String>| {
            let names: Vec<String> = names
                .iter()
                .map(|(from, to)| format!("{from}={to}"))
                .collect();
            Bytes::from(names.join(","))
        };
        savepoint.write(&self.source, &self.ranges, manifest).await
    }

    async fn written(&self, name: &str) -> SavepointStorage {
        let savepoint = self.savepoint(name).await;
        self.write(&savepoint).await.expect("written");
        savepoint
    }

    fn files(&self, name: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path(name)).expect("a directory");
        let mut files: Vec<PathBuf> = entries.map(|it| it.expect("an entry").path()).collect();
        files.sort();
        files
    }
}

fn names_of(content: &SavepointContent) -> BTreeMap<String, String> {
    let text = std::str::from_utf8(&content.manifest).expect("text");
    let pairs = text
        .split(',')
        .map(|pair| pair.split_once('=').expect("a pair"));
    pairs
        .map(|(from, to)| (from.to_owned(), to.to_owned()))
        .collect()
}

#[tokio::test]
async fn a_copy_stands_alone_and_is_read_by_range_after_it_was_moved() {
    let world = World::new().await;
    let savepoint = world.written("made/savepoints/one").await;
    world.write(&savepoint).await.expect("the same again");
    for directory in ["made", "made/savepoints", "made/savepoints/one"] {
        let mode = std::fs::metadata(world.path(directory))
            .expect("made")
            .permissions();
        assert_eq!(mode.mode() & 0o777, 0o700, "{directory}");
    }
    let written = savepoint.read().await.expect("read");
    assert_eq!(written.objects.len(), 2, "equal objects are one");
    std::fs::remove_dir_all(world.path("blobs")).expect("removed");
    std::fs::rename(world.path("made/savepoints/one"), world.path("two")).expect("moved");

    let moved = world.savepoint("two").await;
    assert_eq!(moved.verify().await.expect("whole"), written);
    let names = names_of(&written);
    for range in &world.ranges {
        let object = names[&range.object].clone();
        let range = ObjectRange {
            object,
            ..range.clone()
        };
        let read = moved.objects().get_range(&range).await.expect("read");
        assert_eq!(read.len() as u64, range.length);
    }
    let gone = savepoint.read().await.expect_err("moved");
    assert!(matches!(gone, SavepointError::Missing(_)), "{gone}");
}

#[tokio::test]
async fn a_damaged_or_incomplete_checkpoint_is_not_copied() {
    let mut world = World::new().await;
    let damaged = content(2_500, 3);
    world
        .source
        .put("7-2-aa", damaged.into())
        .await
        .expect("written");
    let savepoint = world.savepoint("damaged").await;
    let error = world.write(&savepoint).await.expect_err("damaged");
    assert!(
        error
            .to_string()
            .contains("are not those that were written"),
        "{error}"
    );
    assert!(!error.may_pass());
    for (offset, length) in [(2_400, 200), (u64::MAX, 2)] {
        world.ranges[0] = ObjectRange {
            offset,
            length,
            ..world.ranges[0].clone()
        };
        let error = world.write(&savepoint).await.expect_err("too short");
        assert!(error.to_string().contains("it has 2500 bytes"), "{error}");
    }
    world.source.remove("7-2-aa").await.expect("removed");
    let error = world.write(&savepoint).await.expect_err("missing");
    assert!(error.to_string().contains("7-2-aa"), "{error}");
    let error = savepoint.read().await.expect_err("not written");
    assert!(!matches!(error, SavepointError::Damaged(..)), "{error}");
}

#[tokio::test]
async fn a_directory_that_is_no_savepoint_is_refused_with_a_reason_and_never_disposed_of() {
    let world = World::new().await;
    let refused = async |name: &str, what: &str| {
        let savepoint = world.savepoint(name).await;
        for error in [
            savepoint.read().await.map(drop),
            savepoint.verify().await.map(drop),
            savepoint.dispose().await,
        ] {
            let error = error.expect_err("no savepoint");
            let text = error.to_string();
            assert!(text.contains(what) && text.contains(name), "{text}");
            assert!(!error.may_pass());
        }
    };
    refused("nowhere", "nothing is there").await;
    std::fs::create_dir(world.path("hollow")).expect("made");
    refused("hollow", "and no other file").await;
    std::fs::create_dir(world.path("other")).expect("made");
    std::fs::write(world.path("other/notes.txt"), "mine").expect("written");
    refused("other", "other files are in it").await;
    assert!(world.path("other/notes.txt").exists());
    refused("other/notes.txt", "it is a file").await;

    world.written("half").await;
    std::fs::remove_file(world.path("half/_metadata")).expect("removed");
    refused("half", "half copied").await;
    assert_eq!(world.files("half").len(), 2);
    world.written("newer").await;
    let newer = metadata::seal(metadata::FORMAT + 1, b"something else");
    std::fs::write(world.path("newer/_metadata"), newer).expect("written");
    refused("newer", "use a later version").await;
    std::fs::write(world.path("newer/_metadata"), "something").expect("written");
    refused("newer", "damaged").await;
    assert_eq!(world.files("newer").len(), 3);
    let relative = SavepointStorage::open("some/where")
        .await
        .expect_err("relative");
    assert!(relative.to_string().contains("absolute path"), "{relative}");

    let one = world.written("one").await;
    std::fs::write(world.path("one/notes.txt"), "mine").expect("written");
    one.verify().await.expect("other files do not matter");
    let short = &world.files("one")[0];
    std::fs::write(short, "short").expect("written");
    let error = one.read().await.expect_err("too short").to_string();
    assert!(error.contains("has 5 bytes instead of"), "{error}");
    std::fs::remove_file(short).expect("removed");
    let error = one.read().await.expect_err("incomplete").to_string();
    assert!(error.contains("is missing"), "{error}");
}

#[tokio::test]
async fn a_copy_that_was_interrupted_is_finished_or_discarded() {
    let world = World::new().await;
    let savepoint = world.written("one").await;
    let files = world.files("one");
    std::fs::remove_file(world.path("one/_metadata")).expect("removed");
    std::fs::remove_file(&files[0]).expect("removed");
    world.write(&savepoint).await.expect("finished");
    savepoint.verify().await.expect("whole");
    savepoint.discard_copy(|_| false).await.expect("looked");
    assert_eq!(world.files("one"), files, "it is another savepoint");

    std::fs::remove_file(world.path("one/_metadata")).expect("removed");
    std::fs::write(world.path("one/_metadata#1"), "unfinished").expect("written");
    savepoint.discard_copy(|_| false).await.expect("removed");
    assert!(!world.path("one").exists());
    let again = savepoint.discard_copy(|_| false).await;
    again.expect("nothing is left");
}

#[tokio::test]
async fn a_whole_copy_that_has_failed_is_discarded_and_nothing_else_is() {
    let world = World::new().await;
    let savepoint = world.written("one").await;
    let written = savepoint.read().await.expect("whole");
    let files = world.files("one");
    let is_own = |manifest: &Bytes| *manifest == written.manifest;

    // The removal that a user has begun is the user's.
    std::fs::rename(world.path("one/_metadata"), world.path("one/_removed")).expect("moved");
    savepoint.discard_copy(is_own).await.expect("looked");
    assert_eq!(world.files("one").len(), files.len());
    std::fs::rename(world.path("one/_removed"), world.path("one/_metadata")).expect("moved");

    // What can't be read may be anything.
    let metadata = std::fs::read(world.path("one/_metadata")).expect("read");
    std::fs::write(world.path("one/_metadata"), "unknown").expect("written");
    savepoint.discard_copy(is_own).await.expect("looked");
    assert_eq!(world.files("one"), files);
    std::fs::write(world.path("one/_metadata"), metadata).expect("written");

    savepoint.discard_copy(is_own).await.expect("discarded");
    assert!(!world.path("one").exists());
}

#[tokio::test]
async fn another_savepoint_is_never_replaced() {
    let mut world = World::new().await;
    let savepoint = world.written("one").await;
    let before = savepoint.read().await.expect("read");
    world.ranges.truncate(4);
    let error = world.write(&savepoint).await.expect_err("another");
    assert!(
        error.to_string().contains("another savepoint is there"),
        "{error}"
    );
    assert_eq!(savepoint.verify().await.expect("whole"), before);
}

#[tokio::test]
async fn a_disposed_savepoint_is_gone_and_other_files_stay() {
    let world = World::new().await;
    world
        .written("one")
        .await
        .dispose()
        .await
        .expect("disposed");
    assert!(!world.path("one").exists());

    let two = world.written("two").await;
    std::fs::write(world.path("two/notes.txt"), "mine").expect("written");
    two.dispose().await.expect("disposed");
    assert_eq!(world.files("two"), [world.path("two/notes.txt")]);

    // Interrupted after the first step, and after some objects.
    let three = world.written("three").await;
    std::fs::rename(world.path("three/_metadata"), world.path("three/_removed")).expect("moved");
    std::fs::remove_file(&world.files("three")[0]).expect("removed");
    let error = three.read().await.expect_err("no savepoint").to_string();
    assert!(error.contains("its removal has begun"), "{error}");
    three.dispose().await.expect("continued");
    assert!(!world.path("three").exists());
    let error = three.dispose().await.expect_err("gone");
    assert!(matches!(error, SavepointError::Missing(_)), "{error}");

    world.written("four").await;
    std::os::unix::fs::symlink(world.path("four"), world.path("link")).expect("made");
    let url = world.path("link").to_string_lossy().into_owned();
    let link = SavepointStorage::open(&url).await.expect("found");
    link.dispose().await.expect("disposed through a link");
    assert!(!world.path("four").exists());
}

#[tokio::test]
async fn a_directory_that_others_may_change_is_refused() {
    let world = World::new().await;
    world.written("one").await;
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(world.path("one"), mode).expect("changed");
    let url = world.path("one").to_string_lossy().into_owned();
    let error = SavepointStorage::open(&url).await.expect_err("open to all");
    assert!(error.to_string().contains("chmod go-w"), "{error}");
}

#[tokio::test]
async fn a_bucket_holds_savepoints_as_a_directory_does() {
    let world = World::new().await;
    let bucket = MissingBucket::default();
    let savepoint = SavepointStorage {
        objects: bucket.store().itself(METADATA),
        sizes: SMALL,
    };
    for error in [
        world.write(&savepoint).await,
        savepoint.verify().await.map(drop),
        savepoint.dispose().await,
    ] {
        assert!(error.expect_err("no bucket").may_pass());
    }
    bucket.appear();
    let error = savepoint.read().await.expect_err("nothing");
    assert!(matches!(error, SavepointError::Missing(_)), "{error}");
    world.write(&savepoint).await.expect("written");
    let content = savepoint.verify().await.expect("whole");
    assert_eq!(content.objects.len(), 2);
    savepoint.remove([METADATA]).await.expect("removed");
    let error = savepoint.read().await.expect_err("half");
    assert!(matches!(error, SavepointError::HalfCopied(_)), "{error}");
    world.write(&savepoint).await.expect("written");
    savepoint.dispose().await.expect("disposed");
    assert_eq!(
        savepoint.objects.sizes().await.expect("listed"),
        BTreeMap::new()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each byte of each file counts.
    #[test]
    fn a_changed_byte_is_found(file: proptest::sample::Index, at: proptest::sample::Index, mask in 1..=255_u8) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let world = World::new().await;
            let savepoint = world.written("one").await;
            let files = world.files("one");
            let file = file.get(&files);
            let mut bytes = std::fs::read(file).expect("read");
            let at = at.index(bytes.len());
            bytes[at] ^= mask;
            std::fs::write(file, bytes).expect("written");
            let found = savepoint.verify().await;
            prop_assert!(matches!(found, Err(SavepointError::Damaged(..))), "{file:?} {at}: {found:?}");
            Ok(())
        })?;
    }
}

/// A storage that hangs, or in which another process does something between two steps.
#[derive(Debug)]
struct Steered {
    objects: Arc<dyn ObjectStore>,
    hangs: bool,
    removals_hang: bool,
    /// Removed before `_metadata` is written.
    vanishes: Mutex<Option<ObjectPath>>,
    /// `_metadata`, written before the next removal.
    appears: Mutex<Option<Bytes>>,
}

impl std::fmt::Display for Steered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a steered storage")
    }
}

type Answer<T> = object_store::Result<T>;

#[async_trait]
impl ObjectStore for Steered {
    async fn put_opts(
        &self,
        location: &ObjectPath,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Answer<PutResult> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let vanishes = self
            .vanishes
            .lock()
            .take_if(|_| location.as_ref() == METADATA);
        if let Some(object) = vanishes {
            self.objects.delete(&object).await?;
        }
        self.objects.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &ObjectPath,
        opts: PutMultipartOptions,
    ) -> Answer<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &ObjectPath, options: GetOptions) -> Answer<GetResult> {
        self.objects.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Answer<ObjectPath>>,
    ) -> BoxStream<'static, Answer<ObjectPath>> {
        if self.removals_hang {
            return stream::pending().boxed();
        }
        let (appears, objects) = (self.appears.lock().take(), self.objects.clone());
        let appearing = stream::once(async move {
            if let Some(bytes) = appears {
                let put = objects.put(&ObjectPath::from(METADATA), bytes.into()).await;
                put.expect("written");
            }
        });
        let none = appearing.filter_map(|()| async { None });
        none.chain(self.objects.delete_stream(locations)).boxed()
    }

    fn list(&self, prefix: Option<&ObjectPath>) -> BoxStream<'static, Answer<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&ObjectPath>) -> Answer<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &ObjectPath,
        to: &ObjectPath,
        options: CopyOptions,
    ) -> Answer<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

impl World {
    /// The savepoint of this name in a storage that is steered.
    async fn steered(&self, name: &str, steer: impl FnOnce(&mut Steered)) -> SavepointStorage {
        let savepoint = self.savepoint(name).await;
        let steered = |objects| -> Arc<dyn ObjectStore> {
            let mut steered = Steered {
                objects,
                hangs: false,
                removals_hang: false,
                vanishes: Mutex::default(),
                appears: Mutex::default(),
            };
            steer(&mut steered);
            Arc::new(steered)
        };
        SavepointStorage {
            objects: savepoint.objects.in_storage(steered),
            ..savepoint
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_into_a_storage_that_hangs_fails_and_may_be_tried_again() {
    let world = World::new().await;
    let savepoint = world.steered("one", |it| it.hangs = true).await;
    let writing = tokio::time::timeout(Duration::from_secs(3_600), world.write(&savepoint));
    let error = writing.await.expect("bounded").expect_err("it hangs");
    assert!(error.may_pass(), "{error}");
    assert!(error.to_string().contains("no answer"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_is_discarded_by_a_later_leader_ends_although_its_storage_hangs_then() {
    let world = World::new().await;
    let object = world.written("whole").await.read().await;
    let object = object.expect("whole").objects.into_keys().next();
    let steer = |it: &mut Steered| {
        *it.vanishes.get_mut() = object.map(ObjectPath::from);
        it.removals_hang = true;
    };
    let savepoint = world.steered("one", steer).await;
    let writing = tokio::time::timeout(Duration::from_secs(3_600), world.write(&savepoint));
    let error = writing.await.expect("bounded").expect_err("it hangs");
    assert!(error.to_string().contains("no answer"), "{error}");
}

#[tokio::test]
async fn a_copy_that_is_discarded_by_a_later_leader_leaves_no_savepoint() {
    let world = World::new().await;
    let written = world.written("whole").await;
    let object = written.read().await.expect("whole").objects;
    let object = object.keys().next().expect("one").clone();
    // The objects go before `_metadata` is written.
    let steer = |it: &mut Steered| *it.vanishes.get_mut() = Some(ObjectPath::from(object));
    let savepoint = world.steered("one", steer).await;
    let error = world.write(&savepoint).await.expect_err("discarded");
    assert!(matches!(error, SavepointError::HalfCopied(_)), "{error}");
    assert!(!world.path("one").exists());

    // `_metadata` is written while the objects are removed.
    let half = world.written("two").await;
    let metadata = std::fs::read(world.path("two/_metadata")).expect("written");
    half.remove([METADATA]).await.expect("removed");
    let steer = |it: &mut Steered| *it.appears.get_mut() = Some(metadata.into());
    let savepoint = world.steered("two", steer).await;
    savepoint.discard_copy(|_| true).await.expect("discarded");
    assert!(!world.path("two").exists());

    // A deposed leader writes the last object and `_metadata` after the copy was discarded, and ends. The next leader
    // discards it again.
    let late = world.written("three").await;
    late.discard_copy(|_| true).await.expect("discarded");
    world.written("three").await;
    late.discard_copy(|_| true).await.expect("again");
    assert!(!world.path("three").exists());

    // Another savepoint appears while the objects are removed: it stays, and its writer finds them missing.
    let half = world.written("four").await;
    let metadata = std::fs::read(world.path("four/_metadata")).expect("written");
    half.remove([METADATA]).await.expect("removed");
    let steer = |it: &mut Steered| *it.appears.get_mut() = Some(metadata.into());
    let savepoint = world.steered("four", steer).await;
    savepoint.discard_copy(|_| false).await.expect("looked");
    assert_eq!(world.files("four"), [world.path("four/_metadata")]);
}

#[tokio::test]
async fn a_removed_savepoint_is_distinguished_from_one_that_is_not_mounted() {
    let world = World::new().await;
    let one = world.written("savepoints/one").await;
    let content = one.read().await.expect("whole");
    let (object, size) = content.objects.iter().next().expect("one object");
    let read = async || one.objects().read(object, 0..*size).await;
    read().await.expect("it is there");
    std::fs::remove_dir_all(world.path("savepoints")).expect("removed");
    let error = read().await.expect_err("missing");
    assert!(error.may_pass(), "nothing says that it is mounted: {error}");
    std::fs::create_dir_all(world.path("savepoints/two")).expect("made");
    let error = read().await.expect_err("removed");
    assert!(!error.may_pass(), "{error}");
    let path = world.path("savepoints/one").display().to_string();
    assert!(error.to_string().contains(&path), "{error}");
}
