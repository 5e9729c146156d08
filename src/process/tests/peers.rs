//! JobManagers that watch each other over real connections, on a store in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tanist_config::{ClusterOptions, Configuration, LoadOptions};
use tanist_gateway::blobs::ServedBlobs;
use tanist_gateway::{GatewayError, LocalConnector};
use tanist_ha::clock::Clock;
use tanist_ha::detector::service::PEER;
use tanist_ha::detector::{LivenessQuery, Peers as _, Phase};
use tanist_ha::election::core::Timing;
use tanist_ha::election::{
    Detection, ElectionOptions, Epoch, LeaderElection, ProcessId, random_start,
};
use tanist_ha::memory::MemoryCluster;
use tanist_ha::store::CoordinationStore as _;
use tanist_leadership::ha::HaServices;
use tanist_leadership::history::{self, HistoryRecord};
use tanist_leadership::{Contender, ContenderOptions, JobManagerView, Role};
use tanist_net::Port;
use tanist_rpc::TonicPeers;
use tanist_telemetry::ExitCode;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::graph_checks::graph_checks;
use crate::sinks::file_sinks;
use crate::{listen, settings};

const BOUND: Duration = Duration::from_secs(30);

struct Running {
    view: JobManagerView,
    peer: String,
    stop: CancellationToken,
    run: JoinHandle<ExitCode>,
}

async fn start(memory: &MemoryCluster, name: &str) -> Running {
    let configuration = Configuration::load(LoadOptions::default()).expect("valid");
    start_with(memory, name, configuration.options().clone()).await
}

async fn start_with(memory: &MemoryCluster, name: &str, options: ClusterOptions) -> Running {
    let options = Arc::new(options);
    let (host, ports) = (
        &options.jobmanager.bind_host,
        &options.jobmanager.peer_ports,
    );
    let what = ("the peer server", Port::Peer);
    let listener = listen::bind(what, "jobmanager.peer.port", host, ports, options.security).await;
    let listener = listener.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let listener = listen::detach(listener).expect("bound");
    let (process, peer) = (ProcessId::new(name), address.clone());
    let addresses = BTreeMap::from([
        ("rpc".to_owned(), format!("{name}:1")),
        (PEER.to_owned(), address),
    ]);
    let contender = Contender::new(ContenderOptions {
        process: process.clone(),
        store: "memory",
        addresses,
        connector: Arc::new(LocalConnector::default()),
        checks: graph_checks(),
        sinks: file_sinks(),
        blobs: ServedBlobs::new(format!("{name}:2")),
        application: None,
        workers: None,
        peers: Some(settings::peers(&options, listener)),
        options,
    });
    let clock = Clock::Boottime;
    let election = ElectionOptions {
        process: process.clone(),
        start: random_start(),
        timing: Timing::default(),
        clock,
    };
    let driver = Arc::new(memory.election(process.clone(), clock));
    let opened = HaServices {
        election: LeaderElection::start(driver, election),
        store: Arc::new(memory.store_of(records_of(name))),
        blobs: None,
    };
    let (view, stop) = (contender.view(), CancellationToken::new());
    let asked = stop.clone();
    let run = tokio::spawn(async move { contender.run(opened, &asked).await });
    Running {
        view,
        peer,
        stop,
        run,
    }
}

/// The store client for the records of that process.
fn records_of(name: &str) -> ProcessId {
    ProcessId::new(format!("{name}-records"))
}

async fn until(what: &str, claim: impl Fn() -> bool) {
    let wait = async {
        while !claim() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(BOUND, wait).await;
    assert!(waited.is_ok(), "not within {BOUND:?}: {what}");
}

/// Waits until `leader` is confirmed in `epoch`, and `other` knows it.
async fn until_led(leader: &Running, other: &Running, epoch: u64) {
    until("everybody knows the leader", || {
        let known = other.view.leader().leader;
        leader.view.role() == Role::Leading && known.is_some_and(|known| known.epoch.get() == epoch)
    })
    .await;
}

#[tokio::test]
async fn leadership_is_handed_over_on_request_of_a_standby_and_when_the_leader_ends() {
    let memory = MemoryCluster::default();
    let a = start(&memory, "a").await;
    until("a leads", || a.view.role() == Role::Leading).await;
    let nobody = a.view.transfer(None).await;
    assert!(
        matches!(nobody, Err(GatewayError::Conflict(_))),
        "{nobody:?}"
    );
    let b = start(&memory, "b").await;
    until_led(&a, &b, 1).await;
    let members = async || {
        a.view
            .ha_status(BOUND)
            .await
            .members
            .map_or(0, |all| all.len())
    };
    while members().await < 2 {
        tokio::task::yield_now().await;
    }

    // The standby forwards it to the leader, which invites it.
    let epoch = b.view.transfer(Some(&ProcessId::new("b"))).await;
    assert_eq!(epoch.map(|epoch| epoch.get()), Ok(2));
    until_led(&b, &a, 2).await;

    // A process that is no standby is not invited, and nothing changes.
    let stranger = a.view.transfer(Some(&ProcessId::new("x"))).await;
    assert!(
        matches!(stranger, Err(GatewayError::Conflict(_))),
        "{stranger:?}"
    );
    assert_eq!(b.view.role(), Role::Leading);

    b.stop.cancel();
    assert_eq!(b.run.await.expect("it ends in order"), ExitCode::Ended);
    until("a leads again", || a.view.role() == Role::Leading).await;
    let names = ["00000000000000000002", "00000000000000000003"];
    for name in names {
        let key = tanist_ha::keys::Key::new(
            tanist_gateway::kinds::HISTORY,
            tanist_ha::keys::Name::new(name).expect("a name"),
        );
        let store = memory.store();
        let mut record = serde_json::Value::Null;
        while record.is_null() {
            let found = store
                .get(std::slice::from_ref(&key))
                .await
                .expect("it is there");
            if let Some(Some(value)) = found.first() {
                record = serde_json::from_slice(value).expect("JSON");
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(
            record["takeover"]["detection"], "invited",
            "{name}: {record}"
        );
    }
    a.stop.cancel();
    assert_eq!(a.run.await.expect("it ends in order"), ExitCode::Ended);
}

async fn end(running: Running) {
    running.stop.cancel();
    assert_eq!(
        running.run.await.expect("it ends in order"),
        ExitCode::Ended
    );
}

#[tokio::test]
async fn heartbeats_tell_how_current_a_standby_is_and_that_the_leader_moves() {
    let memory = MemoryCluster::default();
    let a = start(&memory, "a").await;
    until("a leads", || a.view.role() == Role::Leading).await;
    let b = start(&memory, "b").await;
    until_led(&a, &b, 1).await;
    let cluster_id = Configuration::load(LoadOptions::default()).expect("valid");
    let peers = TonicPeers::new(cluster_id.options().ha.cluster_id.to_string());
    let reported = async {
        loop {
            let of_a = peers.probe(&a.peer).await.expect("it serves");
            let of_b = peers.probe(&b.peer).await.expect("it serves");
            // The first term has written its record.
            if of_b.cached_change > 0 && of_a.scheduling_ages.dispatcher.is_some() {
                return (of_a, of_b);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (of_a, of_b) = tokio::time::timeout(BOUND, reported).await.expect("told");
    assert_eq!(
        of_a.cached_change, 0,
        "a leader's cache is as good as nothing"
    );
    assert_eq!(of_a.progress.phase, Phase::Leading);
    assert!(
        of_a.scheduling_ages.resource_manager.is_some() && of_a.scheduling_ages.runtime.is_some()
    );
    assert!(of_b.scheduling_ages.dispatcher.is_none() && of_b.stalled_term.is_none());
    end(b).await;
    end(a).await;
}

#[tokio::test]
async fn a_standby_counts_whom_it_reaches() {
    let memory = MemoryCluster::default();
    let a = start(&memory, "a").await;
    until("a leads", || a.view.role() == Role::Leading).await;
    let configuration = Configuration::load(LoadOptions::default()).expect("valid");
    let mut options = configuration.options().clone();
    options.ha.detector.inquiry_timeout = BOUND;
    let b = start_with(&memory, "b", options).await;
    until_led(&a, &b, 1).await;
    let peers = TonicPeers::new(configuration.options().ha.cluster_id.to_string());
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a free port");
    let nobody = closed.local_addr().expect("bound").to_string();
    drop(closed);
    let query = LivenessQuery {
        leader: ProcessId::new("a"),
        epoch: Epoch::new(1),
        address: String::new(),
        timeout: Duration::from_millis(100),
    };
    let asked = [a.peer.clone(), nobody];
    let reached = peers.count_reached(&b.peer, &query, &asked).await;
    assert_eq!(reached, Ok(1));
    end(b).await;
    end(a).await;
}

/// The record of a term, as soon as it is there.
async fn record_of(memory: &MemoryCluster, epoch: u64) -> HistoryRecord {
    let found = async {
        loop {
            let read = history::read(&memory.store(), Epoch::new(epoch)).await;
            if let Ok(Some(record)) = read {
                return record;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(BOUND, found).await.expect("written")
}

#[tokio::test]
async fn a_leader_whose_recovery_stands_still_resigns_and_its_successor_says_why() {
    let memory = MemoryCluster::default();
    // Its election reaches the store, but the reads of its terms do not.
    memory.partition(&records_of("a"));
    let configuration = Configuration::load(LoadOptions::default()).expect("valid");
    let mut options = configuration.options().clone();
    options.ha.stall_timeout = Duration::from_secs(2);
    let a = start_with(&memory, "a", options).await;
    until("a recovers", || a.view.role() == Role::Recovering).await;
    let b = start(&memory, "b").await;
    until("b leads", || b.view.role() == Role::Leading).await;
    let record = record_of(&memory, 2).await;
    let takeover = record.takeover.expect("it followed a term");
    assert_eq!(takeover.detection, Detection::Stalled);
    assert_eq!(takeover.former.as_deref(), Some("a"));

    // It stands by, and leads when it is asked to and can.
    memory.heal(&records_of("a"));
    end(b).await;
    until("a leads", || a.view.role() == Role::Leading).await;
    end(a).await;
}
