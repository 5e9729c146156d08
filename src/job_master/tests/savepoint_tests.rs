//! Savepoints through the actor: requests that are refused, and a job that begins from one.

use std::time::Duration;

use tanist_gateway::GatewayError;
use tanist_gateway::persistence::{JobStateStore as _, MemoryJobStateStore};
use tanist_proto::v1 as pb;

use super::checkpoints_tests::{all_saved, running_with, tell, triggered, with_checkpoints};
use super::scripted::{Fixture, wait_until};
use crate::JobMasterOptions;
use crate::core::tests::testing::{graph_of, submitted};

fn request(job_id: &str) -> pb::TriggerSavepointRequest {
    pb::TriggerSavepointRequest {
        job_id: job_id.to_owned(),
        trigger_id: "0123456789abcdef0123456789abcdef".to_owned(),
        directory: "/savepoints".to_owned(),
        stop: false,
    }
}

fn graph() -> pb::JobGraph {
    graph_of(&[("a", 1), ("b", 2)], &[(0, 1)])
}

#[tokio::test(start_paused = true)]
async fn a_job_without_checkpoints_has_no_savepoint_and_says_what_to_set() {
    let (fixture, _) = running_with(JobMasterOptions::default(), graph()).await;
    let request = request(&fixture.graph.job_id);
    let answer = fixture.job_master.trigger_savepoint(request).await;
    let Err(GatewayError::Conflict(why)) = answer else {
        panic!("{answer:?}");
    };
    assert!(why.contains("execution.checkpointing.interval"), "{why}");
    assert!(why.contains(&fixture.graph.job_id), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_lacks_slots_for_long_has_no_savepoint_and_says_what_it_waits_for() {
    let (graph, store) = (graph(), MemoryJobStateStore::default());
    let state = submitted(&graph);
    let fixture = Fixture::start_with(with_checkpoints(), graph, state, store.clone());
    let job = fixture.graph.job_id.clone();
    let asking = |trigger_id: &str, stop: bool| pb::TriggerSavepointRequest {
        trigger_id: trigger_id.repeat(32),
        stop,
        ..request(&job)
    };
    wait_until("the JobMaster has the job", || {
        fixture.stored().job_incarnation > 0
    })
    .await;
    // At first slots may come at any moment, as after a change of leaders.
    let early = fixture.job_master.trigger_savepoint(asking("a", false));
    assert_eq!(early.await, Ok(()));
    tokio::time::sleep(Duration::from_secs(6)).await;
    for stop in [false, true] {
        let answer = fixture.job_master.trigger_savepoint(asking("b", stop));
        let Err(GatewayError::Conflict(why)) = answer.await else {
            panic!("it was taken");
        };
        assert!(why.contains(&job), "{why}");
        let waits = "the region of a, b does not run: 2 of 2 slots are missing";
        assert!(why.contains(waits), "{why}");
    }
    let again = fixture.job_master.trigger_savepoint(asking("a", false));
    assert_eq!(again.await, Ok(()), "it was taken before");
    let requests = store.checkpoints(&job).await.expect("read");
    let requests = requests.map_or_else(Vec::new, |it| it.requests.clone());
    assert_eq!(requests.len(), 1, "what was refused is not written");

    let task_executor = fixture.task_executor("tm1");
    fixture.register("tm1", 1).await.expect("admitted");
    wait_until("three tasks run", || task_executor.reports().len() == 3).await;
    fixture.report("tm1", 1, task_executor.reports()).await;
    let running = fixture.job_master.trigger_savepoint(asking("b", false));
    assert_eq!(running.await, Ok(()));
}

/// The record of a job that begins from a savepoint of another one.
fn from_savepoint(graph: &pb::JobGraph) -> pb::JobCheckpoints {
    let manifest = pb::CheckpointManifest {
        job_id: format!("{:032x}", 9),
        number: 7,
        ..pb::CheckpointManifest::default()
    };
    let place = pb::stored_manifest::Place::Inline(tanist_proto::manifest::encode(&manifest));
    pb::JobCheckpoints {
        job_id: graph.job_id.clone(),
        next: 8,
        floor: 8,
        origin: Some(pb::CheckpointOrigin {
            number: 7,
            manifest: Some(pb::StoredManifest { place: Some(place) }),
            directory: "/savepoints/savepoint-9-1".to_owned(),
        }),
        started_from: "/savepoints/savepoint-9-1".to_owned(),
        ..pb::JobCheckpoints::default()
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_job_was_started_from_is_known_after_its_origin_is_dropped() {
    let (graph, store) = (graph(), MemoryJobStateStore::default());
    let mut record = from_savepoint(&graph);
    record.origin = None;
    store.put_checkpoints(&record).await.expect("written");
    let state = submitted(&graph);
    let fixture = Fixture::start_with(with_checkpoints(), graph, state, store);
    let details = fixture.details().await;
    let checkpoints = details.checkpoints.expect("it has a record");
    assert_eq!(checkpoints.started_from, "/savepoints/savepoint-9-1");
}

#[tokio::test(start_paused = true)]
async fn the_placements_of_a_job_that_begins_from_a_savepoint_name_it() {
    for options in [with_checkpoints(), JobMasterOptions::default()] {
        let (graph, store) = (graph(), MemoryJobStateStore::default());
        let record = from_savepoint(&graph);
        store.put_checkpoints(&record).await.expect("written");
        let state = submitted(&graph);
        let fixture = Fixture::start_with(options, graph, state, store);
        let details = fixture.details().await;
        let checkpoints = details.checkpoints.expect("it has one");
        assert_eq!(checkpoints.started_from, "/savepoints/savepoint-9-1");
        let task_executor = fixture.task_executor("tm1");
        fixture.register("tm1", 1).await.expect("admitted");
        wait_until("placed", || {
            let written = fixture.store.history();
            let mut regions = written.iter().flat_map(|state| &state.regions);
            regions.any(|it| it.restored_from == 7)
        })
        .await;
        wait_until("deployed", || !task_executor.restored.lock().is_empty()).await;
        let details = fixture.details().await;
        let checkpoints = details.checkpoints.expect("it has one");
        assert_eq!(checkpoints.restored_directory, "/savepoints/savepoint-9-1");
    }
}

/// A file is where the directory should be.
#[tokio::test(start_paused = true)]
async fn a_savepoint_that_can_not_be_written_says_by_whom_and_which_key_named_its_directory() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let directory = file.path().display().to_string();
    for is_default in [true, false] {
        let options = JobMasterOptions {
            savepoint_dir: is_default.then(|| directory.clone()),
            ..with_checkpoints()
        };
        let (fixture, task_executor) = running_with(options, graph()).await;
        fixture.report("tm1", 1, task_executor.reports()).await;
        let request = pb::TriggerSavepointRequest {
            directory: directory.clone(),
            ..request(&fixture.graph.job_id)
        };
        let accepted = fixture.job_master.trigger_savepoint(request).await;
        accepted.expect("it is durable");
        wait_until("a trigger", || triggered(&task_executor) > 0).await;
        tell(&fixture, 1, all_saved(triggered(&task_executor), 1)).await;
        let mut outcome = None;
        while outcome.is_none() {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            let checkpoints = fixture.details().await.checkpoints.expect("taken");
            let ended = checkpoints.savepoints.into_iter();
            let mut ended = ended.filter(|it| it.outcome() != pb::SavepointOutcome::InProgress);
            outcome = ended.next();
        }
        let text = outcome.expect("it has ended").text;
        let key = match is_default {
            true => " (`execution.checkpointing.savepoint-dir`)",
            false => "",
        };
        let by = format!("{key} by the JobManager at jm:1: ");
        assert!(text.contains(&by) && text.contains(&directory), "{text}");
    }
}
