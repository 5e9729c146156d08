//! The state of this process that its heartbeats report to its peers. The main runtime writes the current
//! values, the election's runtime reads them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use tanist_gateway::Components as _;
use tanist_ha::clock::wall_clock_ms;
use tanist_ha::detector::service::PEER;
use tanist_ha::detector::{Phase, Progress, Role, SchedulingAges};
use tanist_ha::election::{Epoch, Leadership};
use tanist_ha::retrieval::LeaderView;
use tanist_proto::v1 as pb;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::view::CurrentTerm;

/// Maximum number of TaskManagers that are named as witnesses for the leader.
const MAX_WITNESSES: usize = 8;
const WITNESS_INTERVAL: Duration = Duration::from_secs(1);
/// Interval while none is known: without a witness, a frozen leader is only deposed when its lease expires.
const FIRST_WITNESS_INTERVAL: Duration = Duration::from_millis(100);

/// The content of this process's heartbeats.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    pub(super) progress: watch::Sender<Progress>,
    pub(super) witnesses: watch::Sender<Vec<String>>,
    pub(super) cached_change: watch::Sender<u64>,
    /// Counts progress of a recovery that its `done` count does not show.
    pub(super) steps: watch::Sender<u64>,
    /// When each part was last scheduled; `None` while the part does not exist.
    pub(super) runtime: watch::Sender<Option<Instant>>,
    pub(super) dispatcher: watch::Sender<Option<Instant>>,
    pub(super) resource_manager: watch::Sender<Option<Instant>>,
    /// Written by the watchdog: the term that it ended because it made no progress.
    pub(super) stalled_term: watch::Sender<Option<Epoch>>,
    /// Written by the watchdog: the main runtime has stalled.
    pub(super) is_stalled: AtomicBool,
    /// The last status of the process, and since when.
    status: Mutex<Option<PeerStatus>>,
}

/// The status of this process, as it reports it itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerStatus {
    pub role: Role,
    pub progress: Progress,
    /// When role and phase last changed, in milliseconds since 1970.
    pub since_ms: u64,
}

/// A part of the process that must be scheduled again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The runtime of everything except the election.
    Runtime,
    /// The term's Dispatcher.
    Dispatcher,
    /// The term's ResourceManager.
    ResourceManager,
}

impl Reports {
    /// The current status of this process. A change counts from the first call after it: [`note_changes`] calls
    /// at once.
    pub(crate) fn status(&self, leadership: &Leadership) -> PeerStatus {
        let role = match leadership {
            Leadership::Granted(session) => Role::Leading(session.epoch()),
            Leadership::Suspended(session) => Role::Suspended(session.epoch()),
            Leadership::Standby | Leadership::Over(_) | Leadership::Refused(_) => Role::Standby,
        };
        let progress = *self.progress.borrow();
        let mut known = self.status.lock();
        let before = known.filter(|it| it.role == role && it.progress.phase == progress.phase);
        let since_ms = before.map_or_else(wall_clock_ms, |it| it.since_ms);
        *known.insert(PeerStatus {
            role,
            progress,
            since_ms,
        })
    }

    /// Reports that the term recovers: `done` of `total` jobs. Total 0: not known yet.
    pub(crate) fn recovering(&self, done: u64, total: u64) {
        self.progress.send_replace(Progress {
            phase: Phase::Recovering,
            done,
            total,
        });
    }

    /// Reports that the term leads and everything is recovered.
    pub(crate) fn leading(&self) {
        self.progress.send_replace(Progress {
            phase: Phase::Leading,
            ..Progress::default()
        });
    }

    /// Reports that the process stands by.
    pub(crate) fn standby(&self) {
        self.progress.send_replace(Progress::default());
        self.dispatcher.send_replace(None);
        self.resource_manager.send_replace(None);
    }

    /// Reports progress of a recovery that is not counted in `done`.
    pub(crate) fn moved(&self) {
        self.steps.send_modify(|steps| *steps += 1);
    }

    /// Counts one more as done.
    pub(crate) fn add_done(&self) {
        self.progress.send_modify(|progress| progress.done += 1);
    }

    /// Reports that a part of the process was scheduled at this moment.
    pub(crate) fn record_scheduled(&self, part: Part) {
        let scheduled = match part {
            Part::Runtime => &self.runtime,
            Part::Dispatcher => &self.dispatcher,
            Part::ResourceManager => &self.resource_manager,
        };
        scheduled.send_replace(Some(Instant::now()));
    }

    /// The last term that was ended because it made no progress.
    pub(crate) fn stalled_term(&self) -> Option<Epoch> {
        *self.stalled_term.borrow()
    }

    pub(super) fn scheduling_ages(&self) -> SchedulingAges {
        let age =
            |scheduled: &watch::Sender<Option<Instant>>| scheduled.borrow().map(|at| at.elapsed());
        SchedulingAges {
            runtime: age(&self.runtime),
            dispatcher: age(&self.dispatcher),
            resource_manager: age(&self.resource_manager),
        }
    }

    /// Reports the change number up to which the standby's copy of the records goes.
    pub(crate) fn cached_change(&self, number: u64) {
        self.cached_change.send_replace(number);
    }
}

/// Notes when the status of the process changes.
pub(super) async fn note_changes(
    mut leadership: watch::Receiver<Leadership>,
    reports: Arc<Reports>,
) {
    let mut progress = reports.progress.subscribe();
    loop {
        let _ = reports.status(&leadership.borrow_and_update());
        progress.mark_unchanged();
        let alive = tokio::select! {
            changed = leadership.changed() => changed.is_ok(),
            changed = progress.changed() => changed.is_ok(),
        };
        if !alive {
            return;
        }
    }
}

/// Keeps the list of witness TaskManagers current while this process leads.
pub(super) async fn report_witnesses(
    current: Arc<CurrentTerm>,
    leaders: watch::Receiver<LeaderView>,
    reports: Arc<Reports>,
) {
    loop {
        let none = reports.witnesses.borrow().is_empty();
        let pause = if none {
            FIRST_WITNESS_INTERVAL
        } else {
            WITNESS_INTERVAL
        };
        tokio::time::sleep(pause).await;
        let Ok(dispatcher) = current.dispatcher() else {
            reports
                .witnesses
                .send_if_modified(|known| !std::mem::take(known).is_empty());
            continue;
        };
        let request = pb::ListTaskManagersRequest::default();
        if let Ok(listed) = dispatcher.list_task_managers(request).await {
            let addresses = witnesses_of(listed.task_managers, &leader_host(&leaders));
            reports.witnesses.send_if_modified(|before| {
                let news = *before != addresses;
                if news {
                    *before = addresses;
                }
                news
            });
        }
    }
}

/// The host of this process's address, while it leads.
fn leader_host(leaders: &watch::Receiver<LeaderView>) -> String {
    let leader = leaders.borrow().leader.clone();
    let address = leader.and_then(|leader| leader.addresses.get(PEER).cloned());
    address.map_or_else(String::new, |address| host_of(&address).to_owned())
}

fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// The addresses of witnesses that can be asked whether this leader is reachable: on other hosts first, as its
/// own host may be lost with it.
fn witnesses_of(task_managers: Vec<pb::TaskManagerInfo>, own_host: &str) -> Vec<String> {
    let locations = task_managers.into_iter().filter_map(|info| info.location);
    let mut addresses: Vec<String> = locations
        .map(|location| location.rpc_address)
        .filter(|address| !address.is_empty())
        .collect();
    let is_here = |address: &String| host_of(address) == own_host;
    addresses.sort_by_cached_key(|address| (is_here(address), address.clone()));
    addresses.truncate(MAX_WITNESSES);
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_on_other_hosts_are_asked_first() {
        let at = |address: &str| pb::TaskManagerInfo {
            location: Some(pb::TaskManagerLocation {
                rpc_address: address.to_owned(),
                ..pb::TaskManagerLocation::default()
            }),
            ..pb::TaskManagerInfo::default()
        };
        let here = (0..2 * MAX_WITNESSES).map(|port| at(&format!("a:{port}")));
        let listed = here.chain([at("b:1"), at("c:1"), at("")]).collect();
        let witnesses = witnesses_of(listed, "a");
        assert_eq!(witnesses[..2], ["b:1", "c:1"]);
        assert_eq!(witnesses.len(), MAX_WITNESSES);
    }
}
