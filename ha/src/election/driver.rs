//! Store access of an election: the values that it keeps in the store, and the few guarded transactions on
//! them.
//!
//! A driver makes single attempts and decides nothing. The election's core ([`super::core`]) decides who
//! takes, deposes, attaches again or resigns, and what an ambiguous answer means. Every method may be called
//! at any time and concurrently. The guard of every write is the *token* of the persistent key `epoch`: its
//! modification revision in etcd, its data version in ZooKeeper, the number itself in the embedded store.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::clock::Moment;
use crate::error::Result;
use crate::store::Change;

/// The fencing token of a term, taken from the store; only grows. Zero: no process ever led.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(u64);

impl Epoch {
    /// Before the first term.
    pub const ZERO: Epoch = Epoch(0);

    /// The epoch with this number.
    pub const fn new(number: u64) -> Epoch {
        Epoch(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The epoch of the next term.
    #[must_use]
    pub const fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for Epoch {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Epoch, Self::Err> {
        text.parse().map(Epoch)
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Wraps the text unchanged.
            pub fn new(text: impl Into<String>) -> $name {
                $name(text.into())
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = std::convert::Infallible;
            fn from_str(text: &str) -> Result<$name, Self::Err> {
                Ok($name(text.to_owned()))
            }
        }
    };
}

text_id! {
    /// The stable id of a contending process: the same after its restart (by default host and port).
    ProcessId
}
text_id! {
    /// Identifies one lease or session, unique across all processes.
    Nonce
}
text_id! {
    /// Identifies one running kernel and one network namespace in it. Two processes with the same value reach
    /// each other directly, unless their hosts are copies of one running host.
    HostIdentity
}
text_id! {
    /// Identifies the cluster's data: created with `epoch`, gone when the store is wiped.
    ClusterIncarnation
}

text_id! {
    /// Distinguishes a store from others with the same content: a copy or a restore shows another identity.
    /// The store itself reports it; not every store has one.
    StoreIdentity
}

impl HostIdentity {
    /// The identity of this process's host: the boot id and the inode of its network namespace. `None` if the
    /// host does not show them; then it equals no other identity.
    ///
    /// The kernel generates the boot id at each boot; the machine id, which copies of a disk share, is not
    /// used. A virtual machine that is resumed twice from one memory image shows the same boot id twice. So
    /// an equal identity alone proves nothing: see
    /// [`Break::RefusedHere`](crate::detector::Break::RefusedHere).
    pub fn own() -> Option<HostIdentity> {
        use std::os::unix::fs::MetadataExt as _;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let network = std::fs::metadata("/proc/self/ns/net").ok()?.ino();
        Some(HostIdentity(format!("{}/{network}", boot.trim())))
    }
}

impl ClusterIncarnation {
    /// A random incarnation.
    pub fn generate() -> ClusterIncarnation {
        ClusterIncarnation(format!("{:016x}", rand::random::<u64>()))
    }
}

/// The guard of a term's writes: `epoch` is still at this revision or version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochToken(pub u64);

/// The holder of a term: one start of a process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TermHolder {
    /// The process.
    pub process: ProcessId,
    /// Identifies this start: [`Member::incarnation`].
    pub start: String,
}

impl TermHolder {
    /// A new start of a process; different on each call.
    pub fn starting(process: ProcessId) -> TermHolder {
        TermHolder {
            process,
            start: random_start(),
        }
    }
}

impl fmt::Display for TermHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (start {})", self.process, self.start)
    }
}

/// A random id of one start of a process.
pub fn random_start() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// The value of the key `epoch`, written by the transaction that takes the epoch. Resigning rewrites it
/// unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// The youngest epoch.
    pub epoch: Epoch,
    /// The cluster's incarnation.
    pub incarnation: ClusterIncarnation,
    /// The holder of the epoch; `None`: it was accepted by hand, and no process leads in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<TermHolder>,
    /// The store in which it was taken; `None`: that store shows no identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreIdentity>,
}

/// The value of the key `leader`: written once a term, under the lease or session of the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderKey {
    /// The epoch that this process took.
    pub epoch: Epoch,
    /// The leading process.
    pub process: ProcessId,
    /// The lease or session of the key.
    pub nonce: Nonce,
}

/// The value of the key `leader-info`, published by a confirmed leader. Valid only for the epoch that it
/// names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderInformation {
    /// The term that it belongs to.
    pub epoch: Epoch,
    /// The leading process.
    pub process: ProcessId,
    /// Its addresses (`host:port`) by interface name (`rpc`, `rest`).
    pub addresses: BTreeMap<String, String>,
    /// Time of confirmation: milliseconds since 1970, by the leader's wall clock, for display.
    pub since_ms: u64,
}

/// The value of a key `members/<process>`: every process that contends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The process.
    pub process: ProcessId,
    /// Identifies this start of the process: [`TermHolder::start`].
    pub incarnation: String,
    /// Its addresses (`host:port`) by interface name (`rpc`, `rest`).
    pub addresses: BTreeMap<String, String>,
    /// The newest record format that it reads.
    pub reads_format: u16,
    /// Free text for display, such as the version.
    pub version: String,
    /// The host and network that it runs in, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostIdentity>,
    /// State of its cache when it last stood by; written rarely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<MemberCache>,
}

#[cfg(test)]
impl Member {
    /// A member with only its id set.
    pub(crate) fn named(process: &str) -> Member {
        Member {
            process: ProcessId::new(process),
            incarnation: "1".to_owned(),
            addresses: BTreeMap::new(),
            reads_format: 1,
            version: String::new(),
            host: None,
            cache: None,
        }
    }
}

/// A member's report of its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberCache {
    /// The transaction that the cache is at.
    pub change: Change,
    /// Number of records that it knows.
    pub records: usize,
    /// Bytes that they take.
    pub bytes: usize,
    /// Records that it found changed by hand in the store, since the process started.
    #[serde(default)]
    pub differed: u64,
}

/// A key `epoch` that can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// The parse error.
    pub reason: String,
    /// The key's token, which is known nevertheless.
    pub token: EpochToken,
}

/// The keys of an election at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ElectionView {
    /// The identity of the store that answered; `None` if it shows none.
    pub store: Option<StoreIdentity>,
    /// The key `epoch` and its token; `None` if no process ever led, or the store was wiped.
    pub epoch: Option<(EpochRecord, EpochToken)>,
    /// Set if the key `epoch` exists and can't be read because it was overwritten. Then `epoch` is `None`.
    pub unreadable: Option<Unreadable>,
    /// The key `leader`, if its lease or session is alive. In the embedded store: if the named process is
    /// alive.
    pub leader: Option<LeaderKey>,
    /// The key `leader-info`, as stored, whichever epoch it names.
    pub info: Option<LeaderInformation>,
    /// The store itself says that the holder resigned the term. False if only a moved token shows it.
    pub is_resigned: bool,
}

impl ElectionView {
    /// The token of `epoch`, readable or not; `None` if the key does not exist.
    pub fn token(&self) -> Option<EpochToken> {
        let readable = self.epoch.as_ref().map(|(_, token)| *token);
        readable.or(self.unreadable.as_ref().map(|why| why.token))
    }

    /// The youngest epoch, zero if there is none.
    pub fn youngest(&self) -> Epoch {
        self.epoch
            .as_ref()
            .map_or(Epoch::ZERO, |(record, _)| record.epoch)
    }

    /// The confirmed leader: information of the youngest epoch, while that term's `leader` is there.
    pub fn confirmed(&self) -> Option<&LeaderInformation> {
        let youngest = self.youngest();
        let leads = self
            .leader
            .as_ref()
            .is_some_and(|leader| leader.epoch == youngest);
        self.info
            .as_ref()
            .filter(|info| leads && info.epoch == youngest)
    }
}

/// This process's lease or session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SessionState {
    /// Not there yet, lost, or this process only observes.
    #[default]
    None,
    /// The store granted it.
    Alive {
        /// Identifies the lease or session.
        nonce: Nonce,
        /// Until when this process may treat it as valid: counted from *before* the last answered renewal was
        /// sent. `None`: the store can't take it away while the process is alive (embedded).
        deadline: Option<Moment>,
        /// The timeout that the store granted, which may be longer than requested.
        timeout: Duration,
    },
}

impl SessionState {
    /// The nonce of the living lease or session.
    pub fn nonce(&self) -> Option<&Nonce> {
        match self {
            SessionState::None => None,
            SessionState::Alive { nonce, .. } => Some(nonce),
        }
    }

    /// Whether this process may still treat it as valid at `now`.
    pub fn is_valid_at(&self, now: Moment) -> bool {
        match self {
            SessionState::None => false,
            SessionState::Alive { deadline, .. } => deadline.is_none_or(|deadline| now < deadline),
        }
    }
}

/// The store's answer to a guarded write.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "few exist at a time, each for one request to the store"
)]
pub enum Attempt {
    /// Applied; `epoch` has this token.
    Applied(EpochToken),
    /// Refused: a guard did not hold. This is the store's content.
    Refused(ElectionView),
}

/// The election part of a backend. Opened once a process, on its own connection.
#[async_trait]
pub trait ElectionDriver: Send + Sync + fmt::Debug + 'static {
    /// This process's lease or session. The driver keeps it alive and creates a new one when it is lost.
    fn session(&self) -> watch::Receiver<SessionState>;

    /// The content of the keys, watched across reconnects; `None` until first read. Only the latest value:
    /// values in between may be skipped. It may be arbitrarily late: a view from before a write of this
    /// process may arrive after that write's answer. It never goes back in one store: after a view, no older
    /// view follows.
    fn observed(&self) -> watch::Receiver<Option<ElectionView>>;

    /// Reads the keys: a linearizable read.
    async fn read(&self) -> Result<ElectionView>;

    /// Takes free leadership, or deposes: if `epoch` is as in `seen` (or absent, if it is absent there), sets
    /// it to `next` and `leader` to `leader` under this process's session, in one transaction. `SessionLost`
    /// if the session named by `leader.nonce` is gone.
    async fn advance(
        &self,
        seen: &ElectionView,
        next: &EpochRecord,
        leader: &LeaderKey,
    ) -> Result<Attempt>;

    /// Writes `leader` again under this process's newest session, if `epoch` is still at `token`: same term,
    /// same epoch.
    async fn attach(&self, token: EpochToken, leader: &LeaderKey) -> Result<Attempt>;

    /// Ends the term at `token`: deletes `leader` and rewrites `epoch` with the same number, so that its
    /// token moves and no late request of the term (including a late `attach`) can be applied.
    async fn resign(&self, token: EpochToken) -> Result<Attempt>;

    /// Makes this store the cluster's store: if `epoch` is as in `seen`, readable or not, sets it to `next`,
    /// which has a new incarnation, and deletes `leader`, in one transaction. After that no write fenced by
    /// the former incarnation is applied.
    async fn accept(&self, seen: &ElectionView, next: &EpochRecord) -> Result<Attempt>;

    /// Sets `leader-info`, if `epoch` is still at `token` and `leader` is there.
    async fn publish(&self, token: EpochToken, info: &LeaderInformation) -> Result<Attempt>;

    /// Keeps `members/<process>` under this process's session from this call on, also after each new session.
    async fn announce(&self, member: &Member) -> Result<()>;

    /// Every process that contends.
    async fn members(&self) -> Result<Vec<Member>>;

    /// Gives the lease or session back, so that no process waits for its timeout. Does not touch `leader`
    /// unless it is removed with the session.
    async fn close(&self);
}
