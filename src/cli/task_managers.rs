//! `tanist taskmanager drain`.

use tanist_proto::id::ResourceId;

use super::args::GlobalArgs;
use super::connect::connect;
use super::jobs::finish;
use super::output::say;
use crate::config::Configuration;
use crate::telemetry::ExitCode;

pub(super) async fn drain(
    configuration: &Configuration,
    global: &GlobalArgs,
    id: &ResourceId,
) -> ExitCode {
    let draining = async {
        let connection = connect(configuration, &global.address).await?;
        connection.jobs.drain_task_manager(id).await?;
        say(format_args!(
            "TaskManager {id} takes no more slots, and leaves when the last one is free"
        ));
        Ok(())
    };
    finish(draining.await)
}
