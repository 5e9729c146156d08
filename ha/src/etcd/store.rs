//! The records part of the etcd backend.
//!
//! A commit is one etcd transaction: its conditions are the fence and the value of `changes`; its writes are the
//! records, `changes` and the ring entry. If a condition fails, the same transaction reads what the conditions
//! compared, so that the refusal and its reason belong to one moment. A commit whose answer was lost is not sent
//! again here ([`Repeat::IfNotApplied`]): the commit pipeline decides. A listing is pinned to the revision of its
//! first page; if etcd has compacted that revision, the next page is read at the present one.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use etcd_client::{
    Client, Compare, CompareOp, Event, EventType, GetOptions, GetResponse, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::client::{Connection, Repeat};
use super::follow::{Watched, follow};
use super::health::health;
use super::status::{is_answer_too_large, is_compacted};
use super::values::{Keys, change, decode, encode, epoch_between, guard, revision, token_revision};
use super::{EtcdOptions, STORE, permissions};
use crate::error::{Error, Result};
use crate::keys::{Key, Kind, Kinds, Name, path};
use crate::store::health::StoreHealth;
use crate::store::{
    Change, CommitReply, CommitRequest, CoordinationStore, Guard, Limits, Page, PageToken, Touched,
    Write,
};

/// Limit of operations in a transaction of etcd (`--max-txn-ops`).
const MAX_OPERATIONS: usize = 128;
/// `changes` and its ring entry.
const OWN_WRITES: usize = 2;
/// etcd's limit is 1.5 MiB; the rest is for the ring entry, the guards and a long namespace.
const MAX_BYTES: usize = 1024 * 1024;
/// Maximum size of an answer. A page aims at a quarter of it.
const MAX_ANSWER: usize = 32 * 1024 * 1024;
const PAGE_BYTES: usize = MAX_ANSWER / 4;
/// Keys read by one transaction: a call costs etcd far more than one of its keys. With values of 1.5 MiB,
/// etcd's limit, the answer still fits.
const KEYS_AT_ONCE: usize = 16;
/// Number of such transactions in flight: this many answers may be in memory.
const CONCURRENT_READS: usize = 4;

/// Records in etcd. Its tasks end when it is dropped.
#[derive(Debug)]
pub struct EtcdStore {
    connection: Connection,
    keys: Keys,
    kinds: Kinds,
    changes: watch::Receiver<Option<Change>>,
    /// The average item size of the last page, to estimate the number of items of the next one.
    item_bytes: AtomicUsize,
    _stop: DropGuard,
}

impl EtcdStore {
    pub(super) async fn open(options: EtcdOptions, kinds: Kinds) -> Result<EtcdStore> {
        let keys = Keys::new(&options.namespace);
        let connection = Connection::new(options);
        connection.probe(keys.epoch()).await?;
        let stop = CancellationToken::new();
        let (level, changes) = watch::channel(None);
        let following = follow_changes(connection.clone(), keys.clone(), level);
        tokio::spawn(stop.clone().run_until_cancelled_owned(following));
        let item_bytes = AtomicUsize::new(PAGE_BYTES / 500);
        Ok(EtcdStore {
            connection,
            keys,
            kinds,
            changes,
            item_bytes,
            _stop: stop.drop_guard(),
        })
    }

    /// Refuses a request that etcd would refuse, with an error that says what is too large, and one with items
    /// of an undeclared kind.
    fn check(&self, request: &CommitRequest) -> Result<()> {
        self.kinds.check(request.kinds())?;
        self.limits().check(STORE, &request.writes)
    }

    fn guards(&self, request: &CommitRequest) -> Vec<Compare> {
        let fence = &request.fence;
        let [after, before] = epoch_between(fence.epoch, &fence.incarnation);
        let (epoch_key, changes) = (self.keys.epoch(), self.keys.changes());
        let revision = token_revision(fence.token);
        vec![
            Compare::mod_revision(epoch_key.as_str(), CompareOp::Equal, revision),
            Compare::value(epoch_key.as_str(), CompareOp::Greater, after),
            Compare::value(epoch_key, CompareOp::Less, before),
            Compare::create_revision(self.keys.leader(), CompareOp::Greater, 0),
            match request.after.number {
                0 => Compare::create_revision(changes, CompareOp::Equal, 0),
                _ => Compare::value(changes, CompareOp::Equal, encode(&request.after)),
            },
        ]
    }

    fn writes(&self, request: &CommitRequest) -> Vec<TxnOp> {
        let change = request.change();
        let mut writes = vec![
            TxnOp::put(self.keys.changes(), encode(&change), None),
            TxnOp::put(
                self.keys.ring(change.number),
                encode(&request.touched()),
                None,
            ),
        ];
        writes.extend(request.writes.iter().map(|write| match write {
            Write::Put { key, value } => TxnOp::put(self.keys.item(key), value.to_vec(), None),
            Write::Delete { key } => TxnOp::delete(self.keys.item(key), None),
        }));
        writes
    }

    /// Reads the values of these keys at one revision.
    async fn read_at_once(&self, paths: &[String]) -> Result<Vec<Option<Bytes>>> {
        let call = self.connection.call(Repeat::Always, |client| {
            let reads: Vec<TxnOp> = paths
                .iter()
                .map(|path| TxnOp::get(path.as_str(), None))
                .collect();
            async move { reader(&client).txn(Txn::new().and_then(reads)).await }
        });
        let answers = call.await?.op_responses();
        let values = answers.into_iter().map(|answer| match answer {
            TxnOpResponse::Get(mut read) => read
                .take_kvs()
                .pop()
                .map(|kv| Bytes::from(kv.into_key_value().1)),
            TxnOpResponse::Put(_) | TxnOpResponse::Delete(_) | TxnOpResponse::Txn(_) => None,
        });
        Ok(values.collect())
    }

    /// Reads one range of a listing: as many items as fit, at the pinned revision if it still exists.
    async fn range(
        &self,
        from: &[u8],
        end: &[u8],
        mut limit: usize,
        mut pinned: Option<i64>,
    ) -> Result<(GetResponse, Option<i64>)> {
        loop {
            let call = self.connection.call(Repeat::Always, |client| {
                let from = from.to_vec();
                let mut options = GetOptions::new()
                    .with_range(end)
                    .with_limit(i64::try_from(limit).unwrap_or(i64::MAX));
                if let Some(revision) = pinned {
                    options = options.with_revision(revision);
                }
                async move {
                    match reader(&client).get(from, Some(options)).await {
                        Ok(answer) => Ok(Range::Read(answer)),
                        Err(error) if is_answer_too_large(&error) => Ok(Range::TooLarge(error)),
                        Err(error) if is_compacted(&error) => Ok(Range::Compacted(error)),
                        Err(error) => Err(error),
                    }
                }
            });
            match call.await? {
                Range::Read(answer) => return Ok((answer, pinned)),
                Range::TooLarge(_) if limit > 1 => limit /= 2,
                Range::Compacted(_) if pinned.is_some() => pinned = None,
                Range::TooLarge(error) | Range::Compacted(error) => {
                    return Err(Error::Misconfigured(format!("etcd: {error}").into()));
                }
            }
        }
    }
}

/// An answer to a range request, or the reason to repeat it with other options.
enum Range {
    Read(GetResponse),
    TooLarge(etcd_client::Error),
    Compacted(etcd_client::Error),
}

/// A client that accepts large answers.
fn reader(client: &Client) -> etcd_client::KvClient {
    client.kv_client().max_decoding_message_size(MAX_ANSWER)
}

async fn follow_changes(connection: Connection, keys: Keys, level: watch::Sender<Option<Change>>) {
    let watched = vec![Watched {
        first: keys.changes(),
        last: None,
    }];
    let (connection, reader) = (connection.clone(), connection);
    let read = async || {
        let key = keys.changes();
        let call = reader.call(Repeat::Always, |client| {
            let key = key.clone();
            async move { client.kv_client().get(key, None).await }
        });
        let answer = call.await?;
        Ok((change(answer.kvs())?, revision(answer.header())))
    };
    let from_event = |event: &Event| match event.event_type() {
        EventType::Put => event.kv().map(|kv| change(std::slice::from_ref(kv))),
        EventType::Delete => Some(Ok(Change::default())),
    };
    follow(
        connection,
        watched,
        level,
        "follow the changes",
        read,
        from_event,
    )
    .await;
}

#[async_trait]
impl CoordinationStore for EtcdStore {
    fn limits(&self) -> Limits {
        Limits {
            writes: MAX_OPERATIONS - OWN_WRITES,
            bytes: MAX_BYTES,
        }
    }

    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Bytes>>> {
        self.kinds.check(keys.iter().map(|key| key.kind))?;
        let paths: Vec<String> = keys.iter().map(|key| self.keys.item(key)).collect();
        let reads: Vec<_> = paths
            .chunks(KEYS_AT_ONCE)
            .map(|paths| self.read_at_once(paths))
            .collect();
        let values: Vec<Vec<Option<Bytes>>> = stream::iter(reads)
            .buffered(CONCURRENT_READS)
            .try_collect()
            .await?;
        Ok(values.concat())
    }

    async fn list(&self, kind: Kind, page: Option<PageToken>, limit: usize) -> Result<Page> {
        self.kinds.check([kind])?;
        let prefix = self.keys.kind(kind);
        let end = end_of_prefix(&prefix);
        let (mut from, mut pinned) = match &page {
            // The first key after that name.
            Some(page) => (
                format!("{prefix}{}\0", page.after).into_bytes(),
                page.revision,
            ),
            None => (prefix.clone().into_bytes(), None),
        };
        let item_bytes = self.item_bytes.load(Ordering::Relaxed).max(1);
        let limit = limit.min(PAGE_BYTES / item_bytes).max(1);
        loop {
            let (mut answer, still_pinned) = self.range(&from, &end, limit, pinned).await?;
            pinned = still_pinned.or(Some(revision(answer.header())));
            let more = answer.more();
            let kvs = answer.take_kvs();
            let last = kvs.last().map(|kv| kv.key().to_vec());
            let bytes: usize = kvs.iter().map(|kv| kv.key().len() + kv.value().len()).sum();
            if let Some(average) = bytes.checked_div(kvs.len()) {
                self.item_bytes.store(average, Ordering::Relaxed);
            }
            let items: Vec<(Name, Bytes)> = kvs
                .into_iter()
                .filter_map(|kv| item(prefix.len(), kv))
                .collect();
            let next = match items.last() {
                Some((name, _)) if more => Some(PageToken {
                    after: name.clone(),
                    revision: pinned,
                }),
                Some(_) => None,
                // A page of foreign keys only: skipped here, because a page token has only names of items.
                None if more && let Some(last) = last => {
                    from = [&last[..], b"\0"].concat();
                    continue;
                }
                None => None,
            };
            return Ok(Page { items, next });
        }
    }

    async fn keys(&self, kinds: &[Kind]) -> Result<Vec<Key>> {
        self.kinds.check(kinds.iter().copied())?;
        let prefixes: Vec<String> = kinds.iter().map(|kind| self.keys.kind(*kind)).collect();
        // One transaction, because a takeover waits for it.
        let call = self.connection.call(Repeat::Always, |client| {
            let listings: Vec<TxnOp> = prefixes
                .iter()
                .map(|prefix| {
                    let options = GetOptions::new().with_prefix().with_keys_only();
                    TxnOp::get(prefix.as_str(), Some(options))
                })
                .collect();
            async move { reader(&client).txn(Txn::new().and_then(listings)).await }
        });
        let answers = call.await?.op_responses().into_iter();
        let mut keys = Vec::new();
        for ((kind, prefix), answer) in kinds.iter().zip(&prefixes).zip(answers) {
            if let TxnOpResponse::Get(mut listed) = answer {
                let items = listed.take_kvs().into_iter();
                let items = items.filter_map(|kv| item(prefix.len(), kv));
                keys.extend(items.map(|(name, _)| Key::new(*kind, name)));
            }
        }
        Ok(keys)
    }

    async fn guard(&self) -> Result<Guard> {
        let call = self.connection.call(Repeat::Always, |client| {
            let txn = Txn::new().and_then(guard_reads(&self.keys));
            async move { client.kv_client().txn(txn).await }
        });
        guard(&call.await?)
    }

    fn changes(&self) -> watch::Receiver<Option<Change>> {
        self.changes.clone()
    }

    async fn touched(&self, first: u64, last: u64) -> Result<Vec<Option<Touched>>> {
        let numbers: Vec<u64> = (first..=last).collect();
        let mut touched = Vec::with_capacity(numbers.len());
        for numbers in numbers.chunks(MAX_OPERATIONS) {
            let keys: Vec<String> = numbers.iter().map(|n| self.keys.ring(*n)).collect();
            let values = self.read_at_once(&keys).await?;
            for (number, value) in numbers.iter().zip(values) {
                touched.push(ring_entry(*number, value)?);
            }
        }
        Ok(touched)
    }

    async fn commit(&self, request: &CommitRequest) -> Result<CommitReply> {
        self.check(request)?;
        let call = self.connection.call(Repeat::IfNotApplied, |client| {
            let txn = Txn::new()
                .when(self.guards(request))
                .and_then(self.writes(request))
                .or_else(guard_reads(&self.keys));
            async move { client.kv_client().txn(txn).await }
        });
        reply(&call.await?)
    }

    /// etcd also applies transactions without puts under the alarm NOSPACE.
    async fn delete_unnumbered(&self, request: &CommitRequest) -> Result<CommitReply> {
        self.kinds.check(request.kinds())?;
        let keys = request.writes.iter().map(|write| match write {
            Write::Delete { key } => Ok(TxnOp::delete(self.keys.item(key), None)),
            Write::Put { key, .. } => Err(Error::Misconfigured(
                format!("{key} can't be put without a change number").into(),
            )),
        });
        let deletions = keys.collect::<Result<Vec<TxnOp>>>()?;
        let call = self.connection.call(Repeat::IfNotApplied, |client| {
            let txn = Txn::new()
                .when(self.guards(request))
                .and_then(deletions.clone())
                .or_else(guard_reads(&self.keys));
            async move { client.kv_client().txn(txn).await }
        });
        reply(&call.await?)
    }

    async fn health(&self) -> Result<StoreHealth> {
        let asked = Instant::now();
        let read = self.guard().await;
        let health = health(&self.connection, asked.elapsed()).await;
        match read {
            // With an alarm etcd may answer no reads: the alarm is the reason, and is reported instead of the error.
            Err(error) if health.alarms.is_empty() => Err(error),
            Err(error) => Ok(StoreHealth {
                unknown: [health.unknown, vec![format!("etcd's records: {error}")]].concat(),
                ..health
            }),
            Ok(_) => Ok(health),
        }
    }

    async fn missing_permissions(&self) -> Result<Vec<String>> {
        permissions::missing(&self.connection, &self.keys, self.kinds).await
    }
}

fn reply(answer: &TxnResponse) -> Result<CommitReply> {
    if answer.succeeded() {
        return Ok(CommitReply::Applied);
    }
    Ok(CommitReply::Refused(guard(answer)?))
}

fn guard_reads(keys: &Keys) -> Vec<TxnOp> {
    let keys_only = GetOptions::new().with_keys_only();
    vec![
        TxnOp::get(keys.epoch(), None),
        TxnOp::get(keys.leader(), Some(keys_only)),
        TxnOp::get(keys.changes(), None),
    ]
}

/// The end of the range of keys that start with `prefix`, which ends with a slash.
fn end_of_prefix(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// An item of a listing; `None` if its key is not this crate's.
fn item(prefix_length: usize, kv: etcd_client::KeyValue) -> Option<(Name, Bytes)> {
    let (key, value) = kv.into_key_value();
    let name = key.get(prefix_length..).unwrap_or_default();
    let text = String::from_utf8_lossy(name).into_owned();
    match Name::new(text) {
        Ok(name) => Some((name, Bytes::from(value))),
        Err(error) => {
            tracing::warn!(%error, "a foreign key in etcd is skipped");
            None
        }
    }
}

fn ring_entry(number: u64, value: Option<Bytes>) -> Result<Option<Touched>> {
    let Some(value) = value else {
        return Ok(None);
    };
    let key = format!("{}/{}", path::CHANGES, number % crate::keys::CHANGES_RING);
    let touched: Touched = decode(&key, &value)?;
    Ok((touched.change.number == number).then_some(touched))
}
