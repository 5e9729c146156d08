//! The backend against real servers: what is etcd's own. What all backends share is the conformance suite's.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OnceCell, watch};

use super::*;
use crate::Outcome;
use crate::election::{
    Attempt, ClusterIncarnation, ElectionDriver, ElectionView, Epoch, EpochRecord,
    LeaderInformation, LeaderKey, Member, Nonce, ProcessId, SessionState,
};
use crate::keys::{Key, Kind, Name};
use crate::store::{Change, CommitReply, CommitRequest, CoordinationStore, Fence, Verdict, Write};
use crate::testing::proxy::TcpProxy;
use crate::testing::servers::{EtcdCluster, EtcdServer, EtcdServerOptions, ServerError};
use crate::testing::wait::wait_until;

type TestResult<T = ()> = Result<T, Box<dyn std::error::Error>>;

const BOUND: Duration = Duration::from_secs(30);

/// One server for all tests that do it no harm; each has a namespace of its own.
async fn shared_server() -> Result<&'static EtcdServer, ServerError> {
    static SERVER: OnceCell<EtcdServer> = OnceCell::const_new();
    SERVER
        .get_or_try_init(|| EtcdServer::start(EtcdServerOptions::default()))
        .await
}

fn options(endpoints: Vec<String>, namespace: &str) -> EtcdOptions {
    EtcdOptions {
        endpoints,
        namespace: format!("/test/{namespace}"),
        lease_ttl: Duration::from_secs(1),
        ..EtcdOptions::default()
    }
}

async fn contender(options: &EtcdOptions) -> TestResult<EtcdElection> {
    Ok(open_election(options.clone(), Clock::Boottime, true).await?)
}

async fn nonce(election: &EtcdElection) -> TestResult<Nonce> {
    let mut session = election.session();
    let alive = session.wait_for(|session| session.nonce().is_some());
    let alive = tokio::time::timeout(BOUND, alive).await??;
    Ok(alive.nonce().cloned().expect("it was waited for"))
}

/// Takes or deposes, whatever the store holds.
async fn take(election: &EtcdElection, process: &str) -> TestResult<Fence> {
    let nonce = nonce(election).await?;
    let seen = election.read().await?;
    let incarnation = match &seen.epoch {
        Some((record, _)) => record.incarnation.clone(),
        None => ClusterIncarnation::generate(),
    };
    let epoch = seen.youngest().next();
    let next = EpochRecord {
        epoch,
        incarnation: incarnation.clone(),
    };
    let leader = LeaderKey {
        epoch,
        process: ProcessId::new(process),
        nonce,
    };
    match election.advance(&seen, &next, &leader).await? {
        Attempt::Applied(token) => Ok(Fence {
            epoch,
            token,
            incarnation,
        }),
        Attempt::Refused(view) => Err(format!("refused: {view:?}").into()),
    }
}

fn key(name: &str) -> Key {
    Key::new(Kind::Graphs, Name::new(name).expect("a name"))
}

fn put(name: &str, value: impl Into<Bytes>) -> Write {
    Write::Put {
        key: key(name),
        value: value.into(),
    }
}

async fn level<T: Clone>(
    receiver: &mut watch::Receiver<T>,
    wanted: impl FnMut(&T) -> bool,
) -> TestResult<T> {
    Ok(tokio::time::timeout(BOUND, receiver.wait_for(wanted))
        .await??
        .clone())
}

#[tokio::test]
async fn a_deposed_terms_writes_are_refused() -> TestResult {
    let options = options(shared_server().await?.endpoints(), "deposed");
    let (first, second) = (contender(&options).await?, contender(&options).await?);
    let store = open_store(options).await?;
    let old = take(&first, "a").await?;
    let write = |fence: &Fence, after| CommitRequest {
        fence: fence.clone(),
        after,
        writes: vec![put("job", "graph")],
    };
    let request = write(&old, Change::default());
    assert_eq!(store.commit(&request).await?, CommitReply::Applied);

    let new = take(&second, "b").await?;
    assert_eq!(new.epoch, old.epoch.next());
    let late = write(&old, request.change());
    let CommitReply::Refused(guard) = store.commit(&late).await? else {
        return Err("the deposed term's commit was applied".into());
    };
    assert_eq!(guard.verdict(&late), Verdict::Fenced(new.epoch));
    let nonce = nonce(&first).await?;
    let leader = LeaderKey {
        epoch: old.epoch,
        process: ProcessId::new("a"),
        nonce,
    };
    let info = LeaderInformation {
        epoch: old.epoch,
        process: ProcessId::new("a"),
        addresses: BTreeMap::new(),
        since_ms: 0,
    };
    for attempt in [
        first.attach(old.token, &leader).await?,
        first.publish(old.token, &info).await?,
        first.resign(old.token).await?,
    ] {
        let Attempt::Refused(view) = attempt else {
            return Err("the deposed term wrote".into());
        };
        assert_eq!(view.leader.map(|leader| leader.epoch), Some(new.epoch));
    }
    assert_eq!(
        store.commit(&write(&new, request.change())).await?,
        CommitReply::Applied
    );
    Ok(())
}

#[tokio::test]
async fn a_resigned_term_is_over_and_its_epoch_goes_on() -> TestResult {
    let options = options(shared_server().await?.endpoints(), "resigned");
    let election = contender(&options).await?;
    let fence = take(&election, "a").await?;
    let Attempt::Applied(token) = election.resign(fence.token).await? else {
        return Err("refused to resign".into());
    };
    assert_ne!(
        token, fence.token,
        "nothing of the term can be applied any more"
    );
    let view = election.read().await?;
    assert_eq!((view.youngest(), &view.leader), (fence.epoch, &None));
    let leader = LeaderKey {
        epoch: fence.epoch,
        process: ProcessId::new("a"),
        nonce: nonce(&election).await?,
    };
    let late = election.attach(fence.token, &leader).await?;
    assert!(matches!(late, Attempt::Refused(_)), "{late:?}");
    assert_eq!(take(&election, "a").await?.epoch, fence.epoch.next());
    Ok(())
}

#[tokio::test]
async fn a_transaction_that_is_sent_twice_is_applied_once() -> TestResult {
    let options = options(shared_server().await?.endpoints(), "twice");
    let election = contender(&options).await?;
    let store = open_store(options).await?;
    let fence = take(&election, "a").await?;
    let first = CommitRequest {
        fence: fence.clone(),
        after: Change::default(),
        writes: vec![put("job", "1"), put("other", "1")],
    };
    assert_eq!(store.commit(&first).await?, CommitReply::Applied);
    let CommitReply::Refused(guard) = store.commit(&first).await? else {
        return Err("applied twice".into());
    };
    assert_eq!(guard.verdict(&first), Verdict::AlreadyApplied);

    let second = CommitRequest {
        fence,
        after: first.change(),
        writes: vec![put("job", "2"), Write::Delete { key: key("other") }],
    };
    assert_eq!(store.commit(&second).await?, CommitReply::Applied);
    let CommitReply::Refused(guard) = store.commit(&first).await? else {
        return Err("a late twin was applied".into());
    };
    assert_eq!(guard.verdict(&first), Verdict::Overtaken(second.change()));
    let values = store.get(&[key("other"), key("job")]).await?;
    assert_eq!(values, [None, Some(Bytes::from("2"))]);
    let touched = store.touched(0, 2).await?;
    assert_eq!(
        touched,
        [None, Some(first.touched()), Some(second.touched())]
    );
    assert_eq!(
        store.touched(1025, 1025).await?,
        [None],
        "the ring has another's entry there"
    );
    level(&mut store.changes(), |change| {
        *change == Some(second.change())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_listing_is_paged_and_pinned_to_the_revision_of_its_first_page() -> TestResult {
    let server = shared_server().await?;
    let options = options(server.endpoints(), "paged");
    let election = contender(&options).await?;
    let store = open_store(options).await?;
    let fence = take(&election, "a").await?;
    let mut after = Change::default();
    for batch in 0..3 {
        let writes = (0..100)
            .map(|n| put(&format!("job-{:03}", batch * 100 + n), "x"))
            .collect();
        let request = CommitRequest {
            fence: fence.clone(),
            after,
            writes,
        };
        assert_eq!(store.commit(&request).await?, CommitReply::Applied);
        after = request.change();
    }
    let first = store.list(Kind::Graphs, None, 120).await?;
    assert_eq!(first.items.len(), 120);
    let writes = vec![
        put("job-299x", "late"),
        Write::Delete {
            key: key("job-150"),
        },
    ];
    let request = CommitRequest {
        fence,
        after,
        writes,
    };
    assert_eq!(store.commit(&request).await?, CommitReply::Applied);

    let (mut names, mut next) = (first.items.len(), first.next.clone());
    while let Some(token) = next {
        let page = store.list(Kind::Graphs, Some(token), 120).await?;
        names += page.items.len();
        next = page.next;
    }
    assert_eq!(names, 300, "as at the first page");

    // When that revision is compacted, the listing goes on at the newest.
    let mut client = etcd_client::Client::connect(server.endpoints(), None).await?;
    let newest = client
        .get("x", None)
        .await?
        .header()
        .map(|header| header.revision());
    client
        .compact(newest.expect("etcd sends headers"), None)
        .await?;
    let page = store.list(Kind::Graphs, first.next, 1000).await?;
    assert_eq!(page.items.len(), 180, "without job-150, with job-299x");
    assert_eq!(page.next, None);
    assert!(store.list(Kind::Results, None, 10).await?.items.is_empty());
    Ok(())
}

#[tokio::test]
async fn large_items_are_listed_in_pages_that_fit() -> TestResult {
    let options = options(shared_server().await?.endpoints(), "large");
    let election = contender(&options).await?;
    let store = open_store(options).await?;
    let fence = take(&election, "a").await?;
    let value = Bytes::from(vec![7; store.limits().bytes - 1024]);
    let mut after = Change::default();
    for n in 0..40 {
        let writes = vec![put(&format!("job-{n:02}"), value.clone())];
        let request = CommitRequest {
            fence: fence.clone(),
            after,
            writes,
        };
        assert_eq!(store.commit(&request).await?, CommitReply::Applied);
        after = request.change();
    }
    let (mut sizes, mut next) = (Vec::new(), None);
    loop {
        let page = store.list(Kind::Graphs, next, 900).await?;
        sizes.extend(page.items.iter().map(|(_, value)| value.len()));
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(sizes, vec![value.len(); 40]);
    Ok(())
}

#[tokio::test]
async fn a_transaction_that_is_too_large_is_refused_before_it_is_sent() -> TestResult {
    let options = options(shared_server().await?.endpoints(), "too-large");
    let election = contender(&options).await?;
    let store = open_store(options).await?;
    let fence = take(&election, "a").await?;
    let request = |writes| CommitRequest {
        fence: fence.clone(),
        after: Change::default(),
        writes,
    };
    let large = request(vec![put("job", vec![0; store.limits().bytes + 1])]);
    let error = store.commit(&large).await.expect_err("too large");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert_eq!(error.outcome(), Outcome::Fatal);
    let most = (0..store.limits().writes).map(|n| put(&format!("job-{n}"), "x"));
    let many = request(most.clone().chain([put("more", "x")]).collect());
    let error = store.commit(&many).await.expect_err("too many");
    assert_eq!(error.outcome(), Outcome::Fatal);
    assert_eq!(
        store.commit(&request(most.collect())).await?,
        CommitReply::Applied
    );
    Ok(())
}

#[tokio::test]
async fn a_lost_lease_is_replaced_and_the_member_announced_again() -> TestResult {
    let server = shared_server().await?;
    let options = options(server.endpoints(), "lease");
    let election = contender(&options).await?;
    let member = Member {
        process: ProcessId::new("host:1"),
        incarnation: "x".to_owned(),
        addresses: BTreeMap::new(),
        reads_format: 1,
        version: "test".to_owned(),
    };
    election.announce(&member).await?;
    let fence = take(&election, "host:1").await?;
    wait_until("the member", BOUND, async || {
        match election.members().await {
            Ok(members) if members == [member.clone()] => Ok(()),
            other => Err(other),
        }
    })
    .await;

    // It outlives its time to live, as it is renewed.
    let SessionState::Alive {
        deadline,
        timeout,
        nonce: old,
    } = election.session().borrow().clone()
    else {
        return Err("no session".into());
    };
    assert_eq!(timeout, Duration::from_secs(1));
    let mut session = election.session();
    let renewed = |state: &SessionState| match state {
        SessionState::Alive {
            deadline: later, ..
        } => *later > deadline,
        SessionState::None => false,
    };
    level(&mut session, renewed).await?;

    let mut client = etcd_client::Client::connect(server.endpoints(), None).await?;
    let lease = lease::lease_of(&old).expect("a lease's id");
    client.lease_revoke(lease).await?;
    let replaced = |state: &SessionState| state.nonce().is_some_and(|nonce| *nonce != old);
    let state = level(&mut session, replaced).await?;
    let gone = |view: &Option<ElectionView>| view.as_ref().is_some_and(|v| v.leader.is_none());
    level(&mut election.observed(), gone).await?;
    wait_until("the member again", BOUND, async || {
        match election.members().await {
            Ok(members) if members == [member.clone()] => Ok(()),
            other => Err(other),
        }
    })
    .await;

    // Same term, same epoch, under the new lease.
    let process = ProcessId::new("host:1");
    let dead = LeaderKey {
        epoch: fence.epoch,
        process: process.clone(),
        nonce: old,
    };
    let error = election
        .attach(fence.token, &dead)
        .await
        .expect_err("that lease is gone");
    assert!(matches!(error, Error::SessionLost), "{error}");
    let nonce = state.nonce().cloned().expect("it was waited for");
    let leader = LeaderKey { nonce, ..dead };
    assert_eq!(
        election.attach(fence.token, &leader).await?,
        Attempt::Applied(fence.token)
    );
    let there = |view: &Option<ElectionView>| {
        view.as_ref()
            .is_some_and(|view| view.leader.as_ref() == Some(&leader))
    };
    level(&mut election.observed(), there).await?;

    // Closing takes both away at once.
    election.close().await;
    let view = election.read().await?;
    assert_eq!((view.youngest(), view.leader), (fence.epoch, None));
    assert!(election.members().await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn watches_follow_through_a_restart_of_the_server() -> TestResult {
    let mut server = EtcdServer::start(EtcdServerOptions::default()).await?;
    let options = options(server.endpoints(), "restart");
    let election = contender(&options).await?;
    let store = open_store(options.clone()).await?;
    let fence = take(&election, "a").await?;
    let epoch = |epoch: Epoch| {
        move |view: &Option<ElectionView>| view.as_ref().is_some_and(|v| v.youngest() == epoch)
    };
    level(&mut election.observed(), epoch(fence.epoch)).await?;
    server.restart().await?;
    let other = contender(&options).await?;
    let new = take(&other, "b").await?;
    level(&mut election.observed(), epoch(new.epoch)).await?;
    let request = CommitRequest {
        fence: new,
        after: Change::default(),
        writes: vec![put("job", "x")],
    };
    assert_eq!(store.commit(&request).await?, CommitReply::Applied);
    level(&mut store.changes(), |change| {
        *change == Some(request.change())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_wiped_store_refuses_the_terms_of_its_former_incarnation() -> TestResult {
    let mut server = EtcdServer::start(EtcdServerOptions::default()).await?;
    let options = options(server.endpoints(), "wiped");
    let election = contender(&options).await?;
    let store = open_store(options.clone()).await?;
    let old = take(&election, "a").await?;
    server.restart_wiped().await?;
    let other = contender(&options).await?;
    let new = loop {
        // Until the revision that was the old term's token comes again.
        let new = take(&other, "b").await?;
        if new.token >= old.token {
            break new;
        }
    };
    assert_eq!(
        new.token, old.token,
        "the trap: the same token in another incarnation"
    );
    let stale = CommitRequest {
        fence: old.clone(),
        after: Change::default(),
        writes: vec![put("job", "x")],
    };
    let CommitReply::Refused(guard) = store.commit(&stale).await? else {
        return Err("another incarnation's term wrote".into());
    };
    assert_eq!(
        guard.verdict(&stale),
        Verdict::OtherIncarnation(Some(new.incarnation))
    );
    let resigned = election.resign(old.token).await?;
    assert!(matches!(resigned, Attempt::Refused(_)), "{resigned:?}");
    Ok(())
}

#[tokio::test]
async fn a_lost_answer_is_ambiguous_and_a_refused_connection_is_not() -> TestResult {
    let server = shared_server().await?;
    let proxy = TcpProxy::start(server.address()).await?;
    let direct = options(server.endpoints(), "lost");
    let election = contender(&direct).await?;
    let fence = take(&election, "a").await?;
    let request_timeout = Duration::from_secs(1);
    let endpoints = vec![proxy.address().to_string()];
    let store = open_store(EtcdOptions {
        endpoints,
        request_timeout,
        ..direct
    })
    .await?;
    let request = |after, name: &str| CommitRequest {
        fence: fence.clone(),
        after,
        writes: vec![put(name, "x")],
    };

    let first = request(Change::default(), "first");
    proxy.drop_answers();
    let error = store.commit(&first).await.expect_err("its answer is lost");
    assert_eq!(error.outcome(), Outcome::Ambiguous, "{error}");
    proxy.cut();
    wait_until("a refused connection", BOUND, async || {
        match store.commit(&first).await {
            Err(error @ Error::Unreachable { .. }) => {
                assert!(
                    error.to_string().contains(&proxy.address().to_string()),
                    "{error}"
                );
                Ok(())
            }
            other => Err(other),
        }
    })
    .await;
    proxy.forward();
    wait_until("a definite answer", BOUND, async || {
        match store.commit(&first).await {
            Ok(CommitReply::Refused(guard)) => {
                assert_eq!(guard.verdict(&first), Verdict::AlreadyApplied);
                Ok(())
            }
            other => Err(other),
        }
    })
    .await;

    // A request that arrives after it was settled changes nothing.
    let second = request(first.change(), "second");
    proxy.hold_requests();
    let held = wait_until("the held request", BOUND, async || {
        match proxy.held_requests() {
            held if held > 0 => {
                proxy.freeze();
                Ok(())
            }
            held => Err(held),
        }
    });
    let (error, ()) = tokio::join!(store.commit(&second), held);
    let error = error.expect_err("its connection is gone");
    assert_eq!(error.outcome(), Outcome::Ambiguous, "{error}");
    assert_eq!(store.commit(&second).await?, CommitReply::Applied);
    let third = CommitRequest {
        writes: vec![Write::Delete { key: key("second") }],
        ..request(second.change(), "second")
    };
    assert_eq!(store.commit(&third).await?, CommitReply::Applied);
    proxy.thaw();
    wait_until("the late request's delivery", BOUND, async || {
        match proxy.held_requests() {
            0 => Ok(()),
            held => Err(held),
        }
    })
    .await;
    assert_eq!(store.guard().await?.change, third.change());
    assert_eq!(store.get(&[key("second")]).await?, [None]);
    Ok(())
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_an_expired_token_is_renewed() -> TestResult {
    let user = ("tanist".to_owned(), "secret".to_owned());
    let server = EtcdServer::start(EtcdServerOptions {
        user: Some(user.clone()),
        token_ttl: Some(Duration::from_secs(1)),
        ..EtcdServerOptions::default()
    })
    .await?;
    let nobody = options(server.endpoints(), "denied");
    let wrong = Some((user.0.clone(), "wrong".to_owned()));
    for refused in [
        nobody.clone(),
        EtcdOptions {
            user: wrong,
            ..nobody.clone()
        },
    ] {
        let error = open_store(refused.clone()).await.expect_err("denied");
        assert!(matches!(error, Error::Denied { .. }), "{error}");
        let error = open_election(refused, Clock::Boottime, true)
            .await
            .expect_err("denied");
        assert!(matches!(error, Error::Denied { .. }), "{error}");
    }
    let right = EtcdOptions {
        user: Some(user),
        ..nobody
    };
    assert!(!format!("{right:?}").contains("secret"));
    let election = contender(&right).await?;
    let store = open_store(right).await?;
    let fence = take(&election, "a").await?;
    let nonce = nonce(&election).await?;
    // Each commit and each renewal goes on while tokens expire beneath them.
    let mut after = Change::default();
    let started = Clock::Boottime.now();
    while Clock::Boottime.now().since(started) < Duration::from_secs(4) {
        let writes = vec![put("job", "x")];
        let request = CommitRequest {
            fence: fence.clone(),
            after,
            writes,
        };
        assert_eq!(store.commit(&request).await?, CommitReply::Applied);
        after = request.change();
        level(&mut store.changes(), |change| *change == Some(after)).await?;
    }
    assert_eq!(
        election.session().borrow().nonce(),
        Some(&nonce),
        "still the same lease"
    );
    Ok(())
}

#[tokio::test]
async fn an_unreachable_server_is_named_soon() -> TestResult {
    let port = crate::testing::servers::ports::free_port();
    let options = options(vec![format!("http://127.0.0.1:{port}")], "nowhere");
    let opening = open_election(options, Clock::Boottime, false);
    let error = tokio::time::timeout(Duration::from_secs(5), opening)
        .await?
        .expect_err("nothing listens there");
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&port.to_string()), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_stopped_and_a_dead_member_of_a_cluster_are_left() -> TestResult {
    let mut cluster = EtcdCluster::start(3, EtcdServerOptions::default()).await?;
    let options = EtcdOptions {
        request_timeout: Duration::from_secs(2),
        ..options(cluster.endpoints(), "cluster")
    };
    let election = contender(&options).await?;
    let store = open_store(options).await?;
    let fence = take(&election, "a").await?;
    let mut after = Change::default();
    for member in 0..3 {
        if member % 2 == 0 {
            cluster.servers()[member].kill();
        } else {
            cluster.servers()[member].stop();
        }
        let request = CommitRequest {
            fence: fence.clone(),
            after,
            writes: vec![put("job", "x")],
        };
        after = request.change();
        wait_until("a definite answer", BOUND, async || {
            match store.commit(&request).await {
                Ok(CommitReply::Applied) => Ok(()),
                Ok(CommitReply::Refused(guard)) => match guard.verdict(&request) {
                    Verdict::AlreadyApplied => Ok(()),
                    // `leader` went with its lease meanwhile: its own half puts it back.
                    Verdict::Detached => {
                        let process = ProcessId::new("a");
                        if let Some(nonce) = election.session().borrow().nonce().cloned() {
                            let leader = LeaderKey {
                                epoch: fence.epoch,
                                process,
                                nonce,
                            };
                            let _ = election.attach(fence.token, &leader).await;
                        }
                        Err(format!("{guard:?}"))
                    }
                    other => panic!("{other:?}"),
                },
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
        level(&mut store.changes(), |change| *change == Some(after)).await?;
        level(&mut election.observed(), |view| {
            view.as_ref()
                .is_some_and(|view| view.youngest() == fence.epoch)
        })
        .await?;
        if member % 2 == 0 {
            cluster.servers()[member].restart().await?;
        } else {
            cluster.servers()[member].cont();
        }
        cluster.wait_ready().await?;
    }
    Ok(())
}

#[tokio::test]
async fn dropping_ends_the_tasks() -> TestResult {
    let server = shared_server().await?;
    let proxy = TcpProxy::start(server.address()).await?;
    let options = options(vec![proxy.address().to_string()], "dropped");
    let election = contender(&options).await?;
    let store = open_store(options).await?;
    nonce(&election).await?;
    drop((election, store));
    wait_until("the end of all connections", BOUND, async || {
        match proxy.connections() {
            0 => Ok(()),
            connections => Err(connections),
        }
    })
    .await;
    Ok(())
}
