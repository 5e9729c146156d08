//! Output that a retained checkpoint names and that is not visible: it stays, and goes to the job that begins from it.

use tanist_model::{OperatorSpec, operators};

use super::*;

/// Runs a job that fails, and leaves a checkpoint with this manifest.
async fn fail_with(leader: &Leader, manifest: &pb::CheckpointManifest, committed: bool) {
    let retention = pb::CheckpointRetention::DeleteOnCancellation;
    let mut taken = run_with_checkpoint(leader, retention).await;
    taken.retained[0].committed = committed;
    let place = Some(Stored::Inline(manifest::encode(manifest)));
    taken.retained[0].manifest = Some(pb::StoredManifest { place });
    leader.store.put_checkpoints(&taken).await.expect("written");
    leader.retain_with_last(taken);
    let result = pb::JobResult {
        status: pb::JobStatus::Failed.into(),
        ..result_of(JOB)
    };
    leader.end_last(End::Result(Box::new(result)));
    until_clean(leader).await;
}

#[tokio::test(start_paused = true)]
async fn files_that_a_retained_checkpoint_names_stay_and_are_given_to_the_job_that_begins_from_it()
{
    let place = World::new().await;
    let leader = place.leader("a").await;
    let mut taken = manifest(0);
    let subtask = &mut taken.regions[0].subtasks[0];
    subtask.files.push(b"/open".to_vec());
    subtask.output.push(pb::Committable {
        pending_path: "/at-end".to_owned(),
        final_path: "/out/part-0".to_owned(),
    });
    fail_with(&leader, &taken, true).await;
    let kept = async |job: JobId| match leader.store.kept_objects(job).await {
        Ok(Kept::These { output, .. }) => output,
        other => panic!("{other:?}"),
    };
    let named = [b"/open".to_vec(), b"/at-end".to_vec()];
    assert_eq!(kept(JOB).await.files, BTreeSet::from(named.clone()));

    let files = Files::default();
    let (heir, next) = (OTHER, JobId::from_bits(9));
    *files.trouble.lock() = Some("no permission");
    let refusal = put_with(&leader, heir, &from_job(JOB), (fitting, &files)).await;
    let refusal = refusal.expect_err("not given").to_string();
    assert!(refusal.contains("no permission"), "{refusal}");
    assert_eq!(record(&leader, heir).await, None);
    *files.trouble.lock() = None;
    put_with(&leader, heir, &from_job(JOB), (fitting, &files))
        .await
        .expect("stored");
    assert_eq!(*files.given.lock(), named);
    let of_heir = begun(&leader, heir).await;
    let own = manifests::hidden_files(&of_heir);
    let expected = ["/open", "/at-end"].map(|path| format!("{heir}{path}").into_bytes());
    assert_eq!(own, expected);
    let visible = &of_heir.regions[0].subtasks[0].output[0].final_path;
    assert_eq!(visible, "/out/part-0");

    // It fails before it takes a checkpoint, and gives away what it was given.
    let mut result = pb::JobResult {
        status: pb::JobStatus::Failed.into(),
        ..result_of(heir)
    };
    let store = &leader.store;
    let retained = store.retained_without_job_master(heir, &mut result).await;
    let retained = retained.expect("readable");
    let writing = store.put_result_with(result, &retained);
    writing.await.expect("written");
    assert_eq!(kept(heir).await.files, BTreeSet::from(expected.clone()));
    files.given.lock().clear();
    put_with(&leader, next, &from_job(heir), (fitting, &files))
        .await
        .expect("stored");
    assert_eq!(*files.given.lock(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_start_finishes_the_commit_of_a_job_that_ended_without_a_job_master() {
    let place = World::new().await;
    let leader = place.leader("a").await;
    let mut taken = manifest(0);
    taken.uncommitted.push(pb::CheckpointCommittable::default());
    fail_with(&leader, &taken, false).await;
    let kept = leader.store.kept_objects(JOB).await.expect("readable");
    let Kept::These { output, .. } = kept else {
        panic!("{kept:?}");
    };
    assert_eq!(output.uncommitted, taken.uncommitted);

    let files = Files::default();
    *files.trouble.lock() = Some("not mounted");
    let refusal = put_with(&leader, OTHER, &from_job(JOB), (fitting, &files)).await;
    let refusal = refusal.expect_err("not visible").to_string();
    assert!(
        refusal.contains("output that is not visible yet"),
        "{refusal}"
    );
    assert!(refusal.contains("not mounted"), "{refusal}");
    *files.trouble.lock() = None;
    for job in [OTHER, JobId::from_bits(9)] {
        put_with(&leader, job, &from_job(JOB), (fitting, &files))
            .await
            .expect("stored");
        assert!(begun(&leader, job).await.uncommitted.is_empty());
    }
    assert_eq!(*files.committed.lock(), [(7, 1), (7, 1)]);
}

/// The leader dies between the names for the files and the submission.
#[tokio::test(start_paused = true)]
async fn files_that_a_submission_has_taken_over_which_is_never_written_are_removed() {
    let place = World::new().await;
    let leader = place.leader("a").await;
    let objects = leader.store.objects_of(OTHER).expect("a blob store");
    let sink: OperatorSpec = operators::FileSink::new("/out").into();
    let mut graph = submission(OTHER).graph;
    graph.run = "r".to_owned();
    graph.vertices.push(pb::JobVertex {
        operators: vec![pb::Operator {
            spec: sink.to_json(),
            ..pb::Operator::default()
        }],
        ..pb::JobVertex::default()
    });
    let files = Files::default();
    let heir = Heir {
        job: OTHER,
        graph: &graph,
        sinks: &files,
    };
    let mut taken = manifest(0);
    let subtask = &mut taken.regions[0].subtasks[0];
    subtask.files.push(b"/open".to_vec());
    let refused = |reason: String| JobStoreError::NotRestored(reason);
    let taking = heir.take_over(&mut taken, Some(&objects), &refused);
    taking.await.expect("taken over");

    let next = place.leader_after(&leader, "b").await;
    next.world.hanging.lock().push("/out".to_owned());
    assert_eq!(sweep(&next).await, 0);
    assert_eq!(objects.list().await.expect("listed"), ["sinks-r"]);
    next.world.hanging.lock().clear();
    assert_eq!(sweep(&next).await, 1);
    assert_eq!(*next.world.cleaned.lock(), ["/out"]);
    assert_eq!(objects.list().await.expect("listed"), Vec::<String>::new());

    // Another attempt was written: the cleanup after the job removes those of the first one.
    run_with_checkpoint(&next, pb::CheckpointRetention::DeleteOnCancellation).await;
    let objects = next.store.objects_of(JOB).expect("a blob store");
    let heir = Heir { job: JOB, ..heir };
    let taking = heir.take_over(&mut taken, Some(&objects), &refused);
    taking.await.expect("taken over");
    next.end_last(End::Result(Box::new(pb::JobResult {
        remove: Some(pb::Cleanup::default()),
        ..result_of(JOB)
    })));
    assert_eq!(until_clean(&next).await, Vec::<String>::new());
    assert_eq!(*next.world.cleaned.lock(), ["/out", "/out"]);
}

/// A job that failed, with this sink directory and a checkpoint that names a file in it.
async fn fail_into(leader: &Leader, directory: &str) {
    let mut taken = manifest(0);
    let subtask = &mut taken.regions[0].subtasks[0];
    subtask.files.push(b"/open".to_vec());
    fail_with(leader, &taken, true).await;
    let result = pb::JobResult {
        dirty: false,
        status: pb::JobStatus::Failed.into(),
        remove: Some(pb::Cleanup {
            sink_directories: vec![directory.to_owned()],
            ..pb::Cleanup::default()
        }),
        ..result_of(JOB)
    };
    let written = leader.store.put_clean_result(&result).await;
    written.expect("written");
}

#[tokio::test(start_paused = true)]
async fn what_an_application_has_hidden_is_removed_with_its_results() {
    let place = World::new().await;
    let leader = place.leader("a").await;
    fail_into(&leader, "/out").await;
    let next = place.leader_after(&leader, "b").await;
    next.world.cleaned.lock().clear();
    let removed = next.store.delete_clean_results().await;
    assert!(removed.expect("removed"));
    assert_eq!(*next.world.cleaned.lock(), ["/out"]);
}

#[tokio::test(start_paused = true)]
async fn a_result_is_not_forgotten_before_what_its_checkpoint_names_is_removed() {
    let place = World::new().await;
    let leader = place.leader("a").await;
    fail_into(&leader, "/out").await;
    let next = place.leader_after(&leader, "b").await;
    next.world.hanging.lock().push("/out".to_owned());
    let retention = DispatcherOptions::default().result_retention;
    tokio::time::sleep(2 * retention).await;
    assert!(next.describe(JOB).await.is_ok(), "it is remembered");
    assert!(record(&next, JOB).await.is_some());
    next.world.hanging.lock().clear();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(next.describe(JOB).await.is_err());
    assert_eq!(record(&next, JOB).await, None);
    assert_eq!(*next.world.cleaned.lock(), ["/out"]);
}
