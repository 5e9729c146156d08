//! Faults of processes and the store other than killing, stopping and cutting off.

use std::time::Duration;

use tanist_gateway::Connector as _;
use tanist_gateway::kinds;
use tanist_ha::election::{Detection, Evidence, Former, ProcessId};
use tanist_ha::store::{CommitReply, CommitRequest, CoordinationStore as _, Fence, Write};
use tanist_proto::v1 as pb;
use tokio::time::Instant;

use super::cluster::TestCluster;
use super::reached::Landmark;
use super::world::process_of;

/// Longer than any lease of these tests.
const LEASE: Duration = Duration::from_secs(5);

impl TestCluster {
    /// Freezes a process for a while: messages from and to it arrive when it goes on. With `keeps_lease` its
    /// clock stands still too: it believes in its lease until a message says otherwise.
    pub(crate) fn freeze(&self, name: &str, time: Duration, keeps_lease: bool) {
        let until = Instant::now() + time;
        let process = ProcessId::new(name);
        self.world.stop(name, until);
        if keeps_lease {
            self.world.stubborn.send_modify(|stubborn| {
                stubborn.insert(name.to_owned());
            });
        }
        self.memory.partition(&process);
        let (world, memory) = (self.world.clone(), self.memory.clone());
        let (name, is_manager) = (name.to_owned(), self.job_managers.contains_key(name));
        tokio::spawn(async move {
            tokio::time::sleep_until(until).await;
            if world.stood_until(&name, until) {
                memory.heal(&process);
                if is_manager && time > LEASE {
                    world.reached.note(Landmark::WentOnPastItsLease);
                }
            }
        });
    }

    /// Makes a JobManager suspect the current leader.
    pub(crate) fn suspect(&self, by: &str) {
        let Some(leader) = self.leader_view().leader else {
            return;
        };
        let Some(suspicious) = self.job_managers.get(by) else {
            return;
        };
        let suspected = leader.process.as_str().to_owned();
        let lives = self.job_managers.get(&suspected);
        let (Some(lives), true) = (lives, suspected != by) else {
            return;
        };
        let (world, life) = (self.world.clone(), lives.life.clone());
        let election = suspicious.election.clone();
        let evidence = Evidence {
            detection: Detection::SilentConfirmed,
            former: Former {
                process: Some(leader.process.clone()),
                incarnation: None,
                address: None,
            },
            last_heartbeat: None,
            detected: election.clock().now(),
        };
        tokio::spawn(async move {
            let deposing =
                election.depose_because(election.new_depose_request(), leader.epoch, evidence);
            let deposed = tokio::time::timeout(LEASE, deposing).await;
            let is_over = matches!(deposed, Ok(Ok(epoch)) if epoch > leader.epoch);
            if is_over && !world.is_dead(&life) {
                world.reached.note(Landmark::DeposedAlive);
            }
        });
    }

    /// Makes a JobManager's election give up its next guarded write, which then arrives late by this time.
    pub(crate) fn delay_election(&self, name: &str, time: Duration) {
        if let Some(running) = self.job_managers.get(name) {
            let mut held = running.driver.faults().hold_next();
            tokio::spawn(async move {
                held.reached().await;
                tokio::time::sleep(time).await;
                held.release();
            });
        }
    }

    /// Loses the answers to the next guarded writes of a JobManager's election.
    pub(crate) fn lose_answers_of_election(&self, name: &str, answers: usize) {
        if let Some(running) = self.job_managers.get(name) {
            running.driver.faults().lose_replies(answers);
        }
    }

    /// Makes the store unavailable to all for a while.
    pub(crate) fn store_fails(&self, time: Duration) {
        self.memory.unavailable(true);
        let memory = self.memory.clone();
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            memory.unavailable(false);
        });
    }

    /// Writes outside any term; the leader's term ends when it finds that out.
    pub(crate) async fn write_as_a_stranger(&self, write: Write) {
        let store = self.memory.store_of(ProcessId::new("stranger"));
        let guard = store.guard().await.expect("readable");
        let (epoch, token, incarnation) = guard.epoch.expect("there is a leader");
        let request = CommitRequest {
            fence: Fence {
                epoch,
                token,
                incarnation,
            },
            after: guard.change,
            writes: vec![write],
        };
        let reply = store.commit(&request).await.expect("answered");
        assert_eq!(reply, CommitReply::Applied);
    }

    /// Removes what is left of a JobManager that was struck; returns its name.
    pub(crate) async fn bury_struck(&mut self) -> Option<String> {
        let is_struck = |(_, running): &(&String, &super::cluster::JobManagerLife)| {
            self.world.is_dead(&running.life)
        };
        let struck = self.job_managers.iter().find(is_struck);
        let name = process_of(&struck?.1.life).to_owned();
        self.kill_job_manager(&name).await;
        self.world.reached.note(Landmark::StruckAtAStep);
        Some(name)
    }

    /// Waits until `slots` slots are free, according to the leader.
    pub(crate) async fn until_slots_are_free(&self, slots: u32) {
        let start = Instant::now();
        loop {
            let listed = self.list_task_managers().await;
            let free: u32 = listed.iter().map(|it| it.free_slots).sum();
            let all: u32 = listed.iter().map(|it| it.slots_number).sum();
            // If all are free, no resources outside of slots may be taken either.
            let is_whole = |it: &pb::TaskManagerInfo| it.free_profile == it.total_profile;
            if free == slots && (free < all || listed.iter().all(is_whole)) {
                return;
            }
            assert!(
                start.elapsed() < Duration::from_secs(600),
                "{free} of {slots} slots are free: {listed:#?}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The TaskManagers that the leader knows; empty if it does not answer.
    pub(crate) async fn list_task_managers(&self) -> Vec<pb::TaskManagerInfo> {
        let Some(leader) = self.leader_view().leader else {
            return Vec::new();
        };
        let dispatcher = self.connector().dispatcher(&leader.addresses["rpc"]);
        let asked = dispatcher.list_task_managers(pb::ListTaskManagersRequest::default());
        let answer = tokio::time::timeout(Duration::from_secs(1), asked).await;
        answer.map_or_else(
            |_| Vec::new(),
            |answer| answer.map(|it| it.task_managers).unwrap_or_default(),
        )
    }

    /// The jobs' records that the store still holds besides results.
    pub(crate) async fn left_in_store(&self) -> Vec<String> {
        let store = self.memory.store();
        let mut left = Vec::new();
        for kind in [
            kinds::GRAPHS,
            kinds::STATES,
            kinds::CHECKPOINTS,
            kinds::CHUNKS,
            kinds::BLOB_TOMBSTONES,
        ] {
            let page = store.list(kind, None, 1000).await.expect("it answers");
            left.extend(
                page.items
                    .iter()
                    .map(|(name, _)| format!("{kind:?}/{name:?}")),
            );
        }
        left
    }
}
