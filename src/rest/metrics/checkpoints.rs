//! Metrics of the checkpoints of jobs that have not ended, by job; the age of the last one by region.

use tanist_proto::v1::{CheckpointDetails, CheckpointOutcome, CheckpointSummary, JobDetails};

use super::number;
use super::text::{Exposition, Kind, Labels};
use crate::json::job::status_of;

/// A job with checkpoints, and its labels.
struct Job<'a> {
    labels: [(&'static str, &'a str); 2],
    checkpoints: &'a CheckpointDetails,
}

impl<'a> Job<'a> {
    fn of(details: &'a JobDetails) -> Option<Job<'a>> {
        let checkpoints = details.checkpoints.as_ref()?;
        let has_ended = status_of(details).end().is_some();
        (checkpoints.interval_ms > 0 && !has_ended).then_some(Job {
            labels: [("job_id", &details.job_id), ("job_name", &details.name)],
            checkpoints,
        })
    }

    /// The last complete one. None: there is none, or an earlier leader took it, and its times are not known.
    fn last(&self) -> Option<&'a CheckpointSummary> {
        let mut newest_first = self.checkpoints.history.iter().rev();
        let is_complete = |it: &&CheckpointSummary| it.outcome() == CheckpointOutcome::Completed;
        newest_first
            .find(is_complete)
            .filter(|it| it.ended_at_ms > 0)
    }
}

fn seconds(milliseconds: u64) -> f64 {
    number(milliseconds) / 1000.0
}

/// The longest time that a subtask waited for barriers. None: no subtask has said it.
fn alignment(summary: &CheckpointSummary) -> Option<f64> {
    let subtasks = summary.vertices.iter().flat_map(|it| &it.acknowledgements);
    let times = subtasks.filter_map(|it| it.times);
    let longest = times.map(|it| it.alignment_us).max()?;
    Some(number(longest) / 1_000_000.0)
}

/// Name and help of a metric, and its value.
type Metric<T, V> = (&'static str, &'static str, fn(&T) -> V);

/// Writes the metrics of all jobs, at `now_ms`.
pub(super) fn checkpoints(out: &mut Exposition, jobs: &[JobDetails], now_ms: u64) {
    let jobs: Vec<Job<'_>> = jobs.iter().filter_map(Job::of).collect();
    let counters: [Metric<CheckpointDetails, u64>; 2] = [
        (
            "tanist_checkpoints_completed_total",
            "Checkpoints that are complete, since this leader leads the job",
            |it| it.completed,
        ),
        (
            "tanist_checkpoints_failed_total",
            "Checkpoints that failed, since this leader leads the job",
            |it| it.failed,
        ),
    ];
    for (name, help, value) in counters {
        let samples = jobs.iter();
        let samples = samples.map(|job| (&job.labels[..], number(value(job.checkpoints))));
        out.family(name, Kind::Counter, help, samples);
    }
    let gauges: [Metric<CheckpointSummary, Option<f64>>; 4] = [
        (
            "tanist_checkpoint_duration_seconds",
            "Of the last complete checkpoint: from its trigger until it was durable",
            |it| Some(seconds(it.ended_at_ms.saturating_sub(it.triggered_at_ms))),
        ),
        (
            "tanist_checkpoint_size_bytes",
            "Of the last complete checkpoint: size of its state",
            |it| Some(number(it.size)),
        ),
        (
            "tanist_checkpoint_written_bytes",
            "Of the last complete checkpoint: what was written for it",
            |it| Some(number(it.written)),
        ),
        (
            "tanist_checkpoint_alignment_seconds",
            "Of the last complete checkpoint: the longest time that a subtask waited for barriers",
            alignment,
        ),
    ];
    for (name, help, value) in gauges {
        let samples = jobs.iter();
        let samples = samples.filter_map(|job| Some((&job.labels[..], value(job.last()?)?)));
        out.family(name, Kind::Gauge, help, samples);
    }
    ages(out, &jobs, now_ms);
    let help = "Groups of regions of which no checkpoint is taken at present";
    let skipped = jobs.iter();
    let skipped = skipped.map(|job| {
        let groups = number(job.checkpoints.skipped.len() as u64);
        (&job.labels[..], groups)
    });
    out.family("tanist_checkpoint_skipped", Kind::Gauge, help, skipped);
}

fn ages(out: &mut Exposition, jobs: &[Job<'_>], now_ms: u64) {
    let saved = jobs.iter().flat_map(|job| {
        let saved = job.checkpoints.saved.iter();
        saved.map(move |saved| (job, saved.vertices.join(", "), saved.since_ms))
    });
    let saved: Vec<(&Job<'_>, String, u64)> = saved.collect();
    let labels: Vec<_> = saved
        .iter()
        .map(|(job, region, _)| [job.labels[0], job.labels[1], ("region", region.as_str())])
        .collect();
    let samples = labels.iter().zip(&saved).map(|(labels, (.., since_ms))| {
        let labels: Labels<'_> = labels;
        (labels, seconds(now_ms.saturating_sub(*since_ms)))
    });
    let help =
        "Time since a region was saved last; of the regions of the same vertices the longest";
    out.family("tanist_checkpoint_age_seconds", Kind::Gauge, help, samples);
}

#[cfg(test)]
mod tests {
    use tanist_proto::v1 as pb;

    use super::*;

    #[test]
    fn a_checkpoint_of_which_no_subtask_said_how_long_it_took_has_no_alignment() {
        let summary = |times: &[Option<u64>]| {
            let acknowledgements = times.iter().map(|alignment_us| pb::SubtaskAcknowledgement {
                times: alignment_us.map(|alignment_us| pb::CheckpointTimes {
                    alignment_us,
                    ..pb::CheckpointTimes::default()
                }),
                ..pb::SubtaskAcknowledgement::default()
            });
            CheckpointSummary {
                outcome: CheckpointOutcome::Completed.into(),
                ended_at_ms: 1,
                size: 300,
                vertices: vec![pb::VertexCheckpoint {
                    acknowledgements: acknowledgements.collect(),
                    ..pb::VertexCheckpoint::default()
                }],
                ..CheckpointSummary::default()
            }
        };
        let written = |times: &[Option<u64>]| {
            let details = JobDetails {
                status: pb::JobStatus::Running.into(),
                checkpoints: Some(CheckpointDetails {
                    interval_ms: 1_000,
                    history: vec![summary(times)],
                    ..CheckpointDetails::default()
                }),
                ..JobDetails::default()
            };
            let mut out = Exposition::default();
            checkpoints(&mut out, &[details], 0);
            let text = out.into_text();
            assert!(text.contains("tanist_checkpoint_size_bytes{"), "{text}");
            let lines = text.lines();
            let mut lines =
                lines.filter(|it| it.starts_with("tanist_checkpoint_alignment_seconds{"));
            lines.next().map(str::to_owned)
        };
        assert_eq!(written(&[]), None);
        assert_eq!(written(&[None, None]), None);
        for (times, seconds) in [(&[None, Some(4_000)][..], "0.004"), (&[Some(0)], "0")] {
            let line = written(times).expect("it is known");
            assert!(line.ends_with(seconds), "{line}");
        }
    }
}
