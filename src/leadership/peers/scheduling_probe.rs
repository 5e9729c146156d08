//! Records when parts of this process were last scheduled, in [`Reports`], for the watchdog and the heartbeats.
//!
//! The probe of an actor is a request to its mailbox: an actor that does not answer is not recorded, and counts as
//! stalled after the timeout.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tanist_dispatcher::DispatcherHandle;
use tanist_resource_manager::ResourceManagerHandle;

use super::reports::{Part, Reports};

const LONGEST_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum number of probes within the bound.
const PROBES_IN_BOUND: u32 = 8;

/// Interval between two probes of a part that must not stall for `bound`.
pub(super) fn interval_for(bound: Duration) -> Duration {
    (bound / PROBES_IN_BOUND).clamp(Duration::from_millis(1), LONGEST_INTERVAL)
}

/// Probes the runtime that it runs on.
pub(super) async fn probe_runtime(reports: Arc<Reports>, interval: Duration) {
    loop {
        reports.record_scheduled(Part::Runtime);
        tokio::time::sleep(interval).await;
    }
}

/// Probes a term's actors for the duration of the term.
pub(crate) async fn probe_actors(
    reports: Option<&Reports>,
    dispatcher: &DispatcherHandle,
    resources: &ResourceManagerHandle,
    bound: Duration,
) -> Infallible {
    let Some(reports) = reports else {
        return std::future::pending().await;
    };
    let interval = interval_for(bound);
    reports.record_scheduled(Part::Dispatcher);
    reports.record_scheduled(Part::ResourceManager);
    let of_dispatcher = async {
        loop {
            tokio::time::sleep(interval).await;
            if dispatcher.turn().await.is_ok() {
                reports.record_scheduled(Part::Dispatcher);
            }
        }
    };
    let of_resources = async {
        loop {
            tokio::time::sleep(interval).await;
            if resources.contacts().await.is_ok() {
                reports.record_scheduled(Part::ResourceManager);
            }
        }
    };
    tokio::join!(of_dispatcher, of_resources).0
}
