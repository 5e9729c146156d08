//! How state is divided among another number of subtasks: nothing is lost and nothing is doubled.

use super::*;

/// Checks that a job of two parallelisms goes on at two others with each key group, position and state once.
fn check_redistribution(from: (u32, u32), to: (u32, u32)) -> Result<(), TestCaseError> {
    let (before, after) = (counting(from.0, from.1), counting(to.0, to.1));
    let manifest = manifest(&before);
    let sources = tasks(&manifest, &after, "n");
    for source in &sources {
        let positions: Vec<&[u8]> = source.positions.iter().map(|it| &*it.position).collect();
        if from.0 == to.0 {
            prop_assert_eq!(positions, [source.subtask.to_le_bytes()]);
            prop_assert_eq!(source.positions[0].request, 5);
        } else {
            let all = (0..from.0).map(u32::to_le_bytes);
            prop_assert!(
                positions.iter().copied().eq(all
                    .clone()
                    .collect::<Vec<_>>()
                    .iter()
                    .map(|it| &it[..]))
            );
            prop_assert!(source.positions.iter().all(|it| it.request == 0));
        }
    }
    let counts = tasks(&manifest, &after, "c");
    prop_assert!(
        coverage(&counts)
            .into_iter()
            .eq((0..MAX).map(|group| (group, 1)))
    );
    let contents = counts
        .iter()
        .flat_map(|it| &it.operators)
        .map(|it| it.content.clone());
    let mut contents: Vec<Vec<u8>> = contents.collect();
    contents.sort();
    let mut expected: Vec<Vec<u8>> = (0..from.1).map(|it| it.to_le_bytes().to_vec()).collect();
    expected.sort();
    prop_assert_eq!(&contents, &expected);
    let mut files: Vec<Vec<u8>> = counts.iter().flat_map(|it| it.files.clone()).collect();
    files.sort();
    prop_assert_eq!(files, expected);
    let most = counts.iter().map(|it| it.operators.len()).max();
    prop_assert!(most <= Some(from.1.div_ceil(to.1) as usize));
    Ok(())
}

/// A parallelism, one of the smallest or one of all.
fn parallelism() -> impl Strategy<Value = u32> {
    prop_oneof![1_u32..=16, 1..=MAX, Just(1), Just(MAX)]
}

#[test]
fn a_key_group_that_is_lost_between_two_ranges_is_found() {
    assert!(check_redistribution((1, MAX), (1, 3)).is_ok());
    plant(Some(Fault::KeyGroupLost));
    let found = check_redistribution((1, MAX), (1, 3));
    plant(None);
    assert!(found.is_err());
}

proptest! {
    #[test]
    fn nothing_is_lost_or_doubled_between_any_two_parallelisms(
        from in (parallelism(), parallelism()), to in (parallelism(), parallelism()),
    ) {
        check_redistribution(from, to)?;
    }

    #[test]
    fn key_groups_of_subtasks_that_had_ended_have_no_entries_and_all_others_stay(
        from in 1_u32..=16, to in 1_u32..=16, ended in prop::collection::btree_set(0_u32..16, 0..16),
    ) {
        let before = counting(1, from);
        let mut manifest = manifest(&before);
        let ended = ended.into_iter().filter(|subtask| *subtask < from).collect::<Vec<_>>();
        ended.iter().for_each(|subtask| end(&mut manifest, "c", *subtask));
        let counts = tasks(&manifest, &counting(1, to), "c");
        // The source has something left, so no subtask behind it can have ended.
        prop_assert!(counts.iter().all(|it| !it.ended));
        if from != to && ended.len() < from as usize {
            prop_assert!(coverage(&counts).into_iter().eq((0..MAX).map(|group| (group, 1))));
        }
        for segment in counts.iter().flat_map(|it| &it.segments) {
            let is_empty = segment.length == 0;
            prop_assert_eq!(is_empty, segment.content.is_empty());
            let of_ended = ended.iter().any(|subtask| {
                key_groups(*subtask, from, MAX) == (segment.first_key_group..segment.end_key_group)
            });
            prop_assert_eq!(is_empty, of_ended);
        }
    }
}

#[test]
fn segments_go_in_their_order_to_the_tasks_for_whose_key_groups_they_count() {
    let mut manifest = manifest(&counting(1, 1));
    let subtasks = manifest.regions.iter_mut().flat_map(|it| &mut it.subtasks);
    for segments in subtasks.map(|it| &mut it.segments) {
        let Some(older) = segments.first().cloned() else {
            continue;
        };
        segments[0].superseded = vec![KeyGroupRange {
            first: 4,
            end: MAX / 2,
        }];
        segments[0].written_in = 1;
        segments.push(StateSegment {
            written_in: 2,
            ..older.clone()
        });
        segments.insert(
            0,
            StateSegment {
                superseded: vec![KeyGroupRange {
                    first: 0,
                    end: MAX / 2,
                }],
                ..older
            },
        );
    }
    let counts = tasks(&manifest, &counting(1, 2), "c");
    let written = counts.iter().map(|task| {
        let segments = task.segments.iter();
        segments.map(|it| it.written_in).collect::<Vec<_>>()
    });
    assert_eq!(written.collect::<Vec<_>>(), [vec![1, 2], vec![0, 1, 2]]);
}

proptest! {
    /// Such state needs no declaration of its step.
    #[test]
    fn state_that_says_how_it_is_divided_is_in_the_subtasks_as_it_says(
        before in 1_u32..8, here in 1_u32..8, elements in 0_u32..5,
    ) {
        let step = CustomSpec::operator("enrich", [("a", ColumnType::Int64)]).saving_state();
        let graph_of = |parallelism| {
            let vertices = vec![vertex("v", &[("step", step.clone().into())], parallelism)];
            graph(vertices, Partitioning::Hash)
        };
        let mut saved = manifest(&graph_of(before));
        let state = |name: &str, rule: StateRedistribution, content: String| OperatorState {
            uid: "step".to_owned(),
            name: name.to_owned(),
            content: content.into_bytes(),
            redistribution: rule.into(),
            ..OperatorState::default()
        };
        let mut all = Vec::new();
        for subtask in &mut saved.regions[0].subtasks {
            let number = subtask.subtask;
            subtask.operators.clear();
            for element in 0..(elements + number) % 5 {
                let element = format!("{number}-{element}");
                subtask.operators.push(state("list", StateRedistribution::List, element.clone()));
                subtask.operators.push(state("union", StateRedistribution::Union, element.clone()));
                all.push(element);
            }
            subtask.operators.push(state("all", StateRedistribution::Broadcast, "same".to_owned()));
        }
        let tasks = tasks(&saved, &graph_of(here), "v");
        let of = |task: &SubtaskSnapshot, name: &str| -> Vec<String> {
            let states = task.operators.iter().filter(|it| it.name == name);
            states.map(|it| String::from_utf8_lossy(&it.content).into_owned()).collect()
        };
        let mut listed: Vec<String> = tasks.iter().flat_map(|task| of(task, "list")).collect();
        let most = tasks.iter().map(|task| of(task, "list").len()).max();
        if before == here {
            let kept = tasks.iter().zip(&saved.regions[0].subtasks);
            prop_assert!(kept.clone().all(|(task, saved)| task.operators == saved.operators));
        } else {
            prop_assert!(tasks.iter().all(|task| of(task, "union") == all));
            let even = all.len().div_ceil(here as usize);
            prop_assert_eq!(most, Some(even), "they are divided evenly");
        }
        listed.sort();
        all.sort();
        prop_assert_eq!(listed, all);
        prop_assert!(tasks.iter().all(|task| of(task, "all") == ["same"]));
    }
}
