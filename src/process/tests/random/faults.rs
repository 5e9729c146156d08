//! The sequence of faults in a run, and its end.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng as _;
use rand::rngs::StdRng;
use tanist_ha::election::ProcessId;
use tanist_proto::id::JobId;
use tanist_task_executor::TaskStatus;
use tokio::time::Instant;

use super::{JOB_MANAGERS, TASK_MANAGERS};
use crate::testing::cluster::TestCluster;

/// The components that have faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    Everything,
    /// JobManagers, their links to the store, and the store.
    ControlPlane,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    KillJobManager,
    StopJobManager,
    StrikeJobManager,
    JobManagerFreezes,
    Suspicion,
    TwoSuspicions,
    DeposedAtAWrite,
    LateElection,
    CutFromStore,
    StoreFails,
    HealAll,
    RestartTaskManager,
    StopTaskManager,
    CutOff,
    TaskManagerFreezes,
    TaskFails,
}

/// A fault is as likely as it is often in the list.
const OF_CONTROL_PLANE: [Fault; 19] = [
    Fault::KillJobManager,
    Fault::KillJobManager,
    Fault::StopJobManager,
    Fault::StrikeJobManager,
    Fault::StrikeJobManager,
    Fault::StrikeJobManager,
    Fault::JobManagerFreezes,
    Fault::JobManagerFreezes,
    Fault::Suspicion,
    Fault::TwoSuspicions,
    Fault::DeposedAtAWrite,
    Fault::DeposedAtAWrite,
    Fault::DeposedAtAWrite,
    Fault::LateElection,
    Fault::LateElection,
    Fault::CutFromStore,
    Fault::StoreFails,
    Fault::HealAll,
    Fault::HealAll,
];

const OF_TASK_MANAGERS: [Fault; 6] = [
    Fault::RestartTaskManager,
    Fault::StopTaskManager,
    Fault::CutOff,
    Fault::CutOff,
    Fault::TaskManagerFreezes,
    Fault::TaskFails,
];

/// The time that a JobManager must be healthy between two periods in which it receives nothing, in runs in
/// which no work may be lost: together these periods must not count as silence of the TaskManagers.
const RECOVERY: Duration = Duration::from_secs(60);

/// Time to wait for a write of a leader.
const SOON: Duration = Duration::from_secs(3);

/// The faults of a run.
pub(super) struct Schedule {
    random: StdRng,
    cluster: TestCluster,
    trouble: Trouble,
    partitioned: Vec<String>,
    cut: Vec<String>,
    /// When each JobManager may be frozen again.
    rested: BTreeMap<String, Instant>,
}

impl Schedule {
    pub(super) fn new(random: StdRng, cluster: TestCluster, trouble: Trouble) -> Schedule {
        Schedule {
            random,
            cluster,
            trouble,
            partitioned: Vec::new(),
            cut: Vec::new(),
            rested: BTreeMap::new(),
        }
    }

    /// Makes this many faults happen.
    pub(super) async fn run(&mut self, faults: usize) {
        for _ in 0..faults {
            let pause = self.time(4000);
            tokio::time::sleep(pause).await;
            if let Some(name) = self.cluster.bury_struck().await
                && self.random.random_bool(0.5)
            {
                self.cluster.start_job_manager(&name);
            }
            let fault = self.choose();
            self.happens(fault).await;
        }
    }

    fn choose(&mut self) -> Fault {
        let of_job_managers = OF_CONTROL_PLANE.len();
        let all = match self.trouble {
            Trouble::Everything => of_job_managers + OF_TASK_MANAGERS.len(),
            Trouble::ControlPlane => of_job_managers,
        };
        let chosen = self.random.random_range(0..all);
        match chosen.checked_sub(of_job_managers) {
            None => OF_CONTROL_PLANE[chosen],
            Some(chosen) => OF_TASK_MANAGERS[chosen],
        }
    }

    fn time(&mut self, most_ms: u64) -> Duration {
        Duration::from_millis(self.random.random_range(0..most_ms))
    }

    fn job_manager(&mut self) -> String {
        // With probability one half the current leader.
        if self.random.random_bool(0.5)
            && let Some(leader) = self.cluster.leader_view().leader
        {
            return leader.process.as_str().to_owned();
        }
        format!("jm{}", self.random.random_range(1..=JOB_MANAGERS))
    }

    fn task_manager(&mut self) -> String {
        format!("tm{}", self.random.random_range(1..=TASK_MANAGERS))
    }

    async fn happens(&mut self, fault: Fault) {
        match fault {
            Fault::KillJobManager => {
                let name = self.job_manager();
                if !self.cluster.runs(&name) {
                    self.cluster.start_job_manager(&name);
                } else if self.random.random_bool(0.5) {
                    self.cluster.kill_job_manager(&name).await;
                } else {
                    self.cluster.kill_job_manager_keeping_its_lease(&name).await;
                }
            }
            Fault::StopJobManager => {
                let name = self.job_manager();
                if self.cluster.runs(&name) {
                    self.cluster.stop_job_manager(&name).await;
                } else {
                    self.cluster.start_job_manager(&name);
                }
            }
            Fault::StrikeJobManager => {
                let mut steps = self.random.random_range(0..40_u32);
                self.cluster.strike_at(move |_| {
                    let is_over = steps == 0;
                    steps = steps.saturating_sub(1);
                    is_over
                });
            }
            Fault::JobManagerFreezes => self.freeze_job_manager(),
            Fault::Suspicion => self.suspicion(),
            Fault::TwoSuspicions => {
                self.suspicion();
                self.suspicion();
            }
            Fault::DeposedAtAWrite => {
                let time = self.time(40);
                let sent = self.cluster.world.hold_write(time);
                if matches!(tokio::time::timeout(SOON, sent).await, Ok(Ok(()))) {
                    self.suspicion();
                    self.suspicion();
                }
            }
            Fault::LateElection => {
                let name = self.job_manager();
                if self.random.random_bool(0.5) {
                    let time = self.time(20_000);
                    self.cluster.delay_election(&name, time);
                } else {
                    self.cluster.lose_answers_of_election(&name, 2);
                }
            }
            Fault::CutFromStore => {
                let is_any = self.trouble == Trouble::Everything && self.random.random_bool(0.3);
                let name = if is_any {
                    self.task_manager()
                } else {
                    self.job_manager()
                };
                let process = ProcessId::new(name.as_str());
                self.cluster.memory.partition(&process);
                self.partitioned.push(name);
            }
            Fault::StoreFails => {
                let time = self.time(20_000);
                self.cluster.store_fails(time);
            }
            Fault::HealAll => self.heal_links(),
            Fault::RestartTaskManager => {
                let name = self.task_manager();
                if self.cluster.runs(&name) {
                    self.cluster.kill_task_manager(&name).await;
                }
                self.cluster.start_task_manager(&name);
            }
            Fault::StopTaskManager => {
                let name = self.task_manager();
                if self.cluster.runs(&name) {
                    self.cluster.stop_task_manager(&name).await;
                } else {
                    self.cluster.start_task_manager(&name);
                }
            }
            Fault::CutOff => {
                let name = match self.random.random_range(0..4) {
                    0 => self.job_manager(),
                    _ => self.task_manager(),
                };
                self.cluster.world.cut(&name);
                self.cut.push(name);
            }
            Fault::TaskManagerFreezes => {
                let (name, time) = (self.task_manager(), self.time(70_000));
                if self.cluster.runs(&name) {
                    self.cluster.freeze(&name, time, false);
                }
            }
            Fault::TaskFails => {
                let job = JobId::from_bits(self.random.random_range(1..=6));
                if let Some((attempt, _)) = self.cluster.world.tasks.of(job).pop() {
                    let cause = "by chance".to_owned();
                    self.cluster
                        .world
                        .end_task(&attempt, TaskStatus::failed(cause));
                }
            }
        }
    }

    fn freeze_job_manager(&mut self) {
        let (name, keeps_lease) = (self.job_manager(), self.random.random_bool(0.5));
        let time = match self.trouble {
            Trouble::Everything => self.time(70_000),
            Trouble::ControlPlane => self.time(20_000),
        };
        let now = Instant::now();
        let is_rested = self.rested.get(&name).is_none_or(|at| *at <= now);
        if !self.cluster.runs(&name) || self.trouble == Trouble::ControlPlane && !is_rested {
            return;
        }
        self.rested.insert(name.clone(), now + time + RECOVERY);
        self.cluster.freeze(&name, time, keeps_lease);
    }

    fn suspicion(&mut self) {
        let leader = self.cluster.leader_view().leader;
        let names = (1..=JOB_MANAGERS).map(|number| format!("jm{number}"));
        let others: Vec<String> = names
            .filter(|name| self.cluster.runs(name))
            .filter(|name| leader.as_ref().is_none_or(|it| it.process.as_str() != name))
            .collect();
        if !others.is_empty() {
            let by = &others[self.random.random_range(0..others.len())];
            self.cluster.suspect(by);
        }
    }

    fn heal_links(&mut self) {
        for name in self.cut.drain(..) {
            self.cluster.world.heal(&name);
        }
        for name in self.partitioned.drain(..) {
            self.cluster.memory.heal(&ProcessId::new(name));
        }
    }

    /// Ends all faults, and starts every process that does not run.
    pub(super) async fn heal(mut self) -> TestCluster {
        self.cluster.world.set_random_faults(None);
        self.cluster.strike_at(|_| false);
        self.heal_links();
        self.cluster.memory.unavailable(false);
        self.cluster.world.all_go_on();
        while self.cluster.bury_struck().await.is_some() {}
        for number in 1..=JOB_MANAGERS {
            let name = format!("jm{number}");
            self.cluster.memory.heal(&ProcessId::new(name.as_str()));
            if !self.cluster.runs(&name) {
                self.cluster.start_job_manager(&name);
            }
        }
        for number in 1..=TASK_MANAGERS {
            let name = format!("tm{number}");
            self.cluster.memory.heal(&ProcessId::new(name.as_str()));
            if !self.cluster.runs(&name) {
                self.cluster.start_task_manager(&name);
            }
        }
        self.cluster
    }
}
