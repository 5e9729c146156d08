//! The SQLite file: opening, checking and creating it, and transactions on it. Blocking. Each [`Database`] is
//! one connection, owned by one [worker](super::worker).
//!
//! The statements of a transaction are in [`super::tables`]. Invariant: a write holds SQLite's write lock
//! from its first read on, so that its guards still hold when it commits. Errors: a busy lock is `Unavailable`,
//! a failed commit whose effect is unknown `NoAnswer`, a full disk `OutOfSpace`.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::STORE;
use super::reserve::Reserve;
use super::tables::Tables;
use crate::election::StoreIdentity;
use crate::error::{Error, Result};
use crate::own_directory;

/// The version of the schema, in `pragma user_version`.
const SCHEMA_VERSION: u16 = 1;
/// The page cache of a connection in KiB, negative by SQLite's convention. Small, because a process has four
/// connections, and the system caches the file as well.
const PAGE_CACHE: i64 = -512;
/// Marks the file as Tanist's, in `pragma application_id`: `Tani`.
pub(super) const APPLICATION_ID: i64 = 0x5461_6e69;

const SCHEMA: &str = "
create table epoch (
    id integer primary key check (id = 1),
    epoch integer not null,
    incarnation text not null,
    leader text,
    nonce text,
    holder text,
    start text,
    store text,
    check ((holder is null) = (start is null)),
    check ((leader is null) = (nonce is null))
) strict;
create table leader_info (id integer primary key check (id = 1), value text not null) strict;
create table changes (
    id integer primary key check (id = 1),
    number integer not null,
    epoch integer not null
) strict;
insert into changes values (1, 0, 0);
create table ring (slot integer primary key, value text not null) strict;
create table items (
    kind text not null,
    name text not null,
    value blob not null,
    primary key (kind, name)
) strict;
";

/// Version of the data, as one connection sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DataVersion {
    /// Number of times the file was opened: SQLite counts separately for each connection.
    opened: u64,
    version: i64,
}

/// An open connection and the identity of its file.
#[derive(Debug)]
pub(super) struct Database {
    connection: Connection,
    path: PathBuf,
    busy_timeout: Duration,
    reserve: Reserve,
    file: Option<(u64, u64)>,
    store: Option<StoreIdentity>,
    was_busy: bool,
    /// Whether the last poll found no file.
    was_missing: bool,
    opened: u64,
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path)
        .ok()
        .map(|metadata| (metadata.dev(), metadata.ino()))
}

/// The identity of the file: a copy has another one, even with the same content and name. `None` if the file
/// system does not record creation times, because an inode number alone is reused.
fn store_identity(path: &Path) -> Option<StoreIdentity> {
    let metadata = std::fs::metadata(path).ok()?;
    let made = metadata.created().ok()?;
    let made = made.duration_since(UNIX_EPOCH).ok()?.as_nanos();
    Some(StoreIdentity::new(format!("{}-{made}", metadata.ino())))
}

impl Database {
    /// Opens the file, creates it if it is missing, and checks that this version can read it.
    pub(super) fn open(path: &Path, busy_timeout: Duration) -> Result<Database> {
        let connection = connect(path, busy_timeout).map_err(|error| failure(path, error))?;
        let path = path.to_owned();
        let reserve = Reserve::beside(&path);
        reserve.make();
        let file = identity(&path);
        let store = store_identity(&path);
        let mut database = Database {
            connection,
            path,
            busy_timeout,
            reserve,
            file,
            store,
            was_busy: false,
            was_missing: false,
            opened: 0,
        };
        database.prepare()?;
        Ok(database)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The identity of this store.
    pub(super) fn store(&self) -> Option<&StoreIdentity> {
        self.store.as_ref()
    }

    /// Whether the last write timed out waiting for the write lock.
    pub(super) fn was_busy(&self) -> bool {
        self.was_busy
    }

    /// Same as [`Database::follow_file`], for periodic polling. Creates a missing file only at the second poll
    /// that misses it: the whole directory may be being removed, and a new file would make that fail.
    pub(super) fn poll_file(&mut self) -> Result<()> {
        let is_missing = !self.path.exists();
        let was_missing = std::mem::replace(&mut self.was_missing, is_missing);
        if is_missing && !was_missing {
            return Err(Error::Unavailable {
                store: STORE,
                reason: format!("{} was removed", self.path.display()),
            });
        }
        self.follow_file()
    }

    /// Opens the file again if it was removed or replaced: this connection would use data that no other
    /// process sees.
    pub(super) fn follow_file(&mut self) -> Result<()> {
        if self.file.is_some() && identity(&self.path) == self.file {
            return Ok(());
        }
        tracing::warn!(file = %self.path.display(), "the store's file was removed or replaced: it is opened again");
        let database = Database::open(&self.path, self.busy_timeout)?;
        *self = Database {
            opened: self.opened + 1,
            ..database
        };
        Ok(())
    }

    /// Checks the content of the file, and creates the tables in an empty one. Only that needs the write
    /// lock: a process that is stopped while it holds the lock must not prevent others from starting, because
    /// they are to kill it.
    fn prepare(&mut self) -> Result<()> {
        let path = self.path.clone();
        let failed = |error| failure(&path, error);
        if self.read(|tables| tables.is_store(SCHEMA_VERSION))? {
            return Ok(());
        }
        let begin = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = begin.map_err(failed)?;
        // Another process may have created them before this one had the lock.
        if Tables::new(&transaction, &path).is_store(SCHEMA_VERSION)? {
            return Ok(());
        }
        transaction.execute_batch(SCHEMA).map_err(failed)?;
        transaction
            .pragma_update(None, "application_id", APPLICATION_ID)
            .map_err(failed)?;
        transaction
            .pragma_update(None, "user_version", SCHEMA_VERSION)
            .map_err(failed)?;
        transaction.commit().map_err(failed)
    }

    /// Changes when another connection committed, or the file was opened again.
    pub(super) fn version(&self) -> Result<DataVersion> {
        let version = self
            .connection
            .pragma_query_value(None, "data_version", |row| row.get(0));
        let version = version.map_err(|error| failure(&self.path, error))?;
        Ok(DataVersion {
            opened: self.opened,
            version,
        })
    }

    /// Runs `write` with the write lock held, atomically. `Unavailable` if the lock stays busy.
    pub(super) fn write<T>(&mut self, write: impl FnOnce(&Tables<'_>) -> Result<T>) -> Result<T> {
        let path = &self.path;
        let begin = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate);
        let busy =
            |error: &rusqlite::Error| error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy);
        self.was_busy = begin.as_ref().is_err_and(busy);
        let transaction = begin.map_err(|error| failure(path, error))?;
        let result = write(&Tables::new(&transaction, path))?;
        transaction
            .commit()
            .map_err(|error| match failure(path, error) {
                // It is unknown whether the log's last page reached the disk.
                Error::Unavailable { store, reason } => Error::NoAnswer { store, reason },
                other => other,
            })?;
        Ok(result)
    }

    /// Same, for a write that must succeed even on a full disk: it releases the reserve.
    pub(super) fn write_surely<T>(
        &mut self,
        write: impl Fn(&Tables<'_>) -> Result<T>,
    ) -> Result<T> {
        let full = match self.write(&write) {
            Err(full @ Error::OutOfSpace { .. }) => full,
            result => return result,
        };
        if !self.reserve.release() {
            return Err(full);
        }
        tracing::warn!(error = %full, "the disk is full: reserved space is used");
        let result = self.write(&write);
        // Reserves what is left again.
        self.reserve.keep();
        result
    }

    /// Same, for a write that may be refused on a full disk, and must not use the reserve.
    pub(super) fn write_with_room<T>(
        &mut self,
        write: impl FnOnce(&Tables<'_>) -> Result<T>,
    ) -> Result<T> {
        if !self.reserve.keep() {
            let path = self.path.display();
            return Err(Error::OutOfSpace {
                store: STORE,
                reason: format!("{path}: only the space that is reserved for deletions is left"),
            });
        }
        self.write(write)
    }

    /// Same as [`Database::write_surely`], with a shorter timeout for the write lock.
    pub(super) fn write_surely_within<T>(
        &mut self,
        timeout: Duration,
        write: impl Fn(&Tables<'_>) -> Result<T>,
    ) -> Result<T> {
        self.wait_for_lock(timeout.min(self.busy_timeout))?;
        let result = self.write_surely(write);
        self.wait_for_lock(self.busy_timeout)?;
        result
    }

    fn wait_for_lock(&self, timeout: Duration) -> Result<()> {
        let set = self.connection.busy_timeout(timeout);
        set.map_err(|error| failure(&self.path, error))
    }

    /// Runs `read` on one snapshot.
    pub(super) fn read<T>(&mut self, read: impl FnOnce(&Tables<'_>) -> Result<T>) -> Result<T> {
        let path = &self.path;
        let begin = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Deferred);
        let transaction = begin.map_err(|error| failure(path, error))?;
        read(&Tables::new(&transaction, path))
    }
}

fn connect(path: &Path, busy_timeout: Duration) -> rusqlite::Result<Connection> {
    // SQLite would create a file that others can read, and gives its log the same mode. The file is created
    // without opening it, because closing it would release all locks that this process has on it. Errors are
    // left to SQLite, whose messages say more.
    let mode = Mode::from_raw_mode(own_directory::FILE_MODE);
    let _it_may_be_there = mknodat(CWD, path, FileType::RegularFile, mode, 0);
    let connection = Connection::open(path)?;
    connection.busy_timeout(busy_timeout)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "cache_size", PAGE_CACHE)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

/// Converts an error of SQLite; corruption names the file.
pub(super) fn failure(path: &Path, error: rusqlite::Error) -> Error {
    let reason = format!("{}: {error}", path.display());
    let corrupt = || Error::Corrupt {
        key: path.display().to_string(),
        reason: error.to_string(),
    };
    let Some(code) = error.sqlite_error_code() else {
        return corrupt();
    };
    match code {
        ErrorCode::PermissionDenied
        | ErrorCode::ReadOnly
        | ErrorCode::AuthorizationForStatementDenied => Error::Denied {
            store: STORE,
            reason,
        },
        ErrorCode::CannotOpen => {
            Error::Misconfigured(format!("the embedded store's file {reason}").into())
        }
        ErrorCode::DiskFull => Error::OutOfSpace {
            store: STORE,
            reason,
        },
        ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::SystemIoFailure
        | ErrorCode::OutOfMemory
        | ErrorCode::OperationAborted
        | ErrorCode::OperationInterrupted
        | ErrorCode::FileLockingProtocolFailed
        | ErrorCode::SchemaChanged => Error::Unavailable {
            store: STORE,
            reason,
        },
        // Includes NotADatabase, DatabaseCorrupt, and errors from manual changes to the schema.
        _ => corrupt(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_only_looks_does_not_make_a_removed_file_again_at_once() -> Result<()> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("store.db");
        let mut database = Database::open(&path, Duration::from_secs(1))?;
        for _ in 0..2 {
            database.poll_file()?;
            std::fs::remove_file(&path).expect("it is there");
            database.poll_file().expect_err("it is gone");
            assert!(!path.exists());
            database.poll_file()?;
            assert!(path.exists(), "a store that stays away is begun again");
        }
        Ok(())
    }
}
