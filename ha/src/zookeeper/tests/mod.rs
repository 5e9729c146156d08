//! The ZooKeeper backend on real servers: behaviour specific to ZooKeeper. The conformance suite tests the
//! common behaviour.

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
use crate::testing::kinds::{DOCUMENTS, KINDS, REPORTS};
use crate::testing::proxy::TcpProxy;
use crate::testing::wait::wait_until;
use crate::zookeeper::test_servers::{ZooKeeperEnsemble, ZooKeeperServer, ZooKeeperServerOptions};

mod outages;
mod permissions;
mod records;
mod terms;
mod test_servers;

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Longer than any session, server start and backoff here.
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

/// Waits until the observed view is as wanted.
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

/// Retries temporary failures, as all callers of a backend do.
async fn settle<T: Debug>(what: &str, mut attempt: impl AsyncFnMut() -> Result<T>) -> T {
    let until_definite = wait_until(what, BOUND, async || match attempt().await {
        Err(error) if error.outcome() != Outcome::Fatal => Err(error),
        definite => Ok(definite),
    });
    until_definite.await.expect("nothing fatal")
}

/// Sends until the answer is definite, and checks that this transaction was applied, now or before.
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

/// Takes leadership, or deposes, as `process`.
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
        holder: None,
        store: None,
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
        key: key(DOCUMENTS, name),
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
