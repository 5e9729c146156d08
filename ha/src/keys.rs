//! Every key that this crate keeps in a coordination store: its path below the namespace, lifetime and value.
//!
//! Kinds are flat (all graphs under `graphs/`, no subtree for each job). On ZooKeeper a flat kind costs one
//! listing and a few multi-reads; a subtree for each job would cost four requests a job.
//!
//! ```text
//! epoch             persistent   epoch, cluster incarnation, holder, store identity: the token that fences every write
//! epoch/<incarnation>            ZooKeeper only, empty: proves the incarnation, because a data version can repeat
//! leader            lease        epoch, process id, nonce of the session; written once a term
//! leader-info       persistent   addresses of the confirmed leader, valid for the epoch that it names
//! members/<process> lease        every process that contends
//! changes           persistent   number and epoch of the last committed transaction
//! changes/<n>       persistent   the names that transaction number n (modulo 1024) touched
//! graphs/<job>      persistent   the job's graph; immutable
//! chunks/<set>.<n>  persistent   a chunk of a record that is too large for one transaction; immutable
//! states/<job>      persistent   what must not be lost about a running job
//! results/<job>     persistent   the terminal result: dirty until cleanup finished, then clean
//! descriptions/<job> persistent  the full description of a job that has ended; immutable
//! tombstones/<object> persistent   blobs that are about to be deleted
//! history/<epoch>   persistent   one record a term
//! applications/<cluster-id>      persistent   status of the application that owns this cluster, if any
//! workers/<worker>  persistent   a worker that a driver has started, or will start
//! storages/<storage> persistent  a blob storage that this cluster uses, and the processes that have confirmed it
//! drains/<digest>   persistent   a TaskManager, or all TaskManagers of a host, that gets no new work
//! ```

use std::fmt;
use std::str::FromStr;

/// Number of transactions whose touched names the ring keeps.
pub const CHANGES_RING: u64 = 1024;

/// The name of an item within its kind: 1 to 200 characters of `A-Z a-z 0-9 . _ -`, not starting with a dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// A text that is not a valid [`Name`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid name: use 1 to 200 of A-Z a-z 0-9 . _ - and no leading dot")]
pub struct InvalidName(String);

impl Name {
    /// Validates `text`.
    pub fn new(text: impl Into<String>) -> Result<Name, InvalidName> {
        let text = text.into();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if text.is_empty()
            || text.len() > 200
            || text.starts_with('.')
            || !text.chars().all(allowed)
        {
            return Err(InvalidName(text));
        }
        Ok(Name(text))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Name {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Name, InvalidName> {
        Name::new(text)
    }
}

/// The kinds of items that transactions write and that can be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Job graphs.
    Graphs,
    /// Chunks of records that are too large for one transaction.
    Chunks,
    /// States of running jobs.
    States,
    /// Terminal results.
    Results,
    /// Descriptions of jobs that have ended.
    Descriptions,
    /// Blobs that are about to be deleted.
    BlobTombstones,
    /// One record a term.
    History,
    /// The application that owns this cluster.
    Applications,
    /// Workers that a driver has started or will start.
    Workers,
    /// Blob storages.
    Storages,
    /// TaskManagers and hosts that are drained.
    Drains,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 11] = [
        Kind::Graphs,
        Kind::Chunks,
        Kind::States,
        Kind::Results,
        Kind::Descriptions,
        Kind::BlobTombstones,
        Kind::History,
        Kind::Applications,
        Kind::Workers,
        Kind::Storages,
        Kind::Drains,
    ];

    /// The directory below the namespace, without slashes.
    pub fn directory(self) -> &'static str {
        match self {
            Kind::Graphs => "graphs",
            Kind::Chunks => "chunks",
            Kind::States => "states",
            Kind::Results => "results",
            Kind::Descriptions => "descriptions",
            Kind::BlobTombstones => "tombstones",
            Kind::History => "history",
            Kind::Applications => "applications",
            Kind::Workers => "workers",
            Kind::Storages => "storages",
            Kind::Drains => "drains",
        }
    }
}

/// An item that transactions write: `<kind>/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its kind.
    pub kind: Kind,
    /// Its name within the kind.
    pub name: Name,
}

impl Key {
    /// The item `name` of `kind`.
    pub fn new(kind: Kind, name: Name) -> Key {
        Key { kind, name }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.directory(), self.name)
    }
}

impl FromStr for Key {
    type Err = InvalidName;
    fn from_str(text: &str) -> Result<Key, InvalidName> {
        let invalid = || InvalidName(text.to_owned());
        let (directory, name) = text.split_once('/').ok_or_else(invalid)?;
        let kind = Kind::ALL
            .into_iter()
            .find(|kind| kind.directory() == directory)
            .ok_or_else(invalid)?;
        Ok(Key {
            kind,
            name: Name::new(name)?,
        })
    }
}

/// The fixed keys, below the namespace.
pub mod path {
    /// The epoch and the cluster's incarnation.
    pub const EPOCH: &str = "epoch";
    /// The leader's lease key.
    pub const LEADER: &str = "leader";
    /// Addresses that the confirmed leader publishes.
    pub const LEADER_INFO: &str = "leader-info";
    /// The directory of members.
    pub const MEMBERS: &str = "members";
    /// The last change number; also the directory of the ring.
    pub const CHANGES: &str = "changes";
}
