//! The invariants of checkpoints (K1 to K15) that concern decisions of the core, as predicates. Each returns what is
//! wrong. They know the truth of the world, which no leader does.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::v1 as pb;

use super::super::super::Task;
use super::super::super::objects::{named_by, number_of};
use super::super::super::record::NAMED_SUBSUMED;
use super::execution::number;

pub(in crate::core) type Checked = Result<(), String>;

pub(in crate::core) fn ensure(holds: bool, text: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(text()) }
}

/// K1: a region restores its newest snapshot that is durable when its placement is written.
pub(in crate::core) fn k1_newest_snapshot_is_restored(restored: u64, newest: u64) -> Checked {
    ensure(restored == newest, || {
        format!("K1: it restores {restored}, and its newest durable snapshot is {newest}")
    })
}

/// K2: a number is given out once, and all of a leader's numbers are above those of earlier ones. `given` has the
/// leader of each number.
pub(in crate::core) fn k2_number_is_new(
    given: &BTreeMap<u64, usize>,
    number: u64,
    leader: usize,
) -> Checked {
    let known = given.get(&number).copied();
    ensure(known.is_none_or(|other| other == leader), || {
        format!("K2: number {number} was given out by leaders {known:?} and {leader}")
    })?;
    let mut above = given.range(number..).filter(|(_, other)| **other < leader);
    ensure(above.next().is_none(), || {
        format!("K2: number {number} of leader {leader} is below one of an earlier leader")
    })
}

/// K3: a region snapshot holds one generation, and each subtask or its end. `tasks` are those of its region, `ends` has
/// the highest number of each execution that ended.
pub(in crate::core) fn k3_snapshot_is_of_one_attempt(
    region: &pb::RegionSnapshot,
    (tasks, all): (&[usize], &[Task]),
    ends: &BTreeMap<(usize, u64), u64>,
) -> Checked {
    ensure(region.subtasks.len() == tasks.len(), || {
        format!("K3: {} subtasks of {}", region.subtasks.len(), tasks.len())
    })?;
    for (subtask, task) in region.subtasks.iter().zip(tasks) {
        let expected = (all[*task].vertex_id.as_str(), all[*task].subtask);
        let found = (subtask.vertex_id.as_str(), subtask.subtask);
        ensure(found == expected, || {
            format!("K3: {found:?} in place of {expected:?}")
        })?;
        if subtask.ended {
            let end = ends.get(&(*task, region.generation));
            ensure(end.is_some_and(|highest| *highest < region.number), || {
                let number = region.number;
                format!("K3: task {task} counts as ended before {number}, and its end is {end:?}")
            })?;
        } else {
            let of = &subtask.operators[0].name;
            let expected = format!("{}/{}", region.generation, region.number);
            ensure(*of == expected, || {
                format!("K3: task {task} saved {of}, not {expected}")
            })?;
        }
    }
    Ok(())
}

/// K4: once a region is given up, no snapshot of its generation becomes durable, unless its write was under way.
pub(in crate::core) fn k4_generation_is_present(snapshot: u64, placed: u64) -> Checked {
    ensure(snapshot >= placed, || {
        format!("K4: a snapshot of generation {snapshot} becomes durable after {placed} was placed")
    })
}

/// K4: no write has a snapshot of a region that the same leader knows to have failed.
pub(in crate::core) fn k4_region_has_not_failed(region: usize, runs: bool) -> Checked {
    ensure(runs, || {
        format!("K4: region {region} has failed, and its snapshot is written")
    })
}

/// K5: each object that a retained manifest names exists.
pub(in crate::core) fn k5_named_objects_exist<'a>(
    manifests: impl Iterator<Item = &'a pb::CheckpointManifest>,
    objects: &BTreeSet<String>,
) -> Checked {
    for manifest in manifests {
        let missing = named_by(manifest).find(|object| !objects.contains(*object));
        ensure(missing.is_none(), || {
            format!(
                "K5: checkpoint {} names {missing:?}, which does not exist",
                manifest.number
            )
        })?;
    }
    Ok(())
}

/// K5: no number below the floor is in flight: what its tasks wrote may have been removed.
pub(in crate::core) fn k5_number_is_not_below_the_floor(number: u64, floor: u64) -> Checked {
    ensure(number >= floor, || {
        format!("K5: number {number} is triggered, and the floor is {floor}")
    })
}

/// K6: only what a durable manifest lists is committed.
pub(in crate::core) fn k6_only_durable_output_is_committed(
    committed: &[pb::CheckpointCommittable],
    durable: &BTreeSet<(String, String)>,
) -> Checked {
    let unknown = committed
        .iter()
        .find(|it| !durable.contains(&(it.uid.clone(), it.kind.clone())));
    ensure(unknown.is_none(), || {
        format!("K6: {unknown:?} is committed and not durable")
    })
}

/// K7: each record counts once in the output. `records` has the part of each; adds those of a part that is committed.
pub(in crate::core) fn k7_records_are_committed_once(
    records: &mut BTreeMap<(String, String), String>,
    part: &pb::CheckpointCommittable,
) -> Checked {
    let name = format!("{}:{}", part.uid, part.kind);
    for record in String::from_utf8_lossy(&part.content).split(' ') {
        let record = (part.uid.clone(), record.to_owned());
        let known = records.get(&record);
        ensure(known.is_none_or(|known| *known == name), || {
            format!("K7: record {record:?} is committed in {known:?} and in {name}")
        })?;
        records.insert(record, name.clone());
    }
    Ok(())
}

/// K8: positions of sources and counts of sinks of a region snapshot agree. `sources` has the final position of each
/// source, for those that had ended.
pub(in crate::core) fn k8_snapshot_is_a_consistent_cut(
    region: &pb::RegionSnapshot,
    sources: usize,
    last: &[u64],
) -> Checked {
    let positions = region.subtasks.iter().take(sources).zip(last);
    let positions: Vec<u64> = positions
        .map(|(source, last)| match source.ended {
            true => *last,
            false => number(&source.positions[0].position),
        })
        .collect();
    for sink in region.subtasks.iter().skip(sources).filter(|it| !it.ended) {
        let counts = sink.operators[0].content.chunks(8).map(number);
        let counts: Vec<u64> = counts.take(sources).collect();
        ensure(counts == positions, || {
            let sink = &sink.vertex_id;
            format!(
                "K8: {sink} saw {counts:?} at {}, sources sent {positions:?}",
                region.number
            )
        })?;
    }
    Ok(())
}

/// K9: a change of leader alone aborts no number and changes no generation.
pub(in crate::core) fn k9_only_leaders_changed(aborted: usize, generations: &[u64]) -> Checked {
    ensure(aborted == 0, || {
        format!("K9: {aborted} numbers were aborted")
    })?;
    ensure(generations.iter().all(|it| *it == 1), || {
        format!("K9: the generations are {generations:?}")
    })
}

/// K10: no barrier blocks a channel for a number that no leader continues.
pub(in crate::core) fn k10_blocked_number_is_in_flight(
    blocked: u64,
    in_flight: Option<u64>,
) -> Checked {
    ensure(in_flight == Some(blocked), || {
        format!("K10: a task blocks for {blocked}, and {in_flight:?} is in flight")
    })
}

/// K13: of what is numbered below the floor, only what is retained is left.
pub(in crate::core) fn k13_only_retained_objects_are_left<'a>(
    manifests: impl Iterator<Item = &'a pb::CheckpointManifest>,
    floor: u64,
    objects: &BTreeSet<String>,
) -> Checked {
    let manifests: Vec<_> = manifests.collect();
    let named: BTreeSet<&str> = manifests.iter().flat_map(|it| named_by(it)).collect();
    let is_left = |object: &&String| {
        number_of(object).is_some_and(|number| number < floor) && !named.contains(object.as_str())
    };
    let left: Vec<_> = objects.iter().filter(is_left).collect();
    ensure(left.is_empty(), || {
        format!("K13: below the floor {floor} are left {left:?}")
    })
}

/// K13: the record stays small, however long a number holds the floor.
pub(in crate::core) fn k13_few_subsumed_checkpoints_are_named(subsumed: usize) -> Checked {
    ensure(subsumed <= NAMED_SUBSUMED, || {
        format!("K13: the record names {subsumed} subsumed checkpoints")
    })
}

/// K14: what is decided about one region changes no other.
pub(in crate::core) fn k14_only_this_region_is_touched(
    region: usize,
    touched: &[usize],
) -> Checked {
    ensure(touched.iter().all(|it| *it == region), || {
        format!("K14: region {region} failed, and {touched:?} were touched")
    })
}

/// K15: the floor never falls.
pub(in crate::core) fn k15_floor_never_falls(before: u64, after: u64) -> Checked {
    ensure(before <= after, || {
        format!("K15: the floor falls from {before} to {after}")
    })
}

/// K15: no object is deleted before the write that made it garbage is durable.
pub(in crate::core) fn k15_deleted_objects_are_garbage<'a>(
    deleted: &[String],
    manifests: impl Iterator<Item = &'a pb::CheckpointManifest>,
    floor: u64,
) -> Checked {
    let manifests: Vec<_> = manifests.collect();
    let named: BTreeSet<&str> = manifests.iter().flat_map(|it| named_by(it)).collect();
    let is_wrong = |object: &&String| {
        number_of(object).is_some_and(|number| number >= floor) || named.contains(object.as_str())
    };
    let wrong = deleted.iter().find(is_wrong);
    ensure(wrong.is_none(), || {
        format!("K15: {wrong:?} is deleted, and the floor is {floor}")
    })
}
