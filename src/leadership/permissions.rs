//! Whether this process has the rights in the store that a leader needs: asked at intervals, as the store does not
//! announce changes of rights.
//!
//! No decision depends on it. A standby that lacks a right would take over and fail, so operators are warned before.

use std::sync::Arc;
use std::time::Duration;

use tanist_ha::store::CoordinationStore;
use tokio::sync::watch;
use tracing::{debug, info, warn};

/// Interval between two checks; each costs the store some requests that it refuses.
const INTERVAL: Duration = Duration::from_secs(60);

/// The missing rights, in words; `None`: not known yet.
pub type MissingPermissions = Option<Vec<String>>;

/// Keeps `missing` current; never ends by itself.
pub(super) async fn follow(
    store: Arc<dyn CoordinationStore>,
    missing: watch::Sender<MissingPermissions>,
) {
    loop {
        match store.missing_permissions().await {
            Ok(found) => {
                let has_changed = missing.borrow().as_ref() != Some(&found);
                if has_changed && !found.is_empty() {
                    let missing = found.join("; ");
                    warn!(%missing, "this process lacks rights in the store that a leader needs: grant them");
                } else if has_changed && missing.borrow().is_some() {
                    info!("this process has all rights in the store that a leader needs");
                }
                missing.send_if_modified(|known| {
                    *known = Some(found);
                    has_changed
                });
            }
            Err(error) => {
                debug!(%error, "the rights of this process in the store can't be determined")
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
