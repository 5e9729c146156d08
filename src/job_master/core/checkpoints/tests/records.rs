//! Single rules about what a core begins with: manifests, origin, coordinators.

use std::collections::BTreeMap;

use tanist_proto::v1 as pb;

use super::super::{
    Effect, Event, JobStart, RegionStart, RestoredFrom, TaskProgress, Unreadable, newest_numbers,
};
use super::bench::{Bench, GENERATION, SINK, SOURCE, aborts, end, placed, record, report, written};

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

fn origin(number: u64, region: pb::RegionSnapshot) -> pb::CheckpointOrigin {
    let mut manifest = manifest(number, region);
    manifest.job_id = "another".to_owned();
    pb::CheckpointOrigin {
        number,
        manifest: stored(&manifest),
        ..pb::CheckpointOrigin::default()
    }
}

fn removed(effects: &[Effect]) -> Vec<String> {
    let removed = effects.iter().filter_map(|effect| match effect {
        Effect::Remove { objects, .. } => Some(objects.clone()),
        _ => None,
    });
    removed.flatten().collect()
}

#[test]
fn the_number_of_an_origin_differs_from_those_of_all_checkpoints_of_the_job() {
    let record = |number: u64, retained: Option<u64>, removing: Option<u64>| {
        let region = |number: u64| taken(number, "3-1-b");
        let retained = retained.map(|number| pb::CompletedCheckpoint {
            number,
            manifest: stored(&manifest(number, region(number))),
            ..pb::CompletedCheckpoint::default()
        });
        let removing = removing.map(|number| pb::SubsumedCheckpoint {
            number,
            manifest: None,
        });
        pb::JobCheckpoints {
            origin: Some(origin(number, region(number))),
            retained: retained.into_iter().collect(),
            removing: removing.into_iter().collect(),
            ..record()
        }
    };
    let error = |record: pb::JobCheckpoints| {
        let start = JobStart {
            regions: waiting(),
            ..JobStart::default()
        };
        Bench::core(record, start).err()
    };
    assert_eq!(error(record(6, None, None)), None);
    assert_eq!(error(record(6, Some(7), Some(5))), None);
    for record in [
        record(10, None, None),
        record(7, Some(7), None),
        record(8, Some(7), None),
        record(7, Some(8), Some(7)),
    ] {
        let error = error(record);
        assert!(matches!(error, Some(Unreadable::Unfit { .. })), "{error:?}");
    }
}

#[test]
fn a_region_without_a_snapshot_is_restored_from_the_origin() {
    let mut record = record();
    record.origin = Some(origin(7, taken(3, "3-1-b")));
    record.floor = 9;
    let core = |record: &pb::JobCheckpoints| Bench::new(record.clone(), waiting());
    let bench = core(&record);
    assert_eq!(bench.core.restored_from(0), Some(RestoredFrom::Origin));
    assert_eq!(bench.core.points().numbers, [7]);
    let found = bench
        .core
        .origin()
        .map(|(origin, manifest)| (origin.number, manifest.number));
    assert_eq!(found, Some((7, 7)));

    let from_origin = pb::RegionSnapshot {
        kind: pb::RegionSnapshotKind::FromOrigin.into(),
        ..pb::RegionSnapshot::default()
    };
    let kept = retaining(&manifest(8, from_origin));
    record.retained = kept.retained;
    record.retained[0].number = 8;
    assert_eq!(newest_numbers(&record, &BTreeMap::new()), [7]);
    let bench = core(&record);
    assert_eq!(bench.core.points().numbers, [7]);
    // The savepoint is the user's, and the job has ended.
    for is_kept in [false, true] {
        let ended = bench.core.record_with_result(is_kept);
        assert_eq!(
            (ended.origin, ended.retained.len()),
            (None, usize::from(is_kept))
        );
    }
}

#[test]
fn the_checkpoint_that_a_job_begins_with_is_its_own() {
    let mut begun = taken(7, "7-0-b");
    begun.generation = 0;
    let record = pb::JobCheckpoints {
        floor: 8,
        ..retaining(&manifest(7, begun))
    };
    let begin = || Bench::new(record.clone(), vec![placed(0, vec![])]);
    let mut bench = begin();
    assert_eq!(bench.core.restored_from(0), Some(RestoredFrom::Snapshot(7)));
    bench.pass(1);
    let objects = ["7-0-b", "7-0-c"].map(str::to_owned).to_vec();
    assert_eq!(removed(&bench.hear(Event::Listed(objects))), ["7-0-c"]);
    // A job that ends before it takes one keeps it, or not, as any other.
    assert_eq!(bench.core.record_with_result(false).retained, []);
    let ended = bench.core.record_with_result(true);
    let kept = ended.retained.iter().map(|it| (it.number, it.committed));
    assert_eq!(kept.collect::<Vec<_>>(), [(7, true)]);
    // With the first one that it takes, the other is garbage.
    let mut bench = begin();
    let number = bench.run_regions(1);
    bench.acknowledge(SOURCE, number, 1);
    let (write, _) = written(&bench.acknowledge(SINK, number, 1)).expect("it is complete");
    let effects = bench.hear(Event::Written { write });
    assert_eq!(removed(&effects), ["7-0-b"]);
}

#[test]
fn an_end_that_knows_no_number_but_that_of_the_origin_aborts_nothing() {
    let mut record = record();
    record.origin = Some(origin(7, taken(3, "3-1-b")));
    let mut bench = Bench::new(record, vec![placed(0, vec![(SINK, end(7, "a", 1))])]);
    bench.register(SOURCE, vec![report(SOURCE, 7, TaskProgress::Unheard)]);
    bench.register(SINK, vec![]);
    let effects = bench.hear(Event::RegionAdopted { region: 0 });
    assert_eq!(aborts(&effects), Vec::<u64>::new());
}

#[test]
fn the_manifest_of_an_origin_is_removed_once_each_region_has_a_snapshot() {
    let mut record = record();
    let mut of_record = origin(7, taken(3, "3-1-b"));
    let bytes = match of_record.manifest.take().and_then(|it| it.place) {
        Some(pb::stored_manifest::Place::Inline(bytes)) => bytes,
        other => panic!("{other:?}"),
    };
    let object = pb::ManifestObject {
        name: "manifest-7-a".to_owned(),
        length: bytes.len() as u64,
    };
    let place = Some(pb::stored_manifest::Place::Object(object));
    of_record.manifest = Some(pb::StoredManifest { place });
    record.origin = Some(of_record);
    let objects = BTreeMap::from([("manifest-7-a".to_owned(), bytes)]);
    let start = JobStart {
        regions: vec![placed(0, vec![])],
        ..JobStart::default()
    };
    let core = Bench::core_with(record, &objects, start).expect("the record is readable");
    let mut bench = Bench { core, now_ms: 0 };
    let number = bench.run_regions(1);
    bench.acknowledge(SOURCE, number, 1);
    let (write, _) = written(&bench.acknowledge(SINK, number, 1)).expect("it is complete");
    let effects = bench.hear(Event::Written { write });
    assert!(bench.core.origin().is_none());
    assert_eq!(removed(&effects), ["manifest-7-a"]);
}

#[test]
fn a_manifest_that_no_record_names_is_removed() {
    let (mut bench, number) = Bench::with_number(1);
    bench.core.options.has_blob_store = true;
    bench.acknowledge(SOURCE, number, 9_000);
    let effects = bench.acknowledge(SINK, number, 1);
    let is_put = |effect: &Effect| matches!(effect, Effect::PutManifest { .. });
    assert!(effects.iter().any(is_put), "{effects:?}");
    let put = pb::ManifestObject {
        name: format!("manifest-{number}-a"),
        length: 9_000,
    };
    let effects = bench.hear(Event::ManifestPut(put.clone()));
    let (write, _) = written(&effects).expect("it is put");
    let reason = "a key is too large".to_owned();
    let effects = bench.hear(Event::WriteRefused { write, reason });
    assert_eq!(removed(&effects), [put.name]);

    // Leaders that died left two, one of a number that may still be completed.
    let mut record = record();
    record.floor = 9;
    let mut bench = Bench::new(record, waiting());
    bench.pass(1);
    let objects = ["manifest-8-a", "manifest-9-a"].map(str::to_owned);
    let effects = bench.hear(Event::Listed(objects.to_vec()));
    assert_eq!(removed(&effects), ["manifest-8-a"]);
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
            began_ms: 0,
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
