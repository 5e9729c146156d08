//! Files that grow, appear, disappear and are replaced: each line is read once, in order.

use std::fs::OpenOptions;
use std::io::Write as _;

use arrow_array::cast::AsArray;
use tanist_proto::v1::SubtaskSnapshot;
use tempfile::TempDir;

use super::*;
use crate::testing::context;

const INTERVAL: Duration = Duration::from_secs(1);

struct Following {
    sources: Vec<FollowFiles>,
    now: Instant,
}

impl Following {
    fn new(paths: &[String], parallelism: u32) -> Following {
        let spec = operators::FollowFiles {
            paths: paths.to_vec(),
            discovery_interval_ms: 1_000,
        };
        let output = tanist_model::OperatorSpec::FollowFiles(spec.clone());
        let output = crate::schema::output_schema(&output, None).expect("a source");
        let source = |subtask| {
            let context = OperatorContext {
                output: output.clone(),
                ..context(subtask, parallelism)
            };
            FollowFiles::new(&spec, &context)
        };
        Following {
            sources: (0..parallelism).map(source).collect(),
            now: Instant::now(),
        }
    }

    /// Reads the lines that are available now.
    fn read(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for source in &mut self.sources {
            while let SourceState::Batch(batch) = source.next(self.now).expect("read") {
                let column = batch.column(0).as_string::<i32>();
                lines.extend(column.iter().flatten().map(str::to_owned));
            }
        }
        lines
    }

    /// Sources that are restored from what these save.
    fn restored(&mut self, paths: &[String]) -> Following {
        let now = self.now;
        let mut following = Following::new(paths, self.sources.len() as u32);
        following.now = now;
        for (former, source) in self.sources.iter_mut().zip(&mut following.sources) {
            let mut snapshot = Snapshot::default();
            former.snapshot(&mut snapshot).expect("saved");
            let mut subtask = SubtaskSnapshot::default();
            snapshot.add_to(&mut subtask, "logs").expect("encoded");
            source
                .restore(&Restored::of("logs", &subtask))
                .expect("its own position");
        }
        following
    }

    /// Sources at another parallelism, each of which is restored from what all of these save.
    fn rescaled(&mut self, paths: &[String], parallelism: u32) -> Following {
        let mut subtask = SubtaskSnapshot::default();
        for former in &mut self.sources {
            let mut snapshot = Snapshot::default();
            former.snapshot(&mut snapshot).expect("saved");
            snapshot.add_to(&mut subtask, "logs").expect("encoded");
        }
        let mut following = Following::new(paths, parallelism);
        following.now = self.now;
        for source in &mut following.sources {
            let restored = source.restore(&Restored::of("logs", &subtask));
            restored.expect("positions of all");
        }
        following
    }

    /// Reads the lines that are available after the next look for files.
    fn read_later(&mut self) -> Vec<String> {
        self.now += INTERVAL;
        self.read()
    }
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .expect("opened");
    file.write_all(text.as_bytes()).expect("written");
}

fn directory() -> (TempDir, PathBuf, Vec<String>) {
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("a.log");
    let paths = vec![
        directory
            .path()
            .join("*.log")
            .to_string_lossy()
            .into_owned(),
    ];
    (directory, file, paths)
}

#[test]
fn a_file_that_grows_is_read_on_and_a_line_waits_for_its_end() {
    let (_directory, file, paths) = directory();
    append(&file, "a\nb");
    let mut following = Following::new(&paths, 1);
    assert_eq!(following.read(), ["a"]);
    append(&file, "c\r\n");
    assert_eq!(following.read(), ["bc"]);
    assert!(following.read_later().is_empty());
    append(&file, &"x\n".repeat(10_000));
    assert_eq!(following.read().len(), 10_000);
}

#[test]
fn files_and_paths_that_come_later_are_found() {
    let (directory, file, mut paths) = directory();
    paths.push(
        directory
            .path()
            .join("named")
            .to_string_lossy()
            .into_owned(),
    );
    let mut following = Following::new(&paths, 3);
    assert!(following.read().is_empty());
    append(&file, "a\n");
    append(&directory.path().join("named"), "b\n");
    append(&directory.path().join("other"), "no\n");
    assert!(following.read().is_empty());
    let mut lines = following.read_later();
    lines.sort();
    assert_eq!(lines, ["a", "b"]);
}

#[test]
fn a_directory_stands_for_the_files_in_it() {
    let (directory, file, _) = directory();
    fs::create_dir(directory.path().join("inner")).expect("created");
    append(&directory.path().join(".hidden"), "no\n");
    append(&file, "a\n");
    let path = directory.path().to_string_lossy().into_owned();
    let mut following = Following::new(&[path], 1);
    assert_eq!(following.read(), ["a"]);
    append(&directory.path().join("b"), "b\n");
    assert_eq!(following.read_later(), ["b"]);
}

#[test]
fn a_file_that_is_rotated_is_read_to_its_end_and_its_successor_from_the_beginning() {
    for still_matches in [false, true] {
        let (directory, file, paths) = directory();
        let old = directory
            .path()
            .join(if still_matches { "a.1.log" } else { "a.log.1" });
        append(&file, "a\n");
        let mut following = Following::new(&paths, 2);
        assert_eq!(following.read(), ["a"]);
        append(&file, "b\n");
        assert_eq!(following.read(), ["b"]);
        // The file does not grow for long before that.
        following.now += GRACE * 6;
        fs::rename(&file, &old).expect("renamed");
        append(&file, "d\n");
        assert_eq!(following.read_later(), ["d"]);
        // Its writer has not noticed yet.
        append(&old, "c\nhalf");
        assert_eq!(following.read_later(), ["c"]);
        following.now += GRACE;
        let rest = following.read();
        assert_eq!(rest, if still_matches { vec![] } else { vec!["half"] });
        let open: usize = following
            .sources
            .iter()
            .map(|source| source.files.len())
            .sum();
        assert_eq!(open, if still_matches { 2 } else { 1 });
    }
}

#[test]
fn a_file_that_is_truncated_is_read_from_its_beginning() {
    let (_directory, file, paths) = directory();
    append(&file, "a\nb\nhalf");
    let mut following = Following::new(&paths, 1);
    assert_eq!(following.read(), ["a", "b"]);
    OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(&file)
        .expect("truncated");
    append(&file, "c\n");
    assert_eq!(following.read(), ["c"]);
}

#[test]
fn a_file_that_was_truncated_and_is_as_long_again_is_read_from_its_beginning() {
    let (_directory, file, paths) = directory();
    append(&file, "first\n");
    let mut following = Following::new(&paths, 1);
    assert_eq!(following.read(), ["first"]);
    for (text, lines) in [
        ("other\n", vec!["other"]),
        ("one\ntwo\nthree\n", vec!["one", "two", "three"]),
    ] {
        fs::write(&file, text).expect("rewritten");
        // The system's clock for files may not advance for a moment.
        let written = SystemTime::now() + Duration::from_secs(text.len() as u64);
        let opened = File::options().write(true).open(&file).expect("opened");
        opened.set_modified(written).expect("set");
        assert_eq!(following.read(), lines);
    }
    append(&file, "four\n");
    assert_eq!(following.read(), ["four"]);
}

#[test]
fn a_file_that_is_not_there_is_waited_for_and_one_that_can_t_be_there_is_an_error() {
    let directory = TempDir::new().expect("directory");
    let later = directory.path().join("later.txt");
    let mut following = Following::new(&[later.to_string_lossy().into_owned()], 1);
    assert_eq!(following.read(), [""; 0]);
    append(&later, "one\n");
    assert_eq!(following.read_later(), ["one"]);
    // A file is where the directory should be.
    let never = later.join("x.txt");
    let mut following = Following::new(&[never.to_string_lossy().into_owned()], 1);
    let error = following.sources[0].next(following.now).expect_err("never");
    assert!(error.is_unrecoverable(), "{error}");
}

#[test]
fn a_restored_source_continues_behind_the_last_line() {
    let (directory, file, paths) = directory();
    // More than a batch, and a line without its end.
    append(&file, &"x\n".repeat(3_000));
    append(&file, "half");
    let mut following = Following::new(&paths, 2);
    let mut first = 0;
    for source in &mut following.sources {
        if let SourceState::Batch(batch) = source.next(following.now).expect("read") {
            first += batch.num_rows();
        }
    }
    assert!(first < 3_000);
    let mut restored = following.restored(&paths);
    assert_eq!(restored.read().len(), 3_000 - first);
    let mut again = restored.restored(&paths);
    // A position that no source has taken up is kept.
    let mut again = again.restored(&paths);
    let other = directory.path().join("b.log");
    fs::rename(&file, &other).expect("renamed");
    append(&other, " line\n");
    append(&file, "new\n");
    let mut lines = again.read();
    lines.sort();
    assert_eq!(lines, ["half line", "new"]);
}

#[test]
fn at_another_parallelism_each_file_is_continued_by_one_subtask() {
    let (directory, _, paths) = directory();
    let files: Vec<PathBuf> = (0..12)
        .map(|number| directory.path().join(format!("{number}.log")))
        .collect();
    let append_to_all = |text: &str| files.iter().for_each(|file| append(file, text));
    append_to_all("one\n");
    let mut following = Following::new(&paths, 2);
    assert_eq!(following.read(), vec!["one"; 12]);
    for parallelism in [5, 1, 16, 3] {
        append_to_all("next\n");
        following = following.rescaled(&paths, parallelism);
        assert_eq!(following.read(), vec!["next"; 12]);
        let missing = following.sources.iter().map(|it| it.missing.len());
        assert_eq!(missing.sum::<usize>(), 0);
    }
}

#[test]
fn a_file_that_was_truncated_since_the_checkpoint_is_read_from_its_beginning() {
    let (_directory, file, paths) = directory();
    append(&file, "first\nsecond\n");
    let mut following = Following::new(&paths, 1);
    assert_eq!(following.read().len(), 2);
    for text in ["short\n", "as long as it was before, and longer\n"] {
        fs::write(&file, text).expect("rewritten");
        assert_eq!(following.restored(&paths).read(), [text.trim_end()]);
    }
}

#[test]
fn a_file_that_is_gone_since_the_checkpoint_is_forgotten_after_a_while() {
    let (_directory, file, paths) = directory();
    append(&file, "a\n");
    let mut following = Following::new(&paths, 1);
    assert_eq!(following.read(), ["a"]);
    let mut restored = following.restored(&paths);
    let notices = restored.sources[0].notices.watch();
    fs::remove_file(&file).expect("removed");
    assert!(restored.read().is_empty());
    assert_eq!(restored.sources[0].missing.len(), 1);
    assert_eq!(*notices.borrow(), [""; 0], "it may come back");
    restored.now += GRACE;
    assert!(restored.read().is_empty());
    assert!(restored.sources[0].missing.is_empty());
    let lost = format!(
        "what is behind offset 2 of the followed file {} is not read: it is gone since the checkpoint",
        file.display()
    );
    assert_eq!(*notices.borrow(), [lost]);
}
