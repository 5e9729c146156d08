//! Content of the memory backend's "server", and the guarded transactions on it. Its one owner is the server, which
//! runs a transaction at a time; time, faults and tasks belong to the links ([`super::link`]).
//!
//! Invariants: a token is a revision and only grows, as in etcd; after a wipe revisions restart, so a token
//! may repeat in another incarnation. Nonces never repeat. `leader` and a member exist only while their lease
//! does.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use tokio::time::Instant;

use crate::election::{
    Attempt, ClusterIncarnation, ElectionView, EpochRecord, EpochToken, LeaderInformation,
    LeaderKey, Member, Nonce, ProcessId, StoreIdentity, Unreadable,
};
use crate::error::{Error, Result};
use crate::keys::{CHANGES_RING, Key, Kind, Name};
use crate::store::{Change, CommitReply, CommitRequest, Guard, Page, PageToken, Touched, Write};

/// A granted lease.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub(super) process: ProcessId,
    pub(super) deadline: Instant,
}

/// The data of one cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct StoreState {
    /// The store's identity, not included in copies.
    store: Option<StoreIdentity>,
    revision: u64,
    epoch: Option<(EpochRecord, EpochToken)>,
    /// The text that another writer wrote over `epoch`.
    rubbish: Option<String>,
    leader: Option<LeaderKey>,
    info: Option<LeaderInformation>,
    members: BTreeMap<ProcessId, (Nonce, Member)>,
    change: Change,
    ring: HashMap<u64, Touched>,
    items: BTreeMap<Kind, BTreeMap<Name, Bytes>>,
    leases: HashMap<Nonce, Lease>,
    granted: u64,
}

impl StoreState {
    pub(super) fn new(identity: Option<StoreIdentity>) -> StoreState {
        StoreState {
            store: identity,
            ..StoreState::default()
        }
    }

    pub(super) fn view(&self) -> ElectionView {
        ElectionView {
            epoch: self.epoch.clone().filter(|_| self.rubbish.is_none()),
            leader: self.leader.clone(),
            info: self.info.clone(),
            unreadable: self.rubbish.as_ref().map(|rubbish| Unreadable {
                reason: format!("epoch holds something unreadable: {rubbish}"),
                token: self.epoch.as_ref().map_or(EpochToken(0), |(_, at)| *at),
            }),
            // Not needed here: a resignation moves the token.
            is_resigned: false,
            store: self.store.clone(),
        }
    }

    pub(super) fn change(&self) -> Change {
        self.change
    }

    /// Overwrites `epoch` like another writer; `None` restores the previous value, which moves its token.
    pub(super) fn overwrite_epoch(&mut self, rubbish: Option<&str>) {
        self.rubbish = rubbish.map(str::to_owned);
        let moved = self.next_token();
        if let Some((_, token)) = &mut self.epoch {
            *token = moved;
        }
    }

    /// Deletes `leader-info` like another writer.
    pub(super) fn drop_info(&mut self) {
        self.info = None;
    }

    /// Starts another incarnation: deletes everything but the counter that keeps nonces unique.
    pub(super) fn wipe(&mut self) {
        *self = StoreState {
            store: self.store.clone(),
            granted: self.granted,
            ..StoreState::default()
        };
    }

    /// Restores the backup, without the leases of that time and the keys under them. Keeps the counter that
    /// makes nonces unique.
    pub(super) fn restore(&mut self, backup: &StoreState) {
        *self = StoreState {
            store: self.store.clone(),
            granted: self.granted,
            leader: None,
            members: BTreeMap::new(),
            leases: HashMap::new(),
            ..backup.clone()
        };
    }

    pub(super) fn grant(&mut self, process: &ProcessId, deadline: Instant) -> Nonce {
        self.granted += 1;
        let nonce = Nonce::new(format!("{process}#{}", self.granted));
        self.leases.insert(
            nonce.clone(),
            Lease {
                process: process.clone(),
                deadline,
            },
        );
        nonce
    }

    /// Renews the lease. Returns false if it no longer exists.
    pub(super) fn renew(&mut self, nonce: &Nonce, deadline: Instant) -> bool {
        match self.leases.get_mut(nonce) {
            Some(lease) => {
                lease.deadline = deadline;
                true
            }
            None => false,
        }
    }

    pub(super) fn lease(&self, nonce: &Nonce) -> Option<&Lease> {
        self.leases.get(nonce)
    }

    pub(super) fn leases_mut(&mut self) -> impl Iterator<Item = &mut Lease> {
        self.leases.values_mut()
    }

    pub(super) fn leases_of(&self, process: &ProcessId) -> Vec<Nonce> {
        let own = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.process == *process);
        own.map(|(nonce, _)| nonce.clone()).collect()
    }

    /// Ends a lease and deletes the keys under it.
    pub(super) fn revoke(&mut self, nonce: &Nonce) {
        if self.leases.remove(nonce).is_none() {
            return;
        }
        self.leader.take_if(|leader| leader.nonce == *nonce);
        self.members.retain(|_, (lease, _)| lease != nonce);
    }

    pub(super) fn put_member(&mut self, nonce: &Nonce, member: &Member) {
        if self.leases.contains_key(nonce) {
            self.members
                .insert(member.process.clone(), (nonce.clone(), member.clone()));
        }
    }

    pub(super) fn members(&self) -> Vec<Member> {
        self.members
            .values()
            .map(|(_, member)| member.clone())
            .collect()
    }

    fn next_token(&mut self) -> EpochToken {
        self.revision += 1;
        EpochToken(self.revision)
    }

    fn is_at(&self, token: EpochToken, incarnation: Option<&ClusterIncarnation>) -> bool {
        let epoch = self.epoch.as_ref().filter(|_| self.rubbish.is_none());
        epoch.is_some_and(|(record, at)| {
            *at == token && incarnation.is_none_or(|known| *known == record.incarnation)
        })
    }

    pub(super) fn advance(
        &mut self,
        seen: &ElectionView,
        next: &EpochRecord,
        leader: &LeaderKey,
    ) -> Result<Attempt> {
        if !self.leases.contains_key(&leader.nonce) {
            return Err(Error::SessionLost);
        }
        if self.epoch != seen.epoch || self.rubbish.is_some() {
            return Ok(Attempt::Refused(self.view()));
        }
        let token = self.next_token();
        self.epoch = Some((next.clone(), token));
        self.leader = Some(leader.clone());
        Ok(Attempt::Applied(token))
    }

    pub(super) fn attach(
        &mut self,
        token: EpochToken,
        incarnation: Option<&ClusterIncarnation>,
        leader: &LeaderKey,
    ) -> Result<Attempt> {
        if !self.leases.contains_key(&leader.nonce) {
            return Err(Error::SessionLost);
        }
        if !self.is_at(token, incarnation) {
            return Ok(Attempt::Refused(self.view()));
        }
        self.leader = Some(leader.clone());
        Ok(Attempt::Applied(token))
    }

    pub(super) fn resign(
        &mut self,
        token: EpochToken,
        incarnation: Option<&ClusterIncarnation>,
    ) -> Attempt {
        if !self.is_at(token, incarnation) {
            return Attempt::Refused(self.view());
        }
        let moved = self.next_token();
        if let Some((_, at)) = &mut self.epoch {
            *at = moved;
        }
        self.leader = None;
        Attempt::Applied(moved)
    }

    pub(super) fn accept(&mut self, seen: &ElectionView, next: &EpochRecord) -> Attempt {
        let now = self.view();
        let as_seen = now.epoch == seen.epoch && now.unreadable == seen.unreadable;
        if !as_seen || now.token().is_none() {
            return Attempt::Refused(now);
        }
        let token = self.next_token();
        self.epoch = Some((next.clone(), token));
        self.rubbish = None;
        self.leader = None;
        Attempt::Applied(token)
    }

    pub(super) fn publish(
        &mut self,
        token: EpochToken,
        incarnation: Option<&ClusterIncarnation>,
        info: &LeaderInformation,
    ) -> Attempt {
        if !self.is_at(token, incarnation) || self.leader.is_none() {
            return Attempt::Refused(self.view());
        }
        self.info = Some(info.clone());
        Attempt::Applied(token)
    }

    pub(super) fn guard(&self) -> Guard {
        let epoch = self.epoch.as_ref();
        Guard {
            epoch: epoch.map(|(record, token)| (record.epoch, *token, record.incarnation.clone())),
            leader_present: self.leader.is_some(),
            change: self.change,
        }
    }

    /// Whether the guards of a transaction hold.
    fn guards_hold(&self, request: &CommitRequest) -> bool {
        self.is_at(request.fence.token, Some(&request.fence.incarnation))
            && self.leader.is_some()
            && self.change == request.after
    }

    pub(super) fn commit(&mut self, request: &CommitRequest) -> CommitReply {
        if !self.guards_hold(request) {
            return CommitReply::Refused(self.guard());
        }
        for write in &request.writes {
            match write {
                Write::Put { key, value } => self.overwrite(key, Some(value.clone())),
                Write::Delete { key } => self.overwrite(key, None),
            }
        }
        self.revision += 1;
        self.change = request.change();
        self.ring
            .insert(self.change.number % CHANGES_RING, request.touched());
        CommitReply::Applied
    }

    /// Deletes under the guards of a commit, without changing the number.
    pub(super) fn delete_unnumbered(&mut self, request: &CommitRequest) -> CommitReply {
        if !self.guards_hold(request) {
            return CommitReply::Refused(self.guard());
        }
        for write in &request.writes {
            self.overwrite(write.key(), None);
        }
        self.revision += 1;
        CommitReply::Applied
    }

    pub(super) fn get(&self, keys: &[Key]) -> Vec<Option<Bytes>> {
        let value = |key: &Key| self.items.get(&key.kind)?.get(&key.name).cloned();
        keys.iter().map(value).collect()
    }

    /// Puts or deletes an item, without any guard.
    pub(super) fn overwrite(&mut self, key: &Key, value: Option<Bytes>) {
        let items = self.items.entry(key.kind).or_default();
        match value {
            Some(value) => items.insert(key.name.clone(), value),
            None => items.remove(&key.name),
        };
    }

    pub(super) fn list(&self, kind: Kind, after: Option<&Name>, limit: usize) -> Page {
        let mut page = Page::default();
        let Some(items) = self.items.get(&kind) else {
            return page;
        };
        let mut rest = items
            .iter()
            .skip_while(|(name, _)| after.is_some_and(|after| *name <= after));
        let listed = rest.by_ref().take(limit.max(1));
        page.items = listed
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if rest.next().is_some() {
            page.next = page.items.last().map(|(name, _)| PageToken {
                after: name.clone(),
                revision: None,
            });
        }
        page
    }

    pub(super) fn touched(&self, first: u64, last: u64) -> Vec<Option<Touched>> {
        let entry = |number: u64| {
            let entry = self.ring.get(&(number % CHANGES_RING))?;
            (entry.change.number == number).then(|| entry.clone())
        };
        (first..=last).map(entry).collect()
    }
}
