//! Requests to drain TaskManagers.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};
use tanist_proto::id::ResourceId;

/// A TaskManager, or all TaskManagers of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drained {
    /// One TaskManager.
    TaskManager(ResourceId),
    /// All TaskManagers whose address has this host.
    Host(String),
}

impl Drained {
    pub(super) fn path(&self) -> String {
        match self {
            Drained::TaskManager(id) => format!("/v1/taskmanagers/{id}"),
            Drained::Host(host) => format!("/v1/hosts/{host}"),
        }
    }
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Drained::TaskManager(id) => write!(f, "TaskManager {id}"),
            Drained::Host(host) => write!(f, "host {host}"),
        }
    }
}

/// How tasks leave a drained TaskManager.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct DrainOptions {
    /// Tasks are moved at once; otherwise they end on their own.
    pub evict: bool,
    /// Time after which tasks are moved in any case.
    #[serde(serialize_with = "in_ms", skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Duration>,
    /// At the deadline, tasks are moved even if no slots are free elsewhere.
    pub force: bool,
    /// The person who requests it, for display.
    pub by: String,
    /// Reason, for display.
    pub reason: String,
}

fn in_ms<S: Serializer>(deadline: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    let ms = deadline.unwrap_or_default().as_millis();
    to.collect_str(&format_args!("{ms} ms"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_said_with_its_unit_and_none_not_at_all() -> Result<(), serde_json::Error> {
        let mut options = DrainOptions {
            evict: true,
            by: "anna".to_owned(),
            reason: "a new \"kernel\"".to_owned(),
            ..DrainOptions::default()
        };
        let without = serde_json::to_value(&options)?;
        let expected = serde_json::json!(
            {"evict": true, "force": false, "by": "anna", "reason": "a new \"kernel\""}
        );
        assert_eq!(without, expected);
        options.deadline = Some(Duration::from_secs(60));
        assert_eq!(serde_json::to_value(&options)?["deadline"], "60000 ms");
        Ok(())
    }
}
