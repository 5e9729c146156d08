//! Liveness of processes: each holds an exclusive lock on its own file in `members/` for its lifetime.
//!
//! Invariants: a member file with content was locked and completely written before it became visible under the
//! process's name, and is never written again. An empty file is only for a first start to lock; it has no owner. So
//! the inode of a file with content belongs to one start of the process (one nonce), and a lock on it that can be
//! taken proves that start dead. A process that only checks takes a *shared* lock, so that two checkers never take
//! each other for the owner. Files of dead processes stay until the next process starts and removes them. It holds the
//! exclusive lock meanwhile, so that no process becomes the owner of a file that is about to be removed. A checker at
//! that moment takes the dead process for alive, and waits for the lock.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::directory::Directory;
use crate::election::{Member, Nonce, ProcessId};
use crate::error::{Error, Result};
use crate::own_directory;

/// Number of tries of a starting process to lock its own file: others may be checking it for a moment.
const START_TRIES: usize = 200;
const START_PAUSE: Duration = Duration::from_millis(5);

/// The content of a member file: its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Owner {
    pub(super) process: ProcessId,
    pub(super) nonce: Nonce,
    pub(super) pid: i32,
    /// Clock ticks since boot, from `/proc/<pid>/stat`: distinguishes the process from a later one with the
    /// same pid.
    pub(super) start_time: u64,
    pub(super) boot_id: String,
}

impl Owner {
    fn this(process: &ProcessId) -> io::Result<Owner> {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let (_, start_time) = process_stat(pid)?;
        let nonce = Nonce::new(format!("{:016x}", rand::random::<u64>()));
        Ok(Owner {
            process: process.clone(),
            nonce,
            pid,
            start_time,
            boot_id: boot_id()?,
        })
    }
}

/// This process's lock on its own file; when dropped, the process counts as dead.
#[derive(Debug)]
pub(super) struct OwnFile {
    pub(super) owner: Owner,
    _locked: File,
}

/// The state letter and the start time of a process.
pub(super) fn process_stat(pid: i32) -> io::Result<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "/proc/<pid>/stat is unreadable");
    // The command name is in parentheses and may contain any text, including parentheses.
    let fields = stat.rsplit_once(") ").ok_or_else(invalid)?.1;
    let state = fields.chars().next().ok_or_else(invalid)?;
    let start = fields
        .split(' ')
        .nth(19)
        .and_then(|field| field.parse().ok());
    Ok((state, start.ok_or_else(invalid)?))
}

pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// The file name of a process: its id, with unsafe bytes written as `%` and hexadecimal digits.
fn file_name(process: &ProcessId) -> String {
    let mut name = String::new();
    for (i, byte) in process.as_str().bytes().enumerate() {
        match byte {
            b'.' if i == 0 => name.push_str("%2E"),
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' => {
                name.push(char::from(byte));
            }
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    name
}

/// The members in a directory.
#[derive(Debug, Clone)]
pub(super) struct Members {
    directory: Directory,
}

/// An announcement: the member, and the nonce of its start.
#[derive(Debug, Serialize, Deserialize)]
struct Announced {
    nonce: Nonce,
    member: Member,
}

impl Members {
    pub(super) fn new(directory: Directory) -> Members {
        Members { directory }
    }

    fn path(&self, process: &ProcessId) -> PathBuf {
        self.directory.members().join(file_name(process))
    }

    /// Becomes the owner of the file of `process`. Fails with the pid if another living process owns it.
    pub(super) async fn own(&self, process: &ProcessId) -> Result<OwnFile> {
        let path = self.path(process);
        let name = path.file_name().unwrap_or_default().len();
        if name == 0 || name > 200 {
            let text = format!("the process id {process:?} is too long, or empty");
            return Err(Error::Misconfigured(text.into()));
        }
        for _ in 0..START_TRIES {
            if let Some(own) = self
                .try_own(process, &path, false)
                .map_err(|e| failed(&path, &e))?
            {
                return Ok(own);
            }
            tokio::time::sleep(START_PAUSE).await;
        }
        // A process that only checks may be stopped while it holds a shared lock: it is not an owner.
        if let Some(own) = self
            .try_own(process, &path, true)
            .map_err(|e| failed(&path, &e))?
        {
            return Ok(own);
        }
        let owner = read_owner(&path).ok().flatten();
        let pid = owner.map_or("?".to_owned(), |owner| owner.pid.to_string());
        Err(Error::Misconfigured(
            format!(
                "the process id {process} is in use by pid {pid}, which locks {}: give each \
                 process its own id, or its own directory",
                path.display()
            )
            .into(),
        ))
    }

    /// Removes the files of dead processes: names may differ at each start, if they contain a free port.
    /// Stops at the first file that can't be removed; that one and the rest stay for the next start.
    pub(super) fn remove_dead(&self, own: &OwnFile) -> io::Result<()> {
        for entry in fs::read_dir(self.directory.members())? {
            let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
            let is_own = name.to_str() == Some(&file_name(&own.owner.process));
            if is_own || name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            // Another start of that process may have put its file there before this process took the lock.
            if !own_directory::is_at(&file, &path) {
                continue;
            }
            // The member file last: if this process dies in between, the next start finds it and removes both.
            match fs::remove_file(self.directory.announced().join(&name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => fs::remove_file(&path)?,
            }
        }
        Ok(())
    }

    /// Replaces the file of `process` by a locked one of this start. `None`: another process holds a lock on it,
    /// or replaced it meanwhile. With `tolerate_sharers` a shared lock, which only a checker holds, is no obstacle.
    fn try_own(
        &self,
        process: &ProcessId,
        path: &Path,
        tolerate_sharers: bool,
    ) -> io::Result<Option<OwnFile>> {
        let earlier = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(own_directory::FILE_MODE)
            .open(path)?;
        let wanted = if tolerate_sharers {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        match flock(&earlier, wanted) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // Another start of the same process may have put its file there meanwhile.
        if !own_directory::is_at(&earlier, path) {
            return Ok(None);
        }
        let owner = Owner::this(process)?;
        let draft = path.with_file_name(format!(".{}", owner.nonce));
        let mut file = File::options()
            .create_new(true)
            .write(true)
            .mode(own_directory::FILE_MODE)
            .open(&draft)?;
        // Locked and written before it is visible under its name: the header says why.
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(&serde_json::to_vec(&owner)?)?;
        fs::rename(&draft, path)?;
        Ok(Some(OwnFile {
            owner,
            _locked: file,
        }))
    }

    /// Whether the start of `process` with that nonce is alive.
    pub(super) fn is_alive(&self, process: &ProcessId, nonce: &Nonce) -> io::Result<bool> {
        Ok(self.open_alive(process, nonce)?.is_some())
    }

    /// The locked file of a living process, to wait for its death with [`wait_for_end`].
    pub(super) fn open_alive(
        &self,
        process: &ProcessId,
        nonce: &Nonce,
    ) -> io::Result<Option<File>> {
        let Some((file, owner)) = open_locked(&self.path(process))? else {
            return Ok(None);
        };
        Ok((owner.nonce == *nonce).then_some(file))
    }

    /// The owners of all locked files.
    pub(super) fn living(&self) -> io::Result<Vec<Owner>> {
        let mut owners = Vec::new();
        for entry in fs::read_dir(self.directory.members())? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if let Some((_, owner)) = open_locked(&entry.path())? {
                owners.push(owner);
            }
        }
        owners.sort_by(|a, b| a.process.cmp(&b.process));
        Ok(owners)
    }

    /// Announces `member` while the owner is alive.
    pub(super) fn announce(&self, owner: &Owner, member: &Member) -> Result<()> {
        let path = self.directory.announced().join(file_name(&owner.process));
        let draft = path.with_file_name(format!(".{}", owner.nonce));
        let announced = Announced {
            nonce: owner.nonce.clone(),
            member: member.clone(),
        };
        let write = || -> io::Result<()> {
            let mut file = File::options()
                .create(true)
                .truncate(true)
                .write(true)
                .mode(own_directory::FILE_MODE)
                .open(&draft)?;
            file.write_all(&serde_json::to_vec(&announced)?)?;
            fs::rename(&draft, &path)
        };
        write().map_err(|error| failed(&path, &error))
    }

    /// The announcements of the living processes.
    pub(super) fn announced(&self) -> Result<Vec<Member>> {
        let directory = self.directory.members();
        let mut members = Vec::new();
        for owner in self.living().map_err(|error| failed(&directory, &error))? {
            let path = self.directory.announced().join(file_name(&owner.process));
            let bytes = match fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(&path, &error)),
            };
            let announced: Announced =
                serde_json::from_slice(&bytes).map_err(|error| Error::Corrupt {
                    key: path.display().to_string(),
                    reason: error.to_string(),
                })?;
            if announced.nonce == owner.nonce {
                members.push(announced.member);
            }
        }
        Ok(members)
    }
}

/// Blocks until the owner of a file from [`Members::open_alive`] is dead.
pub(super) fn wait_for_end(file: File) -> io::Result<()> {
    loop {
        match flock(&file, FlockOperation::LockShared) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The file and its owner if its owner is alive: another process holds the exclusive lock.
fn open_locked(path: &Path) -> io::Result<Option<(File, Owner)>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(None),
        Err(Errno::WOULDBLOCK) => {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            // Empty: a process that starts for the first time has locked it and not yet replaced it by its
            // own file.
            Ok(serde_json::from_slice(&bytes)
                .ok()
                .map(|owner| (file, owner)))
        }
        Err(error) => Err(error.into()),
    }
}

fn read_owner(path: &Path) -> io::Result<Option<Owner>> {
    Ok(serde_json::from_slice(&fs::read(path)?).ok())
}

fn failed(path: &Path, error: &io::Error) -> Error {
    let reason = format!("{}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Error::Denied {
            store: super::STORE,
            reason,
        },
        _ => Error::Unavailable {
            store: super::STORE,
            reason,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(dir: &tempfile::TempDir) -> Members {
        Members::new(Directory::create(dir.path()).expect("a local directory"))
    }

    #[tokio::test]
    async fn one_who_looks_and_is_stopped_over_it_is_taken_for_no_owner() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let members = members(&dir);
        let process = ProcessId::new("host:6123");
        let earlier = members.own(&process).await.expect("owned");
        let looking = File::open(members.path(&process)).expect("opened");
        let nonce = earlier.owner.nonce.clone();
        drop(earlier);
        flock(&looking, FlockOperation::LockShared).expect("the owner is gone");
        assert!(!members.is_alive(&process, &nonce).expect("looked"));
        let own = members.own(&process).await.expect("owned");
        assert_ne!(own.owner.nonce, nonce);
        assert!(
            members
                .is_alive(&process, &own.owner.nonce)
                .expect("looked")
        );
        assert!(!members.is_alive(&process, &nonce).expect("looked"));
        assert_eq!(
            members.living().expect("listed"),
            std::slice::from_ref(&own.owner)
        );
    }

    #[tokio::test]
    async fn a_wait_for_the_end_is_not_held_up_by_a_restart() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let members = members(&dir);
        let process = ProcessId::new("a");
        let earlier = members.own(&process).await.expect("owned");
        let opened = members
            .open_alive(&process, &earlier.owner.nonce)
            .expect("looked");
        let waiter = tokio::task::spawn_blocking(|| wait_for_end(opened.expect("it lives")));
        drop(earlier);
        let _restarted = members.own(&process).await.expect("owned");
        waiter
            .await
            .expect("no panic")
            .expect("the earlier start ended");
    }

    #[tokio::test]
    async fn what_the_dead_have_left_goes_with_the_next_start_and_what_the_living_have_stays() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let members = members(&dir);
        let files = |at: &str| {
            let listed = fs::read_dir(dir.path().join(at)).expect("a directory");
            let mut names: Vec<_> = listed.map(|it| it.expect("read").file_name()).collect();
            names.sort();
            names
        };
        let mut living = Vec::new();
        for name in ["dead", "living", "own"] {
            let process = ProcessId::new(name);
            let own = members.own(&process).await.expect("owned");
            let announced = members.directory.announced().join(name);
            fs::write(announced, b"{}").expect("written");
            living.extend((name != "dead").then_some(own));
        }
        let own = living.last().expect("there are two");
        members.remove_dead(own).expect("removed");
        assert_eq!(files("members"), ["living", "own"]);
        assert_eq!(files("announced"), ["living", "own"]);
        assert_eq!(members.living().expect("listed").len(), 2);
        // A process that comes back under the name is its owner.
        members.own(&ProcessId::new("dead")).await.expect("owned");
    }

    #[test]
    fn the_file_name_of_a_process_stays_in_its_directory() {
        let name = |process: &str| file_name(&ProcessId::new(process));
        assert_eq!(name("host-1.example:6123"), "host-1.example%3A6123");
        assert_eq!(name("../a%"), "%2E.%2Fa%25");
    }
}
