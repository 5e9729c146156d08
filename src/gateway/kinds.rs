//! The list of the kinds of records that a cluster keeps in its coordination store, with the owner, lifetime and
//! content of each.
//!
//! To add a kind, add it to the list below; every store is opened with that list ([`ALL`]), and refuses other kinds.
//! `tanist_ha::keys` lists the fixed keys (epoch, leader, members, changes).
//!
//! ```text
//! path                       owner                        lifetime and value
//! graphs/<job>               dispatcher: records          while the job runs: its graph; immutable
//! states/<job>               dispatcher: records          while the job runs: what a takeover must not lose
//! checkpoints/<job>          job_master: checkpoints      while the job runs: numbers, completed checkpoints, garbage
//! results/<job>              dispatcher: records          until it expires: terminal result, dirty until cleanup
//! descriptions/<job>         dispatcher: descriptions     at most until the result expires: all about an ended job
//! chunks/<set>.<n>           ha: records                  as long as its record: a part of it; immutable
//! tombstones/<object>        dispatcher: orphan_gc        until the blob is deleted
//! storages/<storage>         dispatcher: storage          with the cluster: a blob storage, and who confirmed it
//! history/<epoch>            leadership: history          the last 100 terms: who led, how it began and ended
//! applications/<cluster-id>  leadership: application      until the cluster is removed: status of its application
//! workers/<worker>           resource_manager: workers    while the worker is wanted or may live
//! drains/<digest>            resource_manager: drains     until it is undone: a TaskManager or host that gets no work
//! ```

use tanist_ha::keys::{Kind, Kinds};
pub use tanist_ha::records::CHUNKS;

/// Declares the kinds, and the list of them that every store of a cluster is opened with.
macro_rules! kinds {
    ($($(#[$documentation:meta])* $name:ident = $directory:literal;)+) => {
        $($(#[$documentation])* pub const $name: Kind = Kind::new($directory);)+

        /// What every store of a cluster is opened with: these kinds and those of `tanist-ha`.
        pub const ALL: Kinds = Kinds::new(&[$($name),+]);
    };
}

kinds! {
    /// Graphs of jobs that have not ended.
    GRAPHS = "graphs";
    /// States of jobs that have not ended.
    STATES = "states";
    /// Completed checkpoints of jobs that have not ended.
    CHECKPOINTS = "checkpoints";
    /// Terminal results.
    RESULTS = "results";
    /// Descriptions of jobs that have ended.
    DESCRIPTIONS = "descriptions";
    /// Blobs that are about to be deleted.
    BLOB_TOMBSTONES = "tombstones";
    /// Blob storages.
    STORAGES = "storages";
    /// One record a term.
    HISTORY = "history";
    /// The application that owns this cluster.
    APPLICATIONS = "applications";
    /// Workers that a driver has started or will start.
    WORKERS = "workers";
    /// TaskManagers and hosts that are drained.
    DRAINS = "drains";
}
