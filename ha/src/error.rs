//! Errors of a coordination store, and what a caller may conclude from them.
//!
//! A refused guarded transaction is not an error: the store answered it
//! ([`Attempt`](crate::election::Attempt), [`CommitReply`](crate::store::CommitReply)). A backend that reports a
//! lost answer as anything but [`Error::NoAnswer`] breaks the pipeline: a write that may still be applied would
//! count as not applied.

use std::borrow::Cow;

/// What a caller may conclude from an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The request was not applied and never will be: the caller may give up or try again.
    Transient,
    /// The request may have been applied, or may be applied later. Send the *same* request again until the
    /// store gives a definite answer; reading back proves nothing.
    Ambiguous,
    /// A younger term exists: this term is over.
    Fenced,
    /// A retry does not help: configuration, credentials, a request that is too large, foreign data.
    Fatal,
}

/// An error of a coordination store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// No endpoint of the store could be reached; the request was never sent.
    #[error("{store} at {endpoints} can't be reached: {reason}")]
    Unreachable {
        /// `etcd`, `ZooKeeper` or `the embedded store`.
        store: &'static str,
        /// The endpoints that were tried, separated by commas.
        endpoints: String,
        /// The error of the last attempt.
        reason: String,
    },
    /// The request was sent, and its answer was lost or did not arrive in time.
    #[error("the answer of {store} was lost: {reason}")]
    NoAnswer {
        /// `etcd`, `ZooKeeper` or `the embedded store`.
        store: &'static str,
        /// The error of the client library.
        reason: String,
    },
    /// The store refused for a temporary reason (busy, leader changing); nothing was applied.
    #[error("{store} refused for the moment: {reason}")]
    Unavailable {
        /// `etcd`, `ZooKeeper` or `the embedded store`.
        store: &'static str,
        /// The store's message.
        reason: String,
    },
    /// The store accepts no more data until an operator frees space; nothing was applied.
    #[error("{store} is out of space: {reason}")]
    OutOfSpace {
        /// `etcd`, `ZooKeeper` or `the embedded store`.
        store: &'static str,
        /// The store's message.
        reason: String,
    },
    /// The lease or session that the request needs is gone; nothing was applied.
    #[error("the lease or session has expired")]
    SessionLost,
    /// The store rejects the credentials, or they lack a permission.
    #[error("{store} denies access: {reason}")]
    Denied {
        /// `etcd`, `ZooKeeper` or `the embedded store`.
        store: &'static str,
        /// The store's message.
        reason: String,
    },
    /// The request is larger than the store's limit; it was not sent.
    #[error("{what} of {size} bytes is more than the {limit} bytes that {store} takes")]
    TooLarge {
        /// `etcd`, `ZooKeeper` or `the embedded store`.
        store: &'static str,
        /// The kind of data that is too large.
        what: &'static str,
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The transaction has more writes than the store takes; it was not sent.
    #[error("a transaction of {writes} writes is more than the {limit} writes that {store} takes")]
    TooManyWrites {
        /// `etcd`, `ZooKeeper` or `the embedded store`.
        store: &'static str,
        /// Their number.
        writes: usize,
        /// The largest number.
        limit: usize,
    },
    /// Stored data can't be read.
    #[error("{key} can't be read: {reason}")]
    Corrupt {
        /// The key's path below the namespace.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Stored data was written by a newer version.
    #[error("{key} has format {found}, and this version reads up to {supported}")]
    TooNew {
        /// The key's path below the namespace.
        key: String,
        /// The format found.
        found: u16,
        /// The newest format that this version reads.
        supported: u16,
    },
    /// The store belongs to another incarnation of the cluster: it was wiped or restored in the meantime.
    #[error(
        "the store is another incarnation of the cluster ({found}, expected {expected}): it was wiped, or restored from a backup; \
         if this is intended, start this process again: it accepts the store as it is; else bring the former store back first"
    )]
    OtherIncarnation {
        /// The incarnation that this process knows.
        expected: String,
        /// The incarnation found in the store.
        found: String,
    },
    /// The store holds an earlier state of this cluster: it was restored in the meantime.
    #[error(
        "the store went back from epoch {known} to epoch {found}: it was restored from a backup of this cluster; if this is intended, \
         end all processes of the cluster before the first of them is started again: they accept the store as it is; \
         else bring the former store back first"
    )]
    WentBack {
        /// The youngest epoch that the store had shown.
        known: crate::election::Epoch,
        /// The epoch found in the store.
        found: crate::election::Epoch,
    },
    /// The store is a copy, or was restored: its identity differs from the one in which its youngest epoch
    /// was taken.
    #[error(
        "the store is a copy of this cluster's store, or was restored from a backup: it shows the identity {found}, and its youngest \
         epoch was taken in {recorded}; if this one is to be the cluster's store, end all processes of the cluster and run \
         `tanist ha accept` on it; else point this process to the cluster's own store"
    )]
    Copied {
        /// The identity of the store in which the youngest epoch was taken.
        recorded: String,
        /// The identity of this store.
        found: String,
    },
    /// A younger term exists.
    #[error("a younger term exists: epoch {epoch}")]
    Fenced {
        /// The epoch of the younger term.
        epoch: crate::election::Epoch,
    },
    /// The configuration or environment is invalid.
    #[error("{0}")]
    Misconfigured(Cow<'static, str>),
}

impl Error {
    /// Returns what the caller may conclude.
    pub fn outcome(&self) -> Outcome {
        match self {
            Error::Unreachable { .. }
            | Error::Unavailable { .. }
            | Error::OutOfSpace { .. }
            | Error::SessionLost => Outcome::Transient,
            Error::NoAnswer { .. } => Outcome::Ambiguous,
            Error::Fenced { .. } => Outcome::Fenced,
            Error::Denied { .. }
            | Error::TooLarge { .. }
            | Error::TooManyWrites { .. }
            | Error::Corrupt { .. }
            | Error::TooNew { .. }
            | Error::OtherIncarnation { .. }
            | Error::WentBack { .. }
            | Error::Copied { .. }
            | Error::Misconfigured(_) => Outcome::Fatal,
        }
    }

    /// Whether the request is above a limit of the store: a smaller one may succeed.
    pub fn is_over_limit(&self) -> bool {
        matches!(self, Error::TooLarge { .. } | Error::TooManyWrites { .. })
    }

    /// Whether the same request may succeed later without a change of the data: also if access is denied, since an
    /// operator can grant it.
    pub fn may_pass(&self) -> bool {
        self.outcome() != Outcome::Fatal || matches!(self, Error::Denied { .. })
    }
}

/// The result of talking to a coordination store.
pub type Result<T, E = Error> = std::result::Result<T, E>;
