//! Opens the configured high-availability backend: the election, the records and the blobs.
//!
//! A store that can't be reached, or that denies access, is logged once per change of reason and tried again
//! with backoff for the life of the process: it may come back, or its password may be corrected. Only
//! contenders create an embedded store: a client or TaskManager with a wrong directory would leave a store
//! there, or one that is owned by the wrong user.

mod directories;

use std::sync::Arc;
use std::time::Duration;

use tanist_config::{BackendOptions, HaOptions, MemorySize, StorageLocation, StorageOptions};
use tanist_gateway::kinds;
use tanist_ha::blob::{BlobOptions, BlobStore};
use tanist_ha::clock::Clock;
use tanist_ha::election::core::Timing;
use tanist_ha::election::{
    ElectionDriver, ElectionOptions, LeaderElection, ProcessId, random_start,
};
use tanist_ha::records::store::RecordStore;
use tanist_ha::retry::Backoff;
use tanist_ha::store::CoordinationStore;
use tanist_ha::{Error, Result, embedded, etcd, zookeeper};
use tokio::sync::watch;
use tracing::{info, warn};

pub use directories::{DirectoryError, check_directories, make_directory};

const FIRST_RETRY: Duration = Duration::from_millis(200);
const SLOWEST_RETRY: Duration = Duration::from_secs(5);
/// Pauses between two checks for contenders.
const FIRST_POLL: Duration = Duration::from_millis(10);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Options of the configured backend.
#[derive(Debug, Clone)]
pub enum Backend {
    /// etcd.
    Etcd(etcd::EtcdOptions),
    /// ZooKeeper.
    ZooKeeper(zookeeper::ZooKeeperOptions),
    /// SQLite in a local directory.
    Embedded(embedded::EmbeddedOptions),
}

impl Backend {
    /// The configured backend.
    pub fn of(options: &HaOptions) -> Backend {
        let namespace =
            |root: &str| format!("{}/{}", root.trim_end_matches('/'), options.cluster_id);
        let pair = |auth: &Option<tanist_config::UserPassword>| {
            auth.as_ref()
                .map(|auth| (auth.user.clone(), auth.password.reveal().to_owned()))
        };
        match &options.backend {
            BackendOptions::Etcd(etcd) => Backend::Etcd(etcd::EtcdOptions {
                endpoints: etcd.endpoints.iter().map(ToString::to_string).collect(),
                namespace: namespace(&etcd.root),
                user: pair(&etcd.auth),
                lease_ttl: etcd.lease_ttl,
                request_timeout: etcd.request_timeout,
                quota_bytes: etcd.quota.map(MemorySize::bytes),
            }),
            BackendOptions::Zookeeper(zookeeper) => {
                let quorum = zookeeper.quorum.iter().map(ToString::to_string).collect();
                let defaults = zookeeper::ZooKeeperOptions::new(quorum, namespace(&zookeeper.root));
                Backend::ZooKeeper(zookeeper::ZooKeeperOptions {
                    digest: pair(&zookeeper.auth),
                    session_timeout: zookeeper.session_timeout,
                    connect_timeout: zookeeper.connection_timeout,
                    ..defaults
                })
            }
            BackendOptions::Embedded(embedded) => {
                Backend::Embedded(embedded::EmbeddedOptions::new(
                    embedded.directory.join(options.cluster_id.as_str()),
                ))
            }
        }
    }

    /// Its name in configuration and REST.
    pub fn name(&self) -> &'static str {
        match self {
            Backend::Etcd(_) => "etcd",
            Backend::ZooKeeper(_) => "zookeeper",
            Backend::Embedded(_) => "embedded",
        }
    }

    /// The names of the options that say where the store is.
    pub fn options_of_place(&self) -> &'static str {
        match self {
            Backend::Etcd(_) => "high-availability.etcd.endpoints",
            Backend::ZooKeeper(_) => "high-availability.zookeeper.quorum",
            Backend::Embedded(_) => {
                "high-availability.embedded.dir and high-availability.cluster-id"
            }
        }
    }

    /// Opens the election's keys on the current runtime. `contends`: with a lease or session; also creates an
    /// embedded store.
    pub async fn open_driver(
        self,
        process: ProcessId,
        contends: bool,
    ) -> Result<Arc<dyn ElectionDriver>> {
        let clock = Clock::Boottime;
        Ok(match self {
            Backend::Etcd(options) => {
                Arc::new(etcd::open_election(options, clock, contends).await?)
            }
            Backend::ZooKeeper(options) => {
                Arc::new(zookeeper::open_election(options, clock, contends).await?)
            }
            Backend::Embedded(options) => {
                if !contends {
                    options.check_made()?;
                }
                Arc::new(embedded::open_election(options, process, contends, clock).await?)
            }
        })
    }

    async fn open_store(self) -> Result<Arc<dyn CoordinationStore>> {
        Ok(match self {
            Backend::Etcd(options) => Arc::new(etcd::open_store(options, kinds::ALL).await?),
            Backend::ZooKeeper(options) => {
                Arc::new(zookeeper::open_store(options, kinds::ALL).await?)
            }
            Backend::Embedded(options) => {
                Arc::new(embedded::open_store(options, kinds::ALL).await?)
            }
        })
    }
}

/// What a contending process uses.
#[derive(Debug, Clone)]
pub struct HaServices {
    /// The election; runs on a thread and a connection of its own.
    pub election: LeaderElection,
    /// The records, on another connection.
    pub store: Arc<dyn CoordinationStore>,
    /// Large objects, if a storage directory is configured.
    pub blobs: Option<Arc<BlobStore>>,
}

/// Whether the store may exist. An embedded store whose directory was removed would still answer a process that
/// has it open, and be created again by one that opens it.
pub fn is_there(options: &HaOptions) -> bool {
    match &options.backend {
        BackendOptions::Embedded(embedded) => {
            let directory = embedded.directory.join(options.cluster_id.as_str());
            directory.exists()
        }
        BackendOptions::Etcd(_) | BackendOptions::Zookeeper(_) => true,
    }
}

/// Creates an embedded store for a cluster, where a process waits for the store before the first JobManager is
/// started.
#[cfg(feature = "testing")]
pub async fn make_store(options: &HaOptions) -> Result<()> {
    match Backend::of(options) {
        Backend::Embedded(options) => embedded::open_store(options, kinds::ALL).await.map(drop),
        Backend::Etcd(_) | Backend::ZooKeeper(_) => Ok(()),
    }
}

/// Opens the records read-only. One attempt.
pub async fn open_records(options: &HaOptions) -> Result<RecordStore> {
    let backend = Backend::of(options);
    if let Backend::Embedded(embedded) = &backend {
        embedded.check_made()?;
    }
    let store = backend.open_store().await?;
    let blobs = match &options.storage {
        Some(storage) => Some(Arc::new(open_blobs(storage).await?)),
        None => None,
    };
    Ok(RecordStore::new(store, blobs, 0))
}

/// Removes everything that the servers of a store have of a cluster that has ended for good and has no users
/// any more.
pub async fn remove_cluster(options: &HaOptions) -> Result<()> {
    match Backend::of(options) {
        Backend::Etcd(options) => etcd::remove_cluster(options).await,
        Backend::ZooKeeper(options) => zookeeper::remove_cluster(options).await,
        Backend::Embedded(_) => Err(Error::Misconfigured(
            "an embedded store has no servers: remove its directory".into(),
        )),
    }
}

/// Waits, for at most `timeout`, until no JobManager contends for the cluster any more. Returns whether that
/// is so.
pub async fn until_no_contender(options: &HaOptions, timeout: Duration) -> Result<bool> {
    let process = ProcessId::new("observer");
    let driver = Backend::of(options).open_driver(process, false).await?;
    let waiting = async {
        let mut backoff = Backoff::new(FIRST_POLL, MAX_POLL_INTERVAL);
        while !driver.members().await?.is_empty() {
            tokio::time::sleep(backoff.next_delay()).await;
        }
        Ok(true)
    };
    let waited = tokio::time::timeout(timeout, waiting).await;
    driver.close().await;
    waited.unwrap_or(Ok(false))
}

async fn open_blobs(storage: &StorageOptions) -> Result<BlobStore> {
    let options = BlobOptions {
        url: match &storage.location {
            StorageLocation::Directory(path) => path.to_string_lossy().into_owned(),
            StorageLocation::S3(url) => url.clone(),
        },
        shared: storage.shared,
    };
    BlobStore::open(&options).await
}

/// Opens everything for a JobManager. Retries until it succeeds.
pub async fn open(options: &HaOptions, process: &ProcessId) -> HaServices {
    let backend = Backend::of(options);
    let backoff = || Backoff::new(FIRST_RETRY, SLOWEST_RETRY);
    let blobs = match &options.storage {
        Some(storage) => {
            let opening = retry_open("the blob store", backoff(), warn_only, || {
                open_blobs(storage)
            });
            Some(Arc::new(opening.await))
        }
        None => None,
    };
    let store = retry_open("the store's records", backoff(), warn_only, || {
        backend.clone().open_store()
    });
    let store = store.await;
    let start = random_start();
    let election = retry_open("the store's election", backoff(), warn_only, || {
        let election = ElectionOptions {
            process: process.clone(),
            start: start.clone(),
            timing: Timing {
                suspended_hold_off: options.detector.hold_off_timeout,
                no_contact_hold_off: options.detector.silence_timeout
                    + options.detector.inquiry_timeout,
                // The detector deposes the earlier start, when that one answers no more.
                deposes_earlier_self: false,
                ..Timing::default()
            },
            clock: Clock::Boottime,
        };
        let (backend, process) = (backend.clone(), process.clone());
        LeaderElection::start_on_thread(election, move || backend.open_driver(process, true))
    })
    .await;
    info!(store = backend.name(), %process, "connected to the store");
    HaServices {
        election,
        store,
        blobs,
    }
}

/// Opens the election's keys for watching only. Retries until it succeeds, and reports in `waits` the reason of
/// the last failure.
pub async fn observe(
    options: &HaOptions,
    process: &ProcessId,
    waits: &watch::Sender<Option<String>>,
) -> Arc<dyn ElectionDriver> {
    let backend = Backend::of(options);
    let backoff = match backend {
        // Looking at a directory is cheap, and the JobManager that creates the store may be starting right
        // then.
        Backend::Embedded(_) => Backoff::new(FIRST_POLL, MAX_POLL_INTERVAL),
        Backend::Etcd(_) | Backend::ZooKeeper(_) => Backoff::new(FIRST_RETRY, SLOWEST_RETRY),
    };
    let place = backend.options_of_place();
    let report = |reason: &str| {
        waits.send_replace(Some(format!("{reason} (see {place})")));
    };
    let driver = retry_open("the store", backoff, report, || {
        backend.clone().open_driver(process.clone(), false)
    });
    let driver = driver.await;
    waits.send_replace(None);
    driver
}

/// The place of an embedded store that no JobManager has created yet, for display; `None` if it exists, or is
/// another kind of store.
pub fn unmade(options: &HaOptions) -> Option<String> {
    let Backend::Embedded(embedded) = Backend::of(options) else {
        return None;
    };
    embedded.check_made().err()?;
    let place = embedded.dir.display();
    Some(match embedded.dir.exists() {
        true => format!("{place} has no store"),
        false => format!("there is no {place}"),
    })
}

/// For callers that only need the log.
fn warn_only(_reason: &str) {}

async fn retry_open<T, F>(
    what: &str,
    mut backoff: Backoff,
    report: impl Fn(&str),
    mut open: impl FnMut() -> F,
) -> T
where
    F: Future<Output = Result<T>>,
{
    let mut last_logged = String::new();
    loop {
        let error: Error = match open().await {
            Ok(opened) => return opened,
            Err(error) => error,
        };
        let reason = error.to_string();
        if reason != last_logged {
            warn!(%reason, "{what} can't be opened: retrying");
            report(&reason);
            last_logged = reason;
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}
