//! Random faults: many faults for a while, then none any more, and every job comes to its right end.
//!
//! Each seed is a run of a whole cluster: its faults ([`faults`]), the clients' requests ([`clients`]) and the
//! delivery of messages. The invariants are checked over the total order of all events, so that even a
//! momentary violation is found. `TANIST_TEST_SEEDS` is the number of seeds; `TANIST_TEST_ALL=1` runs more.
//! `TANIST_TEST_SEED` runs one seed, `TANIST_TEST_SEEDS` times: a seed fixes the faults, but not the random
//! numbers that processes draw themselves, so a failure may need some runs to occur again. The whole history is
//! printed in any case.

mod clients;
mod faults;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tanist_proto::id::JobId;
use tanist_proto::v1::{JobStatus, QuarantineAction, QuarantineKind};
use tanist_task_executor::TaskStatus;

use self::clients::ClientRequest;
use self::faults::{Schedule, Trouble};
use crate::testing::checkpoints::snapshots;
use crate::testing::cluster::{TestCluster, graph, graph_of_regions};
use crate::testing::fencing_invariants::{interrupted, note_takeovers};
use crate::testing::graphs::{graph_with_checkpoints, graph_with_resources};
use crate::testing::history::{Event, Record, Stored};
use crate::testing::random_faults::RandomFaults;
use crate::testing::reached::{Landmark, Reached};

const JOB_MANAGERS: u32 = 3;
const TASK_MANAGERS: u32 = 3;
const SLOTS: u32 = 2;

/// The job after a run that checks that every slot is free.
const LAST: JobId = JobId::from_bits(99);

#[test]
fn whatever_goes_wrong_every_job_comes_to_its_right_end() {
    run_all(80, &Landmark::ALL, |seed| {
        Box::pin(everything_goes_wrong(seed))
    });
}

#[test]
fn whatever_happens_to_job_managers_and_the_store_no_task_notices() {
    run_all(60, &Landmark::OF_CONTROL_PLANE, |seed| {
        Box::pin(the_control_plane_goes_wrong(seed))
    });
}

#[test]
fn whatever_happens_to_job_managers_a_region_that_fails_goes_on_from_its_checkpoint_alone() {
    run_all(40, &Landmark::OF_CHECKPOINTS, |seed| {
        Box::pin(checkpoints_go_wrong(seed))
    });
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is no number: {text}")),
    )
}

/// The seeds to run, and whether they are all seeds that should run.
fn seeds(count: u64) -> (Vec<u64>, bool) {
    let wanted = number("TANIST_TEST_SEEDS");
    if let Some(seed) = number("TANIST_TEST_SEED") {
        let times = wanted.unwrap_or(1);
        return ((0..times).map(|_| seed).collect(), false);
    }
    let all = std::env::var_os("TANIST_TEST_ALL").is_some_and(|value| value == "1");
    let wanted = wanted.unwrap_or(if all { count * 10 } else { count });
    ((0..wanted).collect(), wanted >= count)
}

type Run = std::pin::Pin<Box<dyn Future<Output = Reached>>>;

/// Runs all seeds, each in its own paused time. Together they have to reach all landmarks: some are rare, so
/// more seeds are run until they do, up to a limit.
fn run_all(count: u64, landmarks: &[Landmark], run: impl Fn(u64) -> Run) {
    let reached = Reached::default();
    let (seeds, is_whole) = seeds(count);
    let more = seeds.len() as u64..count * 10;
    for seed in seeds {
        reached.add_all(&run_one(seed, &run));
    }
    for seed in more {
        if !is_whole || missing(&reached, landmarks).is_empty() {
            break;
        }
        reached.add_all(&run_one(seed, &run));
    }
    println!("{reached:?}");
    let missing = missing(&reached, landmarks);
    assert!(
        !is_whole || missing.is_empty(),
        "no run came by {missing:?}: {reached:?}"
    );
}

fn run_one(seed: u64, run: impl Fn(u64) -> Run) -> Reached {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let guard = PrintSeedOnPanic(seed);
    let reached = runtime.block_on(run(seed));
    drop(guard);
    reached
}

fn missing(reached: &Reached, landmarks: &[Landmark]) -> Vec<Landmark> {
    let counts = reached.counts();
    let missing = landmarks.iter().filter(|it| !counts.contains_key(*it));
    missing.copied().collect()
}

struct PrintSeedOnPanic(u64);

impl Drop for PrintSeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with TANIST_TEST_SEED={}", self.0);
        }
    }
}

fn jobs(bits: std::ops::RangeInclusive<u128>) -> Vec<JobId> {
    bits.map(JobId::from_bits).collect()
}

async fn everything_goes_wrong(seed: u64) -> Reached {
    let mut random = StdRng::seed_from_u64(seed);
    let cluster = TestCluster::start(JOB_MANAGERS, TASK_MANAGERS, SLOTS).await;
    let random_faults = RandomFaults::of_seed(random.random());
    cluster.world.set_random_faults(Some(random_faults));
    let jobs = jobs(1..=6);
    let mut asking = Vec::new();
    for (number, job) in jobs.iter().copied().enumerate() {
        // The last three run until they are canceled or stopped.
        let request = match number {
            0..3 => ClientRequest::Finish,
            3 | 4 => ClientRequest::Cancel,
            _ => ClientRequest::Stop,
        };
        let graph = match number {
            0 | 4 | 5 => graph(job, 2),
            2 => graph_with_resources(job, 2),
            _ => graph_of_regions(job, 2),
        };
        asking.push(clients::send_request(&cluster, &mut random, graph, request));
    }
    let mut schedule = Schedule::new(random, cluster, Trouble::Everything);
    schedule.run(40).await;
    let mut cluster = schedule.heal().await;
    clients::answered(asking).await;
    let ends = come_to_their_ends(&mut cluster, &jobs[..3], &jobs[3..5], &jobs[5..]).await;
    for end in ends {
        match end {
            JobStatus::Failed => cluster.world.reached.note(Landmark::StoppedJobFailed),
            JobStatus::Finished => cluster.world.reached.note(Landmark::StoppedJobFinished),
            // Nothing of it had begun.
            _ => {}
        }
    }
    cluster.world.reached.clone()
}

async fn the_control_plane_goes_wrong(seed: u64) -> Reached {
    let mut random = StdRng::seed_from_u64(seed);
    let cluster = TestCluster::start(JOB_MANAGERS, TASK_MANAGERS, SLOTS).await;
    let survivors = jobs(1..=2);
    for (job, graph) in survivors.iter().zip([graph, graph_of_regions]) {
        let graph = graph(*job, 2);
        cluster
            .client
            .submit(&graph, "token")
            .await
            .expect("accepted");
    }
    for job in &survivors {
        cluster.until_running(*job, 4).await;
    }
    let stopped = JobId::from_bits(6);
    let accepted = cluster.client.submit(&graph(stopped, 1), "token").await;
    accepted.expect("accepted");
    cluster.until_running(stopped, 2).await;
    cluster.world.tasks.follow_stopped_sources(stopped);
    let since = cluster.world.events().len();
    let random_faults = RandomFaults::sparing_task_managers(random.random());
    cluster.world.set_random_faults(Some(random_faults));
    let others = jobs(3..=5);
    let mut asking = Vec::new();
    for (job, request) in others.iter().zip([
        ClientRequest::Finish,
        ClientRequest::Finish,
        ClientRequest::Cancel,
    ]) {
        asking.push(clients::send_request(
            &cluster,
            &mut random,
            graph(*job, 1),
            request,
        ));
    }
    asking.push(clients::stop_some_time(&cluster, &mut random, stopped));
    let mut schedule = Schedule::new(random, cluster, Trouble::ControlPlane);
    schedule.run(40).await;
    let mut cluster = schedule.heal().await;
    clients::answered(asking).await;
    for job in &survivors {
        cluster.until_running(*job, 4).await;
    }
    let surviving: BTreeSet<JobId> = survivors.iter().copied().collect();
    let events = cluster.world.events();
    let broken = interrupted(&events[since..], &surviving);
    assert!(broken.is_empty(), "{broken:#?}\n{events:#?}");
    let status = cluster.until_clean(stopped).await;
    let events = cluster.world.events();
    let starts = starts_of(&events, stopped);
    assert_eq!((status, starts), (JobStatus::Finished, 2), "{events:#?}");
    cluster.world.reached.note(Landmark::StoppedJobFinished);
    for job in &survivors {
        cluster.world.finish_tasks(*job);
    }
    let finishing = [&survivors[..], &others[..2]].concat();
    come_to_their_ends(&mut cluster, &finishing, &others[2..], &[]).await;
    cluster.world.reached.clone()
}

/// One region of a job with checkpoints fails now and then while the control plane has faults. K1 and K4 are among the
/// invariants of every history; here no other region may notice (K14).
async fn checkpoints_go_wrong(seed: u64) -> Reached {
    let mut random = StdRng::seed_from_u64(seed);
    let cluster = TestCluster::start(JOB_MANAGERS, TASK_MANAGERS, SLOTS).await;
    let job = JobId::from_bits(1);
    let graph = graph_with_checkpoints(job, 2);
    let vertex = |name: &str| {
        let mut vertices = graph.vertices.iter();
        let vertex = vertices.find(|vertex| vertex.name.contains(name));
        vertex.expect("it has one").id.clone()
    };
    let (flapping, steady) = (vertex("flapping"), vertex("steady"));
    let accepted = cluster.client.submit(&graph, "token").await;
    accepted.expect("accepted");
    cluster.until_running(job, 6).await;
    let random_faults = RandomFaults::sparing_task_managers(random.random());
    cluster.world.set_random_faults(Some(random_faults));
    let pauses: Vec<_> = (0..8)
        .map(|_| Duration::from_millis(random.random_range(0..15_000)))
        .collect();
    let world = cluster.world.clone();
    let failing = tokio::spawn(async move {
        for pause in pauses {
            tokio::time::sleep(pause).await;
            let tasks = world.tasks.of(job).into_iter();
            let mut tasks = tasks.filter(|(attempt, _)| attempt.vertex == flapping);
            if let Some((attempt, _)) = tasks.next() {
                world.end_task(&attempt, TaskStatus::failed("by chance"));
            }
        }
    });
    let mut schedule = Schedule::new(random, cluster, Trouble::ControlPlane);
    schedule.run(30).await;
    let mut cluster = schedule.heal().await;
    failing.await.expect("it ends");
    cluster.check();
    retry_quarantined(&cluster, &[job]).await;
    cluster.until_running(job, 6).await;
    // Each region goes on to complete checkpoints.
    let newest = |stored: &Stored| {
        let record = stored.checkpoints.get(&job);
        record.map_or(BTreeMap::new(), snapshots)
    };
    let before = newest(&cluster.world.stored());
    let before = before.values().map(|(number, _)| *number).max();
    cluster
        .until_stored("a later checkpoint of each region", |stored| {
            let newest = newest(stored);
            newest.len() == 3 && newest.values().all(|(number, _)| Some(*number) > before)
        })
        .await;
    let events = cluster.world.events();
    let starts = events.iter().filter_map(|event| match event {
        Event::Started { attempt, .. } if attempt.vertex == steady => Some(attempt.generation),
        _ => None,
    });
    let starts: Vec<u64> = starts.collect();
    assert_eq!(starts, [1, 1], "K14: {events:#?}");
    note_checkpoints(&events, &cluster.world.reached);
    cluster.client.cancel(job).await.expect("canceled");
    come_to_their_ends(&mut cluster, &[], &[job], &[]).await;
    cluster.world.reached.clone()
}

fn note_checkpoints(events: &[Event], reached: &Reached) {
    let mut terms = BTreeSet::new();
    for event in events {
        match event {
            Event::Restored { number: 1.., .. } => reached.note(Landmark::RestoredFromCheckpoint),
            Event::Committed { epoch, records } => {
                let completes = |record: &Record| matches!(record, Record::Checkpoints(_, it) if !it.retained.is_empty());
                if records.iter().any(completes) {
                    terms.insert(*epoch);
                }
            }
            _ => {}
        }
    }
    if terms.len() > 1 {
        reached.note(Landmark::CheckpointsOfTwoTerms);
    }
}

/// The number of task starts of a job.
fn starts_of(events: &[Event], job: JobId) -> usize {
    let is_start =
        |event: &&Event| matches!(event, Event::Started { attempt, .. } if attempt.job == job);
    events.iter().filter(is_start).count()
}

/// If leaders die often and early enough, a job is suspected and quarantined. Does what an operator who knows
/// better does.
async fn retry_quarantined(cluster: &TestCluster, jobs: &[JobId]) {
    for job in jobs {
        let details = cluster.client.describe(*job).await;
        let details = details.expect("it was accepted");
        let Some(quarantine) = details.quarantined else {
            continue;
        };
        assert_eq!(
            quarantine.kind(),
            QuarantineKind::EndedProcess,
            "{quarantine:?}"
        );
        let retried = cluster.client.resolve(*job, QuarantineAction::Retry).await;
        retried.expect("acknowledged");
    }
}

/// After the last fault: all jobs end as they should, and nothing is left of them. The end of a stopped job
/// depends on the faults after the stop.
async fn come_to_their_ends(
    cluster: &mut TestCluster,
    finish: &[JobId],
    cancel: &[JobId],
    stop: &[JobId],
) -> Vec<JobStatus> {
    // Existing violations are reported as such, not as a timeout later.
    cluster.check();
    retry_quarantined(cluster, &[finish, stop].concat()).await;
    for job in finish {
        let status = cluster.until_clean(*job).await;
        assert_eq!(status, JobStatus::Finished, "job {job}");
    }
    for job in cancel {
        let status = cluster.until_clean(*job).await;
        assert_eq!(status, JobStatus::Canceled, "job {job}");
    }
    let mut stopped = Vec::new();
    for job in stop {
        let status = cluster.until_clean(*job).await;
        let is_right = match status {
            JobStatus::Finished | JobStatus::Failed => true,
            JobStatus::Canceled => starts_of(&cluster.world.events(), *job) == 0,
            _ => false,
        };
        assert!(is_right, "job {job}: {status:?}");
        stopped.push(status);
    }
    let all = [finish, cancel, stop].concat();
    cluster
        .until("nothing runs any more", || {
            all.iter()
                .all(|job| cluster.world.tasks.of(*job).is_empty())
        })
        .await;
    cluster.until_slots_are_free(TASK_MANAGERS * SLOTS).await;
    // All slots can really be allocated.
    let graph = graph(LAST, TASK_MANAGERS * SLOTS);
    let accepted = cluster.client.submit(&graph, "last").await;
    accepted.expect("accepted");
    let tasks = (TASK_MANAGERS * SLOTS * 2) as usize;
    cluster.until_running(LAST, tasks).await;
    cluster.world.finish_tasks(LAST);
    assert_eq!(cluster.until_clean(LAST).await, JobStatus::Finished);
    cluster.until_slots_are_free(TASK_MANAGERS * SLOTS).await;
    assert_eq!(cluster.left_in_store().await, Vec::<String>::new());
    cluster.check();
    note_takeovers(&cluster.world.events(), &cluster.world.reached);
    stopped
}
