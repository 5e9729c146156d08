//! Faults at random: everything goes wrong for a while, then nothing any more, and every job comes to its right end.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tanist_ha::election::ProcessId;
use tanist_proto::id::JobId;
use tanist_proto::v1::JobStatus;

use crate::process::testing::cluster::{TestCluster, graph, graph_of_regions};
use crate::process::testing::world::Weather;
use crate::task_executor::TaskStatus;

const SEEDS: u64 = 30;
const JOB_MANAGERS: u32 = 3;
const TASK_MANAGERS: u32 = 3;

#[test]
fn whatever_goes_wrong_every_job_comes_to_its_right_end() {
    let seeds = match std::env::var("TANIST_TEST_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("TANIST_TEST_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..SEEDS,
    };
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let guard = SayOnPanic(seed);
        runtime.block_on(Box::pin(run(seed)));
        drop(guard);
    }
}

struct SayOnPanic(u64);

impl Drop for SayOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with TANIST_TEST_SEED={}", self.0);
        }
    }
}

struct Schedule {
    random: StdRng,
    cluster: TestCluster,
    /// What is down or cut off and comes back later.
    partitioned: Vec<String>,
    cut: Vec<String>,
}

async fn run(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut cluster = TestCluster::start(JOB_MANAGERS, TASK_MANAGERS, 2).await;
    cluster
        .world
        .set_weather(Some(Weather::of_seed(random.random())));
    let jobs: Vec<JobId> = (1..=4).map(JobId::from_bits).collect();
    let mut clients = Vec::new();
    for (number, job) in jobs.iter().copied().enumerate() {
        // The last one runs for ever and is canceled.
        let is_canceled = number == 3;
        let pause = Duration::from_millis(random.random_range(0..20_000));
        if !is_canceled {
            let time = Duration::from_millis(random.random_range(1..30_000));
            cluster.world.tasks.finish_after(job, time);
        }
        let graph = match number % 2 {
            0 => graph(job, 2),
            _ => graph_of_regions(job, 2),
        };
        let client = cluster.client.clone();
        clients.push(tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            client.submit(&graph, "token").await.expect("accepted");
            if is_canceled {
                tokio::time::sleep(pause).await;
                client.cancel(job).await.expect("canceled");
            }
        }));
    }
    let mut schedule = Schedule {
        random,
        cluster,
        partitioned: Vec::new(),
        cut: Vec::new(),
    };
    for _ in 0..30 {
        let pause = Duration::from_millis(schedule.random.random_range(0..4000));
        tokio::time::sleep(pause).await;
        schedule.something_happens().await;
    }
    schedule.heal();
    cluster = schedule.cluster;
    for client in clients {
        client.await.expect("the client got a definite answer");
    }
    for job in &jobs[..3] {
        assert_eq!(
            cluster.until_clean(*job).await,
            JobStatus::Finished,
            "job {job}"
        );
    }
    assert_eq!(cluster.until_clean(jobs[3]).await, JobStatus::Canceled);
    cluster
        .until("nothing runs any more", || {
            jobs.iter()
                .all(|job| cluster.world.tasks.of(*job).is_empty())
        })
        .await;
    // All slots are free again, whoever held them.
    let last = JobId::from_bits(99);
    cluster
        .client
        .submit(&graph(last, TASK_MANAGERS * 2), "last")
        .await
        .expect("accepted");
    cluster
        .until_running(last, TASK_MANAGERS as usize * 4)
        .await;
    cluster.check();
}

impl Schedule {
    fn pick(&mut self, kind: &str, count: u32) -> String {
        format!("{kind}{}", self.random.random_range(1..=count))
    }

    async fn something_happens(&mut self) {
        match self.random.random_range(0..12) {
            0 | 1 => {
                let name = self.pick("jm", JOB_MANAGERS);
                if self.cluster.runs(&name) {
                    self.cluster.kill_job_manager(&name).await;
                } else {
                    self.cluster.start_job_manager(&name);
                }
            }
            2 => {
                let name = self.pick("jm", JOB_MANAGERS);
                if self.cluster.runs(&name) {
                    self.cluster.stop_job_manager(&name).await;
                } else {
                    self.cluster.start_job_manager(&name);
                }
            }
            3 => {
                let name = self.pick("tm", TASK_MANAGERS);
                if self.cluster.runs(&name) {
                    self.cluster.kill_task_manager(&name).await;
                }
                self.cluster.start_task_manager(&name);
            }
            4 => {
                let name = self.pick("tm", TASK_MANAGERS);
                if self.cluster.runs(&name) {
                    self.cluster.stop_task_manager(&name).await;
                } else {
                    self.cluster.start_task_manager(&name);
                }
            }
            5 => {
                let name = self.pick("tm", TASK_MANAGERS);
                self.cluster.world.cut(&name);
                self.cut.push(name);
            }
            6 | 7 => {
                for name in self.cut.drain(..) {
                    self.cluster.world.heal(&name);
                }
            }
            8 => {
                let name = self.pick("jm", JOB_MANAGERS);
                self.cluster
                    .memory
                    .partition(&ProcessId::new(name.as_str()));
                self.partitioned.push(name);
            }
            9 | 10 => {
                for name in self.partitioned.drain(..) {
                    self.cluster.memory.heal(&ProcessId::new(name));
                }
            }
            _ => {
                let job = JobId::from_bits(self.random.random_range(1..=4));
                if let Some((attempt, _)) = self.cluster.world.tasks.of(job).pop() {
                    let cause = "by chance".to_owned();
                    self.cluster
                        .world
                        .end_task(&attempt, TaskStatus::Failed { cause });
                }
            }
        }
    }

    fn heal(&mut self) {
        self.cluster.world.set_weather(None);
        for name in self.cut.drain(..) {
            self.cluster.world.heal(&name);
        }
        for name in self.partitioned.drain(..) {
            self.cluster.memory.heal(&ProcessId::new(name));
        }
        for number in 1..=JOB_MANAGERS {
            let name = format!("jm{number}");
            if !self.cluster.runs(&name) {
                self.cluster.start_job_manager(&name);
            }
        }
        for number in 1..=TASK_MANAGERS {
            let name = format!("tm{number}");
            if !self.cluster.runs(&name) {
                self.cluster.start_task_manager(&name);
            }
        }
    }
}
