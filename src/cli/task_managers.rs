//! `tanist taskmanager list | drain | undrain`. Several TaskManagers are drained one after the other; an error leaves
//! the later ones undrained, and the command can be repeated.

use tanist_client::{DrainOptions, DrainSummary, Drained, JobClient, TaskManagerList};
use tanist_config::Configuration;
use tanist_rest_model::paths;
use tanist_telemetry::ExitCode;

use super::args::{DrainedArgs, GlobalArgs, TaskManagerCommand};
use super::connect::{connect_to_change, reporting};
use super::jobs::{finish, show};
use super::output::{Table, inform, time, time_if_known};

pub(super) async fn task_manager(
    configuration: &Configuration,
    global: &GlobalArgs,
    command: &TaskManagerCommand,
) -> ExitCode {
    match command {
        TaskManagerCommand::List => list(configuration, global).await,
        TaskManagerCommand::Drain {
            what,
            evict,
            deadline,
            force,
            reason,
        } => {
            let how = DrainOptions {
                evict: *evict,
                deadline: deadline.map(Into::into),
                force: *force,
                by: whoami(),
                reason: reason.clone(),
            };
            drain(configuration, global, what, &how).await
        }
        TaskManagerCommand::Undrain { what } => undrain(configuration, global, what).await,
    }
}

async fn list(configuration: &Configuration, global: &GlobalArgs) -> ExitCode {
    let table = async |jobs: &JobClient| Ok(listing(&jobs.task_managers().await?));
    show(configuration, global, paths::TASK_MANAGERS, table).await
}

async fn drain(
    configuration: &Configuration,
    global: &GlobalArgs,
    what: &DrainedArgs,
    how: &DrainOptions,
) -> ExitCode {
    let draining = async {
        let connection = connect_to_change(configuration, &global.address).await?;
        let left = match (how.evict, &how.deadline) {
            (true, _) => "its tasks are moved as slots become free elsewhere",
            (false, Some(_)) => "its tasks are moved after the deadline",
            (false, None) => "its tasks run to their end",
        };
        for drained in what.all() {
            reporting(
                connection.jobs.waits(),
                connection.jobs.drain(&drained, how),
            )
            .await?;
            inform(format_args!("{drained} takes no more slots; {left}"));
        }
        Ok(())
    };
    finish(draining.await)
}

async fn undrain(
    configuration: &Configuration,
    global: &GlobalArgs,
    what: &DrainedArgs,
) -> ExitCode {
    let undraining = async {
        let connection = connect_to_change(configuration, &global.address).await?;
        for drained in what.all() {
            reporting(connection.jobs.waits(), connection.jobs.undrain(&drained)).await?;
            inform(format_args!("{drained} gives slots to jobs again"));
        }
        Ok(())
    };
    finish(undraining.await)
}

impl DrainedArgs {
    fn all(&self) -> Vec<Drained> {
        let ids = self.ids.iter().cloned().map(Drained::TaskManager);
        ids.chain(self.host.clone().map(Drained::Host)).collect()
    }
}

/// The name of the user, from the environment; only shown to people.
fn whoami() -> String {
    std::env::var("USER").unwrap_or_default()
}

/// The progress of a drain, in one line.
fn drain_status(drain: &DrainSummary) -> String {
    let mut text = match (drain.drained, drain.evicting) {
        (true, _) => "drained".to_owned(),
        (false, true) => "evicting".to_owned(),
        (false, false) => "draining".to_owned(),
    };
    if drain.since > 0 {
        text.push_str(&format!(" since {}", time_if_known(drain.since)));
    }
    if !drain.evicting && drain.deadline > 0 {
        text.push_str(&format!(", evicting at {}", time_if_known(drain.deadline)));
    }
    match (drain.jobs.len(), drain.kept_outputs) {
        (0, 0) => {}
        (0, kept) => text.push_str(&format!(", {kept} outputs left")),
        (jobs, _) => text.push_str(&format!(", {jobs} jobs left")),
    }
    for (word, value) in [("host", &drain.host), ("by", &drain.by)] {
        if !value.is_empty() {
            text.push_str(&format!(", {word} {value}"));
        }
    }
    if !drain.reason.is_empty() {
        text.push_str(&format!(": {}", drain.reason));
    }
    text
}

/// Limit for listed drains without a registered TaskManager: ids of TaskManagers rarely come back.
const LISTED_DRAINS: usize = 20;

fn listing(list: &TaskManagerList) -> String {
    let mut table = Table::new(["TASKMANAGER", "ADDRESS", "FREE SLOTS", "LAST HEARTBEAT", ""]);
    for task_manager in &list.registered {
        let draining = match (&task_manager.drain, task_manager.blocked) {
            (Some(drain), _) => drain_status(drain),
            (None, true) => "draining".to_owned(),
            (None, false) => String::new(),
        };
        table.row([
            task_manager.id.clone(),
            task_manager.path.clone(),
            format!("{}/{}", task_manager.free_slots, task_manager.slots_number),
            time(task_manager.last_heartbeat),
            draining,
        ]);
    }
    let mut text = table.to_string();
    if !list.unmatched_drains.is_empty() {
        text.push('\n');
        text.push_str(&listing_of_unmatched(&list.unmatched_drains));
    }
    text
}

/// The newest drains that apply to no registered TaskManager.
fn listing_of_unmatched(drains: &[DrainSummary]) -> String {
    let mut table = Table::new(["DRAINED, NOT REGISTERED", ""]);
    let left_out = drains.len().saturating_sub(LISTED_DRAINS);
    for drain in &drains[left_out..] {
        let target = match drain.host.as_str() {
            "" => format!("TaskManager {}", drain.task_manager),
            host => format!("host {host}"),
        };
        let alone = DrainSummary {
            host: String::new(),
            ..drain.clone()
        };
        table.row([target, drain_status(&alone)]);
    }
    let mut text = table.to_string();
    if left_out > 0 {
        text.push_str(&format!("{left_out} older ones: `-o json` has them\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn task_managers_are_listed_with_their_slots_and_whether_they_are_drained()
    -> Result<(), serde_json::Error> {
        let list: TaskManagerList = serde_json::from_value(json!({"taskmanagers": [
            {"id": "tm-1", "path": "a:6122", "slotsNumber": 4, "freeSlots": 1, "blocked": false,
             "timeSinceLastHeartbeat": 1_700_000_000_000_i64},
            {"id": "tm-2", "path": "b:6122", "slotsNumber": 4, "freeSlots": 0, "blocked": true,
             "timeSinceLastHeartbeat": 1_700_000_001_000_i64},
            {"id": "tm-3", "path": "b:6123", "slotsNumber": 4, "freeSlots": 2, "blocked": true,
             "timeSinceLastHeartbeat": 1_700_000_001_000_i64,
             "drain": {"since": 1_700_000_000_000_i64, "by": "anna", "reason": "a new kernel", "host": "b",
                       "evicting": true, "deadline": -1, "jobs": ["j"], "kept-outputs": 0, "drained": false}}
        ]}))?;
        let expected = "\
TASKMANAGER  ADDRESS  FREE SLOTS  LAST HEARTBEAT
tm-1         a:6122   1/4         2023-11-14 22:13:20 UTC
tm-2         b:6122   0/4         2023-11-14 22:13:21 UTC  draining
tm-3         b:6123   2/4         2023-11-14 22:13:21 UTC  evicting since 2023-11-14 22:13:20 UTC, 1 jobs left, host b, by anna: a new kernel
";
        assert_eq!(listing(&list), expected);
        Ok(())
    }

    #[test]
    fn what_is_drained_and_not_registered_is_listed_apart_the_newest_of_many()
    -> Result<(), serde_json::Error> {
        let of_host = json!({"since": 1_700_000_000_000_i64, "by": "anna", "reason": "a new kernel", "host": "c",
                             "evicting": true, "deadline": -1});
        let of_id = json!({"since": 1_700_000_001_000_i64, "task-manager": "tm-9", "evicting": false,
                           "deadline": 1_700_000_002_000_i64});
        let mut list: TaskManagerList = serde_json::from_value(
            json!({"taskmanagers": [], "unmatched-drains": [of_host, of_id]}),
        )?;
        let expected = "\
TASKMANAGER  ADDRESS  FREE SLOTS  LAST HEARTBEAT

DRAINED, NOT REGISTERED
host c                   evicting since 2023-11-14 22:13:20 UTC, by anna: a new kernel
TaskManager tm-9         draining since 2023-11-14 22:13:21 UTC, evicting at 2023-11-14 22:13:22 UTC
";
        assert_eq!(listing(&list), expected);
        let newest = list.unmatched_drains[1].clone();
        list.unmatched_drains.resize(LISTED_DRAINS + 1, newest);
        let text = listing(&list);
        assert!(!text.contains("host c"), "{text}");
        assert!(
            text.ends_with("1 older ones: `-o json` has them\n"),
            "{text}"
        );
        Ok(())
    }
}
