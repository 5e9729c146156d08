//! Drains of TaskManagers: the request, and their progress in `/taskmanagers`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Request to drain a TaskManager, or all of a host. An empty body stands for the defaults: tasks end on their own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DrainOptions {
    /// Tasks are moved at once; otherwise they end on their own.
    pub evict: bool,
    /// Time after which tasks are moved in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DurationText>,
    /// At the deadline, tasks are moved even if no slots are free elsewhere.
    pub force: bool,
    /// The person who requests it, for display.
    pub by: String,
    /// Reason, for display.
    pub reason: String,
}

/// A duration as in options: `30 min`; a bare number is in ms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurationText(pub String);

impl From<Duration> for DurationText {
    fn from(duration: Duration) -> DurationText {
        DurationText(format!("{} ms", duration.as_millis()))
    }
}

/// Progress of the drain of a TaskManager.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct DrainSummary {
    /// Time of the request.
    pub since: i64,
    /// The person who requested it; empty if not given.
    pub by: String,
    /// The reason; empty if not given.
    pub reason: String,
    /// The drained host, if the host is drained as a whole; else empty.
    pub host: String,
    /// The drained TaskManager, if it is not registered and not drained with its host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub task_manager: String,
    /// Whether its tasks are being moved.
    pub evicting: bool,
    /// Time at which its tasks are moved in any case; 0 or less: never.
    pub deadline: i64,
    /// Whether it leaves at the deadline even if there are no slots elsewhere.
    pub force: bool,
    /// Jobs that have slots there.
    pub jobs: Vec<String>,
    /// Number of outputs that are kept there for tasks that still read them.
    pub kept_outputs: u32,
    /// Whether nothing is left there.
    pub drained: bool,
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
        options.deadline = Some(Duration::from_secs(60).into());
        assert_eq!(serde_json::to_value(&options)?["deadline"], "60000 ms");
        Ok(())
    }
}
