//! The control group that was made for this process, and those that it makes for others that it starts: what is configured, and
//! what the system gives.

use std::path::Path;

use rustix::process::getpid;
use tracing::{info, warn};

use crate::config::ControlGroupsOption;
use crate::telemetry::control_group::{self, ControlGroups};

/// What has come of it.
#[derive(Debug, Clone)]
pub(super) enum Claimed {
    /// They are made there.
    In(ControlGroups),
    /// None are made: why, which nobody has to mend.
    None(String),
    /// None can be made, though they have to be: why.
    Refused(String),
}

/// Enters the group that whoever started this process has made for it. To be done before [`claim`], which may take the group that this
/// process is in: that of whoever started it.
pub(super) fn enter(group: &Path) -> Result<(), String> {
    control_group::enter(group, getpid()).map_err(|error| {
        let group = group.display();
        format!("taskmanager.control-group: {group} can't be entered: {error}")
    })
}

/// Claims what is configured. What can't be had is told, in the log or by who is to start. Blocks.
pub(super) fn claim(option: &ControlGroupsOption) -> Claimed {
    match option {
        ControlGroupsOption::Off => Claimed::None("process.control-groups is off".to_owned()),
        ControlGroupsOption::Auto => match ControlGroups::claim(None) {
            Ok(groups) => {
                info!(?groups, "control groups hold what is started to its limits");
                Claimed::In(groups)
            }
            Err(reason) => {
                warn!(
                    reason,
                    "there are no control groups: programs are limited per process, and TaskManagers that are started not at all"
                );
                Claimed::None(reason)
            }
        },
        ControlGroupsOption::At(path) => match ControlGroups::claim(Some(path)) {
            Ok(groups) => Claimed::In(groups),
            Err(reason) => Claimed::Refused(format!("process.control-groups: {reason}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Configuration, LoadOptions};
    use crate::process::taskmanager::{StartError, TaskManager};

    /// What a TaskManager with this group of its own, and with groups to make where none can be made, does not start of.
    async fn refusal(group: &Path) -> String {
        let load = LoadOptions::default()
            .with("taskmanager.rpc.port", "0")
            .with("taskmanager.control-group", &group.to_string_lossy())
            .with("process.control-groups", "/nowhere");
        let configuration = Configuration::load(load).expect("valid");
        let directory = tempfile::tempdir().expect("a directory");
        match TaskManager::bind(&configuration, directory.path()).await {
            Err(StartError::ControlGroups(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_task_manager_enters_the_group_that_was_made_for_it_before_it_looks_where_to_make_others()
     {
        let group = tempfile::tempdir().expect("a directory");
        let refused = refusal(group.path()).await;
        assert!(refused.contains("process.control-groups"), "{refused}");
        let entered = std::fs::read_to_string(group.path().join("cgroup.procs"));
        assert_eq!(entered.expect("written"), std::process::id().to_string());
        let refused = refusal(&group.path().join("none")).await;
        assert!(refused.contains("taskmanager.control-group"), "{refused}");
    }

    #[test]
    fn a_group_that_has_to_be_and_is_not_is_refused_and_one_that_need_not_be_is_done_without() {
        let nowhere = ControlGroupsOption::At("/nowhere".into());
        let Claimed::Refused(reason) = claim(&nowhere) else {
            panic!("it is nowhere");
        };
        assert!(
            reason.contains("process.control-groups") && reason.contains("/nowhere"),
            "{reason}"
        );
        let Claimed::None(reason) = claim(&ControlGroupsOption::Off) else {
            panic!("it is off");
        };
        assert!(reason.contains("off"), "{reason}");
    }
}
