//! Each read and guarded write on the tables, inside a transaction of [`super::database`].
//!
//! Invariant: the fence of every write of a term is `epoch = ? and leader is not null`. Only resigning sets
//! `leader` to null, so a term that resigned can never write or attach again, although its number, the token,
//! stays.

use std::path::Path;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Params, Row, params};
use serde::de::DeserializeOwned;

use super::database::{APPLICATION_ID, failure};
use crate::election::{
    Attempt, ClusterIncarnation, ElectionView, Epoch, EpochRecord, EpochToken, LeaderInformation,
    LeaderKey, Nonce, ProcessId, StoreIdentity, TermHolder, Unreadable,
};
use crate::error::{Error, Result};
use crate::keys::{CHANGES_RING, Key, Kind, Name};
use crate::store::{Change, CommitReply, CommitRequest, Guard, Page, PageToken, Touched, Write};

/// The tables as one transaction sees them.
#[derive(Debug)]
pub(super) struct Tables<'a> {
    connection: &'a Connection,
    path: &'a Path,
}

/// SQLite's integers are signed; no counter gets that far.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The token is the number of the epoch.
fn token_of(epoch: Epoch) -> EpochToken {
    EpochToken(epoch.get())
}

impl<'a> Tables<'a> {
    pub(super) fn new(connection: &'a Connection, path: &'a Path) -> Tables<'a> {
        Tables { connection, path }
    }

    fn one<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>> {
        let row = || {
            self.connection
                .prepare_cached(sql)?
                .query_row(params, read)
                .optional()
        };
        row().map_err(|error| failure(self.path, error))
    }

    fn execute(&self, sql: &str, params: impl Params) -> Result<()> {
        let run = || self.connection.prepare_cached(sql)?.execute(params);
        run().map(drop).map_err(|error| failure(self.path, error))
    }

    fn corrupt(&self, what: impl std::fmt::Display, reason: impl std::fmt::Display) -> Error {
        let key = format!("{what} in {}", self.path.display());
        Error::Corrupt {
            key,
            reason: reason.to_string(),
        }
    }

    fn json<T: DeserializeOwned>(&self, what: &str, text: &str) -> Result<T> {
        serde_json::from_str(text).map_err(|error| self.corrupt(what, error))
    }

    fn encode(&self, what: &str, value: &impl serde::Serialize) -> Result<String> {
        serde_json::to_string(value).map_err(|error| self.corrupt(what, error))
    }

    /// Whether the file is a store that this version reads; false: it is empty.
    pub(super) fn is_store(&self, supported: u16) -> Result<bool> {
        let number = |sql| {
            self.one(sql, [], |row| row.get::<_, i64>(0))
                .map(|n| n.unwrap_or(0))
        };
        let application = number("pragma application_id")?;
        let version = number("pragma user_version")?;
        let tables = number("select count(*) from sqlite_schema")?;
        if (application, version, tables) == (0, 0, 0) {
            return Ok(false);
        }
        let key = self.path.display().to_string();
        if application != APPLICATION_ID {
            let reason = "it is a database of another program".to_owned();
            return Err(Error::Corrupt { key, reason });
        }
        if version > i64::from(supported) {
            let found = u16::try_from(version).unwrap_or(u16::MAX);
            return Err(Error::TooNew {
                key,
                found,
                supported,
            });
        }
        Ok(true)
    }

    fn epoch(&self) -> Result<Option<(EpochRecord, Option<LeaderKey>)>> {
        self.one(
            "select epoch, incarnation, leader, nonce, holder, start, store from epoch",
            [],
            |row| {
                let epoch = Epoch::new(unsigned(row.get(0)?));
                let incarnation = ClusterIncarnation::new(row.get::<_, String>(1)?);
                let leader: Option<(String, String)> =
                    Option::zip(row.get::<_, Option<_>>(2)?, row.get::<_, Option<_>>(3)?);
                let leader = leader.map(|(process, nonce)| LeaderKey {
                    epoch,
                    process: ProcessId::new(process),
                    nonce: Nonce::new(nonce),
                });
                let holder: Option<(String, String)> =
                    Option::zip(row.get::<_, Option<_>>(4)?, row.get::<_, Option<_>>(5)?);
                let holder = holder.map(|(process, start)| TermHolder {
                    process: ProcessId::new(process),
                    start,
                });
                let store = row.get::<_, Option<String>>(6)?.map(StoreIdentity::new);
                let record = EpochRecord {
                    epoch,
                    incarnation,
                    holder,
                    store,
                };
                Ok((record, leader))
            },
        )
    }

    /// The view as stored, without the store identity, which comes from the file. `leader` may be dead.
    pub(super) fn view(&self) -> Result<ElectionView> {
        let info = self.one("select value from leader_info", [], |row| {
            row.get::<_, String>(0)
        })?;
        // Unreadable information counts as missing: the leader publishes it again.
        let info = info.and_then(|text| {
            let decoded = self.json::<LeaderInformation>("leader-info", &text);
            decoded
                .inspect_err(|error| tracing::debug!(%error, "an unreadable value is ignored"))
                .ok()
        });
        let Some((record, leader)) = self.epoch()? else {
            return Ok(ElectionView {
                info,
                ..ElectionView::default()
            });
        };
        let token = token_of(record.epoch);
        if record.epoch == Epoch::ZERO {
            let error = self.corrupt("epoch", "its number is below 1");
            return Ok(ElectionView {
                unreadable: Some(Unreadable {
                    reason: error.to_string(),
                    token,
                }),
                leader,
                info,
                ..ElectionView::default()
            });
        }
        Ok(ElectionView {
            store: None,
            unreadable: None,
            epoch: Some((record, token)),
            // A named leader that is dead has not resigned.
            is_resigned: leader.is_none(),
            leader,
            info,
        })
    }

    pub(super) fn advance(
        &self,
        seen: &ElectionView,
        next: &EpochRecord,
        leader: &LeaderKey,
    ) -> Result<Attempt> {
        let stored = self.view()?;
        let epoch = |view: &ElectionView| view.epoch.as_ref().map(|(record, _)| record.clone());
        if stored.unreadable.is_some() {
            return Ok(Attempt::Refused(stored));
        }
        // In other stores a resignation moves the token: the taker must have seen it here as well.
        if epoch(&stored) != epoch(seen) || stored.is_resigned != seen.is_resigned {
            return Ok(Attempt::Refused(stored));
        }
        self.put_epoch(next, Some(leader))?;
        Ok(Attempt::Applied(token_of(next.epoch)))
    }

    pub(super) fn accept(&self, seen: &ElectionView, next: &EpochRecord) -> Result<Attempt> {
        let stored = self.view()?;
        let as_seen = stored.epoch == seen.epoch && stored.unreadable == seen.unreadable;
        if !as_seen || stored.token().is_none() {
            return Ok(Attempt::Refused(stored));
        }
        self.put_epoch(next, None)?;
        Ok(Attempt::Applied(token_of(next.epoch)))
    }

    fn put_epoch(&self, next: &EpochRecord, leader: Option<&LeaderKey>) -> Result<()> {
        self.execute(
            "insert or replace into epoch (id, epoch, incarnation, leader, nonce, holder, start, store)
             values (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![
                signed(next.epoch.get()),
                next.incarnation.as_str(),
                leader.map(|leader| leader.process.as_str()),
                leader.map(|leader| leader.nonce.as_str()),
                next.holder.as_ref().map(|holder| holder.process.as_str()),
                next.holder.as_ref().map(|holder| holder.start.as_str()),
                next.store.as_ref().map(StoreIdentity::as_str),
            ],
        )
    }

    /// Whether `epoch` is at `token`, in that incarnation; if so, whether the term has a leader.
    fn term(
        &self,
        token: EpochToken,
        incarnation: Option<&ClusterIncarnation>,
    ) -> Result<Option<bool>> {
        let Some((record, leader)) = self.epoch()? else {
            return Ok(None);
        };
        let same = token_of(record.epoch) == token
            && incarnation.is_none_or(|known| *known == record.incarnation);
        Ok(same.then_some(leader.is_some()))
    }

    pub(super) fn attach(
        &self,
        token: EpochToken,
        incarnation: Option<&ClusterIncarnation>,
        leader: &LeaderKey,
    ) -> Result<Attempt> {
        if self.term(token, incarnation)? != Some(true) {
            return Ok(Attempt::Refused(self.view()?));
        }
        let names = params![leader.process.as_str(), leader.nonce.as_str()];
        self.execute("update epoch set leader = ?1, nonce = ?2", names)?;
        Ok(Attempt::Applied(token))
    }

    /// Ends the term. If applied again, it finds the term ended and returns the same: the token does not
    /// move.
    pub(super) fn resign(
        &self,
        token: EpochToken,
        incarnation: Option<&ClusterIncarnation>,
    ) -> Result<Attempt> {
        if self.term(token, incarnation)?.is_none() {
            return Ok(Attempt::Refused(self.view()?));
        }
        self.execute("update epoch set leader = null, nonce = null", [])?;
        Ok(Attempt::Applied(token))
    }

    pub(super) fn publish(
        &self,
        token: EpochToken,
        incarnation: Option<&ClusterIncarnation>,
        info: &LeaderInformation,
    ) -> Result<Attempt> {
        if self.term(token, incarnation)? != Some(true) {
            return Ok(Attempt::Refused(self.view()?));
        }
        let sql = "insert or replace into leader_info (id, value) values (1, ?1)";
        self.execute(sql, params![self.encode("leader-info", info)?])?;
        Ok(Attempt::Applied(token))
    }

    pub(super) fn change(&self) -> Result<Change> {
        let change = self.one("select number, epoch from changes", [], |row| {
            let epoch = Epoch::new(unsigned(row.get(1)?));
            Ok(Change {
                number: unsigned(row.get(0)?),
                epoch,
            })
        })?;
        change.ok_or_else(|| self.corrupt("changes", "the row is missing"))
    }

    pub(super) fn guard(&self) -> Result<Guard> {
        let epoch = self.epoch()?;
        Ok(Guard {
            leader_present: epoch.as_ref().is_some_and(|(_, leader)| leader.is_some()),
            epoch: epoch
                .map(|(record, _)| (record.epoch, token_of(record.epoch), record.incarnation)),
            change: self.change()?,
        })
    }

    /// Whether the guards of a transaction hold.
    fn guards_hold(&self, request: &CommitRequest) -> Result<bool> {
        let fence = &request.fence;
        let leads = self.term(fence.token, Some(&fence.incarnation))? == Some(true);
        Ok(leads && self.change()? == request.after)
    }

    fn delete(&self, key: &Key) -> Result<()> {
        self.execute(
            "delete from items where kind = ?1 and name = ?2",
            params![key.kind.directory(), key.name.as_str()],
        )
    }

    /// Applies the deletions of a request under its guards, and leaves the number unchanged.
    pub(super) fn delete_unnumbered(&self, request: &CommitRequest) -> Result<CommitReply> {
        if !self.guards_hold(request)? {
            return Ok(CommitReply::Refused(self.guard()?));
        }
        for write in &request.writes {
            self.delete(write.key())?;
        }
        Ok(CommitReply::Applied)
    }

    pub(super) fn commit(&self, request: &CommitRequest) -> Result<CommitReply> {
        if !self.guards_hold(request)? {
            return Ok(CommitReply::Refused(self.guard()?));
        }
        for write in &request.writes {
            let key = write.key();
            let (kind, name) = (key.kind.directory(), key.name.as_str());
            match write {
                Write::Put { value, .. } => self.execute(
                    "insert into items (kind, name, value) values (?1, ?2, ?3)
                     on conflict (kind, name) do update set value = ?3",
                    params![kind, name, value.as_ref()],
                )?,
                Write::Delete { key } => self.delete(key)?,
            }
        }
        let change = request.change();
        self.execute(
            "update changes set number = ?1, epoch = ?2",
            params![signed(change.number), signed(change.epoch.get())],
        )?;
        self.execute(
            "insert or replace into ring (slot, value) values (?1, ?2)",
            params![
                signed(change.number % CHANGES_RING),
                self.encode("changes", &request.touched())?
            ],
        )?;
        Ok(CommitReply::Applied)
    }

    pub(super) fn get(&self, keys: &[Key]) -> Result<Vec<Option<Bytes>>> {
        let value = |key: &Key| {
            let names = params![key.kind.directory(), key.name.as_str()];
            let sql = "select value from items where kind = ?1 and name = ?2";
            Ok(self
                .one(sql, names, |row| row.get::<_, Vec<u8>>(0))?
                .map(Bytes::from))
        };
        keys.iter().map(value).collect()
    }

    pub(super) fn list(&self, kind: Kind, after: Option<&Name>, limit: usize) -> Result<Page> {
        let limit = limit.clamp(1, 100_000);
        let after = after.map_or("", Name::as_str);
        // One more than requested shows whether there is more.
        let wanted = signed(limit as u64 + 1);
        let rows = || -> rusqlite::Result<Vec<(String, Vec<u8>)>> {
            self.connection
                .prepare_cached(
                    "select name, value from items where kind = ?1 and name > ?2
                     order by name limit ?3",
                )?
                .query_map(params![kind.directory(), after, wanted], |row| {
                    Ok((row.get(0)?, row.get(1)?))
                })?
                .collect()
        };
        let rows = rows().map_err(|error| failure(self.path, error))?;
        let more = rows.len() > limit;
        let mut page = Page::default();
        for (name, value) in rows.into_iter().take(limit) {
            let name = Name::new(name).map_err(|error| self.corrupt(kind.directory(), error))?;
            page.items.push((name, Bytes::from(value)));
        }
        let last = page.items.last().filter(|_| more);
        page.next = last.map(|(name, _)| PageToken {
            after: name.clone(),
            revision: None,
        });
        Ok(page)
    }

    pub(super) fn names(&self, kind: Kind) -> Result<Vec<Name>> {
        let rows = || -> rusqlite::Result<Vec<String>> {
            self.connection
                .prepare_cached("select name from items where kind = ?1 order by name")?
                .query_map(params![kind.directory()], |row| row.get(0))?
                .collect()
        };
        let rows = rows().map_err(|error| failure(self.path, error))?;
        let name = |text| Name::new(text).map_err(|error| self.corrupt(kind.directory(), error));
        rows.into_iter().map(name).collect()
    }

    pub(super) fn touched(&self, first: u64, last: u64) -> Result<Vec<Option<Touched>>> {
        let entry = |number: u64| {
            let slot = params![signed(number % CHANGES_RING)];
            let sql = "select value from ring where slot = ?1";
            let text = self.one(sql, slot, |row| row.get::<_, String>(0))?;
            let entry: Option<Touched> =
                text.map(|text| self.json("changes", &text)).transpose()?;
            Ok(entry.filter(|entry| entry.change.number == number))
        };
        (first..=last).map(entry).collect()
    }
}
