//! A file sink that commits at the end.

use std::fs;

use tanist_proto::v1::SubtaskSnapshot;

use super::*;
use crate::testing::{context, texts};

fn sink(directory: &Path) -> FileSink {
    let spec = operators::FileSink::new(directory.to_string_lossy());
    FileSink::new(&spec, &context(2, 4))
}

/// The file that a sink writes.
fn pending(sink: &FileSink) -> PathBuf {
    let part = sink.part.as_ref().expect("it writes one");
    part.path().to_owned()
}

/// What a sink has to commit at its end.
fn committables(sink: &mut FileSink) -> Vec<Committable> {
    let output = sink.prepare_commit().expect("sinks commit")();
    output.expect("prepared").committables
}

#[test]
fn nothing_is_visible_before_the_commit() {
    let directory = tempfile::tempdir().expect("directory");
    let output = directory.path().join("out");
    let mut sink = sink(&output);
    sink.open().expect("open");
    sink.process(texts("word", &["a", "b"]), &mut Output::default())
        .expect("written");
    let prepare = sink.prepare_commit().expect("sinks commit");
    let committables = prepare().expect("prepared").committables;
    drop(sink);

    let visible = output.join("part-2");
    assert_eq!(committables[0].final_path, visible.to_string_lossy());
    assert!(!visible.exists());
    let pending = fs::read_to_string(&committables[0].pending_path).expect("pending");
    assert_eq!(pending, "a\nb\n");
    assert!(committables[0].pending_path.contains("/.tanist/"));
    assert!(committables[0].pending_path.contains("-2-1-"));
    assert!(committables[0].pending_path.ends_with(".pending"));

    sink::commit(&committables).expect("committed");
    assert_eq!(fs::read_to_string(visible).expect("visible"), "a\nb\n");
}

#[test]
fn a_record_with_a_line_break_is_refused_and_nothing_of_its_batch_is_written() {
    let directory = tempfile::tempdir().expect("directory");
    let mut sink = sink(directory.path());
    sink.open().expect("open");
    let batch = texts("word", &["a", "b\nc"]);
    let refused = sink.process(batch, &mut Output::default());
    assert_eq!(
        refused.expect_err("it is no line").to_string(),
        "it has a line break, so it is no line: put a `format-json` before it, which escapes it, at record [b\\nc]"
    );
    sink.process(texts("word", &["d\\n"]), &mut Output::default())
        .expect("written");
    let committables = committables(&mut sink);
    let pending = fs::read_to_string(&committables[0].pending_path).expect("pending");
    assert_eq!(pending, "d\\n\n");
}

#[test]
fn a_sink_that_never_ends_leaves_no_file() {
    let directory = tempfile::tempdir().expect("directory");
    let mut sink = sink(directory.path());
    sink.open().expect("open");
    sink.process(texts("word", &["a"]), &mut Output::default())
        .expect("written");
    let pending = pending(&sink);
    assert!(pending.exists());
    drop(sink);
    assert!(!pending.exists());
    sink::cleanup(directory.path(), context(2, 4).job, "").expect("cleaned up");
    let left = fs::read_dir(directory.path()).expect("directory").count();
    assert_eq!(left, 0, "not even a directory");
}

/// What a sink has saved, for the sinks that are restored from it.
fn saved(sink: &mut FileSink) -> SubtaskSnapshot {
    let mut snapshot = Snapshot::default();
    sink.snapshot(&mut snapshot).expect("saved");
    let mut subtask = SubtaskSnapshot::default();
    snapshot.add_to(&mut subtask, "out").expect("encoded");
    subtask
}

fn write(sink: &mut FileSink, word: &str) {
    let written = sink.process(texts("word", &[word]), &mut Output::default());
    written.expect("written");
}

#[test]
fn a_restored_sink_copies_what_the_snapshot_names_and_no_attempt_removes_a_named_file() {
    let directory = tempfile::tempdir().expect("directory");
    let mut first = sink(directory.path());
    first.open().expect("open");
    write(&mut first, "before");
    let snapshot = saved(&mut first);
    write(&mut first, "behind");
    let named = pending(&first);

    for _ in 0..2 {
        let mut second = sink(directory.path());
        let restored = Restored::of("out", &snapshot);
        second.restore(&restored).expect("restored");
        second.open().expect("open");
        // The former attempt does not know that it is one.
        write(&mut first, "zombie");
        saved(&mut first);
        write(&mut second, "after");
        let own = pending(&second);
        assert_ne!(own, named);
        saved(&mut second);
        drop(second);
        let content = fs::read_to_string(&own).expect("it belongs to the job");
        assert_eq!(content, "before\nafter\n");
    }
    // One that no snapshot names is removed, and its snapshot's file is not.
    let mut third = sink(directory.path());
    third
        .restore(&Restored::of("out", &snapshot))
        .expect("restored");
    third.open().expect("open");
    let own = pending(&third);
    drop((first, third));
    assert!(!own.exists() && named.exists());
    sink::cleanup(directory.path(), context(2, 4).job, "").expect("the job has ended");
    let left = fs::read_dir(directory.path()).expect("directory").count();
    assert_eq!(left, 0);
}

#[test]
fn a_restored_sink_commits_its_own_file() {
    let directory = tempfile::tempdir().expect("directory");
    let mut first = sink(directory.path());
    first.open().expect("open");
    write(&mut first, "before");
    let snapshot = saved(&mut first);
    drop(first);
    let mut second = sink(directory.path());
    second
        .restore(&Restored::of("out", &snapshot))
        .expect("restored");
    second.open().expect("open");
    write(&mut second, "after");
    let committables = committables(&mut second);
    sink::commit(&committables).expect("committed");
    let visible = fs::read_to_string(directory.path().join("part-2"));
    assert_eq!(visible.expect("visible"), "before\nafter\n");
}

#[test]
fn a_named_file_that_is_shorter_or_missing_is_an_error_and_leaves_no_other() {
    let directory = tempfile::tempdir().expect("directory");
    let mut first = sink(directory.path());
    first.open().expect("open");
    write(&mut first, "before");
    let snapshot = saved(&mut first);
    let named = pending(&first);
    let fails = || {
        let mut second = sink(directory.path());
        second
            .restore(&Restored::of("out", &snapshot))
            .expect("restored");
        let error = second.open().expect_err("output is lost").to_string();
        let own = pending(&second);
        drop(second);
        assert!(!own.exists());
        error
    };
    fs::write(&named, "bef").expect("shortened");
    let error = fails();
    assert!(error.contains("has 3 of 7 bytes"), "{error}");
    fs::remove_file(&named).expect("removed");
    let error = fails();
    assert!(error.contains(&*named.to_string_lossy()), "{error}");
}

#[test]
fn what_an_earlier_run_left_behind_never_touches_the_file_of_the_next_one() {
    let directory = tempfile::tempdir().expect("directory");
    let mut former = sink(directory.path());
    former.open().expect("open");
    former
        .process(texts("word", &["former"]), &mut Output::default())
        .expect("written");
    sink::cleanup(directory.path(), context(2, 4).job, "").expect("it has ended");
    // The same job, vertex, subtask and generation.
    let mut next = sink(directory.path());
    next.open().expect("open");
    next.process(texts("word", &["next"]), &mut Output::default())
        .expect("written");
    drop(former);
    let committables = committables(&mut next);
    let pending = fs::read_to_string(&committables[0].pending_path).expect("it is there");
    assert_eq!(pending, "next\n");
}

#[test]
fn a_file_in_the_place_of_the_directory_is_beyond_a_restart_and_nothing_to_clean() {
    let directory = tempfile::tempdir().expect("directory");
    let file = directory.path().join("file");
    fs::write(&file, "precious").expect("written");
    for path in [file.clone(), file.join("below")] {
        let error = sink(&path).open().expect_err("refused");
        assert!(error.is_unrecoverable(), "{error}");
        assert!(
            error.to_string().contains("can't be a directory"),
            "{error}"
        );
        sink::cleanup(&path, context(0, 1).job, "").expect("there is nothing");
    }
    assert_eq!(fs::read_to_string(file).expect("untouched"), "precious");
}

#[test]
fn an_output_of_another_run_is_not_touched() {
    let directory = tempfile::tempdir().expect("directory");
    fs::write(directory.path().join("part-0"), "precious").expect("written");
    let error = sink(directory.path())
        .open()
        .expect_err("refused")
        .to_string();
    assert!(error.contains("part-0"), "{error}");
}
