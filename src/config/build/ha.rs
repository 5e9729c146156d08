//! Builds the options of the store of leadership and jobs, and checks the order of timeouts on which failure detection
//! and handover rely.

use std::time::Duration;

use super::super::address::StorageLocation;
use super::super::options::*;
use super::super::table::*;
use super::super::value::{MemorySize, show_duration};
use super::Builder;
use super::stores::Store;

/// Well below the largest record of every store (ZooKeeper: 900 KB in one transaction).
const LARGEST_INLINE_THRESHOLD: MemorySize = MemorySize::of_kb(512);

/// The largest size of a record.
const LARGEST_GRAPH: MemorySize = MemorySize::of_kb(64 * 1024);

impl Builder<'_> {
    pub(super) fn ha(&mut self) -> HaOptions {
        let values = self.values;
        let store = self.store();
        let of_store = store.blobs.clone().map(|directory| StorageOptions {
            location: StorageLocation::Directory(directory),
            shared: true,
        });
        let configured = values.find(&HA_STORAGE_DIR);
        let storage = configured
            .map(|it| self.storage_at(it, &store))
            .or(of_store);
        let declared_shared = values.get(&HA_STORAGE_SHARED);
        let checkpoint_storage = self.checkpoint_storage(storage.as_ref(), &store);
        self.require(
            !declared_shared || storage.is_some(),
            &[HA_STORAGE_SHARED.name, HA_STORAGE_DIR.name],
            || "write the directory that is shared".to_owned(),
        );
        let inline_threshold = values.get(&HA_INLINE_THRESHOLD);
        self.require(
            (MemorySize::of_kb(1)..=LARGEST_INLINE_THRESHOLD).contains(&inline_threshold),
            &[HA_INLINE_THRESHOLD.name],
            || format!("write `1 kb` to `{LARGEST_INLINE_THRESHOLD}`: stores bound their records"),
        );
        let max_graph_size = values.get(&HA_MAX_GRAPH_SIZE);
        self.require(
            max_graph_size <= LARGEST_GRAPH,
            &[HA_MAX_GRAPH_SIZE.name],
            || format!("write at most `{LARGEST_GRAPH}`, or set a blob store: every key is in the store's memory"),
        );
        let blob_orphan_grace = self.kept_for_retries(&BLOB_ORPHAN_GRACE);
        let cluster_id = values.get(&HA_CLUSTER_ID);
        let detector = self.detector(&store);
        let transfer_timeout = self.transfer_timeout();
        let stall_timeout = self.stall_timeout(&store);
        HaOptions {
            cluster_id,
            backend: store.backend,
            place: store.place,
            storage,
            checkpoint_storage,
            detector,
            transfer_timeout,
            stall_timeout,
            inline_threshold,
            standby_cache_max_size: values.get(&HA_STANDBY_CACHE_MAX_SIZE),
            standby_cache_check_interval: values.get(&HA_STANDBY_CACHE_CHECK_INTERVAL),
            max_graph_size,
            blob_orphan_grace,
        }
    }

    /// The storage at a configured location. With a store in a directory all processes are on one host, so they share
    /// any other directory, too.
    fn storage_at(&self, location: StorageLocation, store: &Store) -> StorageOptions {
        let one_host = store.backend.directory().is_some();
        let bucket = matches!(location, StorageLocation::S3(_));
        StorageOptions {
            location,
            shared: one_host || bucket || self.values.get(&HA_STORAGE_SHARED),
        }
    }

    /// The place of the objects of checkpoints, if it is not that of other objects.
    fn checkpoint_storage(
        &mut self,
        storage: Option<&StorageOptions>,
        store: &Store,
    ) -> Option<StorageOptions> {
        let location = self.values.find(&CHECKPOINTS_DIR)?;
        self.require(
            storage.is_some(),
            &[CHECKPOINTS_DIR.name, HA_STORAGE_DIR.name],
            || "write the directory of the other objects too".to_owned(),
        );
        let is_another = storage.is_some_and(|storage| storage.location != location);
        is_another.then(|| self.storage_at(location, store))
    }

    /// Checks that the handover ends before the shutdown timeout: a process that shuts down hands over first,
    /// and is killed when its time is over.
    fn transfer_timeout(&mut self) -> Duration {
        let transfer_timeout = self.positive(&TRANSFER_TIMEOUT);
        let shutdown_timeout = self.values.get(&SHUTDOWN_TIMEOUT);
        let keys = [TRANSFER_TIMEOUT.name, SHUTDOWN_TIMEOUT.name];
        self.require(transfer_timeout < shutdown_timeout, &keys, || {
            let least = show_duration(transfer_timeout.saturating_mul(2));
            format!(
                "a leader hands over before its process is ended: write `{}: {least}` or more",
                keys[1]
            )
        });
        transfer_timeout
    }

    fn stall_timeout(&mut self, store: &Store) -> Duration {
        let stall_timeout = self.positive(&STALL_TIMEOUT);
        let ask_timeout = self.values.get(&RPC_ASK_TIMEOUT);
        let keys = [STALL_TIMEOUT.name, RPC_ASK_TIMEOUT.name];
        self.require(stall_timeout > ask_timeout, &keys, || {
            let least = show_duration(ask_timeout.saturating_mul(2));
            format!(
                "one slow answer must not count as a stall: write `{}: {least}` or more",
                keys[0]
            )
        });
        if let Some((key, lease)) = store.lease() {
            let keys = [STALL_TIMEOUT.name, key.name];
            self.require(stall_timeout > lease, &keys, || {
                let least = show_duration(lease.saturating_mul(2));
                format!(
                    "the lease of a leader in trouble must end before it counts as stalled: write `{}: {least}` or more",
                    keys[0]
                )
            });
        }
        stall_timeout
    }

    fn detector(&mut self, store: &Store) -> DetectorOptions {
        let heartbeat_interval = self.positive(&DETECTOR_HEARTBEAT_INTERVAL);
        let silence_timeout = self.positive(&DETECTOR_SILENCE_TIMEOUT);
        let inquiry_timeout = self.positive(&DETECTOR_INQUIRY_TIMEOUT);
        let keys = [
            DETECTOR_SILENCE_TIMEOUT.name,
            DETECTOR_HEARTBEAT_INTERVAL.name,
        ];
        let three_intervals = heartbeat_interval.saturating_mul(3);
        self.require(silence_timeout >= three_intervals, &keys, || {
            let least = show_duration(three_intervals);
            format!(
                "two lost heartbeats must not count as silence: write at least `{}: {least}`",
                keys[0]
            )
        });
        let keys = [
            DETECTOR_INQUIRY_TIMEOUT.name,
            DETECTOR_HEARTBEAT_INTERVAL.name,
        ];
        let two_intervals = heartbeat_interval.saturating_mul(2);
        self.require(inquiry_timeout >= two_intervals, &keys, || {
            let least = show_duration(two_intervals);
            format!(
                "the process that is asked waits for a heartbeat: write at least `{}: {least}`",
                keys[0]
            )
        });
        let lease = store.lease();
        let lost = self.values.get(&HEARTBEAT_TIMEOUT);
        let keys = [
            DETECTOR_SILENCE_TIMEOUT.name,
            DETECTOR_INQUIRY_TIMEOUT.name,
            HEARTBEAT_TIMEOUT.name,
        ];
        let fits = silence_timeout.saturating_add(inquiry_timeout) < lost;
        self.require(fits, &keys, || {
            "a silent leader must be detected before TaskManagers count as lost: the sum of the first two must be below the last"
                .to_owned()
        });
        if let Some((key, lease)) = lease {
            let keys = [DETECTOR_SILENCE_TIMEOUT.name, key.name];
            self.require(silence_timeout < lease, &keys, || {
                "silence must be noticed before the lease or session ends".to_owned()
            });
        }
        let failover = self.values.get(&TM_FAILOVER_TIMEOUT);
        if let Some((key, lease)) = lease {
            let keys = [key.name, TM_FAILOVER_TIMEOUT.name];
            self.require(lease < failover, &keys, || {
                "tasks must outlast the lease of a leader that died: the first must be below the second"
                    .to_owned()
            });
        }
        let least = Duration::from_secs(10);
        let derived = lease.map_or(least, |(_, lease)| lease.max(least));
        let hold_off_timeout = self.values.find(&DETECTOR_HOLD_OFF).unwrap_or(derived);
        let keys = [DETECTOR_HOLD_OFF.name, TM_FAILOVER_TIMEOUT.name];
        self.require(hold_off_timeout < failover, &keys, || {
            "tasks must outlast the wait for their leader: the first must be below the second"
                .to_owned()
        });
        DetectorOptions {
            heartbeat_interval,
            silence_timeout,
            inquiry_timeout,
            hold_off_timeout,
        }
    }
}
