//! The lease of a contending process: granted, kept alive, and granted again when etcd says that it is gone.
//!
//! Only etcd's answer ends a lease here. While etcd does not answer, the session keeps the deadline of the
//! last answer, and renewal of the same lease is retried: after an outage of etcd itself leases continue. The
//! deadline counts from *before* each renewal was sent, so it is never later than etcd's own.
//!
//! [`keep_lease`] runs as a task of the election, and publishes the lease as its session. [`Membership`] puts the
//! announced member again under each new lease.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, KeyValue, PutOptions, Txn, TxnOp};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::STORE;
use super::client::{Connection, Position, Repeat};
use super::follow::Outage;
use super::status::{Failure, classify, no_answer};
use super::values::{Keys, encode};
use crate::clock::{Clock, Moment};
use crate::election::{Member, Nonce, SessionState};
use crate::error::{Error, Result};
use crate::retry::Backoff;

/// The nonce of a session is its lease's id.
pub(super) fn nonce(lease: i64) -> Nonce {
    Nonce::new(format!("{lease:016x}"))
}

/// The lease of a session; `None` if the nonce comes from another store.
pub(super) fn lease_of(nonce: &Nonce) -> Option<i64> {
    i64::from_str_radix(nonce.as_str(), 16).ok()
}

/// Keeps a lease forever, and publishes it in `session`.
pub(super) async fn keep_lease(
    connection: Connection,
    clock: Clock,
    ttl: Duration,
    session: watch::Sender<SessionState>,
) {
    let mut keeper = Keeper {
        backoff: Backoff::new(Duration::from_millis(50), ttl.div_f32(3.0)),
        outage: Outage::new("renew the lease"),
        connection,
        clock,
        session,
    };
    // Whole seconds, rounded up.
    let ttl = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
    loop {
        let (lease, granted) = keeper.grant(ttl).await;
        tracing::info!(lease = %nonce(lease), ?granted, "etcd granted a lease");
        keeper.renew_until_lost(lease, granted).await;
        tracing::warn!(lease = %nonce(lease), "the lease in etcd has expired: requesting another one");
        keeper.session.send_replace(SessionState::None);
    }
}

struct Keeper {
    connection: Connection,
    clock: Clock,
    session: watch::Sender<SessionState>,
    backoff: Backoff,
    outage: Outage,
}

/// The reason why a stream of renewals ended.
enum Ended {
    /// etcd says that the lease is gone.
    Lost,
    /// The lease may still exist.
    Broken(Error),
}

impl Keeper {
    async fn grant(&mut self, ttl: i64) -> (i64, Duration) {
        loop {
            let sent = self.clock.now();
            // A lease that was granted, with a lost answer, expires by itself.
            let call = self.connection.call(Repeat::Always, |client| async move {
                client.lease_client().grant(ttl, None).await
            });
            match call.await {
                Ok(answer) => {
                    let granted = seconds(answer.ttl());
                    self.set_alive(answer.id(), sent, granted);
                    return (answer.id(), granted);
                }
                Err(error) => self.pause(&self.connection.endpoints(), &error).await,
            }
        }
    }

    fn set_alive(&mut self, lease: i64, sent: Moment, timeout: Duration) {
        let deadline = Some(sent.after(timeout));
        self.session.send_replace(SessionState::Alive {
            nonce: nonce(lease),
            deadline,
            timeout,
        });
        self.backoff.reset();
        self.outage.is_over(&self.connection.endpoints());
    }

    async fn pause(&mut self, endpoint: &str, error: &Error) {
        self.outage.goes_on(endpoint, error);
        tokio::time::sleep(self.backoff.next_delay()).await;
    }

    async fn renew_until_lost(&mut self, lease: i64, granted: Duration) {
        loop {
            let position = *self.connection.position().borrow();
            match self.renew_on_stream(position, lease, granted).await {
                Ended::Lost => return,
                Ended::Broken(error) => {
                    let endpoint = self.connection.endpoint(position).to_owned();
                    self.pause(&endpoint, &error).await;
                }
            }
        }
    }

    /// Renews three times in the lease's time, one request after the other, so that the sending time of each
    /// answer is known.
    async fn renew_on_stream(
        &mut self,
        position: Position,
        lease: i64,
        granted: Duration,
    ) -> Ended {
        let interval = granted.div_f32(3.0);
        let connection = self.connection.clone();
        let sent = self.clock.now();
        let opening = async {
            let mut client = connection.client(position).await?;
            client.lease_keep_alive(lease).await.map_err(classify)
        };
        let (mut requests, mut answers) = match timeout(interval, opening).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(failure)) => return self.ended(position, failure).await,
            Err(_) => return self.on_timeout(position),
        };
        self.set_alive(lease, sent, granted);
        loop {
            tokio::time::sleep(interval).await;
            let sent = self.clock.now();
            let renewal = async {
                requests.keep_alive().await?;
                answers.message().await
            };
            match timeout(interval, renewal).await {
                Ok(Ok(Some(answer))) if answer.ttl() > 0 => {
                    self.set_alive(lease, sent, seconds(answer.ttl()));
                }
                Ok(Ok(Some(_))) => return Ended::Lost,
                Ok(Ok(None)) => {
                    let failure = Failure::Final(no_answer("the stream of renewals ended"));
                    return self.ended(position, failure).await;
                }
                Ok(Err(error)) => return self.ended(position, classify(error)).await,
                Err(_) => return self.on_timeout(position),
            }
        }
    }

    async fn ended(&self, position: Position, failure: Failure) -> Ended {
        match &failure {
            Failure::Final(Error::SessionLost) => return Ended::Lost,
            // The result shows when the stream is opened again.
            Failure::Token(_) => drop(self.connection.renew_token(position).await),
            Failure::NotSent(_) | Failure::NoLeader(_) | Failure::Final(_) => {
                self.connection.leave(position);
            }
        }
        Ended::Broken(self.connection.error_of(failure))
    }

    fn on_timeout(&self, position: Position) -> Ended {
        self.connection.abandon(position);
        Ended::Broken(no_answer("a renewal was not answered in time"))
    }
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}

/// The member that this process announced, and the lease under which it is in etcd.
#[derive(Debug, Default)]
pub(super) struct Membership {
    wanted: parking_lot::Mutex<Option<Announced>>,
    changed: Notify,
    /// One put at a time, so that an older one can't be applied last.
    putting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Clone, PartialEq)]
struct Announced {
    member: Member,
    under: Option<i64>,
}

impl Membership {
    /// Announces this member from now on.
    pub(super) fn announce(&self, member: &Member) {
        *self.wanted.lock() = Some(Announced {
            member: member.clone(),
            under: None,
        });
        self.changed.notify_one();
    }

    /// Puts the announced member under `lease`, unless it is there. A put whose answer was lost, of this start of the
    /// process or of an earlier one, may reach etcd late: so each put replaces only the value that was read before it.
    pub(super) async fn put(&self, connection: &Connection, keys: &Keys, lease: i64) -> Result<()> {
        let _one = self.putting.lock().await;
        let Some(announced) = self.wanted.lock().clone() else {
            return Ok(());
        };
        if announced.under == Some(lease) {
            return Ok(());
        }
        let key = keys.member(&announced.member.process);
        let read = connection.call(Repeat::Always, |client| {
            let key = key.clone();
            async move { client.kv_client().get(key, None).await }
        });
        let present = read.await?;
        let at = present.kvs().first().map_or(0, KeyValue::mod_revision);
        let options = PutOptions::new().with_lease(lease);
        let txn = Txn::new()
            .when([Compare::mod_revision(key.as_str(), CompareOp::Equal, at)])
            .and_then([TxnOp::put(key, encode(&announced.member), Some(options))]);
        let put = connection.call(Repeat::Always, |client| {
            let txn = txn.clone();
            async move { client.kv_client().txn(txn).await }
        });
        if !put.await?.succeeded() {
            return Err(Error::Unavailable {
                store: STORE,
                reason: "the member changed while it was put".to_owned(),
            });
        }
        let mut wanted = self.wanted.lock();
        if wanted.as_ref() == Some(&announced) {
            *wanted = Some(Announced {
                under: Some(lease),
                ..announced
            });
        }
        Ok(())
    }

    /// Puts the announced member again after each new lease, forever.
    pub(super) async fn keep(
        &self,
        connection: Connection,
        keys: Keys,
        mut session: watch::Receiver<SessionState>,
    ) {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        let mut outage = Outage::new("announce this member");
        loop {
            let lease = session.borrow_and_update().nonce().and_then(lease_of);
            if let Some(lease) = lease {
                match self.put(&connection, &keys, lease).await {
                    Ok(()) => {
                        backoff.reset();
                        outage.is_over(&connection.endpoints());
                    }
                    // Another lease will follow.
                    Err(Error::SessionLost) => {}
                    Err(error) => {
                        outage.goes_on(&connection.endpoints(), &error);
                        tokio::time::sleep(backoff.next_delay()).await;
                        continue;
                    }
                }
            }
            tokio::select! {
                changed = session.changed() => if changed.is_err() { return },
                () = self.changed.notified() => {}
            }
        }
    }
}
