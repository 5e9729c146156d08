//! Each line is read exactly once, and what can't be read is named.

use arrow_array::cast::AsArray;
use proptest::prelude::*;

use super::super::testing::source;
use super::*;
use crate::job::OperatorSpec;

fn read(paths: &[String], parallelism: u32) -> Result<Vec<String>, OperatorError> {
    let spec = OperatorSpec::FileSource {
        paths: paths.to_vec(),
    };
    let mut lines = Vec::new();
    for subtask in 0..parallelism {
        let mut source = source(&spec, subtask, parallelism)?;
        source.open()?;
        loop {
            match source.next(Instant::now())? {
                SourceState::Batch(batch) => {
                    let column = batch.column(0).as_string::<i32>();
                    lines.extend(column.iter().flatten().map(str::to_owned));
                }
                SourceState::Wait(_) | SourceState::Pending => panic!("files don't wait"),
                SourceState::End => break,
            }
        }
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
fn the_ranges_of_all_subtasks_cover_all_files_once() {
    let file = |name: &str, size| (PathBuf::from(name), size);
    let files = [file("a", 10), file("b", 0), file("c", 5)];
    let ranges: Vec<_> = (0..3)
        .map(|subtask| ranges_of(&files, subtask, 3))
        .collect();
    let range = |name: &str, start, end| FileRange {
        path: name.into(),
        start,
        end,
    };
    assert_eq!(
        ranges,
        [
            vec![range("a", 0, 5)],
            vec![range("a", 5, 10)],
            vec![range("c", 0, 5)]
        ]
    );
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
fn an_endless_line_is_an_error_that_shows_its_beginning() {
    let directory = tempfile::tempdir().expect("directory");
    let length = usize::try_from(LONGEST_LINE).expect("small") + 1;
    let path = write(directory.path(), "a.bin", &vec![b'x'; length]);
    let error = read(&[path], 1).expect_err("too long").to_string();
    assert!(error.contains("a.bin") && error.contains("[xxx"), "{error}");
}
