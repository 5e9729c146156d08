//! Asks the store whether the term is the latest one, for requests whose answer needs that:
//! [`super::core::ReadBarrier`].

use std::sync::Arc;

use tanist_ha::store::{CoordinationStore, Fence};

/// Asks the store whether the term of `fence` is the latest one.
pub(super) async fn confirm(store: Arc<dyn CoordinationStore>, fence: Fence) -> Result<(), String> {
    let guard = store.guard().await.map_err(|error| error.to_string())?;
    let own = (fence.epoch, fence.token, fence.incarnation);
    if guard.epoch == Some(own) {
        Ok(())
    } else {
        Err("another JobManager leads".to_owned())
    }
}
