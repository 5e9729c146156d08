//! Shows that parts of this process get turns: the watchdog and the heartbeats read when each of them last had
//! one.
//!
//! An actor is asked for a turn through its mailbox, like any other request.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tanist_dispatcher::DispatcherHandle;
use tanist_resource_manager::ResourceManagerHandle;

use super::reports::{Part, Reports};

const LONGEST_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum number of turns within the bound.
const TURNS_IN_BOUND: u32 = 8;

/// Interval between two turns for a part that must not stand still for `bound`.
pub(super) fn interval_for(bound: Duration) -> Duration {
    (bound / TURNS_IN_BOUND).clamp(Duration::from_millis(1), LONGEST_INTERVAL)
}

/// Shows turns of the runtime that it runs on.
pub(super) async fn pulse_of_the_runtime(reports: Arc<Reports>, interval: Duration) {
    loop {
        reports.turn_of(Part::Runtime);
        tokio::time::sleep(interval).await;
    }
}

/// Shows turns of a term's actors for the duration of the term.
pub(crate) async fn keep_pulse(
    reports: Option<&Reports>,
    dispatcher: &DispatcherHandle,
    resources: &ResourceManagerHandle,
    bound: Duration,
) -> Infallible {
    let Some(reports) = reports else {
        return std::future::pending().await;
    };
    let interval = interval_for(bound);
    reports.turn_of(Part::Dispatcher);
    reports.turn_of(Part::ResourceManager);
    let of_dispatcher = async {
        loop {
            tokio::time::sleep(interval).await;
            if dispatcher.turn().await.is_ok() {
                reports.turn_of(Part::Dispatcher);
            }
        }
    };
    let of_resources = async {
        loop {
            tokio::time::sleep(interval).await;
            if resources.contacts().await.is_ok() {
                reports.turn_of(Part::ResourceManager);
            }
        }
    };
    tokio::join!(of_dispatcher, of_resources).0
}
