//! The etcd backend on real servers: behaviour specific to etcd. The conformance suite tests the common
//! behaviour.

mod election;
mod health;
mod outages;
mod permissions;
mod records;
mod space;
mod test_servers;

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
use crate::etcd::test_servers::{EtcdCluster, EtcdServer, EtcdServerOptions};
use crate::keys::{Key, Name};
use crate::store::{Change, CommitReply, CommitRequest, CoordinationStore, Fence, Verdict, Write};
use crate::testing::kinds::{DOCUMENTS, KINDS, REPORTS};
use crate::testing::proxy::TcpProxy;
use crate::testing::servers::ServerError;
use crate::testing::wait::wait_until;

type TestResult<T = ()> = Result<T, Box<dyn std::error::Error>>;

const BOUND: Duration = Duration::from_secs(30);

/// One server shared by all tests that don't disturb it; each has its own namespace.
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
        // Where no test waits for its end: a disk may hold the server up for seconds.
        lease_ttl: Duration::from_secs(10),
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

/// Takes leadership or deposes, independent of the store's content.
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
        holder: None,
        store: None,
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
    Key::new(DOCUMENTS, Name::new(name).expect("a name"))
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
