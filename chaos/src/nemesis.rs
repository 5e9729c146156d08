//! Kills processes by SIGKILL at times that depend only on the seed: leaders, one after another, and
//! TaskManagers: one, one repeatedly, or all at once.

use std::time::Duration;

use crate::cluster::Cluster;

/// Kills leaders of a cluster.
#[derive(Debug)]
pub struct LeaderKiller {
    random: Random,
    longest_pause: Duration,
    /// The epochs of the killed leaders.
    killed: Vec<u64>,
}

impl LeaderKiller {
    /// Pauses for up to this time, and at least half of it, so that the cluster makes progress in
    /// between. The same seed gives the same pauses.
    pub fn new(seed: u64, longest_pause: Duration) -> LeaderKiller {
        LeaderKiller {
            random: Random(seed),
            longest_pause,
            killed: Vec::new(),
        }
    }

    /// The epochs of the terms that it ended.
    pub fn killed(&self) -> &[u64] {
        &self.killed
    }

    /// Pauses for a random time.
    pub async fn pause(&mut self) {
        // This waits for nothing: the moment of the kill is what varies.
        let part = 500 + self.random.below(500);
        tokio::time::sleep(self.longest_pause.mul_f64(part as f64 / 1000.0)).await;
    }

    /// Kills the current leader, and starts it again: at once, or when another one leads.
    ///
    /// Every third leader is left alone until its recovery is over: more deaths during recovery look like
    /// a job that ends its process, which the next leader would search for and quarantine.
    pub async fn strike(&mut self, cluster: &mut Cluster) -> anyhow::Result<()> {
        if self.killed.len() % 3 == 2 {
            cluster.until_recovered().await?;
        }
        let former = cluster.kill_leader().await?;
        self.killed.push(former.epoch);
        let is_late = self.random.below(2) == 0;
        if is_late {
            cluster.successor_of(&former).await?;
        }
        cluster.jobmanager(former.index).start()?;
        cluster.successor_of(&former).await?;
        Ok(())
    }
}

/// The longest life of a TaskManager between two kills of a burst: it may be registering, or not even that far.
const BURST_PAUSE: Duration = Duration::from_millis(400);
/// Number of kills in a burst.
const BURST: usize = 3;

/// Kills TaskManagers of a cluster.
#[derive(Debug)]
pub struct TaskManagerKiller {
    random: Random,
    strikes: usize,
    killed: usize,
}

impl TaskManagerKiller {
    /// The same seed gives the same kills.
    pub fn new(seed: u64) -> TaskManagerKiller {
        TaskManagerKiller {
            random: Random(seed),
            strikes: 0,
            killed: 0,
        }
    }

    /// Number of killed processes.
    pub fn killed(&self) -> usize {
        self.killed
    }

    /// Kills, in turn, one TaskManager, all at once, or one repeatedly. They stay dead until
    /// [`TaskManagerKiller::start_again`].
    pub async fn strike(&mut self, cluster: &mut Cluster) -> anyhow::Result<()> {
        let count = cluster.taskmanagers();
        let bound = u64::try_from(count)?;
        let one = usize::try_from(self.random.below(bound.max(1)))?;
        match self.strikes % 3 {
            0 => self.kill(cluster, one),
            1 => (0..count).for_each(|index| self.kill(cluster, index)),
            _ => {
                for left in (0..BURST).rev() {
                    self.kill(cluster, one);
                    if left > 0 {
                        cluster.taskmanager(one).start()?;
                        let part = self.random.below(1000) as f64 / 1000.0;
                        // This waits for nothing: the progress of its start is what varies.
                        tokio::time::sleep(BURST_PAUSE.mul_f64(part)).await;
                    }
                }
            }
        }
        self.strikes += 1;
        Ok(())
    }

    fn kill(&mut self, cluster: &mut Cluster, index: usize) {
        cluster.taskmanager(index).kill();
        self.killed += 1;
    }

    /// Starts the killed TaskManagers again.
    pub fn start_again(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        for index in 0..cluster.taskmanagers() {
            let taskmanager = cluster.taskmanager(index);
            if !taskmanager.runs() {
                taskmanager.start()?;
            }
        }
        Ok(())
    }

    /// Whether the killed TaskManagers stay dead during the next fault.
    pub fn is_late(&mut self) -> bool {
        self.random.below(2) == 0
    }
}

/// Knuth's MMIX generator: the same numbers for the same seed in every version. Any distribution is fine here.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// A number from 0 to `bound` - 1.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_pauses() {
        let drawn = |seed| {
            let mut random = Random(seed);
            (0..20).map(|_| random.below(1000)).collect::<Vec<_>>()
        };
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
    }
}
