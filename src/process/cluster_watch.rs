//! Finds out for a TaskManager that its cluster has ended, if no leader informs it: while it has no leader, it reads
//! the record of the application at intervals. It does so in every cluster, since its start does not say whether the
//! cluster is that of an application.
//!
//! A cluster of which the store has nothing has ended too, if the TaskManager knew it before and runs nothing. A store
//! that can't be read proves nothing.

use std::time::Duration;

use tanist_config::HaOptions;
use tanist_ha::Result;
use tanist_ha::records::store::RecordStore;
use tanist_leadership::application::{ApplicationRecord, read};
use tanist_leadership::ha;
use tanist_task_executor::Presence;
use tokio::sync::watch;
use tracing::debug;

/// Interval between two reads.
const INTERVAL: Duration = Duration::from_secs(5);

/// Completes when the cluster has ended and nothing will run in it any more; returns the reason.
pub(super) async fn until_over(
    options: &HaOptions,
    mut presence: watch::Receiver<Presence>,
) -> String {
    let mut watch = Watch::default();
    loop {
        watch.was_known |= presence.borrow().is_registered;
        // A leader would inform it.
        let goes_on = presence.wait_for(|it| !it.is_registered).await.is_ok();
        if !goes_on {
            return std::future::pending().await;
        }
        match watch.check(options).await {
            Ok(Found::Ended(how)) => return format!("the application has ended: {how}"),
            Ok(Found::Removed) if presence.borrow().is_unused => {
                return "the cluster was removed from its store".to_owned();
            }
            Ok(Found::Removed | Found::Nothing) => {}
            Err(error) => {
                watch.opened = None;
                debug!(%error, "the application's record can't be read: retrying");
            }
        }
        let led = presence.wait_for(|it| it.is_registered);
        let led = tokio::time::timeout(INTERVAL, led).await;
        match led.map(|led| led.is_ok()) {
            Ok(true) => watch.was_known = true,
            Ok(false) => return std::future::pending().await,
            Err(_no_leader_yet) => {}
        }
    }
}

enum Found {
    /// The application's tombstone, with its status.
    Ended(&'static str),
    /// The store has nothing of the cluster that was there before.
    Removed,
    /// A cluster that goes on, or was never led.
    Nothing,
}

#[derive(Debug, Default)]
struct Watch {
    /// The store, once it could be opened.
    opened: Option<RecordStore>,
    /// Whether the cluster was there before: led, or in the store.
    was_known: bool,
}

impl Watch {
    /// Makes one small read, and a second one if no end was found.
    async fn check(&mut self, options: &HaOptions) -> Result<Found> {
        let if_empty = match self.was_known {
            true => Found::Removed,
            false => Found::Nothing,
        };
        if options.backend.is_removed() {
            self.opened = None;
            return Ok(if_empty);
        }
        let records = match &mut self.opened {
            Some(records) => records,
            none => none.insert(ha::open_records(options).await?),
        };
        let store = records.coordination_store();
        let found = read(&**store, &options.cluster_id).await?;
        if let Some(record) = found.filter(ApplicationRecord::is_over) {
            return Ok(Found::Ended(record.status.name()));
        }
        if store.guard().await?.epoch.is_none() {
            return Ok(if_empty);
        }
        self.was_known = true;
        Ok(Found::Nothing)
    }
}
