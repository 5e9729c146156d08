//! `tanist taskmanager list | drain`.

use tanist_proto::id::ResourceId;

use super::args::{GlobalArgs, TaskManagerCommand};
use super::connect::{connect_to_change, telling};
use super::jobs::{finish, show};
use super::output::{Table, say, time_if_known};
use crate::client::{JobClient, TaskManagerSummary};
use crate::config::Configuration;
use crate::telemetry::ExitCode;

pub(super) async fn task_manager(
    configuration: &Configuration,
    global: &GlobalArgs,
    command: &TaskManagerCommand,
) -> ExitCode {
    match command {
        TaskManagerCommand::List => list(configuration, global).await,
        TaskManagerCommand::Drain { id } => drain(configuration, global, id).await,
    }
}

async fn list(configuration: &Configuration, global: &GlobalArgs) -> ExitCode {
    let table = async |jobs: &JobClient| Ok(listing(&jobs.task_managers().await?));
    show(configuration, global, "/v1/taskmanagers", table).await
}

async fn drain(configuration: &Configuration, global: &GlobalArgs, id: &ResourceId) -> ExitCode {
    let draining = async {
        let connection = connect_to_change(configuration, &global.address).await?;
        telling(
            connection.jobs.waits(),
            connection.jobs.drain_task_manager(id),
        )
        .await?;
        say(format_args!(
            "TaskManager {id} takes no more slots, and leaves when the last one is free"
        ));
        Ok(())
    };
    finish(draining.await)
}

fn listing(task_managers: &[TaskManagerSummary]) -> String {
    let mut table = Table::new(["TASKMANAGER", "ADDRESS", "FREE SLOTS", "LAST HEARTBEAT", ""]);
    for task_manager in task_managers {
        let draining = if task_manager.blocked { "draining" } else { "" };
        table.row([
            task_manager.id.clone(),
            task_manager.path.clone(),
            format!("{}/{}", task_manager.free_slots, task_manager.slots_number),
            time_if_known(task_manager.last_heartbeat),
            draining.to_owned(),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn task_managers_are_listed_with_their_slots_and_whether_they_are_drained()
    -> Result<(), serde_json::Error> {
        let task_managers: Vec<TaskManagerSummary> = serde_json::from_value(json!([
            {"id": "tm-1", "path": "a:6122", "slotsNumber": 4, "freeSlots": 1, "blocked": false,
             "timeSinceLastHeartbeat": 1_700_000_000_000_i64},
            {"id": "tm-2", "path": "b:6122", "slotsNumber": 4, "freeSlots": 0, "blocked": true,
             "timeSinceLastHeartbeat": 1_700_000_001_000_i64}
        ]))?;
        let expected = "\
TASKMANAGER  ADDRESS  FREE SLOTS  LAST HEARTBEAT
tm-1         a:6122   1/4         2023-11-14 22:13:20 UTC
tm-2         b:6122   0/4         2023-11-14 22:13:21 UTC  draining
";
        assert_eq!(listing(&task_managers), expected);
        Ok(())
    }
}
