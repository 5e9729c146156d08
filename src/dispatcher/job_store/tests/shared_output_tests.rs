//! A job that begins from a savepoint of a job that still runs, and the directories of their sinks.

use super::*;

const ORIGIN: JobId = JobId::from_bits(9);

fn sinks(paths: &[&str]) -> Option<pb::SinkDirectories> {
    Some(pb::SinkDirectories {
        paths: paths.iter().map(|path| (*path).to_owned()).collect(),
        ..pb::SinkDirectories::default()
    })
}

/// Begins from the savepoint of the job that writes to `/out`, with sinks that write to these directories.
async fn begin(leader: &Leader, path: &str, paths: &[&str]) -> Result<(), String> {
    let submission = submission(OTHER);
    let mut state = pb::JobState {
        sinks: sinks(paths),
        ..first_state(&submission, 1)
    };
    let (files, request) = (Files::default(), from_path(path));
    let how = (fitting as Fits, &files as &dyn SinkCleaner);
    let store = &leader.store;
    let putting = store.put_restored_submission(&submission.graph, &mut state, &request, how);
    putting.await.map_err(|error| error.to_string())
}

#[tokio::test(start_paused = true)]
async fn two_jobs_of_one_history_do_not_write_to_one_directory_at_a_time() {
    let place = World::new().await;
    let leader = place.leader("a").await;
    leader.submit(ORIGIN).await.expect("acknowledged");
    let running = pb::JobState {
        sinks: sinks(&["/in", "/out"]),
        ..first_state(&self::submission(ORIGIN), 1)
    };
    leader.store.put_state(&running).await.expect("written");
    let mut saved = manifest(0);
    saved.job_id = ORIGIN.to_string();
    let path = place.savepoint("sp", &saved).await;

    let refused = begin(&leader, &path, &["/other", "/out/"]).await;
    let refused = refused.expect_err("the other job still writes there");
    let is_told = refused.contains(&ORIGIN.to_string()) && refused.contains("/out");
    assert!(is_told, "{refused}");
    let kept = from_job(ORIGIN);
    let runs = put(&leader, OTHER, &kept, fitting).await;
    let runs = runs.expect_err("it is not there").to_string();
    assert!(runs.contains("has not ended"), "{runs}");
    begin(&leader, &path, &["/other"])
        .await
        .expect("its own directory");
    // Its end is decided: its sinks give the directory back.
    let canceled = pb::JobState {
        wanted: pb::WantedStatus::Canceled.into(),
        ..running
    };
    leader.store.put_state(&canceled).await.expect("written");
    begin(&leader, &path, &["/out"]).await.expect("it ends");
}
