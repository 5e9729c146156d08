//! The embedded backend, in its own directory. Without network and server, the operations on them do nothing; the loss
//! of a quorum is a write lock that the subject holds.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::Connection;
use tempfile::TempDir;

use crate::clock::Clock;
use crate::election::{ElectionDriver, EpochRecord, ProcessId};
use crate::embedded::{EmbeddedOptions, open_election, open_store};
use crate::keys::{Key, path};
use crate::store::CoordinationStore;
use crate::testing::conformance::gates::Gates;
use crate::testing::conformance::{CaseResult, OpenElection, Place, Subject};
use crate::testing::kinds::KINDS;

const DATABASE: &str = "tanist.db";

/// Opens a store in a directory of its own.
pub async fn open(_place: Place, _namespace: String) -> CaseResult<Box<dyn Subject>> {
    Ok(Box::new(EmbeddedSubject::new()?))
}

#[derive(Debug)]
struct EmbeddedSubject {
    gates: Gates,
    /// Holds the write lock while the "quorum" is lost.
    blocker: Mutex<Option<Connection>>,
    directory: TempDir,
}

impl EmbeddedSubject {
    fn new() -> CaseResult<EmbeddedSubject> {
        Ok(EmbeddedSubject {
            gates: Gates::default(),
            blocker: Mutex::default(),
            directory: tempfile::tempdir()?,
        })
    }

    fn options(&self) -> EmbeddedOptions {
        EmbeddedOptions {
            busy_timeout: Duration::from_millis(300),
            ..EmbeddedOptions::new(self.directory.path())
        }
    }

    fn connect(&self) -> CaseResult<Connection> {
        let connection = Connection::open(self.directory.path().join(DATABASE))?;
        connection.busy_timeout(Duration::from_secs(10))?;
        Ok(connection)
    }
}

#[async_trait(?Send)]
impl Subject for EmbeddedSubject {
    fn lease(&self) -> Option<Duration> {
        None
    }

    async fn contender(&self, process: &ProcessId) -> CaseResult<OpenElection> {
        let (options, process) = (self.options(), process.clone());
        let enter = self.gates.enter(&process);
        Ok(Box::new(move || {
            enter();
            Box::pin(async move {
                let election = open_election(options, process, true, Clock::Boottime).await?;
                Ok(Arc::new(election) as Arc<dyn ElectionDriver>)
            })
        }))
    }

    async fn observer(&self, process: &ProcessId) -> CaseResult<Arc<dyn ElectionDriver>> {
        let options = self.options();
        let election = open_election(options, process.clone(), false, Clock::Boottime).await?;
        Ok(Arc::new(election))
    }

    async fn store(&self, _process: &ProcessId) -> CaseResult<Arc<dyn CoordinationStore>> {
        Ok(Arc::new(open_store(self.options(), KINDS).await?))
    }

    async fn stop(&self, process: &ProcessId) {
        self.gates.stop(process).await;
    }

    async fn cont(&self, process: &ProcessId) {
        self.gates.cont(process);
    }

    /// Dropping releases the lock, as the kernel does when a process dies.
    async fn crash(&self, _process: &ProcessId) {}

    /// There is no network to a file.
    async fn isolate(&self, _process: &ProcessId) {}

    async fn heal(&self, _process: &ProcessId) {}

    async fn interrupt(&self, _process: &ProcessId) {}

    async fn delete_leader(&self) -> CaseResult {
        self.connect()?
            .execute("update epoch set leader = null, nonce = null", [])?;
        Ok(())
    }

    /// An unreadable epoch has a number below 1.
    async fn overwrite(&self, path: &str, value: Option<&str>) -> CaseResult {
        let connection = self.connect()?;
        let record = value.and_then(|text| serde_json::from_str::<EpochRecord>(text).ok());
        match (path, value, record) {
            (path::EPOCH, _, Some(record)) => {
                let number = i64::try_from(record.epoch.get())?;
                connection.execute("update epoch set epoch = ?1", [number])?;
            }
            (path::EPOCH, ..) => {
                connection.execute("update epoch set epoch = -1", [])?;
            }
            (_, Some(text), _) => {
                connection.execute("update leader_info set value = ?1", [text])?;
            }
            (_, None, _) => {
                connection.execute("delete from leader_info", [])?;
            }
        }
        Ok(())
    }

    async fn write_by_hand(&self, key: &Key, value: Option<&[u8]>) -> CaseResult {
        let (kind, name) = (key.kind.directory(), key.name.as_str());
        let connection = self.connect()?;
        match value {
            Some(value) => connection.execute(
                "insert or replace into items (kind, name, value) values (?1, ?2, ?3)",
                (kind, name, value),
            )?,
            None => connection.execute(
                "delete from items where kind = ?1 and name = ?2",
                (kind, name),
            )?,
        };
        Ok(())
    }

    /// No process gets the write lock.
    async fn lose_quorum(&self) -> CaseResult {
        let connection = self.connect()?;
        connection.execute_batch("begin immediate")?;
        *self.blocker.lock() = Some(connection);
        Ok(())
    }

    async fn regain_quorum(&self) -> CaseResult {
        drop(self.blocker.lock().take());
        Ok(())
    }

    /// There is no server: running processes notice nothing.
    async fn restart(&self) -> CaseResult {
        Ok(())
    }

    async fn restart_wiped(&self) -> CaseResult {
        for suffix in ["", "-wal", "-shm"] {
            let path = self.directory.path().join(format!("{DATABASE}{suffix}"));
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
        Ok(())
    }
}
