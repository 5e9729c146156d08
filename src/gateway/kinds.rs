//! The kinds of records that a cluster keeps in its coordination store: this is the list of them, with what each
//! holds, who writes it and how long it stays.
//!
//! To add a kind, declare it here and add it to [`ALL`]; every store is opened with that list. A kind that is not
//! in the list is refused by all stores. `tanist_ha::keys` lists the fixed keys (epoch, leader, members, changes).
//!
//! ```text
//! path                       owner                        lifetime and value
//! graphs/<job>               dispatcher: records          while the job runs: its graph; immutable
//! states/<job>               dispatcher: records          while the job runs: what a takeover must not lose
//! results/<job>              dispatcher: records          until it expires: terminal result, dirty until cleanup
//! descriptions/<job>         dispatcher: descriptions     as long as the result: all about an ended job; immutable
//! chunks/<set>.<n>           ha: records                  as long as its record: a part of it; immutable
//! tombstones/<object>        dispatcher: orphan_gc        until the blob is deleted
//! storages/<storage>         dispatcher: storage          forever: a blob storage, and the leaders that confirmed it
//! history/<epoch>            leadership: history          the last 100 terms: who led, how it began and ended
//! applications/<cluster-id>  leadership: application      until the cluster is removed: status of its application
//! workers/<worker>           resource_manager: workers    while the worker is wanted or may live
//! drains/<digest>            resource_manager: drains     until it is lifted: a TaskManager or host that gets no work
//! ```

use tanist_ha::keys::{Kind, Kinds};
pub use tanist_ha::records::CHUNKS;

/// Graphs of jobs that have not ended.
pub const GRAPHS: Kind = Kind::new("graphs");
/// States of jobs that have not ended.
pub const STATES: Kind = Kind::new("states");
/// Terminal results.
pub const RESULTS: Kind = Kind::new("results");
/// Descriptions of jobs that have ended.
pub const DESCRIPTIONS: Kind = Kind::new("descriptions");
/// Blobs that are about to be deleted.
pub const BLOB_TOMBSTONES: Kind = Kind::new("tombstones");
/// Blob storages.
pub const STORAGES: Kind = Kind::new("storages");
/// One record a term.
pub const HISTORY: Kind = Kind::new("history");
/// The application that owns this cluster.
pub const APPLICATIONS: Kind = Kind::new("applications");
/// Workers that a driver has started or will start.
pub const WORKERS: Kind = Kind::new("workers");
/// TaskManagers and hosts that are drained.
pub const DRAINS: Kind = Kind::new("drains");

/// What every store of a cluster is opened with: these kinds and those of `tanist-ha`.
pub const ALL: Kinds = Kinds::new(&[
    GRAPHS,
    STATES,
    RESULTS,
    DESCRIPTIONS,
    BLOB_TOMBSTONES,
    STORAGES,
    HISTORY,
    APPLICATIONS,
    WORKERS,
    DRAINS,
]);
