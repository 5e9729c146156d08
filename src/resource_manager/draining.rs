//! TaskExecutors that are to leave: they get no slot requests any more. Pure, a part of [`super::core`].
//!
//! Every heartbeat to such a one says so, until it has gone. It tells the ResourceManager of the next term at registration;
//! who asked for it is answered only when the TaskExecutor has heard, so that no change of leader forgets it.

use tanist_proto::id::ResourceId;
use tokio::time::Instant;

use super::core::{Connection, Core, connection};
use crate::gateway::{GatewayError, GatewayResult};

impl Core {
    /// Gives a TaskExecutor no slots any more. Gives the way to it: it has to be told.
    pub fn drain(&mut self, now: Instant, id: &ResourceId) -> GatewayResult<Connection> {
        let missing = || GatewayError::NotFound(format!("no TaskManager {id} is registered"));
        let worker = self.workers.get_mut(id).ok_or_else(missing)?;
        if !std::mem::replace(&mut worker.is_draining, true) {
            tracing::info!(task_manager = %id, "draining task manager");
        }
        let to = connection(id, worker);
        self.slots.set_draining(id, true);
        self.changed(now);
        Ok(to)
    }
}
