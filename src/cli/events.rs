//! `tanist job events`: the history of a job, oldest first.

use std::fmt::Write as _;

use tanist_client::{JobClient, JobEventInfo};
use tanist_config::Configuration;
use tanist_proto::id::JobId;
use tanist_telemetry::ExitCode;

use super::args::GlobalArgs;
use super::jobs::show;
use super::output::{Table, time};

pub(super) async fn events(
    configuration: &Configuration,
    global: &GlobalArgs,
    job: JobId,
    tasks: bool,
) -> ExitCode {
    let table = async |jobs: &JobClient| Ok(listing(&jobs.events(job, tasks).await?));
    let path = JobClient::path_of_events(job, tasks);
    show(configuration, global, &path, table).await
}

/// The oldest first.
fn listing(events: &[JobEventInfo]) -> String {
    let mut table = Table::new(["TIME", "TERM", "EVENT", ""]);
    for event in events.iter().rev() {
        let what = event.status.as_ref().unwrap_or(&event.kind);
        table.row([
            time(event.timestamp),
            event
                .epoch
                .map_or_else(String::new, |epoch| epoch.to_string()),
            what.to_string(),
            description(event),
        ]);
    }
    table.to_string()
}

fn description(event: &JobEventInfo) -> String {
    let mut text = event.text.lines().next().unwrap_or_default().to_owned();
    if let (Some(task), Some(attempt)) = (&event.task, event.attempt) {
        let place = if text.is_empty() { "" } else { " on " };
        return format!("{task}, attempt {attempt}{place}{text}");
    }
    if let Some(task) = &event.task {
        text = format!("{task}: {text}");
    }
    if let (Some(regions), Some(until)) = (event.regions, event.until) {
        let noun = if regions == 1 { "region" } else { "regions" };
        write!(text, "; {regions} {noun}, at {}", time(until))
            .expect("writing to a string succeeds");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_told_in_their_order() -> Result<(), serde_json::Error> {
        let events: Vec<JobEventInfo> = serde_json::from_value(json!([
            {"timestamp": 5000, "kind": "TASK", "status": "RUNNING", "task": "sums (1/2)", "attempt": 2,
             "text": "b:9"},
            {"timestamp": 3000, "kind": "RESTART", "epoch": 2, "task": "sums (1/2)", "regions": 1,
             "until": 4000, "text": "it broke\nin detail"},
            {"timestamp": 1000, "kind": "STATUS", "epoch": 1, "status": "RUNNING", "text": ""}
        ]))?;
        let (first, then, due) = (time(1000), time(3000), time(4000));
        let text = listing(&events);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(
            lines[1].starts_with(&first) && lines[1].contains("RUNNING"),
            "{text}"
        );
        let told = format!("sums (1/2): it broke; 1 region, at {due}");
        assert!(
            lines[2].starts_with(&then) && lines[2].contains(&told),
            "{text}"
        );
        let ran = &lines[3];
        assert!(
            ran.contains("RUNNING") && ran.ends_with("sums (1/2), attempt 2 on b:9"),
            "{text}"
        );
        Ok(())
    }
}
