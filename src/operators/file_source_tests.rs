//! Each line is read exactly once, and an error names the file that can't be read.

use std::fs;
use std::path::Path;
use std::task::Waker;

use arrow_array::cast::AsArray;
use proptest::prelude::*;
use tanist_dataflow::testing::coordinator_line;
use tanist_dataflow::{CoordinatorRequest, Requester};
use tanist_model::files::matching_files;
use tanist_proto::v1::SubtaskSnapshot;
use tanist_proto::v1::ask_coordinator_response::Answer;
use tokio::sync::mpsc;

use super::*;
use crate::testing::context;
use crate::tests::only_split;

/// What all subtasks read, one after the other, each of its only split.
fn read(paths: &[String], parallelism: u32) -> Result<Vec<String>, OperatorError> {
    let mut lines = Vec::new();
    for subtask in 0..parallelism {
        let split = only_split(paths, subtask, parallelism)?;
        let mut reader = Coordinated::start();
        reader.answer(Ok(Answer::FileSplit(split)));
        lines.extend(reader.lines()?);
        reader.answer(Ok(Answer::Exhausted(pb::Ack {})));
        assert!(matches!(reader.next(), Ok(SourceState::End)));
    }
    Ok(lines)
}

fn write(directory: &Path, name: &str, content: &[u8]) -> String {
    let path = directory.join(name);
    fs::write(&path, content).expect("file is written");
    path.to_string_lossy().into_owned()
}

fn lines_of(content: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(content)
        .lines()
        .map(str::to_owned)
        .collect()
}

proptest! {
    #[test]
    fn each_line_is_read_exactly_once(
        files in prop::collection::vec(
            prop::collection::vec(prop_oneof![
                3 => Just(b"\n".to_vec()),
                1 => Just(b"\r\n".to_vec()),
                1 => Just(b"\r".to_vec()),
                6 => "[a-zäß ]{1,8}".prop_map(String::into_bytes),
                1 => prop::collection::vec(128_u8..=255, 1..3),
            ], 0..20).prop_map(|pieces| pieces.concat()),
            1..4,
        ),
        parallelism in 1_u32..6,
    ) {
        let directory = tempfile::tempdir().expect("directory");
        for (index, content) in files.iter().enumerate() {
            write(directory.path(), &format!("{index}.txt"), content);
        }
        let pattern = directory.path().join("*.txt").to_string_lossy().into_owned();
        let expected: Vec<String> = files.iter().flat_map(|content| lines_of(content)).collect();
        prop_assert_eq!(read(&[pattern], parallelism).expect("read"), expected);
    }
}

#[test]
fn a_file_that_is_named_twice_is_read_once() {
    let directory = tempfile::tempdir().expect("directory");
    let path = write(directory.path(), "a.txt", b"one\n");
    let glob = directory.path().join("*").to_string_lossy().into_owned();
    assert_eq!(read(&[path, glob], 1).expect("read"), ["one"]);
}

#[test]
fn what_cannot_be_read_is_named() {
    let directory = tempfile::tempdir().expect("directory");
    let place = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    for path in [place("missing.txt"), place("*.csv"), place("")] {
        let error = read(std::slice::from_ref(&path), 2).expect_err("can't be read");
        assert!(error.to_string().contains(&path), "{error}");
    }
}

#[test]
fn a_glob_that_no_file_matches_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().expect("directory");
    let pattern = directory
        .path()
        .join("*.csv")
        .to_string_lossy()
        .into_owned();
    let found = matching_files(std::slice::from_ref(&pattern), Look::First);
    let error = found.expect_err("no file").to_string();
    assert!(error.contains("no file matches"), "{error}");
    assert!(error.contains(&pattern), "{error}");
}

#[test]
fn an_endless_line_is_an_error_that_shows_its_beginning() {
    let directory = tempfile::tempdir().expect("directory");
    let length = usize::try_from(LONGEST_LINE).expect("small") + 1;
    let path = write(directory.path(), "a.bin", &vec![b'x'; length]);
    let error = read(&[path], 1).expect_err("too long").to_string();
    assert!(error.contains("a.bin") && error.contains("[xxx"), "{error}");
}

#[test]
fn the_longest_line_may_have_a_line_break_of_any_kind_besides() {
    let directory = tempfile::tempdir().expect("directory");
    let longest = usize::try_from(LONGEST_LINE).expect("small");
    for line_break in ["", "\n", "\r\n"] {
        let mut text = vec![b'x'; longest];
        text.extend_from_slice(line_break.as_bytes());
        let path = write(directory.path(), "a.bin", &text);
        let lines = read(&[path], 1).expect("it is not too long");
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [longest]);
    }
}

/// A source that gets splits, and the test's end of the coordinator connection.
struct Coordinated {
    source: FileSource,
    coordinator_requests: mpsc::Receiver<CoordinatorRequest>,
    asked: u64,
}

impl Coordinated {
    fn start() -> Coordinated {
        Coordinated::restored(None)
    }

    /// Starts a source that is restored, if there is a snapshot.
    fn restored(snapshot: Option<&SubtaskSnapshot>) -> Coordinated {
        let (sender, coordinator_requests) = mpsc::channel(4);
        let context = context(0, 1);
        let requester = Requester {
            job: context.job,
            vertex: context.vertex,
            subtask: 0,
            generation: context.generation,
            operator: "lines".to_owned(),
        };
        // The splits come from the coordinator, not from the path.
        let spec = operators::FileSource::new(["a.txt"]).into();
        let context = OperatorContext {
            output: crate::schema::output_schema(&spec, None).expect("a source"),
            coordinator: Some(coordinator_line(requester, sender)),
            ..context
        };
        let mut source = FileSource::new(&context).expect("it can ask");
        if let Some(snapshot) = snapshot {
            let restored = Restored::of("lines", snapshot);
            source.restore(&restored).expect("its own position");
        }
        source.open().expect("opens");
        Coordinated {
            source,
            coordinator_requests,
            asked: 0,
        }
    }

    fn saved(&mut self) -> SubtaskSnapshot {
        let mut snapshot = Snapshot::default();
        self.source.snapshot(&mut snapshot).expect("saved");
        let mut subtask = SubtaskSnapshot::default();
        snapshot.add_to(&mut subtask, "lines").expect("encoded");
        subtask
    }

    /// Answers each request with the split of its number, and reads `batches` batches or to the end.
    fn read(&mut self, splits: &[pb::FileSplit], batches: usize) -> Vec<String> {
        let mut lines = Vec::new();
        let mut read = 0;
        while read < batches {
            if let Ok(request) = self.coordinator_requests.try_recv() {
                let index = usize::try_from(request.number - 1).expect("small");
                let answer = match splits.get(index) {
                    Some(split) => Answer::FileSplit(split.clone()),
                    None if index == splits.len() => Answer::Exhausted(pb::Ack {}),
                    None => panic!("no coordinator answers request {}", request.number),
                };
                request.reply.send(Ok(answer)).expect("it waits");
            }
            match self.next().expect("readable") {
                SourceState::Batch(batch) => {
                    let column = batch.column(0).as_string::<i32>();
                    lines.extend(column.iter().flatten().map(str::to_owned));
                    read += 1;
                }
                SourceState::End => break,
                SourceState::Wait(_) | SourceState::WaitFor(_) | SourceState::Pending => {}
            }
        }
        lines
    }

    /// Returns the request that waits, and checks its number.
    fn asked(&mut self) -> Option<CoordinatorRequest> {
        let request = self.coordinator_requests.try_recv().ok()?;
        self.asked += 1;
        assert_eq!(request.number, self.asked);
        Some(request)
    }

    fn answer(&mut self, answer: Result<Answer, String>) {
        let request = self.asked().expect("it asks");
        request.reply.send(answer).expect("it waits");
    }

    fn next(&mut self) -> Result<SourceState, OperatorError> {
        self.source.next(Instant::now())
    }

    /// Returns the lines that are available now.
    fn lines(&mut self) -> Result<Vec<String>, OperatorError> {
        let mut lines = Vec::new();
        while let SourceState::Batch(batch) = self.next()? {
            let column = batch.column(0).as_string::<i32>();
            lines.extend(column.iter().flatten().map(str::to_owned));
        }
        Ok(lines)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Splits have several ranges and several batches, and cut lines.
    #[test]
    fn a_source_that_is_restored_anywhere_reads_each_line_once(
        lines in prop::collection::vec(0_usize..9_000, 1..4),
        ends in prop::collection::vec(0.0..1.0, 0..4),
        batches in prop::collection::vec(0_usize..5, 1..4),
    ) {
        let directory = tempfile::tempdir().expect("directory");
        let mut splits = Vec::new();
        let mut expected = Vec::new();
        for (index, lines) in lines.iter().enumerate() {
            let content: String = (0..*lines).map(|line| format!("{index}.{line}\n")).collect();
            let path = write(directory.path(), &format!("{index}.txt"), content.as_bytes());
            expected.extend(lines_of(content.as_bytes()));
            let size = content.len() as u64;
            let mut cuts: Vec<u64> = ends.iter().map(|end| (end * size as f64) as u64).collect();
            cuts.extend([0, size]);
            cuts.sort_unstable();
            // Ranges of two files in one split.
            let ranges = cuts.windows(2).map(|cut| pb::FileRange {
                path: path.as_bytes().to_vec(),
                start: cut[0],
                end: cut[1],
                size,
            });
            let mut ranges: Vec<pb::FileRange> = ranges.collect();
            let last = ranges.split_off(1);
            let first = pb::FileSplit { ranges };
            splits.extend([first, pb::FileSplit { ranges: last }]);
        }
        let mut reader = Coordinated::start();
        let mut found = Vec::new();
        for batches in batches {
            found.extend(reader.read(&splits, batches));
            let snapshot = reader.saved();
            reader = Coordinated::restored(Some(&snapshot));
        }
        found.extend(reader.read(&splits, usize::MAX));
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn at_another_parallelism_a_subtask_reads_what_several_have_left_and_asks_from_the_start() {
    let directory = tempfile::tempdir().expect("directory");
    let content =
        |name: &str| -> String { (0..5_000).map(|line| format!("{name}{line}\n")).collect() };
    let split = |name: &str| {
        let content = content(name);
        let path = write(directory.path(), name, content.as_bytes());
        let size = content.len() as u64;
        pb::FileSplit {
            ranges: vec![pb::FileRange {
                path: path.as_bytes().to_vec(),
                start: 0,
                end: size,
                size,
            }],
        }
    };
    let (mut found, mut all) = (Vec::new(), SubtaskSnapshot::default());
    for (name, batches) in [("a", 1), ("b", 2), ("c", 0)] {
        let mut reader = Coordinated::start();
        found.extend(reader.read(&[split(name)], batches));
        let saved = reader.saved();
        assert_eq!(saved.positions[0].request, u64::from(batches > 0));
        all.positions
            .extend(saved.positions.into_iter().map(|position| {
                // As it is redistributed.
                pb::SourcePosition {
                    request: 0,
                    ..position
                }
            }));
    }
    let mut reader = Coordinated::restored(Some(&all));
    found.extend(reader.read(&[split("c"), split("d")], usize::MAX));
    found.sort();
    let mut expected: Vec<String> = ["a", "b", "c", "d"]
        .iter()
        .flat_map(|name| lines_of(content(name).as_bytes()))
        .collect();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn a_damaged_position_is_an_error() {
    let mut snapshot = Coordinated::start().saved();
    *snapshot.positions[0].position.last_mut().expect("bytes") ^= 1;
    let mut reader = Coordinated::start();
    let restored = Restored::of("lines", &snapshot);
    let error = reader.source.restore(&restored).expect_err("damaged");
    assert!(
        error.to_string().contains("`position` is damaged"),
        "{error}"
    );
}

fn split(path: &str, start: u64, end: u64, size: u64) -> Result<Answer, String> {
    let range = pb::FileRange {
        path: path.as_bytes().to_vec(),
        start,
        end,
        size,
    };
    let ranges = vec![range];
    Ok(Answer::FileSplit(pb::FileSplit { ranges }))
}

#[test]
fn splits_are_read_one_after_the_other_until_there_is_none() {
    let directory = tempfile::tempdir().expect("directory");
    let path = write(directory.path(), "a.txt", b"one\ntwo\nthree\n");
    let mut reader = Coordinated::start();
    assert_eq!(reader.lines().expect("reads"), [""; 0]);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(reader.source.poll_ready(&mut cx).is_pending());
    reader.answer(split(&path, 0, 5, 14));
    assert!(reader.source.poll_ready(&mut cx).is_ready());
    assert_eq!(reader.lines().expect("reads"), ["one", "two"]);
    reader.answer(split(&path, 5, 14, 14));
    assert_eq!(reader.lines().expect("reads"), ["three"]);
    reader.answer(Ok(Answer::Exhausted(pb::Ack {})));
    assert!(matches!(reader.next(), Ok(SourceState::End)));
    assert!(matches!(reader.next(), Ok(SourceState::End)));
    assert!(reader.asked().is_none(), "it has its last answer");
}

#[test]
fn the_next_split_is_asked_for_before_the_present_one_is_read() {
    let directory = tempfile::tempdir().expect("directory");
    let size = 40 * BATCH_BYTES;
    let path = write(directory.path(), "a.txt", &b"1234567\n".repeat(size / 8));
    let mut reader = Coordinated::start();
    reader.answer(split(&path, 0, size as u64, size as u64));
    assert!(matches!(reader.next(), Ok(SourceState::Batch(_))));
    assert!(reader.asked().is_none(), "most of it is not read");
    let mut batches = 1;
    let request = loop {
        assert!(matches!(reader.next(), Ok(SourceState::Batch(_))));
        batches += 1;
        if let Some(request) = reader.asked() {
            break request;
        }
    };
    assert!(
        matches!(reader.next(), Ok(SourceState::Batch(_))),
        "{batches}"
    );
    request
        .reply
        .send(split(&path, 0, 8, size as u64))
        .expect("it wants the answer");
    let lines = reader.lines().expect("reads");
    assert_eq!(lines.last().map(String::as_str), Some("1234567"));
}

#[test]
fn what_came_after_the_splits_were_made_is_not_read() {
    let directory = tempfile::tempdir().expect("directory");
    // The last line had no line break.
    let path = write(directory.path(), "a.txt", b"one\ntw");
    write(directory.path(), "a.txt", b"one\ntwo and\nthree\n");
    let mut reader = Coordinated::start();
    reader.answer(split(&path, 0, 6, 6));
    assert_eq!(reader.lines().expect("reads"), ["one", "tw"]);
}

#[test]
fn a_file_that_became_shorter_is_named() {
    let directory = tempfile::tempdir().expect("directory");
    let path = write(directory.path(), "a.txt", b"one\n");
    for (start, end) in [(0, 8), (6, 8)] {
        let mut reader = Coordinated::start();
        reader.answer(split(&path, start, end, 8));
        let error = reader.lines().expect_err("4 bytes are missing").to_string();
        assert!(
            error.contains("a.txt") && error.contains("8 bytes"),
            "{error}"
        );
    }
}

#[test]
fn a_file_that_is_not_on_the_host_of_a_task_fails_the_job_unless_the_task_has_read_others() {
    let directory = tempfile::tempdir().expect("directory");
    let there = write(directory.path(), "a.txt", b"one\n");
    let missing = directory.path().join("b.txt");
    let missing = missing.to_string_lossy();
    let mut reader = Coordinated::start();
    reader.answer(split(&missing, 0, 8, 8));
    let error = reader.lines().expect_err("it is not there");
    assert!(error.is_unrecoverable(), "{error}");
    let host = tanist_model::files::host_name();
    let text = error.to_string();
    assert!(text.contains(&*missing) && text.contains(&host), "{text}");

    let mut reader = Coordinated::start();
    reader.answer(split(&there, 0, 4, 4));
    assert_eq!(reader.lines().expect("reads"), ["one"]);
    reader.answer(split(&missing, 0, 8, 8));
    let error = reader.lines().expect_err("it is not there any more");
    assert!(!error.is_unrecoverable(), "{error}");
}

#[test]
fn what_is_never_answered_fails_the_source() {
    let mut reader = Coordinated::start();
    reader.answer(Err("no such operator".to_owned()));
    let error = reader.lines().expect_err("no splits").to_string();
    assert!(error.contains("no such operator"), "{error}");
}
