//! How a job that is waited for gets on: one line that changes on a terminal, a line a change elsewhere.

use std::io::{self, IsTerminal as _, Write as _};

use super::jobs::status_name;
use super::output::{duration, say};
use crate::client::JobInfo;

/// What a job waits for at its beginning is not worth telling.
const PATIENCE_MS: i64 = 1_000;

/// Shows the progress of one job on standard error.
#[derive(Debug)]
pub(super) struct Progress {
    terminal: bool,
    shown: String,
    /// Why the job waits, as it was told last, without times: that a second has passed is no news.
    told: String,
}

impl Progress {
    pub(super) fn new() -> Progress {
        Progress {
            terminal: io::stderr().is_terminal(),
            shown: String::new(),
            told: String::new(),
        }
    }

    /// Shows how the job stands.
    pub(super) fn update(&mut self, job: &JobInfo) {
        let change = change_line(job);
        let reasons = reasons(job);
        let news = without_times(&reasons);
        if !reasons.is_empty() && news != self.told {
            self.end();
            say(&reasons);
            self.told = news;
        }
        if self.terminal {
            let line = status_line(job);
            let _ = write!(io::stderr(), "\r\x1b[2K{line}").and_then(|()| io::stderr().flush());
            self.shown = line;
        } else if self.shown != change {
            say(&change);
            self.shown = change;
        }
    }

    /// Leaves the line to what is said next.
    pub(super) fn end(&mut self) {
        if self.terminal && !self.shown.is_empty() {
            let _ = write!(io::stderr(), "\r\x1b[2K").and_then(|()| io::stderr().flush());
            self.shown.clear();
        }
    }
}

/// What is worth a line of its own when it changes.
fn change_line(job: &JobInfo) -> String {
    let mut line = format!(
        "{}: {} of {} tasks running",
        status_name(job.state),
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

/// Why the job waits, if it does so for longer than every job does at its beginning.
fn reasons(job: &JobInfo) -> String {
    if job.duration < PATIENCE_MS {
        return String::new();
    }
    let texts = job.not_running.iter().map(|it| it.text.as_str());
    texts.collect::<Vec<_>>().join("; ")
}

/// A text without numbers that have a unit of time.
fn without_times(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let is_time = |at: usize| {
        let unit = words
            .get(at + 1)
            .map(|unit| unit.trim_end_matches([';', ',', '.']));
        let is_unit = matches!(unit, Some("ms" | "s" | "min" | "h"));
        is_unit && words[at].parse::<f64>().is_ok()
    };
    let kept = words.iter().enumerate().filter(|(at, _)| !is_time(*at));
    kept.map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
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
    fn a_countdown_is_no_news() {
        let text = |seconds| format!("1 of 3 slots are missing; the next is tried in {seconds} s");
        assert_eq!(without_times(&text(3)), without_times(&text(2)));
        assert!(without_times(&text(3)).contains("1 of 3 slots"));
    }

    #[test]
    fn what_a_job_waits_for_is_told_when_it_waits_for_long() -> Result<(), serde_json::Error> {
        let mut job: JobInfo = serde_json::from_value(json!({
            "jid": "0".repeat(32), "name": "count", "state": "RESTARTING", "start-time": 1,
            "end-time": -1, "duration": 200, "vertices": [],
            "not-running": [{"text": "no file matches", "until": -1}, {"text": "1 slot is missing", "until": -1}]
        }))?;
        assert_eq!(reasons(&job), "");
        job.duration = 2_000;
        assert_eq!(reasons(&job), "no file matches; 1 slot is missing");
        Ok(())
    }
}
