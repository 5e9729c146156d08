//! Single rules about what a core begins with: manifests, origin, coordinators.

use tanist_proto::v1 as pb;

use super::super::{Effect, Event, JobStart, RegionStart, RestoredFrom, Unreadable};
use super::bench::{Bench, GENERATION, SINK, SOURCE, end, record, written};

fn stored(manifest: &pb::CheckpointManifest) -> Option<pb::StoredManifest> {
    let bytes = tanist_proto::manifest::encode(manifest);
    let place = Some(pb::stored_manifest::Place::Inline(bytes));
    Some(pb::StoredManifest { place })
}

fn taken(number: u64, object: &str) -> pb::RegionSnapshot {
    let segment = pb::StateSegment {
        object: object.to_owned(),
        ..pb::StateSegment::default()
    };
    pb::RegionSnapshot {
        kind: pb::RegionSnapshotKind::Taken.into(),
        number,
        generation: GENERATION,
        subtasks: vec![
            pb::SubtaskSnapshot {
                segments: vec![segment],
                ..pb::SubtaskSnapshot::default()
            },
            pb::SubtaskSnapshot::default(),
        ],
    }
}

fn manifest(number: u64, region: pb::RegionSnapshot) -> pb::CheckpointManifest {
    pb::CheckpointManifest {
        job_id: "job".to_owned(),
        number,
        regions: vec![region],
        ..pb::CheckpointManifest::default()
    }
}

fn retaining(manifest: &pb::CheckpointManifest) -> pb::JobCheckpoints {
    pb::JobCheckpoints {
        retained: vec![pb::CompletedCheckpoint {
            number: 7,
            manifest: stored(manifest),
            committed: true,
            ..pb::CompletedCheckpoint::default()
        }],
        ..record()
    }
}

fn waiting() -> Vec<RegionStart> {
    vec![RegionStart::Waiting { generation: 1 }]
}

#[test]
fn an_origin_with_the_number_of_a_retained_checkpoint_is_not_taken_for_it() {
    let mut record = retaining(&manifest(7, taken(6, "6-1-a")));
    let mut origin = manifest(7, taken(3, "3-1-b"));
    origin.job_id = "another".to_owned();
    record.origin = Some(pb::CheckpointOrigin {
        number: 7,
        manifest: stored(&origin),
        owned: true,
        ..pb::CheckpointOrigin::default()
    });
    record.floor = 9;
    let mut bench = Bench::new(record, waiting());
    let restored = bench.core.restored_from(0);
    assert_eq!(restored, Some(RestoredFrom::Snapshot(6)));
    // Both name their objects.
    bench.pass(1);
    let objects = ["6-1-a", "3-1-b", "2-1-c"].map(str::to_owned).to_vec();
    let effects = bench.hear(Event::Listed(objects));
    let removed = effects.iter().find_map(|effect| match effect {
        Effect::Remove { objects, .. } => Some(objects.clone()),
        _ => None,
    });
    assert_eq!(removed, Some(vec!["2-1-c".to_owned()]));
}

#[test]
fn an_intact_manifest_that_does_not_fit_is_an_error() {
    let fit = manifest(7, taken(6, "6-1-a"));
    let change = |change: &dyn Fn(&mut pb::CheckpointManifest)| {
        let mut manifest = fit.clone();
        change(&mut manifest);
        let start = JobStart {
            regions: waiting(),
            ..JobStart::default()
        };
        Bench::core(retaining(&manifest), start).err()
    };
    let of_kind = |kind: pb::RegionSnapshotKind| {
        change(&|it| {
            it.regions[0] = pb::RegionSnapshot {
                kind: kind.into(),
                ..pb::RegionSnapshot::default()
            }
        })
    };
    assert_eq!(change(&|_| {}), None);
    assert_eq!(of_kind(pb::RegionSnapshotKind::FromStart), None);
    let unfit = [
        change(&|it| it.job_id = "another".to_owned()),
        change(&|it| it.number = 6),
        change(&|it| it.layout = 1),
        change(&|it| it.regions.clear()),
        change(&|it| it.regions.push(taken(6, "6-1-b"))),
        change(&|it| it.regions[0].number = 0),
        change(&|it| it.regions[0].number = 8),
        of_kind(pb::RegionSnapshotKind::Unspecified),
        of_kind(pb::RegionSnapshotKind::FromOrigin),
    ];
    for (case, error) in unfit.iter().enumerate() {
        let is_unfit = matches!(error, Some(Unreadable::Unfit { number: 7, .. }));
        assert!(is_unfit, "case {case}: {error:?}");
    }
}

#[test]
fn a_manifest_after_a_takeover_has_the_state_of_coordinators_and_none_is_built_after_the_end() {
    let finished = || {
        let ends = [SOURCE, SINK].map(|it| (it, end(0, "a", 1))).to_vec();
        let generation = GENERATION;
        vec![RegionStart::Finished { generation, ends }]
    };
    let first_write = |is_end_decided: bool| {
        let start = JobStart {
            regions: finished(),
            coordinators: vec![pb::CoordinatorState::default()],
            is_end_decided,
        };
        let core = Bench::core(record(), start).expect("the record is readable");
        let mut bench = Bench { core, now_ms: 0 };
        // It reserves numbers first.
        let effects = bench.pass(100);
        let (write, none) = written(&effects)?;
        assert_eq!(none, None);
        written(&bench.hear(Event::Written { write }))
    };
    let (_, manifest) = first_write(false).expect("the end of the region is written");
    assert_eq!(manifest.map(|it| it.coordinators.len()), Some(1));
    assert_eq!(first_write(true), None);
}
