//! The actor alone: a result that was waiting while the actor turned to another leader.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::DetectorActor;
use crate::clock::Clock;
use crate::detector::core::{Event, Target};
use crate::detector::{
    Break, DetectorOptions, DetectorServices, HeartbeatStream, Identity, Invitation, LivenessQuery,
    PeerHeartbeat, Peers, Reply,
};
use crate::election::core::Timing;
use crate::election::{
    ElectionOptions, Epoch, HostIdentity, LeaderElection, ProcessId, random_start,
};
use crate::memory::MemoryCluster;

/// Peers of which `a` is gone; the others are silent.
#[derive(Debug)]
struct OneGone;

#[async_trait]
impl Peers for OneGone {
    async fn heartbeats(&self, address: &str) -> Result<HeartbeatStream, Break> {
        match address {
            "a" => Err(Break::RefusedHere),
            _ => std::future::pending().await,
        }
    }

    async fn probe(&self, _: &str) -> Result<PeerHeartbeat, Break> {
        std::future::pending().await
    }

    async fn query(&self, _: &str, _: &LivenessQuery) -> Result<Reply, Break> {
        std::future::pending().await
    }

    async fn count_reached(
        &self,
        _: &str,
        _: &LivenessQuery,
        _: &[String],
    ) -> Result<usize, Break> {
        std::future::pending().await
    }

    async fn invite(
        &self,
        _: &str,
        _: &ProcessId,
        _: Epoch,
        _: Invitation,
        _: Duration,
    ) -> Result<(), String> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_former_leader_does_not_count_against_the_next_one() {
    let (process, clock) = (ProcessId::new("c"), Clock::tokio());
    let host = Some(HostIdentity::new("x"));
    let cluster = MemoryCluster::default();
    let driver = cluster.election(process.clone(), clock);
    let options = ElectionOptions {
        process: process.clone(),
        start: random_start(),
        timing: Timing::default(),
        clock,
    };
    let services = DetectorServices {
        identity: Identity {
            process,
            incarnation: "1".to_owned(),
            host: host.clone(),
        },
        election: LeaderElection::start(Arc::new(driver), options),
        peers: Arc::new(OneGone),
        options: DetectorOptions::default(),
        false_alarms: watch::channel(0).1,
    };
    let (link_status, last_heartbeat) = (watch::Sender::default(), watch::Sender::default());
    let stop = CancellationToken::new();
    let mut actor = DetectorActor::new(services, link_status, last_heartbeat, stop);
    let leads = |epoch: u64, name: &str| {
        Event::Watch(Some(Target {
            epoch: Epoch::new(epoch),
            process: ProcessId::new(name),
            address: Some(name.to_owned()),
            is_confirmed: true,
            host: host.clone(),
        }))
    };

    actor.feed(leads(1, "a"));
    let connecting = actor.connecting.clone().expect("it connects to a");
    while !connecting.is_finished() {
        tokio::task::yield_now().await;
    }
    actor.feed(leads(2, "b"));
    let late = actor.work.join_next_with_id().await;
    let (task, done) = late.expect("the refusal waits").expect("no panic");
    actor.on_done(task, done);
    assert!(actor.request.is_none(), "b is not deposed");
    assert!(actor.connecting.is_some(), "it still connects to b");
}
