//! Faults of all kinds, alone and in pairs: processes and the store's server are killed, paused, and cut off.
//!
//! The kind, the target and the duration of a fault depend only on the seed, and on who leads. A fault is injected, and
//! healed later: then what was killed runs again, what was paused goes on, and all links are whole. A JobManager may
//! have ended meanwhile because it lost its term; it is started again, too.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::cluster::{Cluster, Leader};
use crate::nemesis::Random;
use crate::network::{Host, Link};
use crate::process::Process;
use crate::store::StoreKind;

/// The shortest and the longest duration of a fault: below and above all leases and timeouts of a fault run.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(4);

/// What happens to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Act {
    /// SIGKILL.
    Kill,
    /// SIGSTOP, and SIGCONT later.
    Pause,
    /// Its packets to one or several other hosts are lost.
    Cut,
}

/// What a fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The JobManager that leads.
    Leader,
    /// A JobManager that does not lead.
    Standby,
    /// A TaskManager.
    TaskManager,
    /// The server of the store.
    Store,
}

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// What happens.
    pub act: Act,
    /// To what.
    pub target: Target,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let act = match self.act {
            Act::Kill => "kill",
            Act::Pause => "pause",
            Act::Cut => "cut",
        };
        let target = match self.target {
            Target::Leader => "leader",
            Target::Standby => "standby",
            Target::TaskManager => "TaskManager",
            Target::Store => "store",
        };
        write!(f, "{act} {target}")
    }
}

/// Injects faults into a cluster whose processes have hosts of their own.
#[derive(Debug)]
pub struct Faults {
    random: Random,
    kinds: Vec<Fault>,
    injected: BTreeMap<Fault, u64>,
    pairs: u64,
}

impl Faults {
    /// All kinds of faults that a cluster on such a store can have; half of them are kills. The same seed gives the
    /// same faults.
    pub fn new(seed: u64, store: StoreKind) -> Faults {
        let mut kinds = Vec::new();
        for act in [Act::Kill, Act::Kill, Act::Pause, Act::Cut] {
            for target in [Target::Leader, Target::Standby, Target::TaskManager] {
                kinds.push(Fault { act, target });
            }
            if store != StoreKind::Embedded {
                let target = Target::Store;
                kinds.push(Fault { act, target });
            }
        }
        Faults {
            random: Random::new(seed),
            kinds,
            injected: BTreeMap::new(),
            pairs: 0,
        }
    }

    /// Number of injected faults by kind.
    pub fn injected(&self) -> &BTreeMap<Fault, u64> {
        &self.injected
    }

    /// Number of SIGKILLs.
    pub fn kills(&self) -> u64 {
        let injected = self.injected.iter();
        let kills = injected.filter(|(fault, _)| fault.act == Act::Kill);
        kills.map(|(_, count)| count).sum()
    }

    /// Number of pairs of faults at the same time.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }

    /// Injects one fault, or two of different targets, lets them last, and heals them. Returns what was done.
    pub async fn strike(&mut self, cluster: &mut Cluster) -> anyhow::Result<String> {
        let leader = cluster.leader().await?;
        let mut faults = vec![self.draw()];
        if self.random.below(3) == 0 {
            let other = self.draw();
            if other.target != faults[0].target {
                faults.push(other);
                self.pairs += 1;
            }
        }
        let lasts = self.duration();
        for fault in &faults {
            self.inject(*fault, &leader, cluster)?;
            *self.injected.entry(*fault).or_default() += 1;
        }
        // This waits for nothing: the duration of the fault is what varies.
        tokio::time::sleep(lasts).await;
        let kills_server = Fault {
            act: Act::Kill,
            target: Target::Store,
        };
        heal(cluster, faults.contains(&kills_server)).await?;
        let faults: Vec<String> = faults.iter().map(Fault::to_string).collect();
        Ok(format!("{} for {lasts:?}", faults.join(" and ")))
    }

    fn draw(&mut self) -> Fault {
        let index = self.index(self.kinds.len());
        self.kinds[index]
    }

    fn index(&mut self, count: usize) -> usize {
        let bound = u64::try_from(count.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.random.below(bound)).unwrap_or(0)
    }

    /// Half of all faults are short.
    fn duration(&mut self) -> Duration {
        let longest = match self.random.below(2) {
            0 => LONGEST,
            _ => LONGEST / 8,
        };
        let part = self.random.below(1000) as f64 / 1000.0;
        SHORTEST + (longest - SHORTEST).mul_f64(part)
    }

    fn inject(
        &mut self,
        fault: Fault,
        leader: &Leader,
        cluster: &mut Cluster,
    ) -> anyhow::Result<()> {
        let standby = |random: usize| (leader.index + 1 + random) % cluster.jobmanagers();
        let host = match fault.target {
            Target::Leader => Host::JobManager(leader.index),
            Target::Standby => {
                let count = cluster.jobmanagers() - 1;
                ensure!(count > 0, "there is no standby");
                Host::JobManager(standby(self.index(count)))
            }
            Target::TaskManager => Host::TaskManager(self.index(cluster.taskmanagers())),
            Target::Store => Host::Store,
        };
        // Ordered: the store's server is no process of the cluster, and is handled before those.
        match (fault.act, host) {
            (Act::Cut, host) => self.cut(host, cluster),
            (Act::Kill, Host::Store) => cluster.store().kill_server(),
            (Act::Pause, Host::Store) => cluster.store().stop_server(),
            (Act::Kill, host) => {
                process(cluster, host)?.kill();
                Ok(())
            }
            (Act::Pause, host) => {
                let process = process(cluster, host)?;
                match process.stop() {
                    Err(error) if process.runs() => Err(error),
                    // One that has just ended by itself can't be paused.
                    Ok(()) | Err(_) => Ok(()),
                }
            }
        }
    }

    /// Cuts a host off from one other host, or from all; in both directions, or in one.
    fn cut(&mut self, host: Host, cluster: &Cluster) -> anyhow::Result<()> {
        let managers = (0..cluster.jobmanagers()).map(Host::JobManager);
        let workers = (0..cluster.taskmanagers()).map(Host::TaskManager);
        let mut others: Vec<Host> = managers.chain(workers).collect();
        if cluster.has_store_host() {
            others.push(Host::Store);
        }
        others.retain(|other| *other != host);
        if self.random.below(3) > 0 {
            others = vec![others[self.index(others.len())]];
        }
        // 0: only from the others, 1: only to them, else both.
        let directions = self.random.below(4);
        let network = cluster.network()?;
        for other in others {
            if directions != 0 {
                network.set(host, other, Link::Silent)?;
            }
            if directions != 1 {
                network.set(other, host, Link::Silent)?;
            }
        }
        Ok(())
    }
}

fn process(cluster: &mut Cluster, host: Host) -> anyhow::Result<&mut Process> {
    match host {
        Host::JobManager(index) => Some(cluster.jobmanager(index)),
        Host::TaskManager(index) => Some(cluster.taskmanager(index)),
        Host::Store | Host::Test => None,
    }
    .with_context(|| format!("no process of the cluster is on {host}"))
}

/// Ends all faults.
async fn heal(cluster: &mut Cluster, has_killed_server: bool) -> anyhow::Result<()> {
    // Links and store first: the processes that are started below need both.
    cluster.network()?.heal()?;
    if has_killed_server {
        cluster.store().restart_server().await?;
    } else if cluster.has_store_host() {
        cluster.store().cont_server()?;
    }
    for index in 0..cluster.jobmanagers() {
        resume_or_start(cluster.jobmanager(index))?;
    }
    for index in 0..cluster.taskmanagers() {
        resume_or_start(cluster.taskmanager(index))?;
    }
    Ok(())
}

/// Continues a paused process, and starts one that has ended.
fn resume_or_start(process: &mut Process) -> anyhow::Result<()> {
    match process.runs() {
        true => process.cont(),
        false => process.start(),
    }
}

impl Cluster {
    /// Starts every process that has ended by itself: a JobManager that lost its term, for example. Returns their names
    /// and how they ended.
    pub fn restart_ended(&mut self) -> anyhow::Result<Vec<String>> {
        let mut ended = Vec::new();
        let managers = self.jobmanagers.iter_mut().map(|it| &mut it.process);
        for process in managers.chain(&mut self.taskmanagers) {
            if let Some(status) = process.poll() {
                ended.push(format!("{}: {status}", process.name()));
                process.start()?;
            }
        }
        Ok(ended)
    }

    /// Whether the store has a host of its own.
    fn has_store_host(&self) -> bool {
        self.hosts.is_some() && self.store.kind() != StoreKind::Embedded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64, store: StoreKind) -> Vec<Fault> {
        let mut faults = Faults::new(seed, store);
        (0..200).map(|_| faults.draw()).collect()
    }

    #[test]
    fn the_same_seed_makes_the_same_faults() {
        assert_eq!(drawn(7, StoreKind::Etcd), drawn(7, StoreKind::Etcd));
        assert_ne!(drawn(7, StoreKind::Etcd), drawn(8, StoreKind::Etcd));
    }

    #[test]
    fn every_kind_of_fault_is_drawn_and_a_directory_has_none() {
        let drawn_kinds = |store| {
            let kinds: std::collections::BTreeSet<Fault> = drawn(1, store).into_iter().collect();
            kinds
        };
        assert_eq!(drawn_kinds(StoreKind::Etcd).len(), 12);
        let embedded = drawn_kinds(StoreKind::Embedded);
        assert_eq!(embedded.len(), 9);
        assert!(embedded.iter().all(|it| it.target != Target::Store));
    }

    #[test]
    fn a_fault_lasts_between_the_shortest_and_the_longest_time() {
        let mut faults = Faults::new(3, StoreKind::Etcd);
        for _ in 0..1000 {
            let lasts = faults.duration();
            assert!(lasts >= SHORTEST && lasts <= LONGEST, "{lasts:?}");
        }
    }
}
