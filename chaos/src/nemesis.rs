//! Who kills, by SIGKILL, at times that nobody can foresee but by the seed: leaders, one after the other, and TaskManagers, one,
//! one again and again, or all at once.

use std::time::Duration;

use crate::cluster::Cluster;

/// Kills leaders of a cluster.
#[derive(Debug)]
pub struct LeaderKiller {
    random: Random,
    longest_pause: Duration,
    /// The epochs of those that it killed.
    killed: Vec<u64>,
}

impl LeaderKiller {
    /// With pauses up to this long, and at least half as long: some work has to get done meanwhile. The same seed has the same
    /// pauses.
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

    /// Waits for a while.
    pub async fn pause(&mut self) {
        // Not a wait for anything: when it strikes is what is tried.
        let part = 500 + self.random.below(500);
        tokio::time::sleep(self.longest_pause.mul_f64(part as f64 / 1000.0)).await;
    }

    /// Kills the leader there is, and starts it again: at once, or when another one leads.
    ///
    /// Of three in a row one is left alone until its recovery is over: more deaths in recovery than that look like those of a job
    /// that ends its process, which is then looked for, and set aside.
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

/// The longest time for which a TaskManager lives between two kills of a burst: it may be about to register, or not even that.
const BURST_PAUSE: Duration = Duration::from_millis(400);
/// How often one is killed in a burst.
const BURST: usize = 3;

/// Kills TaskManagers of a cluster.
#[derive(Debug)]
pub struct TaskManagerKiller {
    random: Random,
    strikes: usize,
    killed: usize,
}

impl TaskManagerKiller {
    /// The same seed strikes in the same way.
    pub fn new(seed: u64) -> TaskManagerKiller {
        TaskManagerKiller {
            random: Random(seed),
            strikes: 0,
            killed: 0,
        }
    }

    /// How many processes it killed.
    pub fn killed(&self) -> usize {
        self.killed
    }

    /// Kills one of them, all at once, or one again and again, by turns. Those that it killed last are dead until
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
                        // Not a wait for anything: how far it gets is what is tried.
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

    /// Starts those that it killed.
    pub fn start_again(&self, cluster: &mut Cluster) -> anyhow::Result<()> {
        for index in 0..cluster.taskmanagers() {
            let taskmanager = cluster.taskmanager(index);
            if !taskmanager.runs() {
                taskmanager.start()?;
            }
        }
        Ok(())
    }

    /// Whether those that it killed are to be missed while something else happens.
    pub fn is_late(&mut self) -> bool {
        self.random.below(2) == 0
    }
}

/// Knuth's MMIX generator.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
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
