//! Whether this process may do in the store what a leader has to: asked again and again, as nobody tells when rights change.
//!
//! Nothing is decided on it. A standby that lacks a right would take over and fail, so people are told before.

use std::sync::Arc;
use std::time::Duration;

use tanist_ha::store::CoordinationStore;
use tokio::sync::watch;
use tracing::{debug, info, warn};

/// Asking costs a store some requests that it refuses.
const INTERVAL: Duration = Duration::from_secs(60);

/// The rights that are lacking, in words; `None`: not known yet.
pub type LackingPermissions = Option<Vec<String>>;

/// Keeps `lacking` current; never ends by itself.
pub(super) async fn follow(
    store: Arc<dyn CoordinationStore>,
    lacking: watch::Sender<LackingPermissions>,
) {
    loop {
        match store.lacking_permissions().await {
            Ok(found) => {
                let news = lacking.borrow().as_ref() != Some(&found);
                if news && !found.is_empty() {
                    let lacking = found.join("; ");
                    warn!(%lacking, "this process may not do in the store what a leader has to");
                } else if news && lacking.borrow().is_some() {
                    info!("this process may do in the store all that a leader has to");
                }
                lacking.send_if_modified(|known| {
                    *known = Some(found);
                    news
                });
            }
            Err(error) => debug!(%error, "the store does not tell what this process may do"),
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
