//! The backend against real servers: what is particular to ZooKeeper. What all backends have in common is the
//! conformance suite's.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::Outcome;
use crate::election::{
    Attempt, ClusterIncarnation, ElectionDriver as _, ElectionView, Epoch, EpochRecord, EpochToken,
    LeaderInformation, LeaderKey, Member, Nonce, ProcessId, SessionState,
};
use crate::keys::{Key, Kind, Name};
use crate::store::{
    Change, CommitReply, CommitRequest, CoordinationStore as _, Fence, Page, Verdict, Write,
};
use crate::testing::proxy::TcpProxy;
use crate::testing::servers::{ZooKeeperServer, ZooKeeperServerOptions};
use crate::testing::wait::wait_until;

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Longer than any session, start of a server and backoff here.
const BOUND: Duration = Duration::from_secs(60);

async fn server() -> Result<ZooKeeperServer, Box<dyn std::error::Error>> {
    Ok(ZooKeeperServer::start(ZooKeeperServerOptions::default()).await?)
}

fn options(endpoints: Vec<String>) -> ZooKeeperOptions {
    ZooKeeperOptions {
        session_timeout: Duration::from_secs(2),
        ..ZooKeeperOptions::new(endpoints, "/tanist/test")
    }
}

async fn election(server: &ZooKeeperServer) -> Result<ZooKeeperElection> {
    open_election(options(server.endpoints()), Clock::Boottime, true).await
}

async fn alive(election: &ZooKeeperElection, but: Option<&Nonce>) -> Nonce {
    let mut session = election.session();
    let other = |state: &SessionState| state.nonce().is_some_and(|nonce| Some(nonce) != but);
    let found = tokio::time::timeout(BOUND, session.wait_for(other)).await;
    let found = found
        .expect("a session in time")
        .expect("the election lives");
    found.nonce().expect("as waited for").clone()
}

/// Waits until what is observed is as wanted.
async fn observe(
    election: &ZooKeeperElection,
    wanted: impl Fn(&ElectionView) -> bool,
) -> ElectionView {
    let mut observed = election.observed();
    let found = observed.wait_for(|view| view.as_ref().is_some_and(&wanted));
    let found = tokio::time::timeout(BOUND, found)
        .await
        .expect("the view in time");
    found
        .expect("the election lives")
        .clone()
        .expect("as waited for")
}

/// Tries again what failed in passing, as all callers of a backend do.
async fn settle<T: Debug>(what: &str, mut attempt: impl AsyncFnMut() -> Result<T>) -> T {
    let settled = wait_until(what, BOUND, async || match attempt().await {
        Err(error) if error.outcome() != Outcome::Fatal => Err(error),
        definite => Ok(definite),
    });
    settled.await.expect("nothing fatal")
}

/// Sends until the answer is definite, and it is that this very transaction was applied, now or before.
async fn commit(store: &ZooKeeperStore, request: &CommitRequest) {
    let reply = settle("committed", async || store.commit(request).await).await;
    if let CommitReply::Refused(guard) = reply {
        assert_eq!(guard.verdict(request), Verdict::AlreadyApplied);
    }
}

struct Term {
    leader: LeaderKey,
    fence: Fence,
}

/// Takes, or deposes, in the name of `process`.
async fn take(
    election: &ZooKeeperElection,
    process: &str,
) -> Result<Term, Box<dyn std::error::Error>> {
    let nonce = alive(election, None).await;
    let seen = election.read().await?;
    let incarnation = match &seen.epoch {
        Some((record, _)) => record.incarnation.clone(),
        None => ClusterIncarnation::generate(),
    };
    let next = EpochRecord {
        epoch: seen.youngest().next(),
        incarnation,
    };
    let leader = LeaderKey {
        epoch: next.epoch,
        process: ProcessId::new(process),
        nonce,
    };
    let Attempt::Applied(token) = election.advance(&seen, &next, &leader).await? else {
        return Err("refused".into());
    };
    let fence = Fence {
        epoch: next.epoch,
        token,
        incarnation: next.incarnation,
    };
    Ok(Term { leader, fence })
}

fn key(kind: Kind, name: &str) -> Key {
    Key::new(kind, Name::new(name).expect("a name"))
}

fn put(name: &str, value: &'static str) -> Write {
    Write::Put {
        key: key(Kind::Graphs, name),
        value: Bytes::from_static(value.as_bytes()),
    }
}

fn request(term: &Term, after: Change, writes: Vec<Write>) -> CommitRequest {
    CommitRequest {
        fence: term.fence.clone(),
        after,
        writes,
    }
}

fn refused(reply: CommitReply, request: &CommitRequest) -> Verdict {
    match reply {
        CommitReply::Refused(guard) => guard.verdict(request),
        CommitReply::Applied => panic!("applied: {request:?}"),
    }
}

#[tokio::test]
async fn a_deposed_leader_cannot_commit_publish_attach_or_resign() -> TestResult {
    let server = server().await?;
    let (a, b) = (election(&server).await?, election(&server).await?);
    let store = open_store(options(server.endpoints())).await?;
    let old = take(&a, "a").await?;
    let first = request(&old, Change::default(), vec![put("job", "1")]);
    assert_eq!(store.commit(&first).await?, CommitReply::Applied);

    let new = take(&b, "b").await?;
    assert_eq!(new.fence.epoch, Epoch::new(2));
    let late = request(&old, first.change(), vec![put("job", "2")]);
    assert_eq!(
        refused(store.commit(&late).await?, &late),
        Verdict::Fenced(Epoch::new(2))
    );
    let info = LeaderInformation {
        epoch: old.fence.epoch,
        process: ProcessId::new("a"),
        addresses: BTreeMap::new(),
        since_ms: 1,
    };
    for attempt in [
        a.publish(old.fence.token, &info).await?,
        a.attach(old.fence.token, &old.leader).await?,
        a.resign(old.fence.token).await?,
    ] {
        let Attempt::Refused(view) = attempt else {
            panic!("{attempt:?}")
        };
        assert_eq!(view.leader.as_ref(), Some(&new.leader));
    }

    let info = LeaderInformation {
        epoch: new.fence.epoch,
        process: ProcessId::new("b"),
        ..info
    };
    for _ in 0..2 {
        let published = b.publish(new.fence.token, &info).await?;
        assert_eq!(published, Attempt::Applied(new.fence.token));
    }
    assert_eq!(
        observe(&a, |view| view.confirmed().is_some())
            .await
            .confirmed(),
        Some(&info)
    );
    let Attempt::Applied(after) = b.resign(new.fence.token).await? else {
        panic!("refused")
    };
    assert_ne!(after, new.fence.token);
    let view = observe(&a, |view| view.leader.is_none()).await;
    assert_eq!(
        view.youngest(),
        new.fence.epoch,
        "a resignation begins no term"
    );
    assert!(matches!(
        b.attach(new.fence.token, &new.leader).await?,
        Attempt::Refused(_)
    ));
    Ok(())
}

#[tokio::test]
async fn of_two_deposers_one_succeeds_and_closing_hands_over_at_once() -> TestResult {
    let server = server().await?;
    let (a, b) = (election(&server).await?, election(&server).await?);
    let (na, nb) = (alive(&a, None).await, alive(&b, None).await);
    let seen = ElectionView::default();
    let next = EpochRecord {
        epoch: Epoch::new(1),
        incarnation: ClusterIncarnation::generate(),
    };
    let leader = |process: &str, nonce: &Nonce| LeaderKey {
        epoch: next.epoch,
        process: ProcessId::new(process),
        nonce: nonce.clone(),
    };
    let (la, lb) = (leader("a", &na), leader("b", &nb));
    let (ra, rb) = tokio::join!(a.advance(&seen, &next, &la), b.advance(&seen, &next, &lb));
    let applied = [ra?, rb?].map(|attempt| matches!(attempt, Attempt::Applied(_)));
    assert_eq!(
        applied.iter().filter(|applied| **applied).count(),
        1,
        "{applied:?}"
    );

    let (winner, other) = if applied[0] { (a, b) } else { (b, a) };
    let started = tokio::time::Instant::now();
    winner.close().await;
    observe(&other, |view| view.epoch.is_some() && view.leader.is_none()).await;
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(*winner.session().borrow(), SessionState::None);

    // Dropping is closing that nobody waits for.
    let term = take(&other, "b").await?;
    let third = election(&server).await?;
    observe(&third, |view| view.leader.as_ref() == Some(&term.leader)).await;
    let started = tokio::time::Instant::now();
    drop(other);
    observe(&third, |view| view.leader.is_none()).await;
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
    Ok(())
}

#[tokio::test]
async fn a_transaction_sent_twice_is_applied_once() -> TestResult {
    let server = server().await?;
    let a = election(&server).await?;
    let store = open_store(options(server.endpoints())).await?;
    let term = take(&a, "a").await?;
    let first = request(&term, Change::default(), vec![put("x", "1")]);
    assert_eq!(store.commit(&first).await?, CommitReply::Applied);
    assert_eq!(
        refused(store.commit(&first).await?, &first),
        Verdict::AlreadyApplied
    );

    // A store that knows nothing replaces what is there, and deletes what is and what is not.
    let fresh = open_store(options(server.endpoints())).await?;
    let delete = |name| Write::Delete {
        key: key(Kind::Graphs, name),
    };
    let second = request(
        &term,
        first.change(),
        vec![delete("none"), put("x", "2"), put("y", "2")],
    );
    assert_eq!(fresh.commit(&second).await?, CommitReply::Applied);
    // The first store's picture is old by now.
    let third = request(
        &term,
        second.change(),
        vec![delete("y"), delete("x"), put("z", "3")],
    );
    assert_eq!(store.commit(&third).await?, CommitReply::Applied);
    let fourth = request(&term, third.change(), vec![delete("y"), put("x", "4")]);
    assert_eq!(fresh.commit(&fourth).await?, CommitReply::Applied);
    let keys = ["x", "y", "z"].map(|name| key(Kind::Graphs, name));
    let values = store.get(&keys).await?;
    assert_eq!(
        values,
        [Some(Bytes::from("4")), None, Some(Bytes::from("3"))]
    );

    let touched = store.touched(0, 5).await?;
    let numbers: Vec<_> = touched
        .iter()
        .map(|entry| entry.as_ref().map(|entry| entry.change.number))
        .collect();
    assert_eq!(numbers, [None, Some(1), Some(2), Some(3), Some(4), None]);
    assert_eq!(touched[4].as_ref().map(|entry| entry.keys.len()), Some(2));
    assert_eq!(store.guard().await?.change, fourth.change());

    // Detached and attached again, it goes on where it was.
    let session = alive(&a, None).await;
    a.close().await;
    let fifth = request(&term, fourth.change(), vec![put("v", "5")]);
    assert_eq!(
        refused(store.commit(&fifth).await?, &fifth),
        Verdict::Detached
    );
    let again = election(&server).await?;
    let nonce = alive(&again, Some(&session)).await;
    let leader = LeaderKey {
        nonce,
        ..term.leader.clone()
    };
    assert_eq!(
        again.attach(term.fence.token, &leader).await?,
        Attempt::Applied(term.fence.token)
    );
    assert_eq!(store.commit(&fifth).await?, CommitReply::Applied);
    Ok(())
}

#[tokio::test]
async fn a_listing_goes_page_by_page_and_a_request_that_is_too_large_harms_nothing() -> TestResult {
    let server = server().await?;
    let a = election(&server).await?;
    let store = open_store(options(server.endpoints())).await?;
    let term = take(&a, "a").await?;
    let mut after = Change::default();
    for batch in 0..3 {
        let names = (0..400).map(|number| format!("job-{:05}", batch * 400 + number));
        let write = names.map(|name| put(&name, "graph")).collect();
        let request = request(&term, after, write);
        assert_eq!(store.commit(&request).await?, CommitReply::Applied);
        after = request.change();
    }
    let (mut page, mut names) = (None, Vec::new());
    loop {
        let listed = store.list(Kind::Graphs, page, 500).await?;
        assert!(listed.items.len() <= 500);
        names.extend(listed.items.into_iter().map(|(name, _)| name));
        page = listed.next;
        if page.is_none() {
            break;
        }
    }
    assert_eq!(names.len(), 1200);
    assert!(names.is_sorted());
    assert_eq!(store.list(Kind::Results, None, 10).await?, Page::default());

    // What the limits allow passes, with names as long as they get.
    let limits = store.limits();
    let long = |number: usize| key(Kind::Checkpoints, &format!("{number:0>200}"));
    let blank = Write::Put {
        key: long(0),
        value: Bytes::new(),
    };
    let value = Bytes::from(vec![7; limits.bytes / limits.writes - blank.size()]);
    let write = |number| Write::Put {
        key: long(number),
        value: value.clone(),
    };
    let full = request(&term, after, (0..limits.writes).map(write).collect());
    assert_eq!(store.commit(&full).await?, CommitReply::Applied);
    let value = Bytes::from(vec![7; 1 << 20]);
    let large = Write::Put {
        key: key(Kind::Graphs, "large"),
        value,
    };
    let large = request(&term, full.change(), vec![large]);
    let (failed, read) = tokio::join!(store.commit(&large), store.guard());
    assert!(matches!(failed, Err(Error::TooLarge { .. })), "{failed:?}");
    assert_eq!(read?.change, full.change());
    let next = request(&term, full.change(), vec![put("small", "1")]);
    assert_eq!(store.commit(&next).await?, CommitReply::Applied);
    Ok(())
}

#[tokio::test]
async fn watches_follow_through_a_restart_of_the_server() -> TestResult {
    let mut server = server().await?;
    let (a, b) = (election(&server).await?, election(&server).await?);
    let (writer, reader) = (
        open_store(options(server.endpoints())).await?,
        open_store(options(server.endpoints())).await?,
    );
    let mut term = take(&a, "a").await?;
    let mut after = Change::default();
    for round in 0..2 {
        if round == 1 {
            server.restart().await?;
            // Whether the session outlived the restart or not: the term goes on.
            settle("attached", async || {
                term.leader.nonce = alive(&a, None).await;
                a.attach(term.fence.token, &term.leader).await
            })
            .await;
        }
        for _ in 0..20 {
            let request = request(&term, after, vec![put("x", "1")]);
            commit(&writer, &request).await;
            after = request.change();
        }
        let mut changes = reader.changes();
        let seen = changes.wait_for(|change| *change == Some(after));
        tokio::time::timeout(BOUND, seen).await??;
        observe(&b, |view| view.leader.as_ref() == Some(&term.leader)).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_session_that_expired_is_replaced_and_the_term_goes_on() -> TestResult {
    let server = server().await?;
    let a = election(&server).await?;
    let store = open_store(options(server.endpoints())).await?;
    let term = take(&a, "a").await?;
    let member = Member {
        process: ProcessId::new("host:6123/%"),
        incarnation: "1".into(),
        addresses: BTreeMap::new(),
        reads_format: 1,
        version: String::new(),
    };
    a.announce(&member).await?;
    assert_eq!(a.members().await?, std::slice::from_ref(&member));
    let first = request(&term, Change::default(), vec![put("x", "1")]);
    assert_eq!(store.commit(&first).await?, CommitReply::Applied);

    let old = alive(&a, None).await;
    let believed = a.session().borrow().clone();
    let SessionState::Alive {
        deadline: Some(deadline),
        timeout,
        ..
    } = believed
    else {
        panic!("{believed:?}");
    };
    assert_eq!(timeout, Duration::from_secs(2), "what the server granted");
    assert!(deadline <= Clock::Boottime.now().after(timeout));
    server.stop();
    let mut session = a.session();
    tokio::time::timeout(
        BOUND,
        session.wait_for(|state| *state == SessionState::None),
    )
    .await??;
    assert!(
        !believed.is_believed_at(Clock::Boottime.now()),
        "the deadline passed first"
    );
    let failed = store
        .commit(&request(&term, first.change(), vec![put("x", "2")]))
        .await;
    assert!(failed.is_err_and(|error| error.outcome() != Outcome::Fatal));
    server.cont();

    let nonce = alive(&a, Some(&old)).await;
    let seen = a.read().await?;
    let stale = a
        .advance(&seen, &seen.epoch.clone().expect("taken").0, &term.leader)
        .await;
    assert!(matches!(stale, Err(Error::SessionLost)), "{stale:?}");
    let leader = LeaderKey {
        nonce,
        ..term.leader.clone()
    };
    let token = term.fence.token;
    assert_eq!(
        settle("attach", async || a.attach(token, &leader).await).await,
        Attempt::Applied(token)
    );
    let second = request(&term, first.change(), vec![put("x", "3")]);
    commit(&store, &second).await;
    wait_until("the member under the new session", BOUND, async || {
        let members = a.members().await.map_err(|error| error.to_string())?;
        if members == std::slice::from_ref(&member) {
            Ok(())
        } else {
            Err(format!("{members:?}"))
        }
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_wiped_store_refuses_the_old_incarnation() -> TestResult {
    let mut server = server().await?;
    let a = election(&server).await?;
    let store = open_store(options(server.endpoints())).await?;
    let term = take(&a, "a").await?;
    let old = alive(&a, None).await;
    server.restart_wiped().await?;
    // The other cluster's term has the same epoch and the same data version.
    let b = election(&server).await?;
    let other = take(&b, "b").await?;
    assert_eq!(
        (other.fence.token, other.fence.epoch),
        (term.fence.token, term.fence.epoch)
    );

    let late = request(&term, Change::default(), vec![put("x", "1")]);
    let reply = settle("an answer", async || store.commit(&late).await).await;
    let found = Verdict::OtherIncarnation(Some(other.fence.incarnation.clone()));
    assert_eq!(refused(reply, &late), found);
    let nonce = alive(&a, Some(&old)).await;
    let leader = LeaderKey {
        nonce,
        ..term.leader.clone()
    };
    let attempt = settle("an answer", async || {
        a.attach(term.fence.token, &leader).await
    })
    .await;
    assert!(matches!(attempt, Attempt::Refused(_)), "{attempt:?}");
    let attempt = settle("an answer", async || a.resign(term.fence.token).await).await;
    assert!(matches!(attempt, Attempt::Refused(_)), "{attempt:?}");
    assert_eq!(b.read().await?.leader, Some(other.leader));
    Ok(())
}

#[tokio::test]
async fn only_the_right_password_opens_a_protected_namespace() -> TestResult {
    let server = server().await?;
    let with = |digest: Option<(&str, &str)>| ZooKeeperOptions {
        digest: digest.map(|(user, password)| (user.to_owned(), password.to_owned())),
        ..options(server.endpoints())
    };
    let right = with(Some(("tanist", "right")));
    let a = open_election(right.clone(), Clock::Boottime, true).await?;
    let term = take(&a, "a").await?;
    let store = open_store(right).await?;
    let first = request(&term, Change::default(), vec![put("x", "1")]);
    assert_eq!(store.commit(&first).await?, CommitReply::Applied);
    for wrong in [with(Some(("tanist", "wrong"))), with(None)] {
        let opened = open_store(wrong.clone()).await;
        assert!(matches!(opened, Err(Error::Denied { .. })), "{opened:?}");
        let opened = open_election(wrong, Clock::Boottime, true).await;
        assert!(matches!(opened, Err(Error::Denied { .. })), "{opened:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_late_twin_changes_nothing() -> TestResult {
    let server = server().await?;
    let a = election(&server).await?;
    let term = take(&a, "a").await?;
    let proxy = TcpProxy::start(server.address()).await?;
    let slow = ZooKeeperOptions {
        request_timeout: Duration::from_millis(300),
        ..options(vec![proxy.address().to_string()])
    };
    let store = open_store(slow).await?;
    let first = request(&term, Change::default(), vec![put("x", "1")]);
    assert_eq!(store.commit(&first).await?, CommitReply::Applied);
    let second = request(&term, first.change(), vec![put("x", "2"), put("y", "2")]);
    proxy.hold_requests();
    let lost = store.commit(&second).await;
    assert_eq!(
        lost.map_err(|error| error.outcome()),
        Err(Outcome::Ambiguous)
    );
    // Not a request more while the connection is known to be broken.
    proxy.cut();
    wait_until("the loss is noticed", BOUND, async || {
        match store.guard().await {
            Err(Error::Unavailable { .. }) => Ok(()),
            other => Err(other),
        }
    })
    .await;
    proxy.forward();
    commit(&store, &second).await;
    let third = request(&term, second.change(), vec![put("x", "3")]);
    assert_eq!(store.commit(&third).await?, CommitReply::Applied);

    proxy.hold_requests();
    let fourth = request(&term, third.change(), vec![put("x", "4")]);
    assert_eq!(
        store.commit(&fourth).await.map_err(|error| error.outcome()),
        Err(Outcome::Ambiguous)
    );
    proxy.freeze();
    let resolved = open_store(options(server.endpoints())).await?;
    assert_eq!(resolved.commit(&fourth).await?, CommitReply::Applied);
    let fifth = request(&term, fourth.change(), vec![put("x", "5")]);
    assert_eq!(resolved.commit(&fifth).await?, CommitReply::Applied);
    proxy.thaw();
    wait_until("the late request arrived", BOUND, async || {
        match proxy.held_requests() {
            0 => Ok(()),
            held => Err(held),
        }
    })
    .await;
    assert_eq!(resolved.guard().await?.change, fifth.change());
    assert_eq!(
        resolved.get(&[key(Kind::Graphs, "x")]).await?,
        [Some(Bytes::from("5"))]
    );
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_opened_says_so_in_bounded_time() -> TestResult {
    let endpoint = format!("127.0.0.1:{}", crate::testing::servers::ports::free_port());
    let started = tokio::time::Instant::now();
    let failed = open_store(options(vec![endpoint.clone()])).await;
    let Err(error @ Error::Unreachable { .. }) = failed else {
        panic!("{failed:?}")
    };
    assert!(error.to_string().contains(&endpoint), "{error}");
    assert!(
        started.elapsed() < Duration::from_secs(6),
        "{:?}",
        started.elapsed()
    );
    for namespace in ["", "/", "/a//b", "/a/../b", "/zookeeper/x"] {
        let options = ZooKeeperOptions::new(vec![endpoint.clone()], namespace);
        let failed = open_store(options).await;
        assert!(
            matches!(failed, Err(Error::Misconfigured(_))),
            "{namespace}: {failed:?}"
        );
    }
    let failed = open_store(options(vec!["host:1/chroot".into()])).await;
    assert!(matches!(failed, Err(Error::Misconfigured(_))), "{failed:?}");
    let version = super::election::version(EpochToken(u64::MAX));
    assert!(version.is_err_and(|error| error.outcome() == Outcome::Fatal));
    Ok(())
}
