//! The embedded backend itself, including real processes: the test binary starts itself as a child that runs
//! [`a_child_that_other_tests_start`].

mod deaths;

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use tokio::time::{Instant, timeout};

use super::{EmbeddedElection, EmbeddedOptions, EmbeddedStore, open_election, open_store};
use crate::clock::Clock;
use crate::election::{
    Attempt, ClusterIncarnation, ElectionDriver, ElectionView, EpochRecord, EpochToken,
    LeaderInformation, LeaderKey, Member, ProcessId,
};
use crate::error::{Error, Outcome, Result};
use crate::keys::{Key, Name};
use crate::store::{Change, CommitReply, CommitRequest, CoordinationStore, Fence, Verdict, Write};
use crate::testing::kinds::{DOCUMENTS, KINDS};

fn process(name: &str) -> ProcessId {
    ProcessId::new(name)
}

async fn election(dir: &Path, name: &str) -> EmbeddedElection {
    let options = EmbeddedOptions::new(dir);
    open_election(options, process(name), true, Clock::Boottime)
        .await
        .expect("opened")
}

async fn store(dir: &Path) -> EmbeddedStore {
    open_store(EmbeddedOptions::new(dir), KINDS)
        .await
        .expect("opened")
}

fn leader_key(election: &EmbeddedElection, name: &str, next: &EpochRecord) -> LeaderKey {
    let session = election.session();
    let nonce = session
        .borrow()
        .nonce()
        .expect("a contender has a session")
        .clone();
    LeaderKey {
        epoch: next.epoch,
        process: process(name),
        nonce,
    }
}

async fn try_take(election: &EmbeddedElection, name: &str) -> Result<(Fence, Attempt)> {
    let seen = election.read().await?;
    let incarnation = seen
        .epoch
        .as_ref()
        .map(|(record, _)| record.incarnation.clone());
    let incarnation = incarnation.unwrap_or_else(ClusterIncarnation::generate);
    let next = EpochRecord {
        epoch: seen.youngest().next(),
        incarnation,
        holder: None,
        store: None,
    };
    let attempt = election
        .advance(&seen, &next, &leader_key(election, name, &next))
        .await?;
    let token = EpochToken(next.epoch.get());
    Ok((
        Fence {
            epoch: next.epoch,
            token,
            incarnation: next.incarnation,
        },
        attempt,
    ))
}

async fn take(election: &EmbeddedElection, name: &str) -> Fence {
    let (fence, attempt) = try_take(election, name).await.expect("the store answers");
    assert_eq!(attempt, Attempt::Applied(fence.token));
    fence
}

fn key(name: &str) -> Key {
    Key::new(DOCUMENTS, Name::new(name).expect("a name"))
}

fn put(fence: &Fence, after: Change, name: &str, value: Bytes) -> CommitRequest {
    let writes = vec![Write::Put {
        key: key(name),
        value,
    }];
    CommitRequest {
        fence: fence.clone(),
        after,
        writes,
    }
}

async fn verdict(store: &EmbeddedStore, request: &CommitRequest) -> Option<Verdict> {
    match store.commit(request).await.expect("the store answers") {
        CommitReply::Applied => None,
        CommitReply::Refused(guard) => Some(guard.verdict(request)),
    }
}

async fn observe(
    election: &EmbeddedElection,
    what: &str,
    wanted: impl Fn(&ElectionView) -> bool,
) -> ElectionView {
    let mut observed = election.observed();
    let seen = observed.wait_for(|view| view.as_ref().is_some_and(&wanted));
    match timeout(Duration::from_secs(20), seen).await {
        Ok(view) => view
            .expect("the handle lives")
            .clone()
            .expect("waited for it"),
        Err(_) => panic!("{what}: not seen, but {:?}", election.observed().borrow()),
    }
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

#[tokio::test]
async fn a_deposed_term_commits_nothing_and_a_commit_sent_twice_is_applied_once() {
    let dir = directory();
    let (a, b) = (
        election(dir.path(), "a").await,
        election(dir.path(), "b").await,
    );
    let store = store(dir.path()).await;
    let first = take(&a, "a").await;
    let request = put(&first, Change::default(), "x", Bytes::from_static(b"1"));
    assert_eq!(verdict(&store, &request).await, None);
    assert_eq!(
        verdict(&store, &request).await,
        Some(Verdict::AlreadyApplied)
    );
    let second = take(&b, "b").await;
    assert!(second.epoch > first.epoch);
    let late = put(&first, request.change(), "x", Bytes::from_static(b"2"));
    assert_eq!(
        verdict(&store, &late).await,
        Some(Verdict::Fenced(second.epoch))
    );
    let value = store.get(&[key("x"), key("y")]).await.expect("get");
    assert_eq!(value, [Some(Bytes::from_static(b"1")), None]);
    // The deposed process observes the other one's change.
    let view = observe(&a, "the younger term", |view| {
        view.youngest() == second.epoch
    })
    .await;
    assert_eq!(view.leader.map(|leader| leader.process), Some(process("b")));
}

#[tokio::test]
async fn of_two_deposers_that_saw_the_same_one_wins() {
    let dir = directory();
    let (a, b) = (
        election(dir.path(), "a").await,
        election(dir.path(), "b").await,
    );
    let seen = a.read().await.expect("read");
    take(&a, "a").await;
    let incarnation = ClusterIncarnation::generate();
    let next = EpochRecord {
        epoch: seen.youngest().next(),
        incarnation,
        holder: None,
        store: None,
    };
    let attempt = b
        .advance(&seen, &next, &leader_key(&b, "b", &next))
        .await
        .expect("advance");
    let Attempt::Refused(view) = attempt else {
        panic!("{attempt:?}")
    };
    assert_eq!(view.leader.map(|leader| leader.process), Some(process("a")));
}

#[tokio::test]
async fn a_resigned_term_neither_commits_nor_attaches_nor_publishes() {
    let dir = directory();
    let a = election(dir.path(), "a").await;
    let store = store(dir.path()).await;
    let fence = take(&a, "a").await;
    let leader = leader_key(
        &a,
        "a",
        &EpochRecord {
            epoch: fence.epoch,
            incarnation: fence.incarnation.clone(),
            holder: None,
            store: None,
        },
    );
    assert_eq!(
        a.attach(fence.token, &leader).await.expect("attach"),
        Attempt::Applied(fence.token)
    );
    for _ in 0..2 {
        let resigned = a.resign(fence.token).await.expect("resign");
        assert_eq!(resigned, Attempt::Applied(fence.token));
    }
    let attached = a.attach(fence.token, &leader).await.expect("attach");
    assert!(matches!(attached, Attempt::Refused(_)), "{attached:?}");
    let info = LeaderInformation {
        epoch: fence.epoch,
        process: process("a"),
        addresses: Default::default(),
        since_ms: 0,
    };
    let published = a.publish(fence.token, &info).await.expect("publish");
    assert!(matches!(published, Attempt::Refused(_)), "{published:?}");
    let request = put(&fence, Change::default(), "x", Bytes::new());
    assert_eq!(verdict(&store, &request).await, Some(Verdict::Detached));
    let again = take(&a, "a").await;
    assert_eq!(again.epoch, fence.epoch.next());
    assert_eq!(
        verdict(&store, &request).await,
        Some(Verdict::Fenced(again.epoch))
    );
}

async fn try_take_as_observer(observer: &EmbeddedElection) -> Result<Attempt> {
    let seen = observer.read().await?;
    let incarnation = ClusterIncarnation::generate();
    let next = EpochRecord {
        epoch: seen.youngest().next(),
        incarnation,
        holder: None,
        store: None,
    };
    let leader = seen.leader.clone().expect("there is a leader");
    observer.advance(&seen, &next, &leader).await
}

#[tokio::test]
async fn members_are_those_that_live() {
    let dir = directory();
    let (a, b) = (
        election(dir.path(), "host:1").await,
        election(dir.path(), "../b").await,
    );
    let member = Member::named;
    a.announce(&member("host:1")).await.expect("announced");
    b.announce(&member("../b")).await.expect("announced");
    assert_eq!(
        a.members().await.expect("members"),
        [member("../b"), member("host:1")]
    );
    b.close().await;
    assert_eq!(a.members().await.expect("members"), [member("host:1")]);
    assert!(b.announce(&member("../b")).await.is_err());
    assert!(matches!(
        try_take(&a, "host:1").await,
        Ok((_, Attempt::Applied(_)))
    ));
    a.close().await;
    let view = observe(&b, "that a is gone", |v| {
        v.epoch.is_some() && v.leader.is_none()
    })
    .await;
    assert_eq!(view.youngest().get(), 1);
}

#[tokio::test]
async fn a_listing_goes_on_page_by_page_and_another_handle_follows_the_changes() {
    let dir = directory();
    let a = election(dir.path(), "a").await;
    let (store, other) = (store(dir.path()).await, store(dir.path()).await);
    let fence = take(&a, "a").await;
    let value = Bytes::from(vec![7; 1024 * 1024]);
    let mut after = Change::default();
    for i in 0..25 {
        let request = put(&fence, after, &format!("item-{i:02}"), value.clone());
        assert_eq!(verdict(&store, &request).await, None);
        after = request.change();
    }
    let mut changes = other.changes();
    let seen = changes.wait_for(|change| *change == Some(after));
    timeout(Duration::from_secs(20), seen)
        .await
        .expect("in time")
        .expect("alive");
    let (mut names, mut page) = (Vec::new(), None);
    loop {
        let listed = other.list(DOCUMENTS, page, 10).await.expect("list");
        assert!(listed.items.iter().all(|(_, listed)| *listed == value));
        names.extend(listed.items.iter().map(|(name, _)| name.to_string()));
        page = listed.next;
        if page.is_none() {
            break;
        }
    }
    assert_eq!(
        names,
        (0..25).map(|i| format!("item-{i:02}")).collect::<Vec<_>>()
    );
    let touched = other.touched(25, 26).await.expect("touched");
    let keys = touched
        .into_iter()
        .map(|entry| entry.map(|entry| entry.keys.concat()));
    assert_eq!(
        keys.collect::<Vec<_>>(),
        [Some("documents/item-24".to_owned()), None]
    );
    let large = put(
        &fence,
        after,
        "large",
        Bytes::from(vec![0; 9 * 1024 * 1024]),
    );
    let error = store.commit(&large).await.expect_err("too large");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    let delete = CommitRequest {
        fence,
        after,
        writes: vec![Write::Delete {
            key: key("item-00"),
        }],
    };
    assert_eq!(verdict(&store, &delete).await, None);
    assert_eq!(store.get(&[key("item-00")]).await.expect("get"), [None]);
}

#[tokio::test]
async fn a_removed_store_is_another_incarnation_for_those_that_run() {
    let dir = directory();
    let a = election(dir.path(), "a").await;
    let running = store(dir.path()).await;
    let old = take(&a, "a").await;
    std::fs::remove_file(dir.path().join("tanist.db")).expect("removed");
    for file in ["tanist.db-wal", "tanist.db-shm"] {
        // May be gone already if a process has begun the next store, which does not reuse the remains of the
        // old one.
        let _ = std::fs::remove_file(dir.path().join(file));
    }
    let request = put(&old, Change::default(), "x", Bytes::new());
    assert_eq!(
        verdict(&running, &request).await,
        Some(Verdict::OtherIncarnation(None))
    );
    observe(&a, "the empty store", |view| view.epoch.is_none()).await;
    let new = take(&election(dir.path(), "b").await, "b").await;
    assert_eq!(new.token, old.token);
    let other = Some(Verdict::OtherIncarnation(Some(new.incarnation)));
    assert_eq!(verdict(&running, &request).await, other);
    let resigned = a.resign(old.token).await.expect("the store answers");
    assert!(matches!(resigned, Attempt::Refused(_)), "{resigned:?}");
}

#[tokio::test]
async fn a_file_that_is_no_store_or_a_newer_one_is_refused_by_name() {
    let dir = directory();
    let path = dir.path().join("tanist.db");
    std::fs::write(&path, vec![b'x'; 8192]).expect("written");
    let error = open_store(EmbeddedOptions::new(dir.path()), KINDS)
        .await
        .expect_err("corrupt");
    assert_eq!(error.outcome(), Outcome::Fatal);
    assert!(
        error.to_string().contains(&path.display().to_string()),
        "{error}"
    );
    std::fs::remove_file(&path).expect("removed");
    drop(store(dir.path()).await);
    let connection = rusqlite::Connection::open(&path).expect("opened");
    connection
        .pragma_update(None, "user_version", 7)
        .expect("set");
    drop(connection);
    let error = open_store(EmbeddedOptions::new(dir.path()), KINDS)
        .await
        .expect_err("too new");
    assert!(
        matches!(
            error,
            Error::TooNew {
                found: 7,
                supported: 1,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn a_copy_of_the_file_shows_another_identity_and_a_renamed_directory_the_same() {
    let root = directory();
    let (first, renamed) = (root.path().join("first"), root.path().join("renamed"));
    let copied = root.path().join("copied");
    let observe = async |dir: &std::path::Path| {
        let (options, process) = (EmbeddedOptions::new(dir), ProcessId::new("observer"));
        let election = open_election(options, process, false, Clock::Boottime).await;
        let view = election.expect("opened").read().await.expect("read");
        view.store
            .expect("the file system keeps when a file was made")
    };
    let identity = observe(&first).await;
    std::fs::create_dir(&copied).expect("made");
    // By SQLite: a part of the content may still be in the log beside the file.
    let copy = copied.join("tanist.db").display().to_string();
    rusqlite::Connection::open(first.join("tanist.db"))
        .expect("opened")
        .execute("vacuum into ?1", [copy])
        .expect("copied");
    assert_ne!(observe(&copied).await, identity);
    std::fs::rename(&first, &renamed).expect("renamed");
    assert_eq!(observe(&renamed).await, identity);
}
