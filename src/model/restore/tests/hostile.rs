//! Manifests with any numbers or bytes need no more memory than a multiple of their size.

use super::*;

/// Checks a manifest, and takes it apart if it passes. Returns the most memory that was in use for it at once.
fn bytes_for(manifest: &CheckpointManifest, graph: &JobGraph) -> u64 {
    let allocated = allocation_counter::measure(|| {
        if check(manifest, graph, Unclaimed::Ignored).is_ok() {
            let tasks = redistribute(manifest, graph).expect("what is accepted is redistributed");
            coordinators(manifest, graph).expect("what is accepted has its coordinators");
            drop(tasks);
        }
    });
    allocated.bytes_max
}

/// Most memory for a manifest of this size: it is taken apart for each task, of which the graph has few.
fn allowed(manifest: &CheckpointManifest) -> u64 {
    16 * 1024 + 64 * manifest.encoded_len() as u64
}

#[test]
fn a_parallelism_that_no_job_can_have_is_refused_before_anything_is_made_by_it() {
    let graph = counting(2, 2);
    assert!(bytes_for(&manifest(&graph), &graph) > 0, "it is measured");
    for (parallelism, max) in [(u32::MAX, 32), (2, u32::MAX), (32_769, 32_769)] {
        let mut hostile = manifest(&graph);
        let step = &mut hostile.steps[1];
        (step.parallelism, step.max_parallelism) = (parallelism, max);
        assert!(bytes_for(&hostile, &graph) < allowed(&hostile));
        let problem = refused(&hostile, &graph);
        assert!(
            problem.contains("step `counts` has parallelism"),
            "{problem}"
        );
        redistribute(&hostile, &graph).expect_err("refused");
        coordinators(&hostile, &graph).expect_err("refused");
    }
}

#[test]
fn the_largest_parallelism_of_many_steps_needs_no_memory_for_subtasks_that_are_not_there() {
    let graph = counting(2, 2);
    let mut hostile = manifest(&graph);
    hostile.regions[0].kind = RegionSnapshotKind::FromStart.into();
    hostile.steps.extend((0..900).map(|number| ManifestStep {
        uid: format!("s{number}"),
        vertex_id: format!("v{number}"),
        parallelism: 32_768,
        max_parallelism: 32_768,
        ..ManifestStep::default()
    }));
    assert!(bytes_for(&hostile, &graph) < allowed(&hostile));
    hostile.steps.extend((0..100).map(|number| ManifestStep {
        uid: format!("t{number}"),
        ..ManifestStep::default()
    }));
    let problem = refused(&hostile, &graph);
    assert!(problem.contains("1003 steps"), "{problem}");
}

#[test]
fn key_groups_that_a_subtask_does_not_have_are_refused_with_the_subtask_and_its_step() {
    let graph = counting(2, 2);
    let refused_with = |change: fn(&mut StateSegment)| {
        let mut hostile = manifest(&graph);
        let subtasks = &mut hostile.regions[0].subtasks;
        let mut segments = subtasks.iter_mut().flat_map(|it| &mut it.segments);
        change(segments.next().expect("counts are keyed"));
        assert!(bytes_for(&hostile, &graph) < allowed(&hostile));
        refused(&hostile, &graph)
    };
    let range = |first, end| KeyGroupRange { first, end };
    let problems = [
        refused_with(|it| it.end_key_group = u32::MAX),
        refused_with(|it| it.first_key_group = 100),
        refused_with(|it| {
            let ranges = (0..100_000).map(|it| KeyGroupRange {
                first: it,
                end: it + 1,
            });
            it.superseded = ranges.collect();
        }),
    ];
    for problem in problems {
        assert!(problem.contains("subtask 0 of `counts`"), "{problem}");
    }
    let mut intact = manifest(&graph);
    intact.regions[0].subtasks[2].segments[0].superseded = vec![range(0, 4), range(8, 16)];
    check(&intact, &graph, Unclaimed::Refused).expect("a segment that counts for a part");
}

/// A number that may stand in a manifest.
fn hostile() -> impl Strategy<Value = u32> {
    prop_oneof![
        Just(0_u32),
        Just(1),
        Just(MAX - 1),
        Just(32_768),
        Just(u32::MAX),
        any::<u32>()
    ]
}

proptest! {
    #[test]
    fn no_number_in_a_manifest_has_it_need_more_than_a_multiple_of_its_size(
        changes in prop::collection::vec((0_u8..8, any::<prop::sample::Index>(), hostile(), hostile()), 0..6),
        parallelism in 1_u32..4,
    ) {
        let graph = counting(2, 3);
        let mut manifest = manifest(&graph);
        for (change, which, one, other) in changes {
            let CheckpointManifest { steps, regions, .. } = &mut manifest;
            let step = which.index(steps.len());
            let subtask = which.index(regions[0].subtasks.len());
            let (step, subtask) = (&mut steps[step], &mut regions[0].subtasks[subtask]);
            match change {
                0 => step.parallelism = one,
                1 => step.max_parallelism = one,
                2 => (step.parallelism, step.max_parallelism) = (one, other),
                3 => subtask.subtask = one,
                4 => subtask.ended = !subtask.ended,
                5 => subtask.segments.iter_mut().for_each(|it| (it.first_key_group, it.end_key_group) = (one, other)),
                6 => {
                    let range = KeyGroupRange { first: one, end: other };
                    subtask.segments.iter_mut().for_each(|it| it.superseded.push(range));
                }
                _ => regions[0].kind = RegionSnapshotKind::FromStart.into(),
            }
        }
        let needed = bytes_for(&manifest, &counting(2, parallelism));
        prop_assert!(needed < allowed(&manifest), "{needed} bytes");
    }

    #[test]
    fn flipped_bytes_of_a_manifest_are_no_panic_and_need_no_more_than_a_multiple(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
    ) {
        let graph = counting(2, 3);
        let mut bytes = manifest(&graph).encode_to_vec();
        for (at, to) in flips {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        if let Ok(manifest) = CheckpointManifest::decode(&*bytes) {
            let needed = bytes_for(&manifest, &graph);
            prop_assert!(needed < 16 * 1024 + 64 * bytes.len() as u64, "{needed} bytes");
        }
    }
}
