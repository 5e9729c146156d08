//! Leader election with fencing tokens, and fenced record stores, on etcd, ZooKeeper or SQLite.
//!
//! Several processes contend for leadership. The elected process gets a
//! [`LeaderSession`](election::LeaderSession): one term, with an epoch that the store counts. Every write of
//! a term goes through one [`CommitPipeline`](store::pipeline::CommitPipeline) and carries the term's fence,
//! so the store itself refuses it as soon as a younger term exists. This crate is not a lock service and not
//! a queue of contenders. The caller, or a [`Detector`](detector::Detector) that watches the leader, decides
//! *when* to replace a leader before its lease ends;
//! [`LeaderElection::depose`](election::LeaderElection::depose) carries it out.
//!
//! # Guarantees
//!
//! - An epoch is granted to at most one process, and epochs only grow.
//! - After a younger term began, no write of an older term is applied. It does not matter how the older
//!   leader lost its leadership, how late the request arrives, or what its process believes. No clock is
//!   involved.
//! - A term is over only when the process's own store says so, or when it resigns. A store outage, however
//!   long, suspends a term and does not end it: the same process continues in the same epoch.
//! - A transaction is applied as a whole and at most once, although it is sent until the answer is definite.
//!   A caller gets "not applied" only if that is certain.
//! - Transactions of all terms are numbered without gaps. A [`ChangeFeed`](store::feed::ChangeFeed) delivers
//!   each one once and in order, or reports that it missed some.
//! - A store that was wiped, restored or copied is refused with an error, as far as the store shows an
//!   identity.
//! - An epoch in a message proves nothing. It counts once the process's own store shows it.
//!
//! One conformance suite (`tests/conformance.rs`) checks these guarantees for every backend, against real
//! servers.
//!
//! # Example
//!
//! Two processes on the memory backend. With a real store, [`services::open`] opens a
//! [`Backend`](backend::Backend), and runs the election on a thread of its own, so that no other work of the process
//! delays lease renewal; the rest is the same.
//!
//! ```
//! use std::sync::Arc;
//!
//! use bytes::Bytes;
//! use tanist_ha::clock::Clock;
//! use tanist_ha::election::core::Timing;
//! use tanist_ha::election::{ElectionOptions, LeaderElection, LeaderSession, Leadership, ProcessId, random_start};
//! use tanist_ha::keys::{Key, Kind, Name};
//! use tanist_ha::memory::MemoryCluster;
//! use tanist_ha::store::pipeline::CommitPipeline;
//! use tanist_ha::store::{CoordinationStore as _, Write};
//!
//! // What this program stores. Real stores are opened with the list of all kinds.
//! const ITEMS: Kind = Kind::new("items");
//!
//! fn contend(cluster: &MemoryCluster, name: &str) -> LeaderElection {
//!     let (process, clock) = (ProcessId::new(name), Clock::Boottime);
//!     let driver = Arc::new(cluster.election(process.clone(), clock));
//!     let timing = Timing::default();
//!     LeaderElection::start(driver, ElectionOptions { process, start: random_start(), timing, clock })
//! }
//!
//! async fn leads(election: &LeaderElection) -> LeaderSession {
//!     let mut leadership = election.leadership();
//!     let granted = leadership.wait_for(|now| matches!(now, Leadership::Granted(_))).await;
//!     let granted = granted.expect("the election runs");
//!     granted.session().expect("granted").clone()
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = MemoryCluster::default();
//! let a = contend(&cluster, "a");
//! let first = leads(&a).await;
//!
//! // Every write of the term goes through one pipeline.
//! let store = Arc::new(cluster.store());
//! let pipeline = CommitPipeline::start(store.clone(), first.clone()).await?;
//! let item = Key::new(ITEMS, Name::new("item-1")?);
//! let write = |value| Write::Put { key: item.clone(), value: Bytes::from_static(value) };
//! let change = pipeline.commit(vec![write(b"running")]).await?;
//! assert_eq!((change.number, change.epoch), (1, first.epoch()));
//!
//! // Another process concludes that `a` is gone, and leads instead.
//! let b = contend(&cluster, "b");
//! b.depose(first.epoch()).await?;
//! let second = leads(&b).await;
//! assert_eq!(second.epoch(), first.epoch().next());
//!
//! // `a` was alive after all. Its term is over, and the store refuses its late writes.
//! first.over().await;
//! assert!(pipeline.commit(vec![write(b"finished")]).await.is_err());
//! assert_eq!(store.get(&[item]).await?, [Some(Bytes::from_static(b"running"))]);
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! | Module | What it is |
//! |---|---|
//! | [`election`] | contend, depose, confirm, resign; the term as a value; the trait that a backend implements |
//! | [`detector`] | watches heartbeats, asks other processes, deposes on evidence; hands over by invitation |
//! | [`store`] | records: read, list, watch; the commit pipeline with its fence |
//! | [`records`], [`blob`] | typed records with format versions; objects that are too large for a coordination store |
//! | [`backend`] | what a backend is, as one trait; each store implements it in its folder |
//! | `etcd`, `zookeeper`, `embedded`, [`memory`] | the backends |
//! | [`services`] | opens a backend with retries: election, records and blobs of a process |
//! | [`keys`] | the keys in a coordination store: fixed ones, and kinds of items that the user declares |
//! | [`retrieval`] | a watch of the current leader, for processes that do not contend |
//! | [`error`] | errors of a store, and what a caller may conclude from each |
//! | [`ask`], [`clock`], [`retry`] | requests to an actor; clocks; delays between retries |
//! | [`own_directory`] | directories that only this user may change |
//! | [`failpoint`] | named places where a test kills or holds the process |
//!
//! # Features
//!
//! | Feature | Default | What it adds |
//! |---|---|---|
//! | `etcd` | yes | the backend for etcd 3.4 or newer |
//! | `zookeeper` | yes | the backend for ZooKeeper 3.5 or newer |
//! | `embedded` | yes | the backend for processes on one host: SQLite in a directory |
//! | `s3` | no | blobs in S3, besides those in a directory |
//! | `testing` | no | real servers, proxies and faults for tests, and the conformance suite; enables all backends |
//! | `failpoints` | no | named places where tests kill or hold the process; does not compile in a release build |
//! | `failpoints-in-release` | no | the same in a release build; for benchmarks only |

pub mod ask;
pub mod backend;
pub mod blob;
pub mod clock;
pub mod detector;
pub mod election;
#[cfg(feature = "embedded")]
pub mod embedded;
pub mod error;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod failpoint;
pub mod keys;
pub mod memory;
pub mod own_directory;
pub mod records;
pub mod retrieval;
pub mod retry;
pub mod services;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use error::{Error, Outcome, Result};
