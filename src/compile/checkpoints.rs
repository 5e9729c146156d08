//! Settings of the checkpoints of a job: building, checking and describing them, and the warnings about a job that
//! has them. The JobMaster takes the checkpoints.

use std::fmt;
use std::time::Duration;

use tanist_ha::clock::millis;
use tanist_model::unnamed_steps;
use tanist_proto::v1;

/// The shortest interval, in milliseconds.
const SHORTEST_INTERVAL_MS: u64 = 10;

/// When and how checkpoints of a job are taken. What is not set is the value of the cluster's configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Checkpoints(pub(super) v1::CheckpointSettings);

impl Checkpoints {
    /// A checkpoint begins each `interval`, at least 10 ms.
    pub fn every(interval: Duration) -> Checkpoints {
        Checkpoints(v1::CheckpointSettings {
            interval_ms: Some(millis(interval)),
            ..v1::CheckpointSettings::default()
        })
    }

    /// No checkpoints are taken, whatever the configuration says.
    pub fn none() -> Checkpoints {
        Checkpoints::every(Duration::ZERO)
    }

    /// Sets the least time between the end of a checkpoint and the beginning of the next one.
    #[must_use]
    pub fn min_pause(mut self, pause: Duration) -> Checkpoints {
        self.0.min_pause_ms = Some(millis(pause));
        self
    }

    /// Sets the timeout of one checkpoint.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Checkpoints {
        self.0.timeout_ms = Some(millis(timeout));
        self
    }

    /// Sets the number of checkpoints of a region that may fail in a row without failing the region; `None`: any
    /// number.
    #[must_use]
    pub fn tolerable_failed(mut self, failures: Option<u32>) -> Checkpoints {
        self.0.tolerable_failures = Some(failures.map_or(-1, i64::from));
        self
    }

    /// Sets the number of completed checkpoints that are kept, at least 1.
    #[must_use]
    pub fn retained(mut self, number: u32) -> Checkpoints {
        self.0.retained = Some(number);
        self
    }

    /// Sets whether the newest checkpoint is kept when the job is cancelled.
    #[must_use]
    pub fn retention(mut self, retention: v1::CheckpointRetention) -> Checkpoints {
        self.0.retention = Some(retention.into());
        self
    }
}

/// Whether a job states with these settings that checkpoints are taken.
pub(super) fn are_wanted(settings: &v1::CheckpointSettings) -> bool {
    settings.interval_ms != Some(0)
}

/// A problem of a setting.
#[derive(Debug)]
pub(super) struct SettingProblem {
    /// The name of its field in a job file.
    pub(super) field: &'static str,
    /// What is wrong with it, and what to write.
    text: String,
}

impl fmt::Display for SettingProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "checkpoints: `{}` {}", self.field, self.text)
    }
}

/// Returns the problems of settings.
pub(super) fn problems(settings: &v1::CheckpointSettings) -> Vec<SettingProblem> {
    let mut problems = Vec::new();
    let mut report = |field, text: String| problems.push(SettingProblem { field, text });
    if let Some(interval) = settings.interval_ms
        && interval != 0
        && interval < SHORTEST_INTERVAL_MS
    {
        let text = format!(
            "is {interval} ms: write at least {SHORTEST_INTERVAL_MS} ms, or 0 for no checkpoints"
        );
        report("interval", text);
    }
    if settings.timeout_ms == Some(0) {
        let text = "is 0: write a time longer than zero, such as `10 min`";
        report("timeout", text.to_owned());
    }
    if let Some(failures) = settings.tolerable_failures
        && !(-1..=i64::from(u32::MAX)).contains(&failures)
    {
        let text = format!("is {failures}: write a number from 0, or -1 for any number");
        report("tolerable-failed", text);
    }
    if settings.retained == Some(0) {
        report("retained", "is 0: write at least 1".to_owned());
    }
    if let Some(retention) = settings.retention
        && v1::CheckpointRetention::try_from(retention).is_err()
    {
        report("retention", format!("{retention} is not known"));
    }
    problems
}

/// Describes settings on one line.
pub(super) fn describe(settings: &v1::CheckpointSettings) -> String {
    let mut parts = Vec::new();
    match settings.interval_ms {
        Some(0) => return "none".to_owned(),
        Some(interval) => parts.push(format!("every {interval} ms")),
        None => parts.push("at the interval of the configuration".to_owned()),
    }
    if let Some(pause) = settings.min_pause_ms {
        parts.push(format!("at least {pause} ms apart"));
    }
    if let Some(timeout) = settings.timeout_ms {
        parts.push(format!("timeout {timeout} ms"));
    }
    match settings.tolerable_failures {
        None => {}
        Some(-1) => parts.push("any number of failures tolerated".to_owned()),
        Some(failures) => parts.push(format!("{failures} failures tolerated")),
    }
    if let Some(retained) = settings.retained {
        parts.push(format!("{retained} retained"));
    }
    if settings.retention.is_some() {
        parts.push(match settings.retention() {
            v1::CheckpointRetention::DeleteOnCancellation => "deleted on cancellation".to_owned(),
            v1::CheckpointRetention::RetainOnCancellation => "retained on cancellation".to_owned(),
        });
    }
    parts.join(", ")
}

/// Warnings for the author of a valid job: in a job that states checkpoints itself, steps with state that have neither
/// a name nor a uid. If only the configuration of the cluster enables checkpoints, the JobMaster reports such steps in
/// an event.
pub fn warnings(graph: &v1::JobGraph) -> Vec<String> {
    let options = graph.options.as_ref();
    if !options
        .and_then(|it| it.checkpoints.as_ref())
        .is_some_and(are_wanted)
    {
        return Vec::new();
    }
    let unnamed = unnamed_steps(graph).into_iter();
    let unnamed: Vec<String> = unnamed.map(|step| format!("`{step}`")).collect();
    if unnamed.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "job `{}`: these steps have state that only the name of their operator identifies in checkpoints: {}; give each a \
         `name` or a `uid`",
        graph.name,
        unnamed.join(", ")
    )]
}
