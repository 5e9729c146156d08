//! The control group that was made for this process, and the parent of those that it makes for processes it
//! starts: compares the configuration with what the system permits.

use std::path::Path;

use rustix::process::getpid;
use tanist_config::ControlGroupsOption;
use tanist_telemetry::control_group::{self, ControlGroups};
use tracing::{info, warn};

/// Result of claiming a parent for control groups.
#[derive(Debug, Clone)]
pub(super) enum Claimed {
    /// Groups are made there.
    In(ControlGroups),
    /// No groups are made, for this reason; there is nothing to repair.
    None(String),
    /// Groups are required but can't be made, for this reason.
    Refused(String),
}

/// Enters the group that the starter of this process has made for it. Call it before [`claim`], which may claim
/// the group that this process is in; before, that is the starter's group.
pub(super) fn enter(group: &Path) -> Result<(), String> {
    control_group::enter(group, getpid()).map_err(|error| {
        let group = group.display();
        format!("taskmanager.control-group: {group} can't be entered: {error}")
    })
}

/// Claims the configured groups. If groups are optional and can't be made, that is logged; if they are required, the
/// caller receives the reason. Blocks.
pub(super) fn claim(option: &ControlGroupsOption) -> Claimed {
    match option {
        ControlGroupsOption::Off => Claimed::None("process.control-groups is off".to_owned()),
        ControlGroupsOption::Auto => match ControlGroups::claim(None) {
            Ok(groups) => {
                info!(
                    ?groups,
                    "control groups enforce the limits of started processes"
                );
                Claimed::In(groups)
            }
            Err(reason) => {
                warn!(
                    reason,
                    "there are no control groups: programs are limited per process, and started TaskManagers are not limited"
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
    use crate::taskmanager::{StartError, TaskManager};
    use tanist_config::{Configuration, LoadOptions};

    /// The refusal to start of a TaskManager with this group of its own and a parent under which no group can
    /// be made.
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
    fn a_required_group_that_can_t_be_made_is_refused_and_an_optional_one_is_done_without() {
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
