//! A quarantined job goes back to an older checkpoint, or stays as it is.

use tanist_gateway::{GatewayError, GatewayResult};

use super::super::super::records::StateRecord;
use super::*;

/// A file that the older checkpoint names.
const FILE: &str = "pending";

/// The manifest of a checkpoint with this number and one object.
fn taken(number: u64, files: Vec<Vec<u8>>) -> pb::CheckpointManifest {
    let mut manifest = manifest(0);
    manifest.number = number;
    manifest.job_id = JOB.to_string();
    let region = &mut manifest.regions[0];
    region.number = number;
    region.subtasks[0].segments[0].object = format!("{number}-3-aa");
    region.subtasks[0].files = files;
    manifest.coordinators = ["forgotten", "known"].map(coordinator).to_vec();
    manifest
}

fn coordinator(operator: &str) -> pb::CoordinatorState {
    pb::CoordinatorState {
        operator: operator.to_owned(),
        ..pb::CoordinatorState::default()
    }
}

/// A job that is quarantined, with the retained checkpoints 5 and 7. Its region has a task in generation 3.
async fn quarantined(place: &World) -> Leader {
    let leader = place.leader("a").await;
    leader.submit(JOB).await.expect("acknowledged");
    let state = pb::JobState {
        regions: vec![pb::RegionState {
            generation: 3,
            placements: vec![pb::Placement::default()],
            restored_from: 4,
            ..pb::RegionState::default()
        }],
        terminal: vec![pb::TerminalExecution::default()],
        coordinators: vec![pb::CoordinatorState {
            generation: 3,
            ..coordinator("known")
        }],
        ..first_state(&submission(JOB), 1)
    };
    leader.store.put_state(&state).await.expect("written");
    let file = place.directory.path().join(FILE);
    let file = file.into_os_string().into_encoded_bytes();
    let objects = leader.store.objects_of(JOB).expect("a blob store");
    let retained = [(5, vec![file]), (7, Vec::new())].map(|(number, files)| {
        let bytes = manifest::encode(&taken(number, files));
        pb::CompletedCheckpoint {
            number,
            manifest: Some(pb::StoredManifest {
                place: Some(Stored::Inline(bytes)),
            }),
            ..pb::CompletedCheckpoint::default()
        }
    });
    for number in [5, 7] {
        let name = format!("{number}-3-aa");
        objects.put(&name, "state".into()).await.expect("written");
    }
    let taken = pb::JobCheckpoints {
        job_id: JOB.to_string(),
        next: 23,
        floor: 6,
        retained: retained.to_vec(),
        requests: vec![pb::SavepointRequest {
            number: 7,
            progress: pb::SavepointProgress::Copying.into(),
            ..pb::SavepointRequest::default()
        }],
        ..pb::JobCheckpoints::default()
    };
    leader.store.put_checkpoints(&taken).await.expect("written");
    leader.end_last(End::Unfit);
    leader.wait_for(JOB, pb::JobStatus::Suspended).await;
    leader
}

async fn go_back(leader: &Leader, number: u64, accepts: bool) -> GatewayResult<pb::Ack> {
    let request = pb::ResolveQuarantineRequest {
        job_id: JOB.to_string(),
        action: pb::QuarantineAction::Retry.into(),
        from_checkpoint: number,
        accept_duplicates: accepts,
    };
    leader.dispatcher.resolve_quarantine(request).await
}

async fn refusal(leader: &Leader, number: u64, accepts: bool) -> String {
    match go_back(leader, number, accepts).await {
        Err(GatewayError::Conflict(text)) => text,
        other => panic!("{other:?}"),
    }
}

async fn state(leader: &Leader) -> pb::JobState {
    let found = leader.store.records.get::<StateRecord>(JOB).await;
    found.expect("readable").expect("there").record.0
}

#[tokio::test(start_paused = true)]
async fn a_job_goes_back_with_all_regions_and_no_number_is_given_out_again() {
    let place = World::new().await;
    let leader = quarantined(&place).await;
    std::fs::write(place.directory.path().join(FILE), "part").expect("written");
    go_back(&leader, 5, true).await.expect("led again");
    leader.wait_for(JOB, pb::JobStatus::Running).await;
    let record = record(&leader, JOB).await.expect("it has one");
    let numbers = record.retained.iter().map(|it| it.number);
    assert_eq!(numbers.collect::<Vec<_>>(), [5]);
    let removing = record.removing.iter().map(|it| it.number);
    assert_eq!(removing.collect::<Vec<_>>(), [7]);
    assert_eq!((record.next, record.floor), (23, 23));
    let request = &record.requests[0];
    assert_eq!(request.progress(), pb::SavepointProgress::Failed);
    let state = state(&leader).await;
    assert!(state.quarantine.is_none() && state.terminal.is_empty());
    let region = &state.regions[0];
    assert_eq!((region.generation, region.placements.len()), (4, 0));
    assert!(region.placed_before);
    let coordinators = state.coordinators.iter();
    let coordinators = coordinators.map(|it| (it.operator.as_str(), it.generation));
    let expected = [("known", 3), ("forgotten", 0)];
    assert_eq!(coordinators.collect::<Vec<_>>(), expected);
    let retried = state.events.last().expect("an event");
    assert!(retried.text.contains("checkpoint 5"), "{}", retried.text);
    // It is led now.
    let repeated = refusal(&leader, 5, true).await;
    assert!(repeated.contains("is not quarantined"), "{repeated}");
}

#[tokio::test(start_paused = true)]
async fn a_job_does_not_go_back_to_before_one_of_its_regions_began() {
    let place = World::new().await;
    let leader = quarantined(&place).await;
    std::fs::write(place.directory.path().join(FILE), "part").expect("written");
    let mut record = record(&leader, JOB).await.expect("it has one");
    let mut before = taken(5, Vec::new());
    before.regions = vec![pb::RegionSnapshot {
        kind: pb::RegionSnapshotKind::FromStart.into(),
        ..pb::RegionSnapshot::default()
    }];
    let mut since = taken(7, Vec::new());
    since.steps = vec![pb::ManifestStep {
        name: "lines".to_owned(),
        vertex_id: since.regions[0].subtasks[0].vertex_id.clone(),
        ..pb::ManifestStep::default()
    }];
    let kept = |manifest: &pb::CheckpointManifest| pb::StoredManifest {
        place: Some(Stored::Inline(manifest::encode(manifest))),
    };
    record.retained[0].manifest = Some(kept(&before));
    record.retained[1].manifest = Some(kept(&since));
    leader
        .store
        .put_checkpoints(&record)
        .await
        .expect("written");
    let text = refusal(&leader, 5, true).await;
    assert!(text.contains("lines had not begun then"), "{text}");

    // Nothing was ever saved of it: it always begins from the start.
    record.retained[1].manifest = Some(kept(&pb::CheckpointManifest {
        number: 7,
        ..before.clone()
    }));
    leader
        .store
        .put_checkpoints(&record)
        .await
        .expect("written");
    go_back(&leader, 5, true).await.expect("led again");
}

#[tokio::test(start_paused = true)]
async fn a_job_stays_as_it_is_that_can_not_go_back_or_whose_user_accepts_no_duplicates() {
    let place = World::new().await;
    let leader = quarantined(&place).await;
    let before = (record(&leader, JOB).await, state(&leader).await);
    let said = [
        (5, false, "--accept-duplicates"),
        (7, true, "it is the newest one"),
        (6, true, "the retained older ones are 5"),
        // The sink's file is not there.
        (5, true, FILE),
    ];
    for (number, accepts, why) in said {
        let text = refusal(&leader, number, accepts).await;
        assert!(
            text.contains(why) && text.contains(&JOB.to_string()),
            "{text}"
        );
    }
    std::fs::write(place.directory.path().join(FILE), "part").expect("written");
    let objects = leader.store.objects_of(JOB).expect("a blob store");
    objects.remove("5-3-aa").await.expect("removed");
    let text = refusal(&leader, 5, true).await;
    assert!(text.contains("the object 5-3-aa is missing"), "{text}");
    assert_eq!((record(&leader, JOB).await, state(&leader).await), before);
    leader.wait_for(JOB, pb::JobStatus::Suspended).await;
}
