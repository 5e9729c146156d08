//! The progress of a job: one line that changes on a terminal, otherwise one line for each change.

use std::io::{self, IsTerminal as _, Write as _};

use tanist_client::{BlockedReason, JobInfo};
use tanist_telemetry::Printable;

use super::jobs::shown_name;
use super::output::{duration, inform};

/// Time after the start of a job, in milliseconds, during which the reasons for its waiting are not shown:
/// every job waits briefly.
const REASONS_DELAY_MS: i64 = 1_000;

/// Shows the progress of one job on standard error.
#[derive(Debug)]
pub(super) struct Progress {
    terminal: bool,
    shown: String,
    /// The last shown reasons why the job waits.
    shown_reasons: Vec<BlockedReason>,
}

impl Progress {
    pub(super) fn new() -> Progress {
        Progress {
            terminal: io::stderr().is_terminal(),
            shown: String::new(),
            shown_reasons: Vec::new(),
        }
    }

    /// Shows the current state of the job.
    pub(super) fn update(&mut self, job: &JobInfo) {
        let change = change_line(job);
        let reasons = reasons(job);
        if !reasons.is_empty() && !are_same(reasons, &self.shown_reasons) {
            self.end();
            inform(reasons_text(reasons));
            self.shown_reasons = reasons.to_vec();
        }
        if self.terminal {
            let line = status_line(job);
            let _ = write!(io::stderr(), "\r\x1b[2K{}", Printable(&line))
                .and_then(|()| io::stderr().flush());
            self.shown = line;
        } else if self.shown != change {
            inform(&change);
            self.shown = change;
        }
    }

    /// Clears the line before other output.
    pub(super) fn end(&mut self) {
        if self.terminal && !self.shown.is_empty() {
            let _ = write!(io::stderr(), "\r\x1b[2K").and_then(|()| io::stderr().flush());
            self.shown.clear();
        }
    }
}

/// A future that shows the progress may be dropped before it ends.
impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

/// The part of the state that gets a new line when it changes.
fn change_line(job: &JobInfo) -> String {
    let mut line = format!(
        "{}: {} of {} tasks running",
        shown_name(job.shown_state.as_ref(), job.state),
        job.running(),
        job.parallelism()
    );
    if job.finished() > 0 {
        line.push_str(&format!(", {} finished", job.finished()));
    }
    match job.restarts {
        0 => {}
        1 => line.push_str(", 1 restart"),
        restarts => line.push_str(&format!(", {restarts} restarts")),
    }
    line
}

/// The reasons why the job waits, once it has waited longer than every job does at its start.
fn reasons(job: &JobInfo) -> &[BlockedReason] {
    match job.duration < REASONS_DELAY_MS {
        true => &[],
        false => &job.blocked_by,
    }
}

fn reasons_text(reasons: &[BlockedReason]) -> String {
    let texts = reasons.iter().map(|it| it.text.as_str());
    texts.collect::<Vec<_>>().join("; ")
}

fn are_same(reasons: &[BlockedReason], before: &[BlockedReason]) -> bool {
    reasons.len() == before.len()
        && reasons
            .iter()
            .zip(before)
            .all(|(one, other)| one.is_same_as(other))
}

fn status_line(job: &JobInfo) -> String {
    let (change, records) = (change_line(job), job.records());
    format!("{change}, {records} records, {}", duration(job.duration))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_status_line_says_what_the_tasks_do() -> Result<(), serde_json::Error> {
        let mut job: JobInfo = serde_json::from_value(json!({
            "jid": "0".repeat(32), "name": "count", "state": "RUNNING", "start-time": 1,
            "end-time": -1, "duration": 4200,
            "vertices": [{
                "id": "b", "name": "lines", "parallelism": 4, "status": "RUNNING",
                "tasks": {"RUNNING": 3, "FINISHED": 0},
                "metrics": {"read-records": 0, "write-records": 1234}
            }]
        }))?;
        let expected = "RUNNING: 3 of 4 tasks running, 1234 records, 4.2 s";
        assert_eq!(status_line(&job), expected);
        job.restarts = 2;
        job.vertices[0].tasks.finished = 1;
        let expected = "RUNNING: 3 of 4 tasks running, 1 finished, 2 restarts";
        assert_eq!(change_line(&job), expected);
        Ok(())
    }

    #[test]
    fn that_time_has_passed_is_no_news() -> Result<(), serde_json::Error> {
        let reason = |kind: &str, text: &str, at: i64| {
            serde_json::from_value::<BlockedReason>(json!({
                "kind": kind, "text": text, "since": 1, "until": at, "retry-at": at, "missing": []
            }))
        };
        let missing = "1 of 3 slots are missing";
        let before = [reason("no-slots", missing, 2_000)?];
        assert!(are_same(&[reason("no-slots", missing, 3_000)?], &before));
        for news in [
            reason("no-slots", "2 of 3 slots are missing", 2_000)?,
            reason("restarting", missing, 2_000)?,
        ] {
            assert!(!are_same(&[news], &before));
        }
        assert!(!are_same(&[], &before));
        Ok(())
    }

    #[test]
    fn what_a_job_waits_for_is_told_when_it_waits_for_long() -> Result<(), serde_json::Error> {
        let mut job: JobInfo = serde_json::from_value(json!({
            "jid": "0".repeat(32), "name": "count", "state": "RESTARTING", "start-time": 1,
            "end-time": -1, "duration": 200, "vertices": [],
            "blocked-by": [{"text": "no file matches", "until": -1}, {"text": "1 slot is missing", "until": -1}]
        }))?;
        assert!(reasons(&job).is_empty());
        job.duration = 2_000;
        assert_eq!(
            reasons_text(reasons(&job)),
            "no file matches; 1 slot is missing"
        );
        Ok(())
    }
}
