//! What an election needs from a store: the values it keeps there, and the few guarded transactions on them.
//!
//! A driver makes single attempts and decides nothing. Who takes, deposes, re-attaches or resigns, and what an
//! ambiguous answer means, is the election's core ([`super::core`]). Every method may be called at any time and
//! concurrently. The guard of every write is the *token* of the persistent key `epoch`: its modification revision in
//! etcd, its data version in ZooKeeper, the number itself in the embedded store.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::clock::Moment;
use crate::error::Result;
use crate::store::Change;

/// The fencing token of a term: only grows, taken from the store. Zero: nobody ever led.
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
            /// Wraps the text as it is.
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
    /// What tells one lease or session from every other one, of this process or another.
    Nonce
}
text_id! {
    /// One running kernel and one network in it: two processes that show the same reach each other without anything between,
    /// unless their hosts are copies of one that was running.
    HostIdentity
}
text_id! {
    /// The identity of the cluster's data: created with `epoch`, gone when the store is wiped.
    ClusterIncarnation
}

text_id! {
    /// What tells one store from another one that holds the same: a copy or a restore of it shows another identity, as the store
    /// itself tells it. Not every store has one.
    StoreIdentity
}

impl HostIdentity {
    /// That of this process: the boot id and the inode of its network namespace. Nothing if the host does not tell: then
    /// it is nobody else's either.
    ///
    /// The kernel draws the boot id anew at each boot; the machine id, which copies of a disk share, is not looked at. A virtual
    /// machine that is resumed twice from one image of its memory shows one boot id twice. So the same identity alone proves
    /// nothing: see [`Break::RefusedHere`](crate::detector::Break::RefusedHere).
    pub fn own() -> Option<HostIdentity> {
        use std::os::unix::fs::MetadataExt as _;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let network = std::fs::metadata("/proc/self/ns/net").ok()?.ino();
        Some(HostIdentity(format!("{}/{network}", boot.trim())))
    }
}

impl ClusterIncarnation {
    /// A random one.
    pub fn generate() -> ClusterIncarnation {
        ClusterIncarnation(format!("{:016x}", rand::random::<u64>()))
    }
}

/// The guard of a term's writes: `epoch` is still at this revision or version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EpochToken(pub u64);

/// Who holds a term: one start of a process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TermHolder {
    /// The process.
    pub process: ProcessId,
    /// Tells this start of it from every other one: [`Member::incarnation`].
    pub start: String,
}

impl TermHolder {
    /// This start of a process: another one each time.
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

/// What tells one start of a process from every other one.
pub fn random_start() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// The value of the key `epoch`, written by the transaction that takes the epoch. Resigning writes it again as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// The youngest epoch.
    pub epoch: Epoch,
    /// The cluster's incarnation.
    pub incarnation: ClusterIncarnation,
    /// Who took the epoch; `None`: it was accepted by hand, and nobody leads in it.
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
    /// Who.
    pub process: ProcessId,
    /// Under which lease or session.
    pub nonce: Nonce,
}

/// The value of the key `leader-info`: what a confirmed leader publishes. Valid only for the epoch that it names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderInformation {
    /// The term that it belongs to.
    pub epoch: Epoch,
    /// The leading process.
    pub process: ProcessId,
    /// Where it is reached, by name of the interface (`rpc`, `rest`): `host:port`.
    pub addresses: BTreeMap<String, String>,
    /// When it was confirmed: milliseconds since 1970, by the leader's wall clock, for people.
    pub since_ms: u64,
}

/// The value of a key `members/<process>`: every process that contends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Who.
    pub process: ProcessId,
    /// Tells this start of the process from earlier ones: [`TermHolder::start`].
    pub incarnation: String,
    /// Where it is reached, by name of the interface (`rpc`, `rest`): `host:port`.
    pub addresses: BTreeMap<String, String>,
    /// The newest record format that it reads.
    pub reads_format: u16,
    /// Free text for people: version and the like.
    pub version: String,
    /// The host and network that it runs in, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostIdentity>,
    /// How far its cache was when it last stood by; written seldom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<MemberCache>,
}

#[cfg(test)]
impl Member {
    /// One that says no more than who it is.
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

/// What a member says of its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberCache {
    /// The transaction that it stood at.
    pub change: Change,
    /// Records that it knew.
    pub records: usize,
    /// Bytes that they took.
    pub bytes: usize,
    /// Records that it found changed in the store by hand, since the process began.
    #[serde(default)]
    pub differed: u64,
}

/// A key `epoch` that can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Why.
    pub reason: String,
    /// Where the key stands all the same.
    pub token: EpochToken,
}

/// The keys of an election at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ElectionView {
    /// The identity of the store that answered; `None` if it shows none.
    pub store: Option<StoreIdentity>,
    /// The key `epoch` and its token; `None` if nobody ever led, or the store was wiped.
    pub epoch: Option<(EpochRecord, EpochToken)>,
    /// The key `epoch` is there and can't be read, as somebody has overwritten it. Then `epoch` is none.
    pub unreadable: Option<Unreadable>,
    /// The key `leader`, if its lease or session lives. In the embedded store: if the named process lives.
    pub leader: Option<LeaderKey>,
    /// The key `leader-info`, as stored, whichever epoch it names.
    pub info: Option<LeaderInformation>,
    /// The term's holder has given it up, by the store's own word. False where only its token tells that, by having moved.
    pub given_up: bool,
}

impl ElectionView {
    /// Where `epoch` stands, readable or not; `None` if it is not there.
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
    /// None: not there yet, lost, or this process only observes.
    #[default]
    None,
    /// The store granted it.
    Alive {
        /// Tells it from every other.
        nonce: Nonce,
        /// Until when this process may believe in it: counted from *before* the last answered renewal was sent.
        /// `None`: the store can't take it away while the process lives (embedded).
        deadline: Option<Moment>,
        /// What the store granted, which may be more than was asked for.
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

    /// Whether this process may still believe in it at `now`.
    pub fn is_believed_at(&self, now: Moment) -> bool {
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
    /// Refused: a guard did not hold. This is what the store holds.
    Refused(ElectionView),
}

/// The election's half of a backend. Opened once a process, on a connection of its own.
#[async_trait]
pub trait ElectionDriver: Send + Sync + fmt::Debug + 'static {
    /// This process's lease or session, kept alive by the driver, established anew when lost.
    fn session(&self) -> watch::Receiver<SessionState>;

    /// What the keys hold, followed through every reconnect; `None` until first read. A level, not a history: values
    /// in between may be skipped. It may be late by any time: also a view of before a write of this process may come after that
    /// write's answer. It never goes back in one store: once a view was told, none that is older is.
    fn observed(&self) -> watch::Receiver<Option<ElectionView>>;

    /// What the keys hold: a linearizable read.
    async fn read(&self) -> Result<ElectionView>;

    /// Takes free leadership, or deposes: if `epoch` is as in `seen` (or absent, if it is absent there), sets it to
    /// `next` and `leader` to `leader` under this process's session, in one transaction. `SessionLost` if the session
    /// named by `leader.nonce` is gone.
    async fn advance(
        &self,
        seen: &ElectionView,
        next: &EpochRecord,
        leader: &LeaderKey,
    ) -> Result<Attempt>;

    /// Puts `leader` again under this process's newest session, if `epoch` is still at `token`: same term, same epoch.
    async fn attach(&self, token: EpochToken, leader: &LeaderKey) -> Result<Attempt>;

    /// Ends the term at `token`: deletes `leader` and rewrites `epoch` with the same number, so that its token moves
    /// and no late request of the term (also no late `attach`) can be applied any more.
    async fn resign(&self, token: EpochToken) -> Result<Attempt>;

    /// Makes this store the cluster's: if `epoch` is as in `seen`, readable or not, sets it to `next`, whose incarnation is another
    /// one, and deletes `leader`, in one transaction. Whatever is fenced by the former incarnation can't be written any more.
    async fn accept(&self, seen: &ElectionView, next: &EpochRecord) -> Result<Attempt>;

    /// Sets `leader-info`, if `epoch` is still at `token` and `leader` is there.
    async fn publish(&self, token: EpochToken, info: &LeaderInformation) -> Result<Attempt>;

    /// Keeps `members/<process>` under this process's session from now on, again after each new session.
    async fn announce(&self, member: &Member) -> Result<()>;

    /// Every process that contends.
    async fn members(&self) -> Result<Vec<Member>>;

    /// Gives the lease or session back, so that nobody waits for its end. `leader` is not touched unless it goes with
    /// the session.
    async fn close(&self);
}
