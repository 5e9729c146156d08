//! Steps that are chained otherwise, and tasks that had ended, find their state again.

use super::*;

#[test]
fn operators_that_are_chained_otherwise_find_their_state() {
    let before = counting(3, 3);
    let [numbers, counts, out] = [
        ("numbers", datagen()),
        ("counts", count()),
        ("out", print()),
    ];
    // What was one vertex is two, and the other way round.
    let parts = vec![vertex("x", &[numbers, counts], 3), vertex("y", &[out], 2)];
    let after = graph(parts, Partitioning::Rebalance);
    let mut manifest = manifest(&before);
    let joined = tasks(&manifest, &after, "x");
    for (subtask, task) in (0_u32..).zip(&joined) {
        assert_eq!(task.positions[0].position, subtask.to_le_bytes());
        assert_eq!(task.segments[0].content, subtask.to_le_bytes());
        assert!(task.operators.is_empty() && task.files.is_empty());
    }
    let parts = tasks(&manifest, &after, "y");
    let contents = |task: &SubtaskSnapshot| {
        task.operators
            .iter()
            .map(|it| it.content[0])
            .collect::<Vec<_>>()
    };
    assert_eq!(
        parts.iter().map(contents).collect::<Vec<_>>(),
        [vec![0, 2], vec![1]]
    );

    // A source that had ended does not begin again, although what is chained to it goes on.
    end(&mut manifest, "n", 1);
    let joined = tasks(&manifest, &after, "x");
    assert!(joined.iter().all(|it| !it.ended));
    let positions = joined
        .iter()
        .map(|it| (it.positions.len(), it.positions[0].ended));
    assert!(positions.eq([(1, false), (1, true), (1, false)]));
}

#[test]
fn a_task_has_ended_if_all_its_steps_had_and_so_have_those_that_write_to_it() {
    let before = counting(2, 2);
    let mut manifest = manifest(&before);
    for subtask in 0..2 {
        end(&mut manifest, "c", subtask);
        end(&mut manifest, "n", subtask);
    }
    for (sources, counts) in [(2, 2), (3, 5), (1, 1)] {
        let all = redistribute(&manifest, &counting(sources, counts)).expect("it fits");
        assert!(all.iter().all(|it| it.ended && it.positions.is_empty()));
    }
    // Another source before it begins from the start, so what follows has not ended.
    let mut after = counting(2, 2);
    after.vertices[0].operators[0].name = "others".to_owned();
    assert!(tasks(&manifest, &after, "c").iter().all(|it| !it.ended));
    assert!(
        tasks(&manifest, &after, "n")
            .iter()
            .all(|it| it.positions.is_empty() && !it.ended)
    );
    // So does a step that is new in the same task.
    let mut after = counting(2, 2);
    after.vertices[1].operators[1].name = "other".to_owned();
    assert!(tasks(&manifest, &after, "c").iter().all(|it| !it.ended));
}

#[test]
fn output_of_subtasks_that_had_ended_is_kept_once_or_the_start_is_refused() {
    let before = counting(2, 3);
    let mut manifest = manifest(&before);
    (0..2).for_each(|subtask| end(&mut manifest, "n", subtask));
    (0..3).for_each(|subtask| end(&mut manifest, "c", subtask));
    let output = Committable {
        pending_path: "p".to_owned(),
        final_path: "f".to_owned(),
    };
    let committable = CheckpointCommittable {
        uid: "out".to_owned(),
        ..CheckpointCommittable::default()
    };
    for subtask in &mut manifest.regions[0].subtasks {
        if subtask.vertex_id == "c" {
            subtask.output.push(output.clone());
            subtask.committables.push(committable.clone());
        }
    }
    for counts in [3, 2, 1, 7] {
        let all = redistribute(&manifest, &counting(2, counts)).expect("it fits");
        assert_eq!(all.iter().map(|it| it.output.len()).sum::<usize>(), 3);
        // They were committed before the savepoint was complete.
        assert!(all.iter().all(|it| it.committables.is_empty()));
    }
    let mut goes_on = counting(2, 3);
    goes_on.vertices[1].operators[0].name = "others".to_owned();
    let problem = refused(&manifest, &goes_on);
    assert!(
        problem.contains("step `out` has output of subtasks that had ended"),
        "{problem}"
    );
}

#[test]
fn the_files_of_a_source_that_had_ended_are_not_looked_for_again() {
    let lines = |parallelism| {
        let spec: OperatorSpec = operators::FileSource::new(["gone"]).into();
        graph(
            vec![vertex("f", &[("lines", spec)], parallelism)],
            Partitioning::Forward,
        )
    };
    let mut ended = manifest(&lines(2));
    let problem = refused(&ended, &lines(2));
    assert!(
        problem.contains("does not say which files are read"),
        "{problem}"
    );
    (0..2).for_each(|subtask| end(&mut ended, "f", subtask));
    let coordinators = coordinators(&ended, &lines(3)).expect("it fits");
    let state = tanist_proto::v1::coordinator_state::State::FileSplits(Default::default());
    assert_eq!(coordinators[0].state, Some(state));
    assert_eq!((coordinators.len(), coordinators[0].generation), (1, 3));
}
