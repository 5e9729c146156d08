//! The election part of the etcd backend: an election's keys, each step as one transaction.
//!
//! Owns its connection and three tasks: one follows the keys, one keeps the lease, and one keeps the member under
//! it. Invariant: every write of a term compares the token and also the value of `epoch`, because a revision can
//! repeat after the store was wiped. A transaction whose answer was lost is not sent again here
//! ([`Repeat::IfNotApplied`]): the core decides.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp, TxnResponse};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::EtcdOptions;
use super::client::{Connection, Repeat};
use super::follow::{Watched, follow};
use super::lease::{Membership, keep_lease, lease_of};
use super::values::{
    Keys, decode, election_view, encode, epoch_value, revision, token, token_revision,
};
use crate::clock::Clock;
use crate::election::{
    Attempt, ElectionDriver, ElectionView, EpochRecord, EpochToken, LeaderInformation, LeaderKey,
    Member, SessionState,
};
use crate::error::{Error, Result};
use crate::keys::path;

/// Number of epochs whose records are remembered; a process writes under one or two.
const MAX_CACHED_RECORDS: usize = 32;

/// An election's keys in etcd, with this process's lease if it contends. Its tasks end when it is dropped.
#[derive(Debug)]
pub struct EtcdElection {
    connection: Connection,
    keys: Keys,
    session: watch::Sender<SessionState>,
    observed: watch::Receiver<Option<ElectionView>>,
    membership: Arc<Membership>,
    /// The first record seen with each token. Tokens repeat when the store is wiped, and a term's writes must
    /// not be applied to another incarnation.
    records: Arc<Mutex<VecDeque<(EpochToken, EpochRecord)>>>,
    upkeep: tokio::sync::Mutex<JoinSet<()>>,
    stop_upkeep: CancellationToken,
    _stop: DropGuard,
}

impl EtcdElection {
    pub(super) async fn open(
        options: EtcdOptions,
        clock: Clock,
        contends: bool,
    ) -> Result<EtcdElection> {
        let keys = Keys::new(&options.namespace);
        let lease_ttl = options.lease_ttl;
        let connection = Connection::new(options);
        connection.probe(keys.epoch()).await?;

        let stop = CancellationToken::new();
        let stop_upkeep = stop.child_token();
        let mut upkeep = JoinSet::new();
        let (session, membership) = (watch::Sender::default(), Arc::<Membership>::default());
        if contends {
            let lease = keep_lease(connection.clone(), clock, lease_ttl, session.clone());
            upkeep.spawn(until(stop_upkeep.clone(), lease));
            let (membership, connection) = (membership.clone(), connection.clone());
            let (keys, session) = (keys.clone(), session.subscribe());
            let members = async move { membership.keep(connection, keys, session).await };
            upkeep.spawn(until(stop_upkeep.clone(), members));
        }

        let (level, observed) = watch::channel(None);
        let following = follow_view(connection.clone(), keys.clone(), level);
        tokio::spawn(stop.clone().run_until_cancelled_owned(following));
        Ok(EtcdElection {
            connection,
            keys,
            session,
            observed,
            membership,
            records: Arc::default(),
            upkeep: upkeep.into(),
            stop_upkeep,
            _stop: stop.drop_guard(),
        })
    }

    /// Remembers the record at `token`. With `replace` (this process wrote it) a record that was read before at the
    /// same token is of a store that was wiped since.
    fn cache_record(&self, token: EpochToken, record: &EpochRecord, replace: bool) {
        let mut records = self.records.lock();
        let known = records.iter_mut().find(|(known, _)| *known == token);
        match known {
            Some((_, known)) if replace => known.clone_from(record),
            Some(_) => {}
            None => {
                records.push_back((token, record.clone()));
                if records.len() > MAX_CACHED_RECORDS {
                    records.pop_front();
                }
            }
        }
    }

    fn cached_record(&self, token: EpochToken) -> Option<EpochRecord> {
        let records = self.records.lock();
        records
            .iter()
            .find(|(known, _)| *known == token)
            .map(|(_, record)| record.clone())
    }

    /// Runs a transaction that reads the view if it is refused.
    async fn attempt(&self, compares: Vec<Compare>, writes: Vec<TxnOp>) -> Result<Attempt> {
        attempt_of(&self.transact(compares, writes).await?)
    }

    /// Same, if `epoch` is at revision `at` and has the record of `seen`, in whichever bytes: another writer may have
    /// written the same record with other spaces, or with more fields.
    async fn attempt_as_seen(
        &self,
        seen: &ElectionView,
        at: i64,
        writes: Vec<TxnOp>,
    ) -> Result<Attempt> {
        let epoch = self.keys.epoch();
        let mut value = seen.epoch.as_ref().map(|(record, _)| encode(record));
        loop {
            let mut compares = vec![Compare::mod_revision(epoch.as_str(), CompareOp::Equal, at)];
            let same = |value: Vec<u8>| Compare::value(epoch.as_str(), CompareOp::Equal, value);
            compares.extend(value.clone().map(same));
            let answer = self.transact(compares, writes.clone()).await?;
            let attempt = attempt_of(&answer)?;
            let found = epoch_value(&answer);
            let is_as_seen = matches!(&attempt, Attempt::Refused(view) if view.epoch == seen.epoch);
            if !is_as_seen || seen.epoch.is_none() || found == value {
                return Ok(attempt);
            }
            // Bytes and record come from the same answer, so these bytes are this record.
            value = found;
        }
    }

    async fn transact(&self, compares: Vec<Compare>, writes: Vec<TxnOp>) -> Result<TxnResponse> {
        let txn = Txn::new()
            .when(compares)
            .and_then(writes)
            .or_else(view_reads(&self.keys));
        let call = self.connection.call(Repeat::IfNotApplied, |client| {
            let txn = txn.clone();
            async move { client.kv_client().txn(txn).await }
        });
        call.await
    }

    /// Runs a transaction under the guard of the term at `token`. `writes` gets the value of `epoch` in that term.
    async fn attempt_in_term(
        &self,
        token: EpochToken,
        more: Vec<Compare>,
        writes: impl FnOnce(&EpochRecord) -> Vec<TxnOp>,
    ) -> Result<Attempt> {
        let record = match self.cached_record(token) {
            Some(record) => record,
            None => match self.read().await? {
                ElectionView {
                    epoch: Some((record, found)),
                    ..
                } if found == token => record,
                view => return Ok(Attempt::Refused(view)),
            },
        };
        let mut compares = vec![
            Compare::mod_revision(self.keys.epoch(), CompareOp::Equal, token_revision(token)),
            Compare::value(self.keys.epoch(), CompareOp::Equal, encode(&record)),
        ];
        compares.extend(more);
        self.attempt(compares, writes(&record)).await
    }

    fn put_leader(&self, leader: &LeaderKey) -> Result<TxnOp> {
        // A nonce that is not a lease id does not come from etcd, so there is no such session.
        let lease = lease_of(&leader.nonce).ok_or(Error::SessionLost)?;
        let options = PutOptions::new().with_lease(lease);
        Ok(TxnOp::put(
            self.keys.leader(),
            encode(leader),
            Some(options),
        ))
    }
}

/// Runs a task until it is stopped.
async fn until(stop: CancellationToken, task: impl Future<Output = ()>) {
    // It does not matter whether it was stopped or ended.
    let _ = stop.run_until_cancelled_owned(task).await;
}

fn attempt_of(answer: &TxnResponse) -> Result<Attempt> {
    if answer.succeeded() {
        return Ok(Attempt::Applied(token(revision(answer.header()))));
    }
    Ok(Attempt::Refused(election_view(answer)?))
}

fn view_reads(keys: &Keys) -> Vec<TxnOp> {
    [keys.epoch(), keys.leader(), keys.leader_info()]
        .map(|key| TxnOp::get(key, None))
        .into()
}

async fn read_view(connection: &Connection, keys: &Keys) -> Result<(ElectionView, i64)> {
    let call = connection.call(Repeat::Always, |client| {
        let txn = Txn::new().and_then(view_reads(keys));
        async move { client.kv_client().txn(txn).await }
    });
    let answer = call.await?;
    Ok((election_view(&answer)?, revision(answer.header())))
}

async fn follow_view(
    connection: Connection,
    keys: Keys,
    level: watch::Sender<Option<ElectionView>>,
) {
    let watched = vec![
        Watched {
            first: keys.epoch(),
            last: None,
        },
        Watched {
            first: keys.leader(),
            last: Some(keys.leader_info()),
        },
    ];
    let (connection, reader) = (connection.clone(), connection);
    let read = async || read_view(&reader, &keys).await;
    // A term writes several keys at once, which arrive as several events: a read gives one consistent state.
    follow(
        connection,
        watched,
        level,
        "follow the election",
        read,
        |_| None,
    )
    .await;
}

#[async_trait]
impl ElectionDriver for EtcdElection {
    fn session(&self) -> watch::Receiver<SessionState> {
        self.session.subscribe()
    }

    fn observed(&self) -> watch::Receiver<Option<ElectionView>> {
        self.observed.clone()
    }

    async fn read(&self) -> Result<ElectionView> {
        let (view, _) = read_view(&self.connection, &self.keys).await?;
        if let Some((record, token)) = &view.epoch {
            self.cache_record(*token, record, false);
        }
        Ok(view)
    }

    async fn advance(
        &self,
        seen: &ElectionView,
        next: &EpochRecord,
        leader: &LeaderKey,
    ) -> Result<Attempt> {
        let epoch = seen.epoch.as_ref();
        let at = epoch.map_or(0, |(_, token)| token_revision(*token));
        let writes = vec![
            TxnOp::put(self.keys.epoch(), encode(next), None),
            self.put_leader(leader)?,
        ];
        let attempt = self.attempt_as_seen(seen, at, writes).await?;
        if let Attempt::Applied(token) = attempt {
            self.cache_record(token, next, true);
        }
        Ok(attempt)
    }

    async fn attach(&self, token: EpochToken, leader: &LeaderKey) -> Result<Attempt> {
        let put = self.put_leader(leader)?;
        let attempt = self
            .attempt_in_term(token, Vec::new(), |_| vec![put])
            .await?;
        Ok(keeps(attempt, token))
    }

    async fn resign(&self, token: EpochToken) -> Result<Attempt> {
        let (epoch, leader) = (self.keys.epoch(), self.keys.leader());
        let writes = |record: &EpochRecord| {
            vec![
                TxnOp::delete(leader, None),
                TxnOp::put(epoch, encode(record), None),
            ]
        };
        self.attempt_in_term(token, Vec::new(), writes).await
    }

    async fn accept(&self, seen: &ElectionView, next: &EpochRecord) -> Result<Attempt> {
        let at = seen.token().map_or(0, token_revision);
        let writes = vec![
            TxnOp::put(self.keys.epoch(), encode(next), None),
            TxnOp::delete(self.keys.leader(), None),
        ];
        self.attempt_as_seen(seen, at, writes).await
    }

    async fn publish(&self, token: EpochToken, info: &LeaderInformation) -> Result<Attempt> {
        let present = Compare::create_revision(self.keys.leader(), CompareOp::Greater, 0);
        let put = TxnOp::put(self.keys.leader_info(), encode(info), None);
        let attempt = self
            .attempt_in_term(token, vec![present], |_| vec![put])
            .await?;
        Ok(keeps(attempt, token))
    }

    async fn announce(&self, member: &Member) -> Result<()> {
        self.membership.announce(member);
        let lease = self.session.borrow().nonce().and_then(lease_of);
        let Some(lease) = lease else { return Ok(()) };
        match self
            .membership
            .put(&self.connection, &self.keys, lease)
            .await
        {
            // The member is announced again with the next lease.
            Err(Error::SessionLost) => Ok(()),
            other => other,
        }
    }

    async fn members(&self) -> Result<Vec<Member>> {
        let prefix = self.keys.members();
        let call = self.connection.call(Repeat::Always, |client| {
            let prefix = prefix.clone();
            let options = GetOptions::new().with_prefix();
            async move { client.kv_client().get(prefix, Some(options)).await }
        });
        let answer = call.await?;
        let mut members = Vec::new();
        for kv in answer.kvs() {
            let name = String::from_utf8_lossy(kv.key().get(prefix.len()..).unwrap_or_default());
            match decode(&format!("{}/{name}", path::MEMBERS), kv.value()) {
                Ok(member) => members.push(member),
                // One unreadable member must not hide the others.
                Err(error) => tracing::warn!(%error, "an unreadable member is skipped"),
            }
        }
        Ok(members)
    }

    async fn close(&self) {
        self.stop_upkeep.cancel();
        while self.upkeep.lock().await.join_next().await.is_some() {}
        let lease = self.session.borrow().nonce().and_then(lease_of);
        self.session.send_replace(SessionState::None);
        let Some(lease) = lease else { return };
        let revoke = self.connection.call(Repeat::Always, |client| async move {
            client.lease_client().revoke(lease).await
        });
        match revoke.await {
            Ok(_) | Err(Error::SessionLost) => {}
            Err(error) => {
                tracing::info!(%error, "the lease in etcd could not be revoked: it expires by itself")
            }
        }
    }
}

/// A write that does not move `epoch` keeps the term's token.
fn keeps(attempt: Attempt, token: EpochToken) -> Attempt {
    match attempt {
        Attempt::Applied(_) => Attempt::Applied(token),
        refused @ Attempt::Refused(_) => refused,
    }
}
