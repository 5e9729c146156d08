//! JobManagers that watch each other over real connections, on a store in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tanist_ha::clock::Clock;
use tanist_ha::detector::service::PEER;
use tanist_ha::election::core::Timing;
use tanist_ha::election::{ElectionOptions, LeaderElection, ProcessId};
use tanist_ha::memory::MemoryCluster;
use tanist_ha::store::CoordinationStore as _;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::{Configuration, LoadOptions};
use crate::gateway::blobs::ServedBlobs;
use crate::gateway::{GatewayError, LocalConnector};
use crate::process::contender::{Contender, ContenderOptions};
use crate::process::ha::HaServices;
use crate::process::sinks::Sinks;
use crate::process::view::{JobManagerView, Role};
use crate::process::{listen, settings};
use crate::telemetry::ExitCode;

const BOUND: Duration = Duration::from_secs(30);

struct Running {
    view: JobManagerView,
    stop: CancellationToken,
    run: JoinHandle<ExitCode>,
}

async fn start(memory: &MemoryCluster, name: &str) -> Running {
    let configuration = Configuration::load(LoadOptions::default()).expect("valid");
    let options = Arc::new(configuration.options().clone());
    let (host, ports) = (
        &options.jobmanager.bind_host,
        &options.jobmanager.peer_ports,
    );
    let listener = listen::bind("the peer server", "jobmanager.peer.port", host, ports).await;
    let listener = listener.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let listener = listen::detach(listener).expect("bound");
    let process = ProcessId::new(name);
    let addresses = BTreeMap::from([
        ("rpc".to_owned(), format!("{name}:1")),
        (PEER.to_owned(), address),
    ]);
    let contender = Contender::new(ContenderOptions {
        process: process.clone(),
        store: "memory",
        addresses,
        connector: Arc::new(LocalConnector::default()),
        sinks: Sinks::files(),
        blobs: ServedBlobs::new(format!("{name}:2")),
        peers: Some(settings::peers(&options, listener)),
        options,
    });
    let clock = Clock::Boottime;
    let election = ElectionOptions {
        process: process.clone(),
        timing: Timing::default(),
        clock,
    };
    let driver = Arc::new(memory.election(process.clone(), clock));
    let opened = HaServices {
        election: LeaderElection::start(driver, election),
        store: Arc::new(memory.store_of(process)),
        blobs: None,
    };
    let (view, stop) = (contender.view(), CancellationToken::new());
    let asked = stop.clone();
    let run = tokio::spawn(async move { contender.run(opened, &asked).await });
    Running { view, stop, run }
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

    // The standby passes it on to the leader, which invites it.
    let epoch = b.view.transfer(Some(&ProcessId::new("b"))).await;
    assert_eq!(epoch.map(|epoch| epoch.get()), Ok(2));
    until_led(&b, &a, 2).await;

    // Who is no standby is not invited, and nothing changes.
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
            tanist_ha::keys::Kind::History,
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
