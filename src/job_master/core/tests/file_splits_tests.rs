//! Splits cover all files exactly once, each goes to the first subtask that asks, and a request always has
//! the same answer.

use std::path::PathBuf;

use proptest::prelude::*;
use tanist_model::files::Look;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ask_coordinator_response::Answer;

use crate::coordinator_preparation::list_file_splits as prepare;
use crate::core::coordinator::Taken;
use crate::core::coordinator::file_splits::{answer, cut, take};

fn file(name: &str, size: u64) -> (PathBuf, u64) {
    (PathBuf::from(name), size)
}

/// Sends a request and returns the answer, as the core does.
fn ask(splits: &mut pb::FileSplits, subtask: u32, number: u64) -> Option<Answer> {
    assert_ne!(take(splits, subtask, number), Taken::OutOfTurn);
    answer(splits, subtask, number)
}

fn ranges(answer: &Answer) -> Vec<pb::FileRange> {
    match answer {
        Answer::FileSplit(split) => split.ranges.clone(),
        Answer::Exhausted(_) => Vec::new(),
    }
}

#[test]
fn a_small_input_is_cut_into_one_split_a_subtask() {
    let splits = cut(vec![file("a", 400)], 4);
    assert_eq!(splits.ends, [100, 200, 300, 400]);
}

#[test]
fn a_larger_one_is_cut_into_several_so_that_a_slow_subtask_gets_fewer() {
    assert_eq!(cut(vec![file("a", 1 << 20)], 2).ends.len(), 16);
}

#[test]
fn splits_have_64_mib_at_most_as_long_as_there_are_not_too_many() {
    let gib = 1 << 30;
    assert_eq!(cut(vec![file("a", 16 * gib)], 2).ends.len(), 256);
    assert_eq!(cut(vec![file("a", 10_240 * gib)], 2).ends.len(), 1024);
    assert_eq!(cut(vec![file("a", 10_240 * gib)], 5_000).ends.len(), 5_000);
}

#[test]
fn nothing_to_read_is_no_split() {
    for files in [vec![], vec![file("a", 0)]] {
        let mut splits = cut(files, 3);
        let nothing = Some(Answer::Exhausted(pb::Ack {}));
        assert_eq!(ask(&mut splits, 2, 1), nothing);
        assert_eq!(ask(&mut splits, 2, 1), nothing);
    }
}

#[test]
fn a_split_may_hold_many_files() {
    let files = (0..9)
        .map(|number| file(&format!("f{number}"), 1))
        .collect();
    let mut splits = cut(files, 1);
    let all = ranges(&ask(&mut splits, 0, 1).expect("there is one"));
    assert_eq!(all.len(), 9);
    assert!(
        all.iter()
            .all(|it| (it.start, it.end, it.size) == (0, 1, 1))
    );
}

#[test]
fn who_asks_more_often_gets_more() {
    let mut splits = cut(vec![file("a", 1 << 20)], 2);
    let mut given = [0; 2];
    for round in 0_u64.. {
        let quick = ranges(&ask(&mut splits, 0, round + 1).expect("in turn")).len();
        given[0] += quick;
        if quick == 0 {
            break;
        }
        if round.is_multiple_of(4) {
            given[1] += ranges(&ask(&mut splits, 1, round / 4 + 1).expect("in turn")).len();
        }
    }
    assert_eq!(given[0] + given[1], 16);
    assert!(given[0] > 2 * given[1], "{given:?}");
}

#[test]
fn a_request_before_its_turn_decides_nothing() {
    let mut splits = cut(vec![file("a", 1 << 20)], 2);
    let before = splits.clone();
    assert_eq!(take(&mut splits, 0, 2), Taken::OutOfTurn);
    assert_eq!(take(&mut splits, 0, 0), Taken::OutOfTurn);
    assert_eq!(splits, before);
}

#[test]
fn names_that_are_too_long_for_a_record_are_refused_with_their_number() {
    let directory = tempfile::tempdir().expect("directory");
    for name in ["a", "b", "c"] {
        std::fs::write(directory.path().join(name), "x").expect("written");
    }
    let paths = [directory.path().join("*").to_string_lossy().into_owned()];
    let refused = prepare(&paths, 1, 10, Look::First).expect_err("more than ten bytes");
    assert!(refused.cause.contains("3 files"), "{refused:?}");
    prepare(&paths, 1, 10_000, Look::First).expect("room for all");
}

#[test]
fn a_path_without_files_fails_the_job_at_its_first_look_and_is_awaited_at_later_ones() {
    let directory = tempfile::tempdir().expect("directory");
    let place = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
    for path in [place("missing.txt"), place("*.csv"), place(".")] {
        let at = |look| {
            let paths = std::slice::from_ref(&path);
            prepare(paths, 1, 10_000, look).expect_err("nothing to read")
        };
        let first = at(Look::First);
        assert!(first.is_unrecoverable, "{first:?}");
        assert!(
            first.cause.contains(&path) && first.cause.contains(" on host "),
            "{first:?}"
        );
        assert!(!at(Look::Later).is_unrecoverable, "{path}");
    }
}

proptest! {
    #[test]
    fn whoever_asks_all_bytes_are_given_once_and_an_answer_stays(
        sizes in prop::collection::vec(0_u64..100_000, 0..6),
        parallelism in 1_u32..6,
        asks in prop::collection::vec((any::<u32>(), any::<bool>()), 0..80),
    ) {
        let files: Vec<_> = (0..)
            .zip(&sizes)
            .map(|(number, size): (u32, _)| file(&number.to_string(), *size))
            .collect();
        let mut splits = cut(files, parallelism);
        prop_assert!(splits.ends.is_sorted());
        let mut answers: Vec<Vec<Answer>> = vec![Vec::new(); parallelism as usize];
        let all = (0..parallelism).flat_map(|subtask| vec![(subtask, false); 60]);
        for (subtask, again) in asks.into_iter().chain(all) {
            let subtask = subtask % parallelism;
            let known = &mut answers[subtask as usize];
            if again && let Some(first) = known.first() {
                let same = ask(&mut splits, subtask, 1);
                prop_assert_eq!(same.as_ref(), Some(first));
            }
            if matches!(known.last(), Some(Answer::Exhausted(_))) {
                continue;
            }
            let number = known.len() as u64 + 1;
            let next = ask(&mut splits, subtask, number).expect("in turn");
            known.push(next.clone());
            prop_assert_eq!(answer(&splits, subtask, number), Some(next));
        }
        let mut given: Vec<(u32, u64, u64)> = answers
            .iter()
            .flatten()
            .flat_map(ranges)
            .map(|it| {
                let name = String::from_utf8(it.path).expect("a number");
                (name.parse().expect("a number"), it.start, it.end)
            })
            .collect();
        given.sort_unstable();
        for (number, size) in (0_u32..).zip(&sizes) {
            let mut at = 0;
            for (_, start, end) in given.iter().filter(|it| it.0 == number) {
                prop_assert_eq!(*start, at);
                at = *end;
            }
            prop_assert_eq!(at, *size);
        }
    }
}
