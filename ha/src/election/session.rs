//! The proof of leadership that a term carries, and the leadership of a process as a value.
//!
//! The election's actor makes each session and ends it; the components of the term hold clones. A younger term may
//! exist although [`LeaderSession::check`] still succeeds. So each decision is written under the session's fence
//! before it counts.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::election::core::ElectionStatus;
use crate::election::driver::{
    ClusterIncarnation, Epoch, ProcessId, SessionState, StoreIdentity, TermHolder,
};
use crate::election::takeover::Takeover;
use crate::store::Fence;

/// Leadership of this process. Only the latest value: states in between may be skipped, so compare epochs.
#[derive(Debug, Clone)]
pub enum Leadership {
    /// It does not lead and has not led.
    Standby,
    /// It leads.
    Granted(LeaderSession),
    /// It may still lead, but decides nothing until the store confirms that the epoch is unchanged.
    Suspended(LeaderSession),
    /// Its term of this epoch has ended; it stands by.
    Over(Epoch),
    /// The store belongs to another incarnation of the cluster. This process must not continue; the text says
    /// what to do.
    Refused(String),
}

impl Leadership {
    /// The session of the current term, suspended or not.
    pub fn session(&self) -> Option<&LeaderSession> {
        match self {
            Leadership::Granted(session) | Leadership::Suspended(session) => Some(session),
            Leadership::Standby | Leadership::Over(_) | Leadership::Refused(_) => None,
        }
    }
}

/// One term of this process. Cheap to clone; stays valid after the term ended and then reports that.
#[derive(Clone)]
pub struct LeaderSession {
    inner: Arc<Inner>,
}

struct Inner {
    holder: TermHolder,
    store: Option<StoreIdentity>,
    fence: Fence,
    clock: Clock,
    lease: watch::Receiver<SessionState>,
    status: watch::Receiver<ElectionStatus>,
    over: CancellationToken,
    takeover: Option<Takeover>,
}

/// The reason why a term may not decide at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotLeading {
    /// The term may still be the youngest one, but the store has not confirmed that within the lease.
    #[error("leadership is suspended: the store has not confirmed it for too long")]
    Suspended,
    /// The term has ended.
    #[error("the term is over")]
    Over,
}

impl LeaderSession {
    pub(super) fn new(
        (holder, store): (TermHolder, Option<StoreIdentity>),
        fence: Fence,
        clock: Clock,
        lease: watch::Receiver<SessionState>,
        status: watch::Receiver<ElectionStatus>,
        over: CancellationToken,
        takeover: Option<Takeover>,
    ) -> LeaderSession {
        let inner = Inner {
            holder,
            store,
            fence,
            clock,
            lease,
            status,
            over,
            takeover,
        };
        LeaderSession {
            inner: Arc::new(inner),
        }
    }

    /// The term's epoch.
    pub fn epoch(&self) -> Epoch {
        self.inner.fence.epoch
    }

    /// The leading process: this one.
    pub fn process(&self) -> &ProcessId {
        &self.inner.holder.process
    }

    /// This start of this process, as the term's record names it.
    pub fn holder(&self) -> &TermHolder {
        &self.inner.holder
    }

    /// The identity of the store in which the term was taken; `None` if it shows none.
    pub fn store(&self) -> Option<&StoreIdentity> {
        self.inner.store.as_ref()
    }

    /// The cluster's incarnation.
    pub fn incarnation(&self) -> &ClusterIncarnation {
        &self.inner.fence.incarnation
    }

    /// The guard of the term's writes.
    pub fn fence(&self) -> &Fence {
        &self.inner.fence
    }

    /// How this term followed the former one; `None` for the cluster's first term, and if this process found
    /// out late that it leads.
    pub fn takeover(&self) -> Option<&Takeover> {
        self.inner.takeover.as_ref()
    }

    /// The clock of the term's moments.
    pub fn clock(&self) -> Clock {
        self.inner.clock
    }

    /// Whether the term may decide now. Reads the clock: call it right before acting. It only bounds wasted
    /// work: the fence of the write that records a decision makes it safe.
    pub fn check(&self) -> Result<(), NotLeading> {
        if self.inner.over.is_cancelled() {
            return Err(NotLeading::Over);
        }
        let leads = match &*self.inner.status.borrow() {
            ElectionStatus::Leading(term) => term.epoch == self.epoch(),
            ElectionStatus::Standby
            | ElectionStatus::Suspended(_)
            | ElectionStatus::Over(_)
            | ElectionStatus::Refused(_) => false,
        };
        let has_valid_lease = self
            .inner
            .lease
            .borrow()
            .is_valid_at(self.inner.clock.now());
        if leads && has_valid_lease {
            Ok(())
        } else {
            Err(NotLeading::Suspended)
        }
    }

    /// Completes when the term has ended.
    pub async fn over(&self) {
        self.inner.over.cancelled().await;
    }

    /// Whether the term has ended.
    pub fn is_over(&self) -> bool {
        self.inner.over.is_cancelled()
    }
}

impl fmt::Debug for LeaderSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderSession")
            .field("process", &self.inner.holder.process)
            .field("epoch", &self.inner.fence.epoch)
            .field("over", &self.is_over())
            .finish_non_exhaustive()
    }
}

impl PartialEq for LeaderSession {
    fn eq(&self, other: &LeaderSession) -> bool {
        self.inner.fence == other.inner.fence && self.inner.holder == other.inner.holder
    }
}
