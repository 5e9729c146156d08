//! Regions without a snapshot, and jobs that begin from what another one began from.

use super::*;

/// A job of one source.
fn source(parallelism: u32) -> JobGraph {
    graph(
        vec![vertex("n", &[("numbers", datagen())], parallelism)],
        Partitioning::Forward,
    )
}

/// A manifest of that job in which one of three subtasks begins from the start.
fn partial() -> CheckpointManifest {
    let mut partial = manifest(&source(3));
    partial.regions[0].subtasks.remove(1);
    partial.regions.push(RegionSnapshot {
        kind: RegionSnapshotKind::FromStart.into(),
        ..RegionSnapshot::default()
    });
    partial
}

#[test]
fn a_region_without_a_snapshot_begins_from_the_start() {
    let mut partial = partial();
    let same = tasks(&partial, &source(3), "n");
    assert!(same.iter().map(|it| it.positions.len()).eq([1, 0, 1]));
    let problem = refused(&partial, &source(2));
    assert!(
        problem.contains(
            "step `numbers` has parallelism 2, and its state, of parallelism 3, is missing for some"
        ),
        "{problem}"
    );
    partial.regions[0].subtasks.clear();
    let none = tasks(&partial, &source(2), "n");
    assert!(none.iter().all(|it| it.positions.is_empty() && !it.ended));
}

/// A job may begin from what another one began from, before it has saved anything itself.
#[test]
fn what_a_job_begins_with_gives_the_next_one_what_the_first_manifest_would_give() {
    for (sources, counts, here) in [(2, 3, 3), (2, 3, 2), (1, 2, 5)] {
        let first = manifest(&counting(sources, counts));
        let mut graph = counting(sources, here);
        graph.job_id = "second".to_owned();
        let begun = laid_out(&first, &graph).expect("it fits");
        assert_eq!((&*begun.job_id, begun.number), ("second", first.number));
        assert_eq!(begun.regions.len(), 1, "as the graph has");
        assert_eq!(begun.steps, steps(&graph));
        for next in [2, 3, 5] {
            let next = counting(sources, next);
            let expected = tasks(&first, &next, "c");
            let found = tasks(&begun, &next, "c");
            let sum = |tasks: &[SubtaskSnapshot]| {
                let segments = tasks.iter().flat_map(|it| &it.segments);
                let named = segments.filter(|it| !it.content.is_empty());
                let mut named: Vec<_> = named
                    .map(|it| (it.content.clone(), it.first_key_group))
                    .collect();
                named.sort();
                named.dedup();
                named
            };
            assert_eq!(sum(&found), sum(&expected));
            // Each key group comes from one subtask, also where a segment has those of several.
            for (task, whole) in found.iter().zip(&expected) {
                let own = key_groups(task.subtask, found.len() as u32, MAX);
                let counts = |task: &SubtaskSnapshot| {
                    let all = task.segments.iter().flat_map(segments::counted);
                    let own =
                        all.map(|it| it.end.min(own.end).saturating_sub(it.start.max(own.start)));
                    own.sum::<u32>()
                };
                assert_eq!(counts(task), counts(whole));
            }
            assert_eq!(tasks(&begun, &next, "n"), tasks(&first, &next, "n"));
        }
    }
    let lines = || {
        let spec: OperatorSpec = operators::FileSource::new(["in"]).into();
        vertex("f", &[("lines", spec)], 2)
    };
    let before = graph(
        vec![vertex("n", &[("numbers", datagen())], 2)],
        Partitioning::Forward,
    );
    let mut after = before.clone();
    after.vertices.push(lines());
    let begun = laid_out(&manifest(&before), &after).expect("it fits");
    assert_eq!(begun.regions.len(), 4);
    // Nothing was saved of the source that was added: it begins from the start again, at any parallelism.
    let starts = |graph: &JobGraph| {
        let tasks = tasks(&begun, graph, "f");
        tasks
            .iter()
            .all(|it| it.from_start && it.positions.is_empty())
    };
    assert!(starts(&after));
    after.vertices[1].parallelism = 3;
    assert!(starts(&after));
}

#[test]
fn a_subtask_that_begins_from_the_start_is_missed_by_another_parallelism_of_a_later_job_too() {
    let partial = partial();
    let begun = laid_out(&partial, &source(3)).expect("it fits");
    assert_eq!(
        tasks(&begun, &source(3), "n"),
        tasks(&partial, &source(3), "n")
    );
    let problem = refused(&begun, &source(2));
    assert!(problem.contains("is missing for some"), "{problem}");
}
