//! Splits cover all files exactly once, each goes to the first subtask that asks, and a request always has
//! the same answer.

use std::path::PathBuf;

use proptest::prelude::*;
use tanist_model::files::Look;
use tanist_model::restore;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ask_coordinator_response::Answer;
use tanist_proto::v1::coordinator_state::State;

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
fn a_subtask_that_asks_more_often_gets_more_splits() {
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
fn a_request_out_of_turn_decides_nothing() {
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
fn a_path_without_files_fails_the_job_at_the_first_listing_and_is_awaited_at_later_ones() {
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
    fn all_bytes_are_assigned_once_and_an_answer_never_changes(
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

    /// Positions cover some of the splits that were assigned; `None`: the subtask had ended.
    #[test]
    fn at_another_parallelism_bytes_that_no_position_covers_are_assigned_once(
        size in 0_u64..2_000_000,
        mut parallelisms in prop::collection::vec(1_u32..=16, 2..5),
        asks in prop::collection::vec(any::<u32>(), 0..60),
        covered in prop::collection::vec(prop::option::weighted(0.8, 0_usize..6), 16),
    ) {
        let mut splits = cut(vec![file("a", size)], parallelisms[0]);
        let mut given: Vec<(u64, u64)> = Vec::new();
        let mut note = |answer: &Answer| {
            given.extend(ranges(answer).iter().map(|it| (it.start, it.end)));
        };
        parallelisms.dedup();
        for pair in parallelisms.windows(2) {
            let mut answers: Vec<Vec<Answer>> = vec![Vec::new(); pair[0] as usize];
            for subtask in &asks {
                let subtask = subtask % pair[0];
                let known = &mut answers[subtask as usize];
                let next = ask(&mut splits, subtask, known.len() as u64 + 1).expect("in turn");
                if let Answer::FileSplit(_) = next {
                    known.push(next);
                }
            }
            let subtasks = (0..).zip(answers.iter().zip(&covered)).map(|(subtask, (answers, covered))| {
                let covered = covered.map(|covered| covered.min(answers.len()));
                answers[..covered.unwrap_or(answers.len())].iter().for_each(&mut note);
                let position = covered.map(|covered| pb::SourcePosition {
                    uid: "lines".to_owned(),
                    request: covered as u64,
                    ..pb::SourcePosition::default()
                });
                pb::SubtaskSnapshot {
                    vertex_id: "v".to_owned(),
                    subtask,
                    ended: position.is_none(),
                    positions: position.into_iter().collect(),
                    ..pb::SubtaskSnapshot::default()
                }
            });
            let subtasks = subtasks.collect();
            splits = elsewhere(splits, pair[0], subtasks, pair[1]);
        }
        let last = parallelisms[parallelisms.len() - 1];
        let mut numbers = vec![0_u64; last as usize];
        for turn in 0.. {
            let subtask = turn % last;
            let number = &mut numbers[subtask as usize];
            *number += 1;
            let next = ask(&mut splits, subtask, *number).expect("in turn");
            if let Answer::Exhausted(_) = next {
                break;
            }
            note(&next);
        }
        given.sort_unstable();
        let mut at = 0;
        for (start, end) in given {
            prop_assert_eq!(start, at);
            at = end;
        }
        prop_assert_eq!(at, size);
    }
}

/// The graph of one file source.
fn graph(parallelism: u32) -> pb::JobGraph {
    let spec: tanist_model::OperatorSpec = tanist_model::operators::FileSource::new(["a"]).into();
    pb::JobGraph {
        vertices: vec![pb::JobVertex {
            id: "v".to_owned(),
            operators: vec![pb::Operator {
                name: "lines".to_owned(),
                spec: spec.to_json(),
                ..pb::Operator::default()
            }],
            parallelism,
            max_parallelism: 128,
            ..pb::JobVertex::default()
        }],
        ..pb::JobGraph::default()
    }
}

/// The splits as they go on at another parallelism.
fn elsewhere(
    splits: pb::FileSplits,
    from: u32,
    subtasks: Vec<pb::SubtaskSnapshot>,
    to: u32,
) -> pb::FileSplits {
    let state = State::FileSplits(splits);
    let manifest = pb::CheckpointManifest {
        steps: restore::steps(&graph(from)),
        regions: vec![pb::RegionSnapshot {
            kind: pb::RegionSnapshotKind::Taken.into(),
            subtasks,
            ..pb::RegionSnapshot::default()
        }],
        coordinators: vec![pb::CoordinatorState {
            vertex_id: "v".to_owned(),
            operator: "lines".to_owned(),
            generation: 7,
            state: Some(state.clone()),
        }],
        ..pb::CheckpointManifest::default()
    };
    let mut found = restore::coordinators(&manifest, &graph(to)).expect("it fits");
    let found = found.pop().expect("one");
    assert_eq!(
        (found.generation, found.operator.as_str()),
        (u64::from(to), "lines")
    );
    let same = restore::coordinators(&manifest, &graph(from)).expect("it fits");
    assert_eq!(same[0].state, Some(state));
    match found.state {
        Some(State::FileSplits(splits)) => splits,
        None => panic!("it has splits"),
    }
}
