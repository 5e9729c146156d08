//! The control groups that this process makes for those that it starts: what is configured, and what the system gives.

use tracing::{info, warn};

use crate::config::ControlGroupsOption;
use crate::telemetry::control_group::ControlGroups;

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
