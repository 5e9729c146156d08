//! Shows that parts of this process have turns: the watchdog and the beats read when each of them last had one.
//!
//! An actor is asked for a turn through its mailbox, as everybody else asks it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::reports::{Part, Reports};
use crate::dispatcher::DispatcherHandle;
use crate::resource_manager::ResourceManagerHandle;

const LONGEST_INTERVAL: Duration = Duration::from_secs(1);
/// Within the bound there are so many turns at the least.
const TURNS_IN_BOUND: u32 = 8;

/// How often a turn is shown where standing still for `bound` is too long.
pub(super) fn interval_for(bound: Duration) -> Duration {
    (bound / TURNS_IN_BOUND).clamp(Duration::from_millis(1), LONGEST_INTERVAL)
}

/// Runs on the runtime that it shows.
pub(super) async fn pulse_of_the_runtime(reports: Arc<Reports>, interval: Duration) {
    loop {
        reports.turn_of(Part::Runtime);
        tokio::time::sleep(interval).await;
    }
}

/// Shows turns of a term's actors, for as long as the term lasts.
pub(in crate::process) async fn keep_pulse(
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
