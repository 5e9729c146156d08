//! Invariants of a job's checkpoints, over what both of its records said at each moment.

use std::collections::BTreeMap;

use tanist_proto::id::JobId;
use tanist_proto::manifest;
use tanist_proto::v1 as pb;
use tanist_proto::v1::stored_manifest::Place;

use super::history::{Event, Record, Stored};
use super::invariants::replay;

/// All violations in a history.
pub(super) fn broken(events: &[Event]) -> Vec<String> {
    [
        regions_go_on_from_their_newest_snapshot(events),
        no_snapshot_of_an_abandoned_generation_becomes_durable(events),
    ]
    .concat()
}

/// The newest snapshot of each region that has one: its number and its generation.
pub(crate) fn snapshots(record: &pb::JobCheckpoints) -> BTreeMap<usize, (u64, u64)> {
    let Some(newest) = record.retained.last() else {
        return BTreeMap::new();
    };
    let place = newest.manifest.as_ref().and_then(|it| it.place.as_ref());
    let Some(Place::Inline(bytes)) = place else {
        panic!("these jobs have no state: {record:?}");
    };
    let manifest = manifest::decode(bytes).expect("a manifest");
    let regions = manifest.regions.iter().enumerate();
    let taken = regions.filter(|(_, region)| region.kind() == pb::RegionSnapshotKind::Taken);
    taken
        .map(|(number, region)| (number, (region.number, region.generation)))
        .collect()
}

fn stored_snapshots(stored: &Stored, job: &JobId) -> BTreeMap<usize, (u64, u64)> {
    let record = stored.checkpoints.get(job);
    record.map_or_else(BTreeMap::new, snapshots)
}

/// K1: a region is placed to be restored from its newest snapshot that is durable then, and its tasks are.
fn regions_go_on_from_their_newest_snapshot(events: &[Event]) -> Vec<String> {
    let mut broken = Vec::new();
    replay(events, |stored, event| match event {
        Event::Committed { records, .. } => {
            for record in records {
                let Record::State(job, state) = record else {
                    continue;
                };
                let newest = stored_snapshots(stored, job);
                let before = stored.states.get(job);
                for (number, region) in state.regions.iter().enumerate() {
                    let former = before.and_then(|before| before.regions.get(number));
                    let is_placed = former.is_none_or(|it| it.generation < region.generation);
                    let newest = newest.get(&number).map_or(0, |(number, _)| *number);
                    if is_placed && !region.placements.is_empty() && region.restored_from != newest
                    {
                        broken.push(format!(
                            "K1: region {number} of job {job} is restored from {}, and its newest snapshot is {newest}",
                            region.restored_from
                        ));
                    }
                }
            }
        }
        Event::Restored { attempt, number } => {
            let regions = stored.states.get(&attempt.job).map(|state| &state.regions);
            let mut regions = regions.into_iter().flatten();
            let region = regions.find(|region| {
                region.generation == attempt.generation
                    && region.placements.iter().any(|it| {
                        (it.vertex_id.as_str(), it.subtask) == (&attempt.vertex, attempt.subtask)
                    })
            });
            if region.is_some_and(|region| region.restored_from != *number) {
                broken.push(format!("K1: {attempt:?} begins with {number}: {region:?}"));
            }
        }
        _ => {}
    });
    broken
}

/// K4: once a region is placed again, no snapshot of an older generation becomes durable.
fn no_snapshot_of_an_abandoned_generation_becomes_durable(events: &[Event]) -> Vec<String> {
    let mut broken = Vec::new();
    replay(events, |stored, event| {
        let Event::Committed { records, .. } = event else {
            return;
        };
        for record in records {
            let Record::Checkpoints(job, record) = record else {
                continue;
            };
            let Some(state) = stored.states.get(job) else {
                continue;
            };
            let before = stored_snapshots(stored, job);
            for (number, new) in snapshots(record) {
                let former = before.get(&number).copied().unwrap_or_default();
                let generation = state.regions[number].generation;
                if new.0 < former.0 || new.0 > former.0 && new.1 != generation {
                    broken.push(format!(
                        "K4: region {number} of job {job} has generation {generation}, and a snapshot {new:?} after {former:?}"
                    ));
                }
            }
        }
    });
    broken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::history::AttemptKey;

    const JOB: JobId = JobId::from_bits(1);

    fn committed(record: Record) -> Event {
        Event::Committed {
            epoch: 1,
            records: vec![record],
        }
    }

    fn placed(generation: u64, restored_from: u64) -> Event {
        let region = pb::RegionState {
            generation,
            restored_from,
            placements: vec![pb::Placement {
                vertex_id: "v".to_owned(),
                ..pb::Placement::default()
            }],
            ..pb::RegionState::default()
        };
        let state = pb::JobState {
            regions: vec![region],
            ..pb::JobState::default()
        };
        committed(Record::State(JOB, Box::new(state)))
    }

    fn completed(number: u64, generation: u64) -> Event {
        let manifest = pb::CheckpointManifest {
            regions: vec![pb::RegionSnapshot {
                kind: pb::RegionSnapshotKind::Taken.into(),
                number,
                generation,
                ..pb::RegionSnapshot::default()
            }],
            ..pb::CheckpointManifest::default()
        };
        let place = Some(Place::Inline(manifest::encode(&manifest)));
        let record = pb::JobCheckpoints {
            retained: vec![pb::CompletedCheckpoint {
                number,
                manifest: Some(pb::StoredManifest { place }),
                ..pb::CompletedCheckpoint::default()
            }],
            ..pb::JobCheckpoints::default()
        };
        committed(Record::Checkpoints(JOB, Box::new(record)))
    }

    fn begins(generation: u64, number: u64) -> Event {
        let attempt = AttemptKey {
            job: JOB,
            vertex: "v".to_owned(),
            subtask: 0,
            generation,
        };
        Event::Restored { attempt, number }
    }

    #[test]
    fn a_wrong_restore_and_a_late_snapshot_are_found() {
        let fine = [
            placed(1, 0),
            begins(1, 0),
            completed(5, 1),
            placed(2, 5),
            begins(2, 5),
            completed(6, 2),
        ];
        assert_eq!(broken(&fine), Vec::<String>::new());
        let wrong = [
            ("K1", vec![placed(1, 0), completed(5, 1), placed(2, 0)]),
            (
                "K1",
                vec![placed(1, 0), completed(5, 1), placed(2, 5), begins(2, 0)],
            ),
            ("K4", vec![placed(1, 0), placed(2, 0), completed(5, 1)]),
            ("K4", vec![placed(1, 0), completed(5, 1), completed(4, 1)]),
        ];
        for (name, events) in wrong {
            let broken = broken(&events);
            assert!(
                broken.len() == 1 && broken[0].starts_with(name),
                "{broken:?}"
            );
        }
    }
}
