//! Commits that stop anywhere, are repeated, and are done by several leaders at once.

use std::cell::Cell;

use tanist_proto::id::JobId;

use super::*;
use crate::sink::names::PENDING_DIRECTORY;
use crate::sink::testing::pending;
use crate::sink::{cleanup, forget_marks};

#[test]
fn a_commit_may_be_repeated_at_any_point() {
    let directory = tempfile::tempdir().expect("directory");
    let job = JobId::from_bits(1);
    let parts = ["part-0", "part-1"].map(|name| pending(directory.path(), job, name));
    commit(&parts[..1]).expect("first half");
    commit(&parts).expect("all");
    commit(&parts).expect("again");
    cleanup(directory.path(), job, "").expect("cleaned up");
    commit(&parts).expect("after the cleanup");
    assert_eq!(
        fs::read_to_string(directory.path().join("part-1")).expect("part"),
        "part-1"
    );
}

#[test]
fn of_a_commit_that_nobody_waits_for_no_further_part_becomes_visible() {
    let directory = tempfile::tempdir().expect("directory");
    let job = JobId::from_bits(1);
    let parts = ["part-0", "part-1"].map(|name| pending(directory.path(), job, name));
    let [first, second] = parts.clone().map(|part| PathBuf::from(part.final_path));
    let error = commit_while(&parts, &|| !first.exists()).expect_err("not to its end");
    assert!(matches!(error, SinkError::NotAwaited), "{error}");
    assert!(first.exists() && !second.exists());
    commit(&parts).expect("resumed");
    assert!(second.exists());
}

#[test]
fn a_commit_overwrites_nothing() {
    let directory = tempfile::tempdir().expect("directory");
    let part = pending(directory.path(), JobId::from_bits(1), "part-0");
    fs::write(&part.final_path, "precious").expect("written");
    let error = commit(std::slice::from_ref(&part)).expect_err("refused");
    assert!(matches!(error, SinkError::Occupied { .. }), "{error}");
    assert_eq!(
        fs::read_to_string(&part.final_path).expect("part"),
        "precious"
    );
}

/// The leader had checked and was then stopped; meanwhile another run's output appeared.
#[test]
fn where_renames_replace_files_a_leader_that_stood_still_overwrites_nothing() {
    let directory = tempfile::tempdir().expect("directory");
    let part = pending(directory.path(), JobId::from_bits(1), "part-0");
    let (from, to) = (Path::new(&part.pending_path), Path::new(&part.final_path));
    fs::write(to, "precious").expect("written");
    let error = publish_by_a_link(from, to).expect_err("in the way");
    assert!(matches!(error, SinkError::Occupied { .. }), "{error}");
    assert_eq!(fs::read_to_string(to).expect("part"), "precious");
    // The successor has committed it.
    fs::remove_file(to).expect("taken away");
    commit(std::slice::from_ref(&part)).expect("committed");
    publish_by_a_link(from, to).expect("it is there");
    assert_eq!(fs::read_to_string(to).expect("part"), "part-0");
    // And it was taken away since.
    fs::remove_file(to).expect("taken away");
    publish_by_a_link(from, to).expect("it was there");
    assert!(!to.exists());
}

#[test]
fn where_a_link_made_it_visible_a_crash_before_the_rest_is_no_other_runs_output() {
    let directory = tempfile::tempdir().expect("directory");
    let part = pending(directory.path(), JobId::from_bits(1), "part-0");
    fs::hard_link(&part.pending_path, &part.final_path).expect("a crash after it");
    commit(std::slice::from_ref(&part)).expect("resumed");
    assert!(!Path::new(&part.pending_path).exists());
    assert_eq!(
        fs::read_to_string(&part.final_path).expect("part"),
        "part-0"
    );
}

#[test]
fn of_an_output_that_is_partly_in_the_way_nothing_becomes_visible() {
    let directory = tempfile::tempdir().expect("directory");
    let job = JobId::from_bits(1);
    let parts = ["part-0", "part-1"].map(|name| pending(directory.path(), job, name));
    fs::write(&parts[1].final_path, "precious").expect("written");
    let error = commit(&parts).expect_err("refused");
    assert!(matches!(error, SinkError::Occupied { .. }), "{error}");
    assert!(!Path::new(&parts[0].final_path).exists());
}

/// Two jobs have begun from one, and each has a name of the file.
#[test]
fn a_commit_that_is_refused_takes_no_file_away_that_is_visible_under_another_name() {
    let directory = tempfile::tempdir().expect("directory");
    let job = JobId::from_bits(1);
    let parts = ["part-0", "part-1"].map(|name| pending(directory.path(), job, name));
    fs::hard_link(&parts[0].pending_path, &parts[0].final_path).expect("linked");
    fs::write(&parts[1].final_path, "precious").expect("written");
    let error = commit(&parts).expect_err("refused");
    assert!(matches!(error, SinkError::Occupied { .. }), "{error}");
    assert!(Path::new(&parts[0].pending_path).exists());
    fs::remove_file(&parts[1].final_path).expect("taken away");
    commit(&parts).expect("nothing is in the way");
    assert!(!Path::new(&parts[0].pending_path).exists());
    assert!(Path::new(&parts[0].final_path).exists());
}

#[test]
fn lost_output_is_an_error() {
    let directory = tempfile::tempdir().expect("directory");
    let part = pending(directory.path(), JobId::from_bits(1), "part-0");
    fs::remove_file(&part.pending_path).expect("removed");
    let error = commit(&[part]).expect_err("lost");
    assert!(matches!(error, SinkError::Lost { .. }), "{error}");
}

#[test]
fn output_that_was_taken_away_once_it_was_visible_is_not_lost() {
    let directory = tempfile::tempdir().expect("directory");
    let job = JobId::from_bits(1);
    let parts = ["part-0", "part-1"].map(|name| pending(directory.path(), job, name));
    commit_while(&parts, &|| !Path::new(&parts[0].final_path).exists()).expect_err("a crash");
    fs::remove_file(&parts[0].final_path).expect("taken");
    commit(&parts).expect("by the next leader");
    fs::remove_file(&parts[1].final_path).expect("taken");
    commit(&parts).expect("by the one after it");
    assert!(
        parts
            .iter()
            .all(|part| !Path::new(&part.final_path).exists())
    );
    // Without the marker, since the whole directory is elsewhere, it is not known whether it was committed.
    let away = directory.path().join(".away");
    fs::rename(directory.path().join(PENDING_DIRECTORY), away).expect("away");
    let error = commit(&parts).expect_err("lost");
    assert!(matches!(error, SinkError::Lost { .. }), "{error}");
}

#[test]
fn of_an_output_that_is_partly_lost_nothing_becomes_visible() {
    let directory = tempfile::tempdir().expect("directory");
    let job = JobId::from_bits(1);
    let parts = ["part-0", "part-1"].map(|name| pending(directory.path(), job, name));
    fs::remove_file(&parts[1].pending_path).expect("removed");
    for _ in 0..2 {
        let error = commit(&parts).expect_err("lost");
        assert!(matches!(error, SinkError::Lost { .. }), "{error}");
        assert!(Path::new(&parts[0].pending_path).exists());
    }
}

const WAITED_FOR: &dyn Fn() -> bool = &|| true;

#[test]
fn the_commit_of_a_checkpoint_may_stop_anywhere_and_a_reader_take_what_it_made_visible() {
    // Before the mark, behind it, and behind each part.
    for steps in 0..=4_usize {
        let directory = tempfile::tempdir().expect("directory");
        let job = JobId::from_bits(1);
        let parts = ["a", "b", "c"].map(|name| pending(directory.path(), job, name));
        let looks = Cell::new(0);
        let stops = || {
            looks.set(looks.get() + 1);
            looks.get() <= steps
        };
        let stopped = commit_checkpoint_while(7, &parts, &stops);
        assert_eq!(stopped.is_ok(), steps == 4);
        let visible: Vec<_> = parts.iter().map(|part| &part.final_path).collect();
        let there = visible.iter().filter(|path| Path::new(path).exists());
        assert_eq!(there.count(), steps.saturating_sub(1));
        let mark = Path::new(&parts[0].pending_path).with_file_name("committing-7");
        assert_eq!(mark.exists(), steps > 0);
        for path in &visible[..steps.saturating_sub(1)] {
            fs::remove_file(path).expect("taken");
        }
        for _ in 0..2 {
            commit_checkpoint_while(7, &parts, WAITED_FOR).expect("by the next leader");
        }
        let there = visible.iter().filter(|path| Path::new(path).exists());
        assert_eq!(there.count(), 3 - steps.saturating_sub(1));
    }
}

#[test]
fn two_leaders_commit_one_checkpoint_at_once() {
    let directory = tempfile::tempdir().expect("directory");
    let job = JobId::from_bits(1);
    let parts: Vec<Committable> = (0..100)
        .map(|part| pending(directory.path(), job, &format!("part-{part}")))
        .collect();
    let taken = std::thread::scope(|scope| {
        let leaders =
            [0, 1].map(|_| scope.spawn(|| commit_checkpoint_while(7, &parts, WAITED_FOR)));
        let mut taken = 0;
        while leaders.iter().any(|leader| !leader.is_finished()) {
            taken += take(&parts);
        }
        for leader in leaders {
            leader.join().expect("no panic").expect("committed");
        }
        taken + take(&parts)
    });
    assert_eq!(taken, parts.len());
    assert!(
        parts
            .iter()
            .all(|part| !Path::new(&part.pending_path).exists())
    );
}

/// Takes what is visible away, and returns the number of parts.
fn take(parts: &[Committable]) -> usize {
    let visible = parts.iter().map(|part| &part.final_path);
    visible.filter(|path| fs::remove_file(path).is_ok()).count()
}

#[test]
fn a_part_that_was_taken_is_not_lost_while_the_mark_of_any_checkpoint_names_it() {
    let directory = tempfile::tempdir().expect("directory");
    let job = JobId::from_bits(1);
    let parts = ["a", "b", "c"].map(|name| pending(directory.path(), job, name));
    commit_checkpoint_while(7, &parts[..1], WAITED_FOR).expect("committed");
    fs::remove_file(&parts[0].final_path).expect("taken");
    commit_checkpoint_while(8, &parts[..2], WAITED_FOR).expect("named again");
    assert!(!Path::new(&parts[0].final_path).exists());
    // A mark says nothing about parts that it does not name.
    fs::remove_file(&parts[2].pending_path).expect("removed");
    let error = commit_checkpoint_while(9, &parts, WAITED_FOR).expect_err("lost");
    assert!(matches!(error, SinkError::Lost { .. }), "{error}");
    let forget = |up_to| {
        let forgotten = forget_marks(directory.path(), (job, ""), up_to, WAITED_FOR);
        forgotten.expect("forgotten");
    };
    forget(6);
    forget(7);
    commit_checkpoint_while(8, &parts[..2], WAITED_FOR).expect("the younger mark names it");
    forget(8);
    let error = commit_checkpoint_while(8, &parts[..1], WAITED_FOR).expect_err("lost");
    assert!(matches!(error, SinkError::Lost { .. }), "{error}");
}

#[test]
fn a_mark_that_was_not_completed_says_nothing_and_is_removed_with_the_others() {
    let directory = tempfile::tempdir().expect("directory");
    let job = JobId::from_bits(1);
    let part = pending(directory.path(), job, "a");
    let unfinished = Path::new(&part.pending_path).with_file_name("committing-7.0123");
    fs::write(&unfinished, "a.pending\n").expect("a crash behind it");
    fs::remove_file(&part.pending_path).expect("removed");
    let error = commit_checkpoint_while(7, std::slice::from_ref(&part), WAITED_FOR);
    let error = error.expect_err("lost");
    assert!(matches!(error, SinkError::Lost { .. }), "{error}");
    let last = Path::new(&part.pending_path).with_file_name("committing");
    fs::write(&last, "").expect("that of the end");
    forget_marks(directory.path(), (job, ""), 7, WAITED_FOR).expect("forgotten");
    assert!(!unfinished.exists() && last.exists());
    let error = forget_marks(directory.path(), (job, ""), 7, &|| false);
    error.expect("there is none, so nothing is removed");
    forget_marks(&directory.path().join("missing"), (job, ""), 7, WAITED_FOR).expect("none");
}
