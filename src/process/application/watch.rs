//! How a TaskManager of an application hears of its end if no leader told it: it reads the record now and then.

use std::time::Duration;

use tanist_ha::Result;
use tracing::{debug, info};

use super::record::{ApplicationRecord, read};
use crate::config::HaOptions;
use crate::process::ha;

/// From one look to the next.
const INTERVAL: Duration = Duration::from_secs(5);

/// Completes when the application of this cluster has ended and nothing is left of it.
pub async fn over(options: &HaOptions) -> ApplicationRecord {
    loop {
        match look(options).await {
            Ok(record) => {
                info!(status = record.status.name(), "the application has ended");
                return record;
            }
            Err(error) => debug!(%error, "how the application stands can't be read at present"),
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Looks until it is over, as long as the store answers.
async fn look(options: &HaOptions) -> Result<ApplicationRecord> {
    let records = ha::open_records(options).await?;
    loop {
        let found = read(&**records.coordination_store(), &options.cluster_id).await?;
        if let Some(record) = found.filter(|record| record.cleaned) {
            return Ok(record);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
